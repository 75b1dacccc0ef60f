"""A release window on disk, so that who starts inside of one, agent or keeper, opens no device.

Somebody replaces the driver just then: a handle that is opened for a moment is one too many.
With the window stand the GPUs as they were last described, because nobody can be asked.
"""

import contextlib
import json
import signal
import time
import zlib
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joulecut_agent.keeper.keeper import RELEASE_S_MAX
from joulecut_agent.log import say
from joulecut_wire.messages import GpuDescription

NAME = "release.json"
VERSION = 1
LOOK_S = 0.2  # how soon a keeper that waits sees the end of the window
BYTES_MAX = 1_000_000  # 16 GPUs with 300 clocks each take 30,000


class ReleaseFile:
    """`boot_id` names this boot, whose monotonic clock the end of a window is told in."""

    def __init__(self, state_dir: str, boot_id: str) -> None:
        self._path = Path(state_dir) / NAME
        self._boot_id = boot_id

    def left_s(self) -> float:
        """What is left of the window; 0 where there is none that can be believed."""
        until_s, _ = self._read()
        left_s = until_s - time.monotonic()
        return left_s if 0.0 < left_s <= RELEASE_S_MAX else 0.0

    def gpus(self) -> tuple[GpuDescription, ...]:
        """The GPUs of this node as of when the window began; () where that is not known."""
        return self._read()[1]

    def keep(self, left_s: float, gpus: Iterable[GpuDescription]) -> bool:
        """Whether it is kept. Never raises: without it a restart ends the window, as is said."""
        told = [asdict(gpu) for gpu in gpus]
        body = json.dumps([VERSION, self._boot_id, time.monotonic() + left_s, told]).encode()
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(b"%08x %s" % (zlib.crc32(body), body))
            fresh.rename(self._path)
        except OSError as error:
            say("agent", f"a restart would end the release window: {error.strerror or error}")
            return False
        return True

    def put_back(self, left_s: float, gpus: Iterable[GpuDescription]) -> None:
        """What was there before a window that did not come about; 0 where none was."""
        if left_s:
            self.keep(left_s, gpus)
        else:
            self.forget()

    def forget(self) -> bool:
        """Whether there was a window to forget. Never raises."""
        there = self.left_s() > 0.0
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        return there

    def wait(self) -> bool:
        """Returns when no window is left; False where a signal asked to leave before.

        For a process of one thread, before it has handlers of its own.
        """
        if not self.left_s():
            return True
        leave = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, leave)
        try:
            while self.left_s():
                if signal.sigtimedwait(leave, LOOK_S):
                    return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True

    def _read(self) -> tuple[float, tuple[GpuDescription, ...]]:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            with self._path.open("rb") as file:
                checksum, _, body = file.read(BYTES_MAX).partition(b" ")
            if checksum == b"%08x" % zlib.crc32(body):
                version, boot_id, until_s, told = json.loads(body)
                if (version, boot_id) == (VERSION, self._boot_id):
                    return float(until_s), tuple(map(_gpu, told))
        return 0.0, ()


def _gpu(row: dict[str, Any]) -> GpuDescription:
    """Raises KeyError and TypeError on words that are no description."""
    known = {name: row[name] for name in GpuDescription.__slots__ if name in row}
    return GpuDescription(**{**known, "clocks_mhz": tuple(row["clocks_mhz"])})
