"""Chunks: iterations of one job that ran under one setting of clocks, within one step.

Pauses, checkpoints and hiccups are left out here, once, by one robust rule. Pure and bounded.
"""

import math
import statistics
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

Setting = Hashable  # clocks by GPU, and their schedule within an iteration
DEFAULT: Setting = ()  # no GPU is locked

USUAL_KEPT = 33  # the newest iterations, whose median is the usual one
READY = 5  # iterations before one can be unusual
# No clock that a budget allows costs half of the time: such an iteration is a checkpoint.
OUTLIER_LOG = math.log(1.5)
# Sequence lengths may vary by more: robust deviations that no normal iteration has.
OUTLIER_DEVIATIONS, DEVIATION_OF_MEDIAN = 6.0, 1.4826
OUTLIERS_IN_ROW = 5  # five such in a row are the job's new pace
SETTLE_ITERATIONS = 1  # the first whole one after a change still refills the pipeline's caches


@dataclass(frozen=True, slots=True)
class Timed:
    """One iteration: logarithms of its time in seconds per counted work, and of its inferred work
    (a ratio); None where no operations are reported.
    """

    log_s: float
    work_log: float | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Usual iterations under one setting, in the order they ran; `at_s` (monotonic) is the end of
    the last one.
    """

    at_s: float
    setting: Setting
    iterations: tuple[Timed, ...]


class Usual:
    """Which iterations under one setting count."""

    def __init__(self) -> None:
        self._settling = SETTLE_ITERATIONS
        self._newest: deque[float] = deque(maxlen=USUAL_KEPT)
        self._odd: list[Timed] = []

    def take(self, one: Timed) -> tuple[Timed, ...]:
        """Those that count with it: itself, none, or the five of a new pace."""
        if self._settling > 0:
            self._settling -= 1
            return ()
        if self._fits(one.log_s):
            self._odd.clear()
            self._newest.append(one.log_s)
            return (one,)
        self._odd.append(one)
        if len(self._odd) < OUTLIERS_IN_ROW:
            return ()
        new, self._odd = tuple(self._odd), []
        self._newest.clear()
        self._newest.extend(each.log_s for each in new)
        return new

    def _fits(self, log_s: float) -> bool:
        if len(self._newest) < READY:
            return True
        middle = statistics.median(self._newest)
        spread = statistics.median(abs(one - middle) for one in self._newest)
        most = max(OUTLIER_LOG, OUTLIER_DEVIATIONS * DEVIATION_OF_MEDIAN * spread)
        return abs(log_s - middle) <= most
