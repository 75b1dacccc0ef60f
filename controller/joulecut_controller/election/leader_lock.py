"""The one seat that several controllers of one store share, as the rest sees it.

Two kinds: a session lock of the PostgreSQL server that also holds the store, and a lock on a
file beside an SQLite store. Calls may block for as long as the store's timeout; use threads.
"""

from typing import Protocol


class Seat(Protocol):
    """Raises joulecut_wire.errors.Unavailable where it cannot be known who sits there."""

    def take(self) -> bool:
        """Tries once; True if it is ours now."""
        ...

    def prove(self) -> bool:
        """Whether what `take` gave is still ours, without a break."""
        ...

    def leave(self) -> None:
        """Lets go; never raises, and harmless where it is not ours."""
        ...

    @property
    def gone(self) -> bool:
        """Nothing can prove any more that it is ours: the session behind it has ended."""
        ...

    @property
    def holder(self) -> str:
        """Who sits there, as far as the last refused `take` could tell; may be empty."""
        ...
