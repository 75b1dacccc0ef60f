"""Noise of iterations under one setting, its correlation, and the weight that work has earned.

All of it comes from differences of iterations one and two apart, and of means of neighbouring
blocks of them, which show slow stretches of network and storage. So neither level nor effect of the
clocks has a part in it. Pure and bounded.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from joulecut_controller.chunk import DEVIATION_OF_MEDIAN

FADE = 1.0 - 1.0 / 256.0  # of older differences: some 256 iterations count
READY = 16.0  # differences before one can be too large, and before the noise is the job's own
NOISE_SD = 0.01  # of an iteration, as long as nothing is known
NOISE_SD_MIN = 2e-4  # clocks of computers are no better
SDS_MAX = 6.0  # a larger difference is a jump or a hiccup, and counts as so much
CORRELATION_MAX = 0.9  # of neighbours; beyond it so few iterations tell nothing
CORRELATION_USUAL = 0.25  # as long as little is known: network and storage make slow minutes
BLOCK = 8  # iterations
BLOCKS_READY = 8.0  # differences of blocks that weigh as much as what neighbours say
BLOCK_SDS_MAX = 3.0  # by what neighbours say: a larger difference of blocks is a jump
WORK_SD_MIN = 0.002  # of work from one iteration to the next: less is the noise of timers
WEIGHT_MAX = 1.0  # time beside the operations does not follow them


@dataclass(slots=True)
class _Squares:
    """Halved sums of squares of differences: of times, of works, and of both."""

    most: float = math.inf  # of a difference, as long as noise is not known
    count: float = 0.0
    time: float = 0.0
    work: float = 0.0
    both: float = 0.0

    def add(self, time: float, work: float) -> None:
        most = self.most
        if self.count >= READY:
            most = SDS_MAX * math.sqrt(2.0 * self.time / self.count)
        time = min(max(time, -most), most)
        self.count = FADE * self.count + 1.0
        self.time = FADE * self.time + time * time / 2.0
        self.work = FADE * self.work + work * work / 2.0
        self.both = FADE * self.both + time * work / 2.0

    def left(self, weight: float) -> float:
        """Variance of what the weight of work leaves of the time."""
        return (self.rest(weight) + READY * NOISE_SD**2) / (self.count + READY)

    def rest(self, weight: float) -> float:
        """Sum of squares of the same."""
        return max(0.0, self.time - 2.0 * weight * self.both + weight * weight * self.work)

    def of_work(self) -> float:
        return (self.work + READY * NOISE_SD**2) / (self.count + READY)


@dataclass(slots=True)
class Noise:
    """Figures are variances of logarithms."""

    _newest: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=2))
    _one: _Squares = field(default_factory=_Squares)
    _two: _Squares = field(default_factory=_Squares)
    _block: list[tuple[float, float]] = field(default_factory=list)
    _mean: tuple[float, float] | None = None  # of the block before
    _blocks: _Squares = field(default_factory=_Squares)

    @classmethod
    def of(cls, logs_s: Sequence[float]) -> "Noise":
        """Of a job whose first iterations took so long; hiccups among them count as noise does."""
        apart = [abs(after - before) for before, after in pairwise(logs_s)]
        most = SDS_MAX * DEVIATION_OF_MEDIAN * statistics.median(apart)
        return cls(_one=_Squares(most), _two=_Squares(most))

    def begin(self) -> None:
        """The next iteration is no neighbour of the last one."""
        self._newest.clear()
        self._block.clear()
        self._mean = None

    def take(self, log_s: float, work_log: float) -> None:
        for apart, squares in ((1, self._one), (2, self._two)):
            if len(self._newest) >= apart:
                before_s, before = self._newest[-apart]
                squares.add(log_s - before_s, work_log - before)
        self._newest.append((log_s, work_log))
        self._block.append((log_s, work_log))
        if len(self._block) == BLOCK:
            self._end_block()

    def _end_block(self) -> None:
        time, work = (math.fsum(values) / BLOCK for values in zip(*self._block, strict=True))
        known = self._of_mean(self._one.left(0.0), self._two.left(0.0))
        if self._mean is not None:
            apart = time - self._mean[0]
            if abs(apart) <= BLOCK_SDS_MAX * math.sqrt(2.0 * known / BLOCK):
                self._blocks.add(apart, work - self._mean[1])
        self._mean = time, work
        self._block.clear()

    @property
    def weight(self) -> float:
        """By how much time follows work: a regression, 0 where work does not vary."""
        one = self._one
        rest = WORK_SD_MIN**2 * (one.count + READY)
        return min(WEIGHT_MAX, max(0.0, one.both / (one.work + rest)))

    @property
    def of_time(self) -> float:
        """Of the mean of many iterations, times their number."""
        weight = self.weight
        known = self._of_mean(self._one.left(weight), self._two.left(weight))
        return self._blended(known, self._blocks.rest(weight))

    @property
    def of_work(self) -> float:
        """The same of their work."""
        return self._blended(
            self._of_mean(self._one.of_work(), self._two.of_work()), self._blocks.work
        )

    def _blended(self, known: float, blocks: float) -> float:
        """What neighbours say, and what blocks say beside it."""
        return (BLOCK * blocks + BLOCKS_READY * known) / (self._blocks.count + BLOCKS_READY)

    def _of_mean(self, one: float, two: float) -> float:
        """Of a process of first order with correlation r, neighbours differ by (1 - r) of its
        variance and the next but one by 1 - r^2; a mean has (1 + r) / (1 - r) times the variance.
        """
        count = self._two.count
        seen = (count * (two / one - 1.0) + READY * CORRELATION_USUAL) / (count + READY)
        r = min(CORRELATION_MAX, max(0.0, seen))
        return max(NOISE_SD_MIN**2, one * (1.0 + r) / (1.0 - r) ** 2)
