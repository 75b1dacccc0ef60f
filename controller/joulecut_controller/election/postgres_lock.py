"""The locks of controllers that share a PostgreSQL database: advisory session locks.

Each controller holds one of its own number, and one of them the leader lock besides. The server
drops both with the session, and ends a session that was silent for `hold_s`
(idle_session_timeout): a controller that was killed, frozen, cut off or lost with its machine loses
them by one clock, the server's. A connection pooler that lends sessions to others breaks that; the
check notices it, because it looks for the locks in the session that acquired them.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from sqlalchemy import (
    Boolean,
    Connection,
    Select,
    bindparam,
    case,
    column,
    func,
    select,
    table,
    text,
)

from joulecut_controller.election.leader_lock import Timing
from joulecut_controller.store import postgres
from joulecut_controller.store.postgres import CONTROLLERS_KEY, LOCK_KEY, LOCKS
from joulecut_controller.store.postgres_url import PostgresUrl

_EXPIRING = text("SELECT set_config('idle_session_timeout', :ms, false)")
_NUMBER = text(
    "INSERT INTO counter VALUES ('controller', 1) ON CONFLICT (name)"
    " DO UPDATE SET value = counter.value + 1 RETURNING value"
)
_NUMBERED = text(f"SELECT pg_advisory_lock({CONTROLLERS_KEY}, :number)")
_ACQUIRE = text(f"SELECT pg_try_advisory_lock({LOCK_KEY})")
_LEADS = bindparam("leads", type_=Boolean)
_CHECK = select(
    (func.count(LOCKS.c.number) == 1).label("alive"),
    case((_LEADS, func.count() == 2), else_=func.pg_try_advisory_lock(LOCK_KEY)).label("leads"),
).where(LOCKS.c.pid == func.pg_backend_pid())
_HOLDER: Select[Any] = (
    select(column("application_name"))
    .select_from(table("pg_stat_activity", column("pid")))
    .where(column("pid").in_(select(LOCKS.c.pid).where(LOCKS.c.number.is_(None))))
)


class PostgresLock:
    """Implements `leader_lock.LeaderLock`. `name` is the session's name on the server."""

    def __init__(self, place: PostgresUrl, timing: Timing, name: str) -> None:
        self._place, self._timing, self._name = place, timing, name
        self._session: Connection | None = None
        self._holder = ""
        self._number, self._leads, self._joined = 0, False, False

    @property
    def holder(self) -> str:
        return self._holder

    @property
    def lost(self) -> bool:
        return self._session is None

    @property
    def number(self) -> int:
        return self._number

    def acquire(self) -> bool:
        with postgres.as_unavailable(self._place), self._ending_with_errors():
            session = self._session or self._begin()
            self._leads = self._joined = bool(session.execute(_ACQUIRE).scalar_one())
            if not self._leads:
                self._holder = str(session.execute(_HOLDER).scalars().first() or "")
            return self._leads

    def join(self) -> bool:
        self._joined = True
        return self.check()

    def check(self) -> bool:
        """One short statement; one that does not lead takes the leader lock where it is free."""
        if self._session is None or not self._joined:
            return False
        with postgres.as_unavailable(self._place), self._ending_with_errors():
            row = self._session.execute(_CHECK, {"leads": self._leads}).one()
        lost = self._leads and not row.leads
        self._leads = bool(row.leads)
        return bool(row.alive) and not lost

    def release(self) -> None:
        session, self._session, self._joined = self._session, None, False
        if session is not None:
            _end(session)

    def _begin(self) -> Connection:
        timeout_s = self._timing.timeout_s
        session = postgres.session(self._place, timeout_s=timeout_s, name=self._name)
        hold_ms = int(1000 * self._timing.hold_s)
        try:
            session.execute(_EXPIRING, {"ms": str(hold_ms)})
            self._number = session.execute(_NUMBER).scalar_one()
            session.execute(_NUMBERED, {"number": self._number})
        except BaseException:  # without it a frozen leader would keep the lock
            _end(session)
            raise
        self._session = session
        return session

    @contextlib.contextmanager
    def _ending_with_errors(self) -> Iterator[None]:
        """Releases a session that the server has ended; one that was only slow is kept."""
        try:
            yield
        except BaseException:
            if self._session is None or self._session.invalidated or self._session.closed:
                self.release()
            raise


def _end(session: Connection) -> None:
    with contextlib.suppress(Exception):  # the server drops what we cannot
        session.close()
    session.engine.dispose()
