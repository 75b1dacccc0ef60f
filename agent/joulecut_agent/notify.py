"""Status and watchdog messages to systemd, as sd_notify(3) sends them.

systemd restarts an agent whose main loop stands still, and a keeper that is stopped as a whole
(SIGSTOP, a debugger). One that waits for a driver is not restarted: the next would wait too.
"""

import contextlib
import os
import signal
import socket
import threading
import time

FEED_S = 1.0  # a quarter of WatchdogSec= of the keeper's unit


class Notifier:
    """Does nothing without NOTIFY_SOCKET."""

    def __init__(self) -> None:
        # Children must not notify for this process.
        path = os.environ.pop("NOTIFY_SOCKET", "")
        os.environ.pop("WATCHDOG_USEC", "")
        os.environ.pop("WATCHDOG_PID", "")
        self._path = "\0" + path[1:] if path.startswith("@") else path
        self._status = ""

    def ready(self, status: str) -> None:
        self._status = status
        self._send(f"READY=1\nSTATUS={status}")

    def alive(self, status: str) -> None:
        """Feeds the watchdog, and sends the status if it has changed."""
        news = f"\nSTATUS={status}" if status != self._status else ""
        self._status = status
        self._send(f"WATCHDOG=1{news}")

    def feed_always(self) -> None:
        """Feeds the watchdog from a thread, for a process whose main thread waits for a driver.

        The thread takes no signal: the main thread may wait for one.
        """
        if not self._path:
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            threading.Thread(target=self._feed, name="watchdog", daemon=True).start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _feed(self) -> None:
        while True:
            self._send("WATCHDOG=1")
            time.sleep(FEED_S)

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=restoring every GPU")

    def _send(self, text: str) -> None:
        if not self._path:
            return
        with (
            contextlib.suppress(OSError),  # systemd is restarting, and asks again
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line,
        ):
            line.setblocking(False)
            line.sendto(text.encode(), self._path)
