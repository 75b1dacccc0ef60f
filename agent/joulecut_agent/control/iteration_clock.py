"""When the iterations of a job begin on one GPU, from the starts that one source reports.

Pure. The period is the median of the last gaps, the phase is that of the newest start. A start is
good if it lies where the start before it and a known period put it. Reports that come in batches or
late have gaps that do not agree, so their starts are not good and nothing is timed from them.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

GAPS = 5  # a change of the period is followed within three iterations
RESIDUALS = 64  # the newest: as many as samples of the set latency
RESIDUALS_MIN = 8  # fewer say little about their scale
MISSED_MAX = 8  # starts missed in a row; beyond, the phase is unknown
PACES = 4  # periods that the job has under the newest plans
TOLERANCE_MEDIANS = 6.0  # four standard deviations of a normal distribution
TOLERANCE_RATIO, TOLERANCE_S_MIN = 0.01, 0.005  # of the period; what a busy node delays a thread
AHEAD_S_MAX = 0.05  # a start that is later than now, by more than rounding of clocks, is none
SILENT_PERIODS = 3.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """The next start, as predicted. Times are monotonic, in seconds."""

    start_s: float  # the newest start
    period_s: float
    jitter_s: float  # P95 of the distance between predicted and good starts
    tolerance_s: float  # a start is good up to this distance
    delay_s: float  # from a start until it is known here, at most
    good: bool  # whether the newest start was where it was predicted


@dataclass(slots=True)
class IterationClock:
    """The starts of one job on one GPU from one source."""

    start_s: float = -math.inf
    iteration: int | None = None
    good: bool = False
    paces_s: deque[float] = field(default_factory=lambda: deque(maxlen=PACES))
    _gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS))
    _residuals_s: deque[float] = field(default_factory=lambda: deque(maxlen=RESIDUALS))
    _delays_s: deque[float] = field(default_factory=lambda: deque(maxlen=RESIDUALS))
    # Of each start: its time, the iterations since the one before, and whether it was good.
    _starts: deque[tuple[float, int, bool]] = field(default_factory=lambda: deque(maxlen=RESIDUALS))

    def seen(self, start_s: float, iteration: int | None, now_s: float) -> bool:
        """Takes a start; whether it is a newer one than before."""
        same = iteration is not None and iteration == self.iteration
        if same or not self.start_s < start_s <= now_s + AHEAD_S_MAX:
            return False
        count = self._iterations_since(start_s, iteration)
        if not 1 <= count <= MISSED_MAX + 1:  # another run, or a long pause
            self._begin(start_s, iteration)
            return True
        gap_s = start_s - self.start_s
        if self._gaps_s:
            residual_s = min(abs(gap_s - count * s) for s in (self.period_s, *self.paces_s))
            self.good = residual_s <= self.tolerance_s
            self._residuals_s.append(residual_s)
            self._starts.append((start_s, count, self.good))
        self._gaps_s.append(gap_s / count)
        self._delays_s.append(max(0.0, now_s - start_s))
        self.start_s, self.iteration = start_s, iteration
        return True

    @property
    def period_s(self) -> float:
        """The median of the last gaps; 0 without one."""
        return _median(self._gaps_s)

    @property
    def jitter_s(self) -> float:
        """P95 of the distance between predicted and good starts."""
        tolerance_s = self.tolerance_s
        return p95(s for s in self._residuals_s if s <= tolerance_s)

    @property
    def tolerance_s(self) -> float:
        """From the median, which no pause and no lost start moves."""
        few = len(self._residuals_s) < RESIDUALS_MIN
        least_s = max(TOLERANCE_RATIO * self.period_s * (2.0 if few else 1.0), TOLERANCE_S_MIN)
        return max(TOLERANCE_MEDIANS * _median(self._residuals_s), least_s)

    def prediction(self) -> Prediction | None:
        """None until there are enough gaps for a median that one of them does not move."""
        if len(self._gaps_s) < GAPS - 2:
            return None
        delay_s, good = max(self._delays_s), self.good
        known = (self.start_s, self.period_s, self.jitter_s, self.tolerance_s)
        return Prediction(*known, delay_s, good)

    def is_silent(self, now_s: float) -> bool:
        wait_s = SILENT_PERIODS * self.period_s + max(self._delays_s, default=0.0)
        return not self._gaps_s or now_s - self.start_s > wait_s

    def starts_per_minute(self, now_s: float) -> float:
        """Over the starts that are remembered; 0 once they have stopped."""
        first_s = self._starts[0][0] if self._starts else self.start_s
        if self.is_silent(now_s) or self.start_s <= first_s:
            return 0.0
        return 60.0 * (len(self._starts) - 1) / (self.start_s - first_s)

    @property
    def missed_ratio(self) -> float:
        """Share of the predicted starts that did not come where they were predicted."""
        expected = sum(count for _, count, _ in self._starts)
        good = sum(good for _, _, good in self._starts)
        return 1.0 - good / expected if expected else 0.0

    def _iterations_since(self, start_s: float, iteration: int | None) -> int:
        """Iterations from the newest start to this one; 0 if that cannot be known."""
        if math.isinf(self.start_s):
            return 0
        if iteration is not None and self.iteration is not None:
            return iteration - self.iteration
        return max(1, round((start_s - self.start_s) / self.period_s)) if self._gaps_s else 1

    def _begin(self, start_s: float, iteration: int | None) -> None:
        """Takes the phase of this start; the period of the run before it is forgotten."""
        self.start_s, self.iteration, self.good = start_s, iteration, False
        self._gaps_s.clear()


def _median(values: Collection[float]) -> float:
    """0 of nothing."""
    return sorted(values)[len(values) // 2] if values else 0.0


def p95(values: Iterable[float]) -> float:
    """The 95th percentile; 0 of nothing."""
    ordered = sorted(values)
    return ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else 0.0
