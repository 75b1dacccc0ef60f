"""A release window on disk: an agent or keeper that starts inside it opens no device.

The driver is being replaced then, and any open handle prevents it. The file also holds the GPUs as
last described, since the driver cannot be asked.
"""

import contextlib
import json
import signal
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joulecut_agent.keeper.keeper import BOOT_ID, RELEASE_S_MAX
from joulecut_agent.log import log
from joulecut_wire.messages import GpuDescription

NAME = "release.json"
VERSION = 1
POLL_S = 0.2  # of a keeper that waits for the end of the window
BYTES_MAX = 1_000_000  # 16 GPUs with 300 clocks each take 30,000


def of_this_boot(state_dir: str) -> "ReleaseFile":
    """Raises OSError without a boot id."""
    return ReleaseFile(state_dir, BOOT_ID.read_text().strip())


class ReleaseFile:
    """The end of the window is in the monotonic time of the boot `boot_id`."""

    def __init__(self, state_dir: str, boot_id: str) -> None:
        self._path = Path(state_dir) / NAME
        self._boot_id = boot_id

    def left_s(self) -> float:
        """Time left of the window; 0 without a valid one."""
        until_s, _ = self._read()
        left_s = until_s - time.monotonic()
        return left_s if 0.0 < left_s <= RELEASE_S_MAX else 0.0

    def gpus(self) -> tuple[GpuDescription, ...]:
        """The GPUs of this node when the window began; () if unknown."""
        return self._read()[1]

    def write(self, left_s: float, gpus: Iterable[GpuDescription]) -> None:
        """Never raises: without it a restart ends the window."""
        rows = [asdict(gpu) for gpu in gpus]
        body = json.dumps([VERSION, self._boot_id, time.monotonic() + left_s, rows]).encode()
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(b"%08x %s" % (zlib.crc32(body), body))
            fresh.rename(self._path)
        except OSError as error:
            what = f"a restart would end the release window: {error.strerror or error}"
            log("agent", what, "warning")

    def revert(self, left_s: float, gpus: Iterable[GpuDescription]) -> None:
        """Restores the window before a failed one; `left_s` 0: there was none."""
        if left_s:
            self.write(left_s, gpus)
        else:
            self.forget()

    def forget(self) -> None:
        """Removes the window. Never raises."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def wait(self, ready: Callable[[], None] = lambda: None) -> bool:
        """Returns True at the end of the window, False on a signal to leave.

        `ready` is called once a signal to leave is obeyed. For a process without signal handlers
        whose other threads block signals.
        """
        if not self.left_s():
            return True
        leave = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, leave)
        try:
            ready()
            while self.left_s():
                if signal.sigtimedwait(leave, POLL_S):
                    return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True

    def _read(self) -> tuple[float, tuple[GpuDescription, ...]]:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            with self._path.open("rb") as file:
                checksum, _, body = file.read(BYTES_MAX).partition(b" ")
            if checksum == b"%08x" % zlib.crc32(body):
                version, boot_id, until_s, rows = json.loads(body)
                if (version, boot_id) == (VERSION, self._boot_id):
                    return float(until_s), tuple(map(_gpu, rows))
        return 0.0, ()


def _gpu(row: dict[str, Any]) -> GpuDescription:
    """Raises KeyError or TypeError if `row` is not a description."""
    known = {name: row[name] for name in GpuDescription.__slots__ if name in row}
    return GpuDescription(**{**known, "clocks_mhz": tuple(row["clocks_mhz"])})
