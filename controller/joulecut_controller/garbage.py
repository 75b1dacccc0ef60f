"""Schedules full garbage collections: rarely, and between passes.

With ten thousand GPUs hundreds of thousands of objects live. Looking for cycles among them stops
every thread for two tenths of a second, and the interpreter's own rule (a quarter more objects
than last time) did so once a second: each pass, each scrape and each board as text makes that
many, and frees them without its help. So full collections follow time and memory instead; young
objects, where nearly all garbage is, are looked at by the interpreter as ever.
"""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

FULL_S = 600.0  # a tenth of a second in ten minutes is beyond the 999th of a thousand answers
GROWTH_RATIO = 0.25  # the interpreter's own measure, of bytes: a cycle may hold large arrays
GROWTH_BYTES_MIN = 64 * 2**20  # the texts of a large board come and go within that
NEVER = 2**31 - 1  # the largest number that `gc.set_threshold` takes

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say, and time alone decides."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


class Sweeper:
    """When full collections happen. One a process, used in one thread."""

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self._now_s, self._resident = now_s, resident
        self._swept_s, self._swept_bytes = now_s(), resident()

    def settle(self) -> None:
        """Once everything is loaded, and whenever much of it was replaced: what lives now is
        passed over until this is called again. From now on only `tend` collects in full.
        """
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        gc.unfreeze()
        self._sweep()
        gc.freeze()

    def tend(self) -> bool:
        """Between two passes: collects in full where that is due, and says whether it was.

        Due after `FULL_S`, or once the process has grown by a quarter since the last time:
        garbage in cycles that outlived their youth is bounded by that.
        """
        grown = self._resident() - self._swept_bytes
        enough = max(GROWTH_BYTES_MIN, GROWTH_RATIO * self._swept_bytes)
        due = self._now_s() - self._swept_s >= FULL_S or grown > enough
        if due:
            self._sweep()
        return due

    def _sweep(self) -> None:
        gc.collect()
        self._swept_s, self._swept_bytes = self._now_s(), self._resident()
