"""Schedules full garbage collections: rarely, and between passes.

With ten thousand GPUs hundreds of thousands of objects live. Looking for cycles among all of them
stops every thread for half a second, and the interpreter's own rule (a quarter more objects than
last time) did so once a second: each pass, each scrape and each board as text makes that many, and
frees them without its help. So full collections follow time. What survives one is frozen, so that
the interpreter still collects young objects alone, where nearly all garbage is.
"""

import gc
import time
from collections.abc import Callable

FULL_S = 600.0  # half a second of pause in ten minutes: below one request in a thousand meets it
NEVER = 2**31 - 1  # the largest number that `gc.set_threshold` takes


class Sweeper:
    """When full collections happen. One a process, used in one thread. From its beginning on only
    `settle` and `tend` collect in full.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._swept_s = now_s, now_s()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)

    def settle(self) -> None:
        """Collects among all objects, the frozen ones too. Call it while no lease waits."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._swept_s = self._now_s()

    def freeze(self) -> None:
        """Freezes all objects, garbage included, without a collection."""
        gc.freeze()

    def tend(self) -> bool:
        """Between two passes: settles where that is due. Returns whether it was."""
        due = self._now_s() - self._swept_s >= FULL_S
        if due:
            self.settle()
        return due
