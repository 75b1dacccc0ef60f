"""Iteration time of a job that reports nothing, from the power of its GPUs. Pure.

Training repeats itself, so its power does. The period is the smallest lag at which the samples are
as much like themselves as at any other (autocorrelation). What chance may look like is refused: no
period is better than a wrong one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

PERIODS_MIN = 4  # in the samples; fewer repetitions are often chance
LIKENESS_MIN = 0.6  # correlation of the samples with those one, two and three periods later
CONTRAST_MIN = 0.3  # between a repetition and the lags before it: a slow drift is like itself too
# Peaks so close are one peak and its multiples. Between this and the second value a shorter period
# (a microbatch) looks like the iteration.
SAME, AMBIGUOUS = 0.03, 0.08
LAG_MIN = 10  # steps: of fewer the shape is lost in the sampling
VARIATION_MIN = 0.01  # of the mean: less is the sensor's own noise
NEAR_RATIO = 0.25  # a known period is looked for within this


@dataclass(frozen=True, slots=True)
class Period:
    """Mean seconds of one iteration; `confidence` is the correlation of one with the next."""

    period_s: float
    confidence: float


def find_period(samples: Sequence[float], step_s: float, near_s: float = 0.0) -> Period | str:
    """The period of samples `step_s` apart, or why none is found. `near_s` is the one found
    before: then only its neighbourhood is searched.
    """
    if len(samples) <= PERIODS_MIN * (LAG_MIN + 2):
        return f"{len(samples) * step_s:.0f} s of samples are too few"
    series = _Series(samples)
    if series.deviation < VARIATION_MIN * series.mean:
        return "the power is constant"
    lag = _first_peak(series, len(samples) // PERIODS_MIN, near_s / step_s)
    if isinstance(lag, str):
        return lag
    period = series.refined(lag)
    if any(series.likeness(round(times * period)) < LIKENESS_MIN for times in (2, 3)):
        return "the power does not repeat itself three times"
    return Period(period * step_s, min(1.0, series.likeness(lag)))


def _first_peak(series: "_Series", longest: int, near: float) -> int | str:
    """The lag of the period in steps, or why none is clear."""
    lags = range(LAG_MIN, longest)
    if near:
        low, high = round(near * (1.0 - NEAR_RATIO)), round(near * (1.0 + NEAR_RATIO)) + 1
        lags = range(max(LAG_MIN, low), min(longest, high))
    peaks = dict(series.peaks(lags))
    best = max(peaks.values(), default=0.0)
    if best < LIKENESS_MIN:
        return f"the power does not repeat itself (likeness {max(0.0, best):.2f})"
    first = next(lag for lag, likeness in peaks.items() if likeness >= best - SAME)
    shorter = any(peaks[lag] >= best - AMBIGUOUS for lag in peaks if lag < first)
    if shorter and not near:
        return "an iteration and a part of it look alike"
    if peaks[first] - min(map(series.likeness, range(1, first))) < CONTRAST_MIN:
        return "the power only drifts"
    return first


class _Series:
    """Samples without mean and slope, and their sums: a card that warms up draws more and more."""

    def __init__(self, samples: Sequence[float]) -> None:
        count = len(samples)
        middle, self.mean = (count - 1) / 2.0, sum(samples) / count
        spread = count * (count * count - 1) / 12.0
        slope = sum((i - middle) * one for i, one in enumerate(samples)) / spread
        flat = [one - self.mean - slope * (i - middle) for i, one in enumerate(samples)]
        self.deviation = (sum(map(mul, flat, flat)) / count) ** 0.5
        # Edges sharper than a step look different in each iteration.
        ends = [flat[0], *flat, flat[-1]]
        self._values = [(ends[i] + 2.0 * ends[i + 1] + ends[i + 2]) / 4.0 for i in range(count)]
        self._sums, self._squares = [0.0], [0.0]
        for one in self._values:
            self._sums.append(self._sums[-1] + one)
            self._squares.append(self._squares[-1] + one * one)
        self._known: dict[int, float] = {}

    def likeness(self, lag: int) -> float:
        """Correlation of the samples with those `lag` steps later."""
        if lag not in self._known:
            self._known[lag] = self._likeness(lag)
        return self._known[lag]

    def _likeness(self, lag: int) -> float:
        values, count = self._values, len(self._values) - lag
        both = sum(map(mul, values, values[lag:]))
        early, late = self._sums[count], self._sums[-1] - self._sums[lag]
        early_2, late_2 = self._squares[count], self._squares[-1] - self._squares[lag]
        spread = (early_2 - early * early / count) * (late_2 - late * late / count)
        return (both - early * late / count) / spread**0.5 if spread > 0.0 else 0.0

    def peaks(self, lags: range) -> list[tuple[int, float]]:
        """Lags that are more alike than their neighbours, with the height of the peak."""
        return [
            (lag, self._top(lag)[1])
            for lag in lags
            if self.likeness(lag - 1) < self.likeness(lag) >= self.likeness(lag + 1)
        ]

    def refined(self, lag: int) -> float:
        """The period in parts of a step: from its largest multiple that is seen clearly."""
        period, times = self._top(lag)[0], 1
        while (near := round(2 * times * period)) + 2 < len(self._values) // 2:
            if self.likeness(near) < LIKENESS_MIN:
                break
            times *= 2
            period = self._top(self._climbed(near, round(period) // 4))[0] / times
        return period

    def _climbed(self, lag: int, steps: int) -> int:
        """The peak that lies uphill, at most so many steps away."""
        for _ in range(steps):
            up = max((lag - 1, lag, lag + 1), key=self.likeness)
            if up == lag:
                break
            lag = up
        return lag

    def _top(self, lag: int) -> tuple[float, float]:
        """Place and height of the parabola through a peak and its neighbours."""
        left, here, right = (self.likeness(lag + i) for i in (-1, 0, 1))
        bend = left - 2.0 * here + right
        if bend >= 0.0:
            return float(lag), here
        aside = 0.5 * (left - right) / bend
        return lag + aside, here - 0.25 * (left - right) * aside
