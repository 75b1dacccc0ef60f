"""95 % confidence interval of a mean, for values that may be correlated.

Student's interval for the mean of n values. Where neighbouring values share windows, it is at
least that of Newey and West (Econometrica 55, 1987), with the critical values of Kiefer and
Vogelsang (Econometric Theory 21, 2005, Bartlett kernel) that small samples need.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95
LAGS_PER_SHARED = 3  # values that share a part are correlated, by slow noise a little beyond it
# Kiefer and Vogelsang's for 97.5 %: coefficients of powers of the lags' part of all values.
CRITICAL = (1.9600, 2.9694, 0.4160, -0.5324)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    mid: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0


def student_interval(sample: Sequence[float], *, floor_sd: float, shared: int) -> Interval:
    """The mean of two values or more, in their order, with its interval. `floor_sd` is the least
    that a single value scatters; `shared` is how many of those that follow one are kin to it.
    """
    values = np.array(sample)
    count = len(values)
    mid = float(values.mean())
    off = values - mid
    plain = float(off @ off) / (count - 1)
    half = _student_factor(count) * math.sqrt(max(plain, floor_sd**2) / count)
    lags = min(count // 3, LAGS_PER_SHARED * shared)
    if lags:
        serial = (
            float(off @ off)
            + 2.0
            * sum(
                (1.0 - lag / (lags + 1.0)) * float(off[lag:] @ off[:-lag])
                for lag in range(1, lags + 1)
            )
        ) / count
        part = (lags + 1.0) / count
        factor = CRITICAL[0] + part * (CRITICAL[1] + part * (CRITICAL[2] + part * CRITICAL[3]))
        half = max(half, factor * math.sqrt(max(serial, 0.0) / count))
    return Interval(mid, mid - half, mid + half)


def _student_factor(count: int) -> float:
    return float(stdtrit(count - 1, (1.0 + CONFIDENCE) / 2.0))
