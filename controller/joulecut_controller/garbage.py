"""Schedules full garbage collections: rarely, between passes, and of little at a time.

With ten thousand GPUs hundreds of thousands of objects live. Looking for cycles among all of them
stops every thread for half a second, and the interpreter's own rule (a quarter more objects than
last time) did so once a second: each pass, each scrape and each board as text makes that many, and
frees them without its help. So full collections follow time and memory instead, and objects that
survive one are frozen: the next one skips them. The interpreter still collects young objects, where
nearly all garbage is.
"""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

FULL_S = 600.0  # a tenth of a second in ten minutes is beyond the 999th of a thousand answers
GROWTH_RATIO = 0.25  # the interpreter's own measure, of bytes: a cycle may hold large arrays
GROWTH_BYTES_MIN = 64 * 2**20  # the texts of a large board come and go within that
# Bounds garbage among frozen objects: growth since the last look at everything.
GROWTH_RATIO_WHOLE = 1.0
NEVER = 2**31 - 1  # the largest number that `gc.set_threshold` takes

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say, and time alone decides."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


class Sweeper:
    """When full collections happen. One a process, used in one thread. From its beginning on only
    `settle` and `tend` collect in full.
    """

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self._now_s, self._resident = now_s, resident
        self._swept_s = now_s()
        self._swept_bytes = self._settled_bytes = resident()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)

    def settle(self) -> None:
        """Collects among all objects, the frozen ones too. Call it while no lease is held."""
        gc.unfreeze()
        self._sweep()
        self._settled_bytes = self._swept_bytes

    def freeze(self) -> None:
        """Freezes all objects, garbage included, without a collection."""
        gc.freeze()

    def tend(self) -> bool:
        """Between two passes: collects where that is due. Returns whether it was.

        Due after `FULL_S`, or once the process has grown by a quarter since the last collection.
        Frozen objects are included only once the process has doubled.
        """
        resident = self._resident()
        enough = max(GROWTH_BYTES_MIN, GROWTH_RATIO * self._swept_bytes)
        grown = resident - self._swept_bytes > enough
        if not grown and self._now_s() - self._swept_s < FULL_S:
            return False
        whole = max(GROWTH_BYTES_MIN, GROWTH_RATIO_WHOLE * self._settled_bytes)
        if resident - self._settled_bytes > whole:
            self.settle()
        else:
            self._sweep()
        return True

    def _sweep(self) -> None:
        gc.collect()
        gc.freeze()
        self._swept_s, self._swept_bytes = self._now_s(), self._resident()
