"""One PostgreSQL database as an engine whose every call ends, and soon.

The controller asks its store in the middle of a pass, so a server that is frozen, cut off or
busy must cost a sentence and not the pass. The server gives up first (its own limits for
statements and locks); where it says nothing at all, the socket's deadline ends the call.
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
from sqlalchemy import Connection, Engine, ExceptionContext, Pool, create_engine, event, exc
from sqlalchemy.pool import NullPool, QueuePool

from joulecut_controller.store.postgres_url import PostgresUrl
from joulecut_wire.errors import Unavailable

TIMEOUT_S_DEFAULT = 2.0
# The server's own limits come first: a refused statement leaves a connection that can be used.
STATEMENT_SHARE = 0.8
LOCK_SHARE = 0.6
VERSION_MIN = 14  # the first with idle_session_timeout, on which leadership rests
# Of all who write to this database one at a time; any number that no other program picks.
WRITERS_KEY = 0x6A6F756C65637574
NAME_BYTES_MAX = 63  # of an application's name; the server cuts longer ones

# A connection that is gone cannot be closed politely, and nobody needs a page about that.
logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)

# What the server's code means here, and what helps.
_REMEDIES = {
    "28P01": "the password is wrong: mend it (store.password_file)",
    "28000": "this user is not let in: mend pg_hba.conf or the user's name",
    "3D000": "there is no such database: create it, owned by this user",
    "42501": "this user may not do that: make it the owner of the database",
    "25006": "it cannot be written: name the primary, and no standby",
    "53100": "the disk is full: make room",
    "53300": "it takes no more connections: raise max_connections",
    "55P03": "another process holds it: stop that one",
    "57014": "it answers too slowly",
    "57P01": "it is stopping",
    "57P02": "it is stopping",
    "57P03": "it is starting or stopping",
    "57P05": "it heard nothing from us for too long",
}
_ENDED = {"57P01", "57P02", "57P03", "57P05", "25P03"}  # the session is over with these


def engine(
    place: PostgresUrl, *, timeout_s: float = TIMEOUT_S_DEFAULT, name: str = "joulecut"
) -> Engine:
    """An engine with one connection at most, which is looked at before each use.

    No call on it takes longer than `timeout_s` to connect and as much for each statement.
    """
    made = _engine(place, timeout_s, name, poolclass=QueuePool, pool_size=1, max_overflow=0)

    @event.listens_for(made, "begin")
    def _begin(connection: Connection) -> None:
        # Writers exclude each other from their first moment, as they do on one SQLite file:
        # no transaction ever fails half way because another one was quicker.
        if not connection.get_execution_options().get("reads", False):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITERS_KEY})")

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
    """What the server answered, in five characters; empty where it did not."""
    told = error.args[0] if error is not None and error.args else ""
    return str(told.get("C", "")) if isinstance(told, dict) else ""


def _agree(connection: Any, place: PostgresUrl, timeout_s: float) -> None:
    """Limits for this connection; refuses a server that would not keep what we write."""
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
            raise Unavailable(f"store {place.name}: {file} is not there")
    context = ssl.create_default_context(cafile=str(place.ca) if place.ca else None)
    if place.encryption == "require":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if place.cert:
        context.load_cert_chain(place.cert, place.key)
    return context


@contextmanager
def as_unavailable(place: PostgresUrl) -> Iterator[None]:
    """Turns what goes wrong with the server into one sentence that says what helps."""
    try:
        yield
    except (exc.SQLAlchemyError, pg8000.exceptions.Error, OSError) as error:
        raise Unavailable(f"store {place.name}: {_said(error)}") from None


def _said(error: Exception) -> str:
    origin: BaseException = getattr(error, "orig", None) or error
    told = origin.args[0] if origin.args else ""
    if isinstance(told, dict):  # what the server answered
        remedy = _REMEDIES.get(_code(origin), "")
        said = f"{told.get('M', '')} ({told.get('C', '?')})"
        return f"{remedy}: {said}" if remedy else said
    cause: BaseException = origin.__cause__ or origin.__context__ or origin
    said = (str(cause) or type(cause).__name__).splitlines()[0]
    if isinstance(cause, ssl.SSLError):
        return f"it cannot be spoken to in TLS: {said} (sslmode, sslrootcert)"
    if isinstance(error, exc.TimeoutError):
        return "it answers too slowly"
    if "refuses SSL" in said:
        return "it does not speak TLS: switch it on there, or ask for sslmode=disable"
    if "authentication" in said.lower() or "password" in said.lower():
        return f"the password is missing or wrong: {said}"
    return f"it does not answer: is it up, and within reach? ({said})"


class PostgresConnection(DriverConnection):  # type: ignore[misc]  # the driver ships no types
    """As the driver's own; `close` never raises and leaves nothing open."""

    def __init__(self, **how: Any) -> None:
        try:
            super().__init__(**how)
        except BaseException:
            self.close()
            raise

    def handle_messages(self, context: Any) -> None:
        try:
            super().handle_messages(context)
        except OSError as error:  # also a read that took too long: what follows is half an answer
            raise InterfaceError("network error") from error

    def close(self) -> None:
        buffer, wire = getattr(self, "_sock", None), getattr(self, "_usock", None)
        with contextlib.suppress(Error, OSError, AttributeError):
            super().close()
        for one in (buffer, wire):
            if one is not None:
                with contextlib.suppress(OSError, ValueError):
                    one.close()
