"""SQLAlchemy engine for PostgreSQL with a deadline on every call.

The controller uses its store in the middle of a pass, so a server that is frozen, cut off or busy
must not block the pass. The server's own limits for statements and locks come first; where it does
not answer at all, the socket's deadline ends the call.
"""

import contextlib
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pg8000.exceptions
from pg8000.exceptions import Error, InterfaceError
from pg8000.legacy import Connection as DriverConnection
from sqlalchemy import (
    Connection,
    Engine,
    ExceptionContext,
    Pool,
    column,
    create_engine,
    event,
    exc,
    text,
)
from sqlalchemy.pool import NullPool, QueuePool

from joulecut_controller.store.postgres_url import PostgresUrl
from joulecut_wire.errors import Unavailable

TIMEOUT_S_DEFAULT = 2.0
# The server's own limits come first: a refused statement leaves a connection that can be used.
STATEMENT_SHARE = 0.8
LOCK_SHARE = 0.6
VERSION_MIN = 14  # the first with idle_session_timeout, on which leadership rests
# Advisory lock of writers, one at a time; an arbitrary number.
WRITERS_KEY = 0x6A6F756C65637574
LOCK_KEY = 0x6A6F756C6C656164  # the leader's, of all controllers of a database; arbitrary as well
# Each controller also holds one of its number, in the class that LOCK_KEY begins with.
CONTROLLERS_KEY = LOCK_KEY >> 32
# The sessions that hold these locks, and the number; none of the leader lock.
LOCKS = (
    text(
        "SELECT pid, CASE objsubid WHEN 2 THEN objid::bigint END AS number FROM pg_locks"
        " WHERE locktype = 'advisory' AND granted AND classid::bigint = :high"
        " AND (objsubid = 2 OR objsubid = 1 AND objid::bigint = :low)"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    .bindparams(high=CONTROLLERS_KEY, low=LOCK_KEY & 0xFFFF_FFFF)
    .columns(column("pid"), column("number"))
    .subquery("held")
)
NAME_BYTES_MAX = 63  # of application_name; the server cuts longer ones

# Closing a broken connection fails, and its traceback would flood the log.
logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)

# Error code of the server -> meaning and remedy.
_REMEDIES = {
    "28P01": "the password is wrong: correct it (store.password_file)",
    "28000": "this user is denied access: correct pg_hba.conf or the user name",
    "3D000": "no such database: create it, owned by this user",
    "42501": "permission denied: make this user the owner of the database",
    "25006": "it is read-only: name the primary, not a standby",
    "53100": "the disk is full: make room",
    "53300": "too many connections: raise max_connections",
    "55P03": "another writer holds it for too long",
    "57014": "it answers too slowly",
    "57P01": "it is stopping",
    "57P02": "it is stopping",
    "57P03": "it is starting or stopping",
    "57P05": "the session was idle for too long",
}
_ENDED = {"57P01", "57P02", "57P03", "57P05", "25P03"}  # these end the session


def engine(
    place: PostgresUrl, *, timeout_s: float = TIMEOUT_S_DEFAULT, name: str = "joulecut"
) -> Engine:
    """An engine with at most one connection, which is tested before each use.

    No call on it takes longer than `timeout_s` to connect and as much for each statement.
    """
    made = _engine(place, timeout_s, name, poolclass=QueuePool, pool_size=1, max_overflow=0)

    @event.listens_for(made, "begin")
    def _begin(connection: Connection) -> None:
        # Writers exclude each other from the start of a transaction, as on SQLite: no
        # transaction fails half way because of another one. Those that only add rows of their
        # own hold the lock together.
        options = connection.get_execution_options()
        if not options.get("reads", False):
            shared = "_shared" if options.get("beside_others", False) else ""
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock{shared}({WRITERS_KEY})")

    return made


def session(place: PostgresUrl, *, timeout_s: float, name: str) -> Connection:
    """One connection of its own, without transactions. Raises what the driver raises."""
    made = _engine(place, timeout_s, name, poolclass=NullPool)
    return made.connect().execution_options(isolation_level="AUTOCOMMIT")


def _engine(
    place: PostgresUrl, timeout_s: float, name: str, *, poolclass: type[Pool], **pooling: int
) -> Engine:
    made = create_engine(
        "postgresql+pg8000://",
        poolclass=poolclass,
        pool_pre_ping=poolclass is QueuePool,
        pool_reset_on_return="rollback",
        connect_args={
            "user": place.user,
            "database": place.database,
            "timeout": timeout_s,
            "application_name": name.encode()[:NAME_BYTES_MAX].decode(errors="ignore"),
            "tcp_keepalive": True,
        },
        **pooling,
    )

    @event.listens_for(made, "do_connect")
    def _arrive(_d: object, _r: object, _a: object, how: dict[str, Any]) -> PostgresConnection:
        how["password"] = place.password()
        how["ssl_context"] = _context(place)
        if place.folder:
            how["unix_sock"] = f"{place.folder}/.s.PGSQL.{place.port}"
        else:
            how["host"], how["port"] = place.host, place.port
        return PostgresConnection(**how)

    @event.listens_for(made, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        try:
            _agree(connection, place, timeout_s)
        except BaseException:
            connection.close()
            raise

    @event.listens_for(made, "handle_error")
    def _ended(context: ExceptionContext) -> None:
        if _code(context.original_exception) in _ENDED:
            context.is_disconnect = True

    return made


def _code(error: BaseException | None) -> str:
    """The server's five-character error code; empty where it sent none."""
    answer = error.args[0] if error is not None and error.args else ""
    return str(answer.get("C", "")) if isinstance(answer, dict) else ""


def _agree(connection: Any, place: PostgresUrl, timeout_s: float) -> None:
    """Sets the connection's limits; refuses a server that is too old or read-only."""
    cursor = connection.cursor()
    cursor.execute(
        "SELECT current_setting('server_version_num')::int / 10000, pg_is_in_recovery(),"
        " set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),"
        " set_config('idle_in_transaction_session_timeout', %s, false),"
        " CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')"
        " THEN set_config('synchronous_commit', 'on', false) END",
        (
            str(int(1000 * timeout_s * STATEMENT_SHARE)),
            str(int(1000 * timeout_s * LOCK_SHARE)),
            str(int(1000 * timeout_s * 5)),  # a transaction of ours is a few statements
        ),
    )
    version, follows, *_ = cursor.fetchone()
    connection.commit()
    cursor.close()
    if version < VERSION_MIN:
        raise Unavailable(
            f"store {place.name}: PostgreSQL {version} is too old: {VERSION_MIN} or newer is needed"
        )
    if follows:
        raise Unavailable(f"store {place.name}: {_REMEDIES['25006']}")


def _context(place: PostgresUrl) -> ssl.SSLContext | bool:
    """False asks for no encryption. Raises OSError for files that cannot be read."""
    if place.encryption == "disable":
        return False
    for file in (place.ca, place.cert, place.key):
        if file and not file.is_file():
            raise Unavailable(f"store {place.name}: {file} does not exist")
    context = ssl.create_default_context(cafile=str(place.ca) if place.ca else None)
    if place.encryption == "require":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if place.cert:
        context.load_cert_chain(place.cert, place.key)
    return context


@contextmanager
def as_unavailable(place: PostgresUrl) -> Iterator[None]:
    """Turns errors of the driver and server into Unavailable with the remedy."""
    try:
        yield
    except (exc.SQLAlchemyError, pg8000.exceptions.Error, OSError) as error:
        raise Unavailable(f"store {place.name}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    origin: BaseException = getattr(error, "orig", None) or error
    answer = origin.args[0] if origin.args else ""
    if isinstance(answer, dict):  # an error message of the server
        remedy = _REMEDIES.get(_code(origin), "")
        said = f"{answer.get('M', '')} ({answer.get('C', '?')})"
        return f"{remedy}: {said}" if remedy else said
    cause: BaseException = origin.__cause__ or origin.__context__ or origin
    said = (str(cause) or type(cause).__name__).splitlines()[0]
    if isinstance(cause, ssl.SSLError):
        return f"the TLS connection failed: {said} (sslmode, sslrootcert)"
    if isinstance(error, exc.TimeoutError):
        return "it answers too slowly"
    if "refuses SSL" in said:
        return "it does not support TLS: enable it there, or set sslmode=disable"
    if "authentication" in said.lower() or "password" in said.lower():
        return f"the password is missing or wrong: {said}"
    return f"it does not answer ({said}): check that it runs and is reachable"


class PostgresConnection(DriverConnection):  # type: ignore[misc]  # the driver ships no types
    """The driver's connection; `close` never raises and leaves nothing open.

    The driver writes its last message into a buffer. Where the server was killed, the buffer keeps
    it, and Python prints a traceback much later. A network error during a read would reach
    SQLAlchemy as a bare OSError, which it does not take for the end of the connection.
    """

    def __init__(self, **how: Any) -> None:
        try:
            super().__init__(**how)
        except BaseException:
            self.close()
            raise

    def handle_messages(self, context: Any) -> None:
        try:
            super().handle_messages(context)
        except OSError as error:  # also a read that timed out: the rest of the stream is unusable
            raise InterfaceError("network error") from error

    def close(self) -> None:
        buffer, wire = getattr(self, "_sock", None), getattr(self, "_usock", None)
        with contextlib.suppress(Error, OSError, AttributeError):
            super().close()
        for one in (buffer, wire):
            if one is not None:
                with contextlib.suppress(OSError, ValueError):
                    one.close()
