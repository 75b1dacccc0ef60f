"""Tells systemd how the agent is, in the few bytes of sd_notify(3), without its library.

A main loop that no longer turns is restarted by systemd; one that only waits for a driver is
not: another start would wait for it too.
"""

import contextlib
import os
import socket


class Notifier:
    """Says nothing where nobody listens (NOTIFY_SOCKET is not set)."""

    def __init__(self) -> None:
        # Children must not speak for us.
        path = os.environ.pop("NOTIFY_SOCKET", "")
        os.environ.pop("WATCHDOG_USEC", "")
        os.environ.pop("WATCHDOG_PID", "")
        self._path = "\0" + path[1:] if path.startswith("@") else path
        self._status = ""

    def ready(self, status: str) -> None:
        self._status = status
        self._send(f"READY=1\nSTATUS={status}")

    def alive(self, status: str) -> None:
        """Feeds the watchdog; the status only where it has changed."""
        news = f"\nSTATUS={status}" if status != self._status else ""
        self._status = status
        self._send(f"WATCHDOG=1{news}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=giving every GPU back")

    def _send(self, text: str) -> None:
        if not self._path:
            return
        with (
            contextlib.suppress(OSError),  # systemd is restarting: it asks again
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line,
        ):
            line.setblocking(False)
            line.sendto(text.encode(), self._path)
