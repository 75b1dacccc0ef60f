"""Signals as a readable socket, for a loop that waits for sockets.

Without it a signal that arrives just before the wait would be noticed only after it.
"""

import contextlib
import signal
import socket
from collections.abc import Iterator

LEAVE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def signal_wakeup() -> Iterator[socket.socket]:
    """A socket that becomes readable on a signal of LEAVE. Main thread only."""
    wakeup, signalled = socket.socketpair()
    with wakeup, signalled:
        wakeup.setblocking(False)
        signalled.setblocking(False)
        before = signal.set_wakeup_fd(signalled.fileno(), warn_on_full_buffer=False)
        for number in LEAVE:
            signal.signal(number, lambda *_: None)
        try:
            yield wakeup
        finally:
            signal.set_wakeup_fd(before)
