"""Shift of a job's pace at unchanged clocks: another batch, sequence length or phase of the job.

The newest iterations are compared with the first ones under the same clocks. A jump shows within a
few iterations, a creep once it has added up.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

FIRST = 16  # iterations under these clocks that the newest are compared with
NEWEST = (4, 8, 32)  # few see a jump soon, many a small shift through the noise
SHIFT_RATIO_MIN = 0.01  # a fifth of a usual slowdown budget
DOUBT_STDERRS = 4.0  # asked at every iteration
CORRELATION_MAX = 0.9  # of neighbours; beyond it so few iterations tell nothing


class PaceShift:
    """Iterations under one set of clocks. Neighbours may resemble each other, as batches of similar
    length do: few iterations then tell less. `counts` are those of the newest that are compared.
    """

    def __init__(self, counts: tuple[int, ...] = NEWEST) -> None:
        self._counts = counts
        self._first_s: list[float] = []
        self._newest_s: deque[float] = deque(maxlen=NEWEST[-1])

    def take(self, duration_s: float, *, correlated: bool) -> float:
        """Adds an iteration; returns the newest pace over the first, 1.0 where it is the same."""
        if len(self._first_s) < FIRST:
            self._first_s.append(duration_s)
            return 1.0
        self._newest_s.append(duration_s)
        first_s, first_var = statistics.fmean(self._first_s), statistics.variance(self._first_s)
        for count in self._counts:
            if len(self._newest_s) < count:
                break
            newest = list(self._newest_s)[-count:]
            mean_s = statistics.fmean(newest)
            variance = max(first_var, statistics.variance(newest))
            if correlated:
                variance *= inflation(self._first_s, newest)
            doubt_s = DOUBT_STDERRS * (variance / FIRST + variance / count) ** 0.5
            if abs(mean_s - first_s) > max(SHIFT_RATIO_MIN * first_s, doubt_s):
                return mean_s / first_s
        return 1.0


def inflation(*runs: Sequence[float]) -> float:
    """By how much correlated neighbours raise the variance of a mean: (1 + r) / (1 - r) of a
    process of first order.
    """
    products = squares = 0.0
    for run in runs:
        mean = statistics.fmean(run)
        products += sum((a - mean) * (b - mean) for a, b in pairwise(run))
        squares += sum((a - mean) ** 2 for a in run)
    r = min(max(products / squares, 0.0), CORRELATION_MAX) if squares > 0.0 else 0.0
    return (1.0 + r) / (1.0 - r)
