"""The leader lock of controllers that share a PostgreSQL database: an advisory session lock.

The server drops the lock with the session, and ends a session that was silent for `hold_s`
(idle_session_timeout): a leader that was killed, frozen, cut off or lost with its machine loses
the lock by one clock, the server's. A connection pooler that lends sessions to others breaks
that; the check notices it, because it looks for the lock in the session that acquired it.
"""

import contextlib
from collections.abc import Iterator

from sqlalchemy import Connection, text

from joulecut_controller.election.leader_lock import Timing
from joulecut_controller.store import postgres
from joulecut_controller.store.postgres_url import PostgresUrl

LOCK_KEY = 0x6A6F756C6C656164  # of all controllers of this database; an arbitrary number
_EXPIRING = text("SELECT set_config('idle_session_timeout', :ms, false)")
_HALVES = {"high": LOCK_KEY >> 32, "low": LOCK_KEY & 0xFFFF_FFFF}  # as the server lists it
_ACQUIRE = text("SELECT pg_try_advisory_lock(:key)").bindparams(key=LOCK_KEY)
_CHECK = text(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = :high"
    " AND objid::bigint = :low AND objsubid = 1 AND granted AND pid = pg_backend_pid()"
).bindparams(**_HALVES)
_HOLDER = text(
    "SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid)"
    " WHERE locktype = 'advisory' AND classid::bigint = :high AND objid::bigint = :low"
    " AND objsubid = 1 AND granted AND datname = current_database()"
).bindparams(**_HALVES)


class PostgresLock:
    """Implements `leader_lock.LeaderLock`. `name` is the session's name on the server."""

    def __init__(self, place: PostgresUrl, timing: Timing, name: str) -> None:
        self._place, self._timing, self._name = place, timing, name
        self._session: Connection | None = None
        self._holder = ""

    @property
    def holder(self) -> str:
        return self._holder

    @property
    def lost(self) -> bool:
        return self._session is None

    def acquire(self) -> bool:
        with postgres.as_unavailable(self._place), self._ending_with_errors():
            session = self._session or self._begin()
            if session.execute(_ACQUIRE).scalar_one():
                self._holder = ""
                return True
            self._holder = str(session.execute(_HOLDER).scalars().first() or "")
            return False

    def check(self) -> bool:
        if self._session is None:
            return False
        with postgres.as_unavailable(self._place), self._ending_with_errors():
            return bool(self._session.execute(_CHECK).scalar_one() == 1)

    def release(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            _end(session)

    def _begin(self) -> Connection:
        timeout_s = self._timing.timeout_s
        session = postgres.session(self._place, timeout_s=timeout_s, name=self._name)
        hold_ms = int(1000 * self._timing.hold_s)
        try:
            session.execute(_EXPIRING, {"ms": str(hold_ms)})
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
