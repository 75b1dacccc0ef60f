"""A connection to PostgreSQL that is known to be over, and ends in silence, once the server has
gone.

The driver says good-bye through a buffer. Of a server that was killed, the good-bye stays in
there, and Python complains about it much later and on standard error, with a traceback. And
where the network breaks just while it reads, the driver lets the bare error through, which
SQLAlchemy does not take for the end of the connection.
"""

import contextlib
from typing import Any

from pg8000.exceptions import Error, InterfaceError
from pg8000.legacy import Connection


class Link(Connection):  # type: ignore[misc]  # the driver ships no types
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
