"""How much a store keeps, so that no uptime fills a disk: the oldest go first.

Pruned in the transaction that adds, and bounded by rows and by characters, since a job's words
and the plans of ten thousand GPUs are as long as they are.
"""

from dataclasses import dataclass

from sqlalchemy import Column, ColumnElement, Connection, select

TEXT_MAX = 2_000  # characters of an event's sentence; longer ones are cut
RECORD_MAX = 65_536  # characters of a record's JSON
DETAIL_MAX = 65_536  # of its JSON; longer ones are replaced by a note of their beginning
LEARNT_MAX = 16_000_000  # characters: the largest estimator there can be, packed, is half of it


@dataclass(frozen=True, slots=True)
class Kept:
    """How many rows stay; the oldest go first."""

    events: int = 100_000  # 20-40 MB; weeks of decisions for tens of jobs
    plans_per_job: int = 50  # the last hours of a busy job
    plans: int = 10_000  # of all jobs together: one each in the largest policy file
    baselines: int = 10_000  # likewise
    notebooks: int = 1_000  # 30 kB each
    records_per_job: int = 5_000  # of one topic: a month of windows, one every ten minutes
    records: int = 200_000  # of all topics and jobs together: some 100 MB


def prune(
    connection: Connection, number: Column[int], keep: int, *among: ColumnElement[bool]
) -> None:
    """Leaves the `keep` rows with the largest numbers, of those that fit `among`.

    Of fewer rows the subquery is NULL, and no number is below that.
    """
    newest = select(number).where(*among).order_by(number.desc())
    oldest_kept = newest.limit(1).offset(keep - 1).scalar_subquery()
    connection.execute(number.table.delete().where(*among, number < oldest_kept))
