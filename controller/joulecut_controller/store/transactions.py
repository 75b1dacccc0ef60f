"""Transactions on one database, fenced by the leadership term. Each excludes every other, but for
those that only add rows of their own.

A slow former leader and the present one may both have the store open. The term is compared inside
each writing transaction; one of an older term writes nothing. Controllers that share the jobs of a
PostgreSQL store write while their own advisory lock stands.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import Connection, Engine, select

from joulecut_controller.store.postgres import LOCKS
from joulecut_controller.store.schema import COUNTERS
from joulecut_wire.errors import Unavailable

AsUnavailable = Callable[[], AbstractContextManager[None]]
_TERM = select(COUNTERS.c.value).where(COUNTERS.c.name == "epoch")


class Transactions:
    """On an engine whose transactions exclude each other, for callers in any thread. With the
    option `beside_others` one excludes only those without it, where the engine can.
    """

    def __init__(self, engine: Engine, as_unavailable: AsUnavailable, name: str) -> None:
        """`as_unavailable` turns the driver's errors into Unavailable; `name` begins its lines."""
        self.name = name
        self._engine = engine
        self._reader = engine.execution_options(reads=True)
        self._beside = engine.execution_options(beside_others=True)
        self._as_unavailable = as_unavailable
        self._term, self._controller = 0, 0
        self._lock = threading.Lock()  # one connection, and callers in any thread

    def fence(self, term: int, controller: int = 0) -> None:
        """Refuses writes once a newer term was given out, or, with the number of a `controller`,
        once its lock is gone; 0 removes the fence.
        """
        self._term, self._controller = term, controller

    def epoch(self) -> int:
        """The newest term given out. Raises Unavailable."""
        with self.reading() as connection:
            return connection.execute(_TERM).scalar_one_or_none() or 0

    @contextmanager
    def writing(self, *, beside_others: bool = False) -> Iterator[Connection]:
        """One transaction; durable at its end. Raises Unavailable."""
        engine = self._beside if beside_others else self._engine
        with self._lock, self._as_unavailable(), engine.begin() as connection:
            if self._controller:
                alive = select(LOCKS.c.pid).where(LOCKS.c.number == self._controller)
                if connection.execute(alive).first() is None:
                    raise Unavailable(
                        f"{self.name}: the database has ended this controller's session, which no "
                        "longer writes"
                    )
            elif self._term:
                given = connection.execute(_TERM).scalar_one_or_none() or 0
                if given > self._term:
                    raise Unavailable(
                        f"{self.name}: another controller leads with epoch {given}; "
                        f"this one has epoch {self._term} and no longer writes"
                    )
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read-only, in any term. Raises Unavailable."""
        with self._lock, self._as_unavailable(), self._reader.connect() as connection:
            yield connection

    def close(self) -> None:
        """Closes the database; idempotent."""
        with self._lock:
            self._engine.dispose()
