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

Explaining = Callable[[], AbstractContextManager[None]]
_TERM = select(COUNTERS.c.value).where(COUNTERS.c.name == "epoch")


class Transactions:
    """On an engine whose transactions exclude each other, for callers in any thread."""

    def __init__(self, engine: Engine, explaining: Explaining, name: str) -> None:
        """`explaining` turns the driver's errors into Unavailable; `name` begins its lines."""
        self.name = name
        self._engine = engine
        self._reader = engine.execution_options(reads=True)
        self._explaining = explaining
        self._term = 0
        self._lock = threading.Lock()  # one connection, and callers in any thread

    def hold_to(self, term: int) -> None:
        """From now on this writes for that term alone; 0 lets go."""
        self._term = term

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction; durable when it ends well. Raises Unavailable."""
        with self._lock, self._explaining(), self._engine.begin() as connection:
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
        with self._lock, self._explaining(), self._reader.connect() as connection:
            yield connection

    def close(self) -> None:
        """Lets go of the database; a second time does nothing."""
        with self._lock:
            self._engine.dispose()
