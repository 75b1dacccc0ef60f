"""Implements `ports.Store` on a database: counters, baselines, events, records.

A pass writes a few rows and reads hardly any. Every table is bounded in rows and characters, and
the transaction that adds a row prunes the oldest, so that no uptime fills a disk.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import Column, ColumnElement, Connection, Engine, Select, Table, select

from joulecut_controller.ports import Event, Record, StoredBaseline
from joulecut_controller.store import postgres, sqlite
from joulecut_controller.store.postgres_url import PREFIX as POSTGRESQL
from joulecut_controller.store.postgres_url import PostgresUrl, parse_postgres_url
from joulecut_controller.store.schema import (
    BASELINES,
    COUNTERS,
    EVENTS,
    LEARNT,
    RECORDS,
    migrate,
)
from joulecut_controller.store.transactions import AsUnavailable, Transactions
from joulecut_controller.view import Window
from joulecut_wire.errors import Unavailable

WINDOW_COLUMNS = ("iterations", "time_mean_s", "time_sd_s", "energy_j", "power_w")
NUMBER_MAX = 2**62  # of a counter: SQLite and the wire hold 63 bits
TEXT_MAX = 2_000  # characters of an event's sentence; longer ones are cut
RECORD_MAX = 65_536  # characters of a record's JSON
DETAIL_MAX = 65_536  # of its JSON; longer ones are replaced by a note of their beginning
# With each row that is added: tables shrink, and one wrong time of the clock costs two rows.
OUTDATED_AT_ONCE = 2
IDENTITY = "store"  # the name of its row in the table LEARNT
LEARNT_MAX = 16_000_000  # characters: many times what a controller keeps under one name


@dataclass(frozen=True, slots=True)
class Retention:
    """How many rows each table keeps."""

    events_per_job: int = 5_000  # weeks of decisions of a busy job
    events_s: float = 92 * 86_400.0  # a quarter: a job that is gone is asked about until then
    events: int = 1_000_000  # of all jobs: the events of 200 busy ones, some 400 MB
    baselines: int = 10_000  # of all jobs together: one each in the largest policy file
    records_per_job: int = 5_000  # of one topic: a month of windows, one every ten minutes
    records: int = 1_000_000  # of one topic, of all jobs: a month of 200 of them, some 500 MB


def prune(
    connection: Connection, number: Column[int], keep: int, *among: ColumnElement[bool]
) -> None:
    """Leaves the `keep` rows with the largest numbers, of those that fit `among`.

    Of fewer rows the subquery is NULL, and no number is below that.
    """
    newest = select(number).where(*among).order_by(number.desc())
    oldest_kept = newest.limit(1).offset(keep - 1).scalar_subquery()
    assert isinstance(number.table, Table)
    _delete(connection, number.table, *among, number < oldest_kept)


def _delete(connection: Connection, table: Table, *where: ColumnElement[bool]) -> None:
    """Deletes the rows `where`, but those that another writer is deleting now."""
    rows = select(table.c.id).where(*where).with_for_update(skip_locked=True)
    connection.execute(table.delete().where(table.c.id.in_(rows)))


def _replace(
    connection: Connection, same: ColumnElement[bool], table: Table, values: dict[str, Any]
) -> None:
    """Inserts a row in place of the rows `same`."""
    connection.execute(table.delete().where(same))
    connection.execute(table.insert().values(**values))


def open_store(
    url: str,
    kept: Retention | None = None,
    *,
    base: Path = Path(),
    password_file: Path | None = None,
    timeout_s: float | None = None,
) -> "DatabaseStore":
    """Opens the store of a URL `sqlite:///FILE` (a relative FILE is relative to the process)
    or `postgresql://USER@HOST:PORT/DATABASE`, whose calls end within `timeout_s`, and whose
    certificates are relative to `base`.

    Creates a missing store, and migrates an older one, a file after a copy. Raises BadInput for
    another URL, Unavailable where the store cannot be used; it is then unchanged.
    """
    if url.startswith(POSTGRESQL):
        place = parse_postgres_url(url, base, password_file)
        return _open_postgres(place, kept, timeout_s or postgres.TIMEOUT_S_DEFAULT)
    file = sqlite.file_of(url)
    engine = sqlite.engine(file)
    try:
        with sqlite.as_unavailable(file):
            sqlite.copy_older(engine, file)
    except Unavailable:
        engine.dispose()
        raise
    store = DatabaseStore(engine, lambda: sqlite.as_unavailable(file), f"store {file}", kept)
    try:
        with sqlite.as_unavailable(file):
            sqlite.use_wal(engine)
    except Unavailable:
        store.close()
        raise
    return store


def _open_postgres(place: PostgresUrl, kept: Retention | None, timeout_s: float) -> "DatabaseStore":
    engine = postgres.engine(place, timeout_s=timeout_s)
    name = f"store {place.name}"
    return DatabaseStore(engine, lambda: postgres.as_unavailable(place), name, kept)


class DatabaseStore(Transactions):
    """A `ports.Store` on any engine of `Transactions`."""

    def __init__(
        self,
        engine: Engine,
        as_unavailable: AsUnavailable,
        name: str,
        kept: Retention | None = None,
    ) -> None:
        """As `Transactions`. Raises Unavailable for a database that cannot be used."""
        super().__init__(engine, as_unavailable, name)
        self._kept = kept or Retention()
        try:
            with self.writing() as connection:
                self._migrate(connection)
        except Unavailable:
            self.close()
            raise

    def next_epoch(self, at_least: int) -> int:
        return self._count("epoch", at_least)

    def next_generation(self) -> int:
        """The row's lock is enough: plans of many jobs are numbered beside each other."""
        this, value = COUNTERS.c.name == "generation", COUNTERS.c.value
        counting = COUNTERS.update().where(this, value < NUMBER_MAX).values(value=value + 1)
        with self.writing(beside_others=True) as connection:
            number = connection.execute(counting.returning(value)).scalar_one_or_none()
        return self._count("generation", 0) if number is None else int(number)

    def record(self, *events: Event) -> None:
        with self.writing(beside_others=True) as connection:
            for event in events:
                self._record(connection, event)

    def _record(self, connection: Connection, event: Event) -> None:
        detail = event.detail
        if len(detail) > DETAIL_MAX:
            detail = json.dumps({"cut_from_characters": len(detail), "begins": detail[:TEXT_MAX]})
        written = connection.execute(
            EVENTS.insert().values(
                **asdict(event)
                | {
                    "job": _text(event.job),
                    "text": _text(event.text[:TEXT_MAX]),
                    "detail": _text(detail),
                }
            )
        )
        assert written.inserted_primary_key is not None
        newest = int(written.inserted_primary_key[0])
        _delete(connection, EVENTS, EVENTS.c.id <= newest - self._kept.events)
        of_job = EVENTS.c.job == _text(event.job)
        prune(connection, EVENTS.c.id, self._kept.events_per_job, of_job)
        first = select(EVENTS.c.id).order_by(EVENTS.c.id).limit(OUTDATED_AT_ONCE)
        outdated = EVENTS.c.at_unix_s < event.at_unix_s - self._kept.events_s
        _delete(connection, EVENTS, EVENTS.c.id.in_(first), outdated)

    def events(self, *, job: str = "", limit: int = 100) -> tuple[Event, ...]:
        wanted = (
            select(EVENTS).order_by(EVENTS.c.id.desc()).limit(max(0, min(limit, self._kept.events)))
        )
        if job:
            wanted = wanted.where(EVENTS.c.job == job)
        with self.reading() as connection:
            rows = connection.execute(wanted).all()
        return tuple(Event(*row[1:]) for row in rows)  # its columns after the id

    def keep_baseline(self, job: str, shape: str, kept: StoredBaseline) -> None:
        """Raises ValueError where one of the numbers is not finite."""
        values = {name: getattr(kept.window, name) for name in WINDOW_COLUMNS}
        values["measured_unix_s"] = kept.measured_unix_s
        if not all(math.isfinite(number) for number in values.values() if number is not None):
            raise ValueError(f"baseline of {job}: {kept} is not finite")
        same = (BASELINES.c.job == job) & (BASELINES.c.shape == shape)
        with self.writing() as connection:
            _replace(connection, same, BASELINES, {"job": job, "shape": shape, **values})
            prune(connection, BASELINES.c.id, self._kept.baselines)

    def baselines(self, job: str) -> dict[str, StoredBaseline]:
        with self.reading() as connection:
            of_job = select(BASELINES).where(BASELINES.c.job == job)
            rows = connection.execute(of_job.order_by(BASELINES.c.id)).all()
        return {
            row.shape: StoredBaseline(
                Window(**{name: getattr(row, name) for name in WINDOW_COLUMNS}), row.measured_unix_s
            )
            for row in rows
        }

    def keep_learnt(self, name: str, content: str) -> None:
        """Raises ValueError where it is longer than `LEARNT_MAX`."""
        if len(content) > LEARNT_MAX:
            raise ValueError(f"{name}: {len(content)} characters, {LEARNT_MAX} are kept at most")
        with self.writing() as connection:
            _replace(connection, LEARNT.c.name == name, LEARNT, {"name": name, "content": content})

    def learnt(self, name: str) -> str:
        return self._content(select(LEARNT.c.content).where(LEARNT.c.name == name))

    def identity(self) -> str:
        """The same for every controller of this store, and of no other store."""
        this = LEARNT.c.name == IDENTITY
        with self.writing() as connection:
            known = connection.execute(select(LEARNT.c.content).where(this)).scalar_one_or_none()
            if not known:
                known = uuid4().hex
                connection.execute(LEARNT.insert().values(name=IDENTITY, content=known))
        return known

    def keep_record(
        self, *records: Record, kept_s: float | None = None, per_job: int | None = None
    ) -> None:
        """Raises ValueError where a content is longer than `RECORD_MAX`."""
        for record in records:
            size = len(record.content)
            if size > RECORD_MAX:
                why = f"{size} characters, {RECORD_MAX} are kept at most"
                raise ValueError(f"{record.topic}: {why}")
        topic = RECORDS.c.topic == record.topic
        with self.writing(beside_others=True) as connection:
            for record in records:
                row = {
                    "at_unix_s": record.at_unix_s,
                    "topic": record.topic,
                    "job": _text(record.job),
                    "content": _text(record.content),
                }
                written = connection.execute(RECORDS.insert().values(row))
                job = RECORDS.c.job == row["job"]
                most = per_job or self._kept.records_per_job
                prune(connection, RECORDS.c.id, most, topic, job)
            if kept_s is None:
                prune(connection, RECORDS.c.at_unix_s, self._kept.records, topic)
                return
            old = select(RECORDS.c.id).where(topic, RECORDS.c.at_unix_s < record.at_unix_s - kept_s)
            oldest = old.order_by(RECORDS.c.at_unix_s).limit(OUTDATED_AT_ONCE)
            _delete(connection, RECORDS, RECORDS.c.id.in_(oldest))
            assert written.inserted_primary_key is not None
            crowded_out = int(written.inserted_primary_key[0]) - self._kept.records
            # An expression, which no index of topics has: SQLite would read all of the topic.
            same = RECORDS.c.topic.concat("") == record.topic
            _delete(connection, RECORDS, RECORDS.c.id <= crowded_out, same)

    def records(
        self, topic: str, *, job: str = "", since_unix_s: float = 0.0, limit: int = 1_000
    ) -> tuple[Record, ...]:
        wanted = select(RECORDS).where(
            RECORDS.c.topic == topic, RECORDS.c.at_unix_s >= since_unix_s
        )
        if job:
            wanted = wanted.where(RECORDS.c.job == job)
        bounded = max(0, min(limit, self._kept.records))
        with self.reading() as connection:
            rows = connection.execute(wanted.order_by(RECORDS.c.id.desc()).limit(bounded)).all()
        return tuple(Record(row.at_unix_s, row.topic, row.job, row.content) for row in rows)

    def _content(self, wanted: Select[Any]) -> str:
        """The text of one row; empty without a row."""
        with self.reading() as connection:
            return str(connection.execute(wanted).scalar_one_or_none() or "")

    def _migrate(self, connection: Connection) -> None:
        try:
            migrate(connection)
        except Unavailable as error:
            raise Unavailable(f"{self.name} {error}") from None

    def _count(self, name: str, at_least: int) -> int:
        with self.writing() as connection:
            try:
                return count(connection, name, at_least)
            except ValueError as error:
                raise Unavailable(f"{self.name}: {error}") from None


def count(connection: Connection, name: str, at_least: int = 0) -> int:
    """The next number of a counter, larger than `at_least`. Raises ValueError where there is
    none.
    """
    this = COUNTERS.c.name == name
    row = connection.execute(select(COUNTERS.c.value).where(this)).one_or_none()
    number = max(row[0] if row else 0, at_least) + 1
    if number > NUMBER_MAX:
        raise ValueError(
            f"{name} {number} is out of range; an agent or the store has a damaged number"
        )
    if row:
        connection.execute(COUNTERS.update().where(this).values(value=number))
    else:
        connection.execute(COUNTERS.insert().values(name=name, value=number))
    return number


def _text(words: str) -> str:
    """Text without characters that a database refuses (half a surrogate pair, NUL)."""
    return words.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")
