"""The tables, their version, and the way from an older version to this one.

A database of a newer version is refused: an older program would lose data it does not know.
"""

from collections.abc import Callable, Sequence

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    inspect,
    select,
)

from joulecut_wire.errors import Unavailable

GPU_CHARACTERS_MAX = 96  # a UUID has 40, of MIG 60
METADATA = MetaData()
# 63 bits on every engine; SQLite counts its own ids only in what it calls an INTEGER.
NUMBER = BigInteger().with_variant(Integer(), "sqlite")

VERSION_TABLE = Table(
    "joulecut_schema", METADATA, Column("version", Integer, primary_key=True, autoincrement=False)
)

COUNTERS = Table(
    "counter",
    METADATA,
    Column("name", String(32), primary_key=True),
    Column("value", NUMBER, nullable=False),
)

EVENTS = Table(
    "event",
    METADATA,
    Column("id", NUMBER, primary_key=True),
    Column("at_unix_s", Float, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("job", String(253), nullable=False),
    Column("generation", NUMBER, nullable=False),
    Column("text", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Index("event_by_job", "job", "id"),
    sqlite_autoincrement=True,  # an id is never given twice, so pruning by id is exact
)

BASELINES = Table(
    "baseline",
    METADATA,
    Column("id", NUMBER, primary_key=True),  # grows: the oldest kept has the smallest
    Column("job", String(253), nullable=False),
    Column("shape", Text, nullable=False),
    Column("iterations", Integer, nullable=False),
    Column("time_mean_s", Float, nullable=False),
    Column("time_sd_s", Float, nullable=False),
    Column("energy_j", Float),
    Column("power_w", Float),
    Column("measured_unix_s", Float),
    Index("baseline_by_job", "job", "shape", unique=True),
    sqlite_autoincrement=True,
)

LEARNT = Table(
    "learnt",
    METADATA,
    Column("name", String(32), primary_key=True),
    Column("content", Text, nullable=False),
)

RECORDS = Table(
    "record",
    METADATA,
    Column("id", NUMBER, primary_key=True),
    Column("at_unix_s", Float, nullable=False),
    Column("topic", String(32), nullable=False),
    Column("job", String(253), nullable=False),
    Column("content", Text, nullable=False),
    Index("record_by_job", "topic", "job", "id"),
    Index("record_by_time", "topic", "at_unix_s"),
    sqlite_autoincrement=True,
)

# Which controller of a PostgreSQL store commands a job; a holder of 0 has handed it over.
CLAIMS = Table(
    "claim",
    METADATA,
    Column("job", String(253), primary_key=True),
    Column("holder", NUMBER, nullable=False),
)

# Rows of each controller. With a GPU: a job reports from it, one row per agent. Without a GPU: an
# agent that the controller does not reach, or a job on such an agent. The job "/most" has in
# place of a GPU the number of jobs that the controller can keep.
REACH = Table(
    "reach",
    METADATA,
    Column("holder", NUMBER, primary_key=True, autoincrement=False),
    Column("job", String(253), primary_key=True),
    Column("gpu", String(GPU_CHARACTERS_MAX), primary_key=True),
)

# What each of these controllers shows of its jobs, as JSON, and when by the database's clock.
PARTS = Table(
    "part",
    METADATA,
    Column("holder", NUMBER, primary_key=True, autoincrement=False),
    Column("at_unix_s", Float, nullable=False),
    Column("content", Text, nullable=False),
)

# What is said of each job under a power budget (election.power_table).
POWER = Table(
    "power",
    METADATA,
    Column("job", String(253), primary_key=True),
    Column("party", Text, nullable=False),
    Column("share", Text, nullable=False),
    Column("ordered", Text, nullable=False),
    Column("number", NUMBER, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("done", NUMBER, nullable=False),
    Column("changed", NUMBER, nullable=False),
)

Migration = Callable[[Connection], None]


def _add_measured_unix_s(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE baseline ADD COLUMN measured_unix_s FLOAT")


def _nothing(_: Connection) -> None:
    """Version 2 had a table of windows of jobs without a profile, version 5 one of profiles. Stores
    keep them: the version before reads the first, and the other is a user's.
    """


def _made(table: Table) -> Migration:
    """A dump of an older version that is restored leaves the tables of the newer one."""

    def make(connection: Connection) -> None:
        table.drop(connection, checkfirst=True)
        table.create(connection)

    return make


def _drop_plans(connection: Connection) -> None:
    """Events have the number, the reason and the clocks of each plan."""
    connection.exec_driver_sql("DROP TABLE plan")


# MIGRATIONS[i] turns version i + 1 into i + 2; the tables above are the newest. Append only:
# files in the field hold every version there ever was.
MIGRATIONS: tuple[Migration, ...] = (
    _nothing,
    _made(LEARNT),
    _made(RECORDS),
    _nothing,
    _add_measured_unix_s,
    _made(CLAIMS),
    _made(PARTS),
    _drop_plans,
    _made(REACH),
    _made(POWER),
)


def migrate(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """Brings a database to the newest version, and returns that; an empty one becomes ours.

    Runs inside the caller's transaction: all of it or nothing. Raises Unavailable for a
    newer database, and for one that is not ours.
    """
    newest = len(migrations) + 1
    version = _version(connection)
    if version is None:
        METADATA.create_all(connection)
    elif version > newest:
        raise Unavailable(
            f"has version {version}, this program supports versions up to {newest}: "
            "start the newer program, give another store, or take the copy that was made before it "
            "was migrated (docs/controller.md#upgrade-and-rollback)"
        )
    else:
        for migration in migrations[version - 1 :]:
            migration(connection)
    if version != newest:
        connection.execute(VERSION_TABLE.delete())
        connection.execute(VERSION_TABLE.insert().values(version=newest))
    return newest


def older_version(connection: Connection) -> int | None:
    """The version of a database that `migrate` would change, else None. Raises Unavailable."""
    version = _version(connection)
    return version if version is not None and version <= len(MIGRATIONS) else None


def _version(connection: Connection) -> int | None:
    """None for an empty database."""
    names = inspect(connection).get_table_names()
    if not names:
        return None
    if VERSION_TABLE.name not in names:
        raise Unavailable("is a database of another program: give another store")
    version = connection.execute(select(VERSION_TABLE.c.version)).scalar_one_or_none()
    if not isinstance(version, int) or version < 1:
        raise Unavailable("has no version: move it away (it was not changed)")
    return version
