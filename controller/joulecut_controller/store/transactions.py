"""Transactions on one database, for one leadership term: each excludes every other.

A controller that was slow, and another that leads by now, may both hold the store open. Who
writes for an older term is found out inside the transaction, and writes nothing.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import Connection, Engine, select

from joulecut_controller.store.schema import COUNTERS
from joulecut_wire.errors import Unavailable

AsUnavailable = Callable[[], AbstractContextManager[None]]
_TERM = select(COUNTERS.c.value).where(COUNTERS.c.name == "epoch")


class Transactions:
    """On an engine whose transactions exclude each other, for callers in any thread."""

    def __init__(self, engine: Engine, as_unavailable: AsUnavailable, name: str) -> None:
        """`as_unavailable` turns the driver's errors into Unavailable; `name` begins its lines."""
        self.name = name
        self._engine = engine
        self._reader = engine.execution_options(reads=True)
        self._as_unavailable = as_unavailable
        self._term = 0
        self._lock = threading.Lock()  # one connection, and callers in any thread

    def fence(self, term: int) -> None:
        """From now on this writes for that term alone; 0 lets go."""
        self._term = term

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction; durable when it ends well. Raises Unavailable."""
        with self._lock, self._as_unavailable(), self._engine.begin() as connection:
            if self._term:
                given = connection.execute(_TERM).scalar_one_or_none() or 0
                if given > self._term:
                    raise Unavailable(
                        f"{self.name}: another controller leads, in term {given}; "
                        f"this one is {self._term}, and writes no more"
                    )
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """For whoever only looks, in whatever term. Raises Unavailable."""
        with self._lock, self._as_unavailable(), self._reader.connect() as connection:
            yield connection

    def close(self) -> None:
        """Lets go of the database; a second time does nothing."""
        with self._lock:
            self._engine.dispose()
