"""A port that is given to nobody else for as long as a test needs it.

    with held_port() as port:

A port that was found free and let go is anybody's a moment later. One that is bound and not
listened on is handed out to nobody and refuses connections; and who names it with SO_REUSEADDR,
as servers do, may listen on it.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])
