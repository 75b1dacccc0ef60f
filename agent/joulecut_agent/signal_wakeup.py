"""Signals as something to read, because a loop that waits for sockets should wait for one thing.

Without it a signal that comes just before the wait would be seen only after it.
"""

import contextlib
import signal
import socket
from collections.abc import Iterator

GO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # each asks this process to leave in order


@contextlib.contextmanager
def signal_bell() -> Iterator[socket.socket]:
    """A socket that becomes readable when a signal asks this process to go. Main thread only."""
    bell, ringer = socket.socketpair()
    with bell, ringer:
        bell.setblocking(False)
        ringer.setblocking(False)
        before = signal.set_wakeup_fd(ringer.fileno(), warn_on_full_buffer=False)
        for number in GO:
            signal.signal(number, lambda *_: None)
        try:
            yield bell
        finally:
            signal.set_wakeup_fd(before)
