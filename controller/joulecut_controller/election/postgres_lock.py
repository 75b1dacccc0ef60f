"""The seat of controllers that share a PostgreSQL database: an advisory lock of one session.

The server drops the lock with the session, and ends the session that it has not heard for
`hold_s` (idle_session_timeout): so a leader that was killed, frozen, cut off or lost with its
machine loses its seat by one clock, the server's. A pooler that lends sessions to others
breaks that; it is noticed, because the lock is looked for in the session that took it.
"""

import contextlib
from collections.abc import Iterator

from sqlalchemy import Connection, text

from joulecut_controller.election.timing import Timing
from joulecut_controller.store import postgres
from joulecut_controller.store.place import Place

SEAT_KEY = 0x6A6F756C6C656164  # of all controllers of this database; any number of our own
_EXPIRING = text("SELECT set_config('idle_session_timeout', :ms, false)")
_HALVES = {"high": SEAT_KEY >> 32, "low": SEAT_KEY & 0xFFFF_FFFF}  # as the server lists it
_TAKE = text("SELECT pg_try_advisory_lock(:key)").bindparams(key=SEAT_KEY)
_PROVE = text(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = :high"
    " AND objid::bigint = :low AND objsubid = 1 AND granted AND pid = pg_backend_pid()"
).bindparams(**_HALVES)
_HOLDER = text(
    "SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid)"
    " WHERE locktype = 'advisory' AND classid::bigint = :high AND objid::bigint = :low"
    " AND objsubid = 1 AND granted AND datname = current_database()"
).bindparams(**_HALVES)


class PostgresSeat:
    """Implements `seat.Seat`. `name` is what the server, and so others, see of us."""

    def __init__(self, place: Place, timing: Timing, name: str) -> None:
        self._place, self._timing, self._name = place, timing, name
        self._session: Connection | None = None
        self._holder = ""

    @property
    def holder(self) -> str:
        return self._holder

    @property
    def gone(self) -> bool:
        return self._session is None

    def take(self) -> bool:
        with postgres.explaining(self._place), self._ending_with_errors():
            session = self._session or self._begin()
            if session.execute(_TAKE).scalar_one():
                self._holder = ""
                return True
            self._holder = str(session.execute(_HOLDER).scalars().first() or "")
            return False

    def prove(self) -> bool:
        if self._session is None:
            return False
        with postgres.explaining(self._place), self._ending_with_errors():
            return bool(self._session.execute(_PROVE).scalar_one() == 1)

    def leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            _end(session)

    def _begin(self) -> Connection:
        timeout_s = self._timing.timeout_s
        session = postgres.session(self._place, timeout_s=timeout_s, name=self._name)
        hold_ms = int(1000 * self._timing.hold_s)
        try:
            session.execute(_EXPIRING, {"ms": str(hold_ms)})
        except BaseException:  # a seat taken without it would be kept by a frozen leader
            _end(session)
            raise
        self._session = session
        return session

    @contextlib.contextmanager
    def _ending_with_errors(self) -> Iterator[None]:
        """A session that the server has ended proves nothing; a statement that took too long
        leaves one that does.
        """
        try:
            yield
        except BaseException:
            if self._session is None or self._session.invalidated or self._session.closed:
                self.leave()
            raise


def _end(session: Connection) -> None:
    with contextlib.suppress(Exception):  # the server drops what we cannot
        session.close()
    session.engine.dispose()
