"""A connection to PostgreSQL that ends in silence when the server has gone.

The driver says good-bye through a buffer. Of a server that was killed, the good-bye stays in
there, and Python complains about it much later and on standard error, with a traceback.
"""

import contextlib
from typing import Any

from pg8000.exceptions import Error
from pg8000.legacy import Connection


class Link(Connection):  # type: ignore[misc]  # the driver ships no types
    """As the driver's own; `close` never raises and leaves nothing open."""

    def __init__(self, **how: Any) -> None:
        try:
            super().__init__(**how)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        buffer, wire = getattr(self, "_sock", None), getattr(self, "_usock", None)
        with contextlib.suppress(Error, OSError, AttributeError):
            super().close()
        for one in (buffer, wire):
            if one is not None:
                with contextlib.suppress(OSError, ValueError):
                    one.close()
