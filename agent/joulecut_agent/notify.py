"""Status and watchdog messages to systemd, as sd_notify(3) sends them.

systemd restarts an agent whose main loop stands still. One that waits for a driver is not
restarted: the next would wait too.
"""

import contextlib
import os
import socket


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
