"""SQLAlchemy engine for one SQLite file; the process may be killed at any moment.

Every commit is on disk before it returns (WAL, synchronous=FULL): a counter that fell back after a
power cut would give one number to two plans.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc
from sqlalchemy.pool import StaticPool

from joulecut_controller.store.postgres_url import PREFIX as POSTGRESQL
from joulecut_controller.store.postgres_url import without_password
from joulecut_controller.store.schema import older_version
from joulecut_wire.errors import BadInput, Unavailable

PREFIX = "sqlite:///"
# How long a write waits for another process. A pass must not block; a query by an operator takes
# milliseconds.
BUSY_TIMEOUT_MS = 1_000

# Part of the message of SQLite -> meaning and remedy, in this order.
_REMEDIES = (
    ("locked", "another process holds it: stop that one"),
    ("readonly", "it cannot be written: check its permissions, and those of its directory"),
    ("disk is full", "the disk is full: free space"),
    ("disk i/o", "the disk fails, or cannot hold a database: check the disk"),
    ("unable to open", "it cannot be opened: check that its directory exists and is writable"),
    ("malformed", "it is damaged: move it away to start with a new one (it was not changed)"),
    ("not a database", "it is not a database: move it away (it was not changed)"),
)


def file_of(url: str) -> Path:
    """The file of `sqlite:///FILE`. Raises BadInput for anything else."""
    if not url.startswith(PREFIX) or not url.removeprefix(PREFIX):
        allowed = f"{PREFIX}FILE, or {POSTGRESQL}USER@HOST:PORT/DATABASE"
        raise BadInput(f"store {without_password(url)}", "not a store URL", allowed)
    return Path(url.removeprefix(PREFIX))


def engine(file: Path) -> Engine:
    """An engine with one connection, which any thread may use, one at a time."""
    made = create_engine(
        URL.create("sqlite", database=str(file)),
        poolclass=StaticPool,
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000.0},
    )

    @event.listens_for(made, "connect")
    def _prepare(connection: sqlite3.Connection, record: object) -> None:  # noqa: ARG001
        try:
            connection.isolation_level = None  # the driver then begins nothing by itself
            connection.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error:
            connection.close()
            raise

    @event.listens_for(made, "begin")
    def _begin(connection: Connection) -> None:
        # Writers lock at once and not at their first write: of two processes one waits,
        # and neither fails half way.
        reads = connection.get_execution_options().get("reads", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return made


def copy_older(engine: Engine, file: Path) -> Path | None:
    """Copies a store of an older version to FILE.vVERSION before it is migrated; None where no
    migration is due. Raises the driver's errors; the store is then unchanged.
    """
    with engine.connect().execution_options(reads=True) as connection:
        try:
            version = older_version(connection)
        except Unavailable:  # it is not ours, as the migration will say
            return None
        if version is None:
            return None
        copy = file.with_name(f"{file.name}.v{version}")
        part = file.with_name(f"{copy.name}.part")
        part.unlink(missing_ok=True)
        with closing(sqlite3.connect(part)) as target:
            source = connection.connection.driver_connection
            assert isinstance(source, sqlite3.Connection)
            source.backup(target)
        part.replace(copy)
        folder = os.open(copy.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return copy


def use_wal(engine: Engine) -> None:
    """Lets other processes read during a write. The setting stays in the file, so it comes after
    the check that the file is ours. Raises the driver's errors.
    """
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()


@contextmanager
def as_unavailable(file: Path) -> Iterator[None]:
    """Turns errors of the driver into Unavailable with the remedy."""
    try:
        yield
    except (exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
        said = str(getattr(error, "orig", None) or error).splitlines()[0]
        remedy = next((text for sign, text in _REMEDIES if sign in said.lower()), "")
        raise Unavailable(
            f"store {file}: {remedy} ({said})" if remedy else f"store {file}: {said}"
        ) from None
