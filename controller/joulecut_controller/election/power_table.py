"""The power budget's table: one row a job, from its controller to the leader and back.

Rows are written under the writers' lock with an ascending number `changed`: a reader that has seen
a number has seen every earlier change.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import func, select

from joulecut_controller.ports import Store
from joulecut_controller.store.database import DatabaseStore, count
from joulecut_controller.store.schema import POWER


@dataclass(frozen=True, slots=True)
class PowerRow:
    """One job; values are JSON, or empty. The job's controller writes `party`, and the `outcome` of
    the order with number `done`. The leader writes `share`, and `ordered`, the power limits to set,
    with their `number`.
    """

    job: str
    party: str = ""
    share: str = ""
    ordered: str = ""
    number: int = 0
    outcome: str = ""
    done: int = 0
    changed: int = 0


class OwnTable:
    """The table of a single controller, in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[str, PowerRow] = {}

    def exchange(
        self, _: int, said: Mapping[str, Mapping[str, Any]], gone: Collection[str] = ()
    ) -> Sequence[PowerRow] | None:
        for job in gone:
            self._rows.pop(job, None)
        for job, columns in said.items():
            self._rows[job] = replace(self._rows.get(job, PowerRow(job)), **columns)
        return [self._rows[job] for job in said] if self._rows else None

    def take(self, jobs: Collection[str]) -> tuple[Sequence[PowerRow], int]:
        return [self._rows[job] for job in jobs], self._store.next_generation()


class PowerTable:
    """The table in a store that several controllers share. Raises Unavailable."""

    def __init__(self, store: DatabaseStore) -> None:
        self._store = store

    def exchange(
        self,
        since: int,
        said: Mapping[str, Mapping[str, str | int]],
        gone: Collection[str] = (),
    ) -> Sequence[PowerRow] | None:
        """Writes columns of rows and deletes the rows in `gone`. Returns rows that changed after
        `since`; None where the table is empty.
        """
        if said or gone:
            with self._store.writing() as connection:
                changed = count(connection, "power")
                connection.execute(POWER.delete().where(POWER.c.job.in_(gone)))
                known = set(connection.execute(select(POWER.c.job)).scalars())
                for job, columns in said.items():
                    values = {**columns, "changed": changed}
                    if job in known:
                        this = POWER.c.job == job
                        connection.execute(POWER.update().where(this).values(values))
                    else:
                        row = PowerRow(job)
                        empty = {name: getattr(row, name) for name in PowerRow.__slots__}
                        connection.execute(POWER.insert().values({**empty, **values}))
        with self._store.reading() as connection:
            rows = connection.execute(select(POWER).where(POWER.c.changed > since)).all()
            if not rows and not connection.execute(select(func.count(POWER.c.job))).scalar_one():
                return None
        return [PowerRow(*row) for row in rows]

    def take(self, jobs: Collection[str]) -> tuple[Sequence[PowerRow], int]:
        """The rows of these jobs, and a new plan number of the same transaction, so that a later
        order has a larger number.
        """
        with self._store.writing() as connection:
            rows = connection.execute(select(POWER).where(POWER.c.job.in_(jobs))).all()
            return [PowerRow(*row) for row in rows], count(connection, "generation")
