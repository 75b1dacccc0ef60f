"""Chunks: iterations of one job that ran under one setting of clocks, within one step.

Pauses, checkpoints and hiccups are left out here, once, by one robust rule. Pure and bounded.
"""

import math
import statistics
from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
Setting = Hashable  # clocks by GPU, and their schedule within an iteration
DEFAULT: Setting = ()  # no GPU is locked

USUAL_KEPT = 33  # the newest iterations, whose median is the usual one
READY = 5  # iterations before one can be unusual
# No clock that a budget allows costs half of the time: such an iteration is a checkpoint.
OUTLIER_RATIO = 1.5
OUTLIER_LOG = math.log(OUTLIER_RATIO)
OUTLIER_DEVIATIONS = 6.0  # sequence lengths may vary by more: no normal iteration has as many
DEVIATION_OF_MEDIAN = 1.4826  # a normal distribution's deviation over its median deviation
OUTLIERS_IN_ROW = 5  # five such in a row are the job's new pace
SETTLE_ITERATIONS = 1  # the first whole one after a change still refills the pipeline's caches


def robust(values: Collection[float]) -> tuple[float, float]:
    """The median, and the standard deviation that the median deviation stands for."""
    middle = statistics.median(values)
    return middle, DEVIATION_OF_MEDIAN * statistics.median(abs(one - middle) for one in values)


def deviation(values: Collection[float]) -> float:
    """The standard deviation of a sample of two values or more. That of `statistics` adds exact
    fractions, and takes forty times as long.
    """
    middle = statistics.fmean(values)
    return math.sqrt(math.fsum((one - middle) ** 2 for one in values) / (len(values) - 1))


@dataclass(frozen=True, slots=True)
class Timed:
    """One iteration: logarithms of its time in seconds per counted work, and of its inferred work
    (a ratio); None where no operations are reported.
    """

    log_s: float
    work_log: float | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Usual iterations under one setting, in the order they ran; `begun_s` and `at_s` (monotonic)
    are when the first began and the last ended.

    `ran` counts all iterations, `left_out` the unusual ones and pauses. `energy_j` is what the
    job's GPUs took in `energy_s` seconds in which only usual iterations ran; counters show it some
    seconds late, so these are not exactly those of `iterations`.
    """

    at_s: float
    setting: Setting
    iterations: tuple[Timed, ...]
    begun_s: float = 0.0
    ran: int = 0
    left_out: int = 0
    energy_j: float = 0.0
    energy_s: float = 0.0

    @property
    def times_s(self) -> tuple[float, ...]:
        return tuple(math.exp(one.log_s) for one in self.iterations)


@dataclass(frozen=True, slots=True)
class Judged(Generic[T]):
    """Iterations that count and `odd` ones that do not, as far as that is known now. `again`: those
    that count are a new pace.
    """

    counted: tuple[T, ...] = ()
    odd: tuple[T, ...] = ()
    again: bool = False


class Usual(Generic[T]):
    """Which iterations of a phase count, under whatever clocks: none of them costs half."""

    def __init__(self) -> None:
        self._settling = SETTLE_ITERATIONS
        self._newest: deque[float] = deque(maxlen=USUAL_KEPT)
        self._unknown: list[tuple[float, T]] = []  # before it is known what is usual
        self._odd: list[tuple[float, T]] = []

    def settle(self) -> None:
        """The clocks have changed: what is not judged yet counts nowhere."""
        self._settling = SETTLE_ITERATIONS
        self._newest.extend(log_s for log_s, _ in self._unknown)
        self._unknown, self._odd = [], []

    def take(self, log_s: float, one: T) -> Judged[T]:
        """Those that count with it, and those that do not."""
        if self._settling > 0:
            self._settling -= 1
            return Judged()
        if len(self._newest) < READY:
            self._unknown.append((log_s, one))
            return self._first() if len(self._newest) + len(self._unknown) >= READY else Judged()
        if self._fits(log_s):
            self._odd.clear()
            self._newest.append(log_s)
            return Judged((one,))
        self._odd.append((log_s, one))
        if len(self._odd) < OUTLIERS_IN_ROW:
            return Judged(odd=(one,))
        new, self._odd = self._odd, []
        self._newest.clear()
        self._newest.extend(each for each, _ in new)
        return Judged(tuple(each for _, each in new), again=True)

    def _first(self) -> Judged[T]:
        known, self._unknown = self._unknown, []
        middle = statistics.median((*self._newest, *(log_s for log_s, _ in known)))
        fits = [abs(log_s - middle) <= OUTLIER_LOG for log_s, _ in known]
        self._newest.extend(log_s for (log_s, _), fit in zip(known, fits, strict=True) if fit)
        counted, odd = (
            tuple(one for (_, one), fit in zip(known, fits, strict=True) if fit is wanted)
            for wanted in (True, False)
        )
        return Judged(counted, odd)

    def _fits(self, log_s: float) -> bool:
        middle, sd = robust(self._newest)
        return abs(log_s - middle) <= max(OUTLIER_LOG, OUTLIER_DEVIATIONS * sd)
