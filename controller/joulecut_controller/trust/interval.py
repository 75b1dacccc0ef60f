"""95 % confidence interval of a mean over time, of values measured now and then.

The mean may move meanwhile: with the hour of the day, or as a job's work changes. So each value
counts for its share of the period, and scatter is what a value is off the straight line between its
neighbours (Gasser, Sroka, Jennen-Steinmetz, "Residual variance and residual pattern in nonlinear
regression", Biometrika 73, 1986). Values that share a part of their measurement are joined to
blocks first, which hardly do (batch means).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95
LOCAL_MIN = 6  # fewer have too few neighbours: their whole spread counts, which is no less
BLOCK_PER_SHARED = 6  # a twelfth of the variance of blocks is shared then
BLOCKS_MIN = 12
COUNT_GROWTH = 1.05  # how finely a number of values to come is found
GAPS_MAX = 2.0  # over the usual distance: a longer gap is a pause, and no value stands for it


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    mid: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0

    def mapped(self, change: Callable[[float], float]) -> "Interval":
        """Of a quantity that rises with this one."""
        return Interval(change(self.mid), change(self.low), change(self.high))

    def scaled(self, factor: float) -> "Interval":
        """Times a factor of zero or more."""
        return self.mapped(lambda value: value * factor)


def period_shares(at_s: Sequence[float]) -> np.ndarray:
    """Seconds that each of two or more times, in their order, stands for: half of the way to
    either neighbour.
    """
    gaps = np.diff(np.array(at_s))
    gaps = np.minimum(gaps, GAPS_MAX * np.median(gaps))
    shares: np.ndarray = (np.append(gaps[0], gaps) + np.append(gaps, gaps[-1])) / 2.0
    return shares


def mean_interval(
    at_s: Sequence[float],
    sample: np.ndarray,
    weights: np.ndarray,
    *,
    floor_sd: float,
    shared: int,
) -> Interval:
    """The weighted mean of two values or more, in order of their times. `floor_sd` is the least
    that a single value scatters; `shared` is how many of those that follow one share its windows.
    """
    size = max(1, min(BLOCK_PER_SHARED * shared, len(sample) // BLOCKS_MIN))
    mid, stderr, degrees = _block_mean(at_s, sample, weights, size, floor_sd)
    half = _student_factor(degrees) * stderr
    return Interval(mid, mid - half, mid + half)


def _block_mean(
    at_s: Sequence[float], sample: np.ndarray, weights: np.ndarray, size: int, floor_sd: float
) -> tuple[float, float, float]:
    """The weighted mean, its standard error from blocks of so many values, and the degrees of
    freedom of that.
    """
    starts = np.arange(0, len(sample) - len(sample) % size, size)  # the last block takes the rest
    wholes = np.add.reduceat(weights, starts)
    values = np.add.reduceat(weights * sample, starts) / wholes
    times = np.add.reduceat(weights * np.array(at_s), starts) / wholes
    mid = float(wholes @ values / wholes.sum())
    variance, degrees = _scatter(times, values)
    sd = math.sqrt(max(variance, floor_sd**2 / size))
    return mid, sd * math.sqrt(float(wholes @ wholes)) / float(wholes.sum()), degrees


def _scatter(times: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Variance of single values, and its degrees of freedom."""
    count = len(values)
    if count < LOCAL_MIN:
        return float(values.var(ddof=1)), _degrees(count)
    share = (times[1:-1] - times[:-2]) / (times[2:] - times[:-2])
    off = values[1:-1] - (1.0 - share) * values[:-2] - share * values[2:]
    off2 = off**2 / (1.0 + share**2 + (1.0 - share) ** 2)
    return float(off2.mean()), _degrees(count)


def _degrees(count: int) -> float:
    """Degrees of freedom of the scatter of so many values: those off the line between neighbours
    at equal distances are correlated by -2/3 and 1/6 (Satterthwaite, Biometrics Bulletin 2, 1946).
    """
    if count < LOCAL_MIN:
        return count - 1.0
    inner = count - 2
    return inner**2 / (inner + 2.0 * (4.0 / 9.0 * (inner - 1) + 1.0 / 36.0 * (inner - 2)))


def count_for(wanted_half: float, count: int, half: float) -> int:
    """How many values give an interval of half the width wanted, where `count` gave `half`."""
    scatter = half * math.sqrt(count) / _student_factor(_degrees(count))
    while half > wanted_half:
        count = math.ceil(COUNT_GROWTH * count)
        half = scatter * _student_factor(_degrees(count)) / math.sqrt(count)
    return count


def _student_factor(degrees: float) -> float:
    return float(stdtrit(degrees, (1.0 + CONFIDENCE) / 2.0))
