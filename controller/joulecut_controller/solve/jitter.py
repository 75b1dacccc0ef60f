"""How late a plan really runs, because real times jitter and an exact plan leaves no slack.

A plan on mean times makes nearly every path critical; whichever operation is slow this time
delays the iteration, none that is quick hastens it. And data-parallel siblings meet once per
iteration, so the slowest of them sets the time. Here a plan is run on paper, a few hundred
times, with the measured variances; same seed, same answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_controller.hardware import ClockOption
from joulecut_controller.solve.problem import Problem
from joulecut_controller.solve.waves import Floats, Ints, waves_of

DRAWS = 200  # the standard error of the mean is then a 14th of the spread: 0.02 % at 3 % noise
SEED = 20_261_120  # any fixed number
ENTRIES = 2_000_000  # operations x draws timed at once: 16 MB an array
P95 = 0.95


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative standard deviations (fractions of the mean, which is kept) and siblings.

    `operation`: each operation anew. `gpu`: one factor for all that a GPU does in an
    iteration. Both are log-normal, so nothing takes negative time. `communication_s`: mean of
    an exponentially distributed delay, in seconds, of each transfer between stages; it only
    ever adds. `siblings`: data-parallel pipelines that meet at the end of the iteration.
    """

    operation: float = 0.0
    gpu: float = 0.0
    communication_s: float = 0.0
    siblings: int = 1

    def __post_init__(self) -> None:
        for value in (self.operation, self.gpu, self.communication_s):
            if not 0.0 <= value < math.inf:
                raise ValueError("noise is finite and not negative")
        if self.siblings < 1:
            raise ValueError(f"{self.siblings} siblings: a pipeline is at least its own")


@dataclass(frozen=True, slots=True)
class Spread:
    """Iteration times of many draws, in seconds, siblings waited for."""

    mean_s: float
    p95_s: float


class Trials:
    """One problem under one noise; every plan meets the same luck, so plans compare fairly.

    Sibling k's luck does not depend on how many siblings there are: more are never faster.
    Raises ValueError for fewer than 1 draw.
    """

    def __init__(
        self, problem: Problem, noise: Noise, *, draws: int = DRAWS, seed: int = SEED
    ) -> None:
        if draws < 1:
            raise ValueError(f"{draws} draws: at least 1")
        self._noise, self._draws, self._seed = noise, draws, seed
        self._waves = waves_of(problem.graph)
        operations = problem.graph.operations
        self._stage: Ints = np.array([operations[i].stage for i in self._waves.operation])
        self._stages = len(problem.blocking_power_w)
        crossing = [operations[a].stage != operations[b].stage for a, b in problem.graph.edges]
        self._crossing: Ints = np.flatnonzero(crossing)
        self._links = len(crossing)

    def spread(self, clocks: Sequence[ClockOption]) -> Spread:
        """What the iteration of these options, one per operation, really takes."""
        times_s = self.times_s(clocks)
        return Spread(float(times_s.mean()), float(np.quantile(times_s, P95)))

    def times_s(self, clocks: Sequence[ClockOption]) -> Floats:
        """Iteration time of each draw, in seconds: the slowest sibling's."""
        mean_s = np.array([option.time_s for option in clocks])[self._waves.operation]
        slowest_s = np.zeros(self._draws)
        together = max(1, ENTRIES // (self._waves.size * self._draws))
        for first in range(0, self._noise.siblings, together):
            last = min(first + together, self._noise.siblings)
            times_s = self._times_s(mean_s, range(first, last)).reshape(-1, self._draws)
            slowest_s = np.maximum(slowest_s, times_s.max(axis=0))
        return slowest_s

    def _times_s(self, mean_s: Floats, siblings: range) -> Floats:
        """(siblings x draws,): a column of the schedule for each draw of each sibling."""
        luck = [self._luck(sibling) for sibling in siblings]
        duration_s = mean_s[:, None] * np.concatenate([factor for factor, _ in luck], axis=1)
        if not self._noise.communication_s:
            return self._waves.iteration_times(duration_s)
        delay_s = np.concatenate([delay for _, delay in luck], axis=1)
        end_s = np.zeros((self._waves.size + 1, duration_s.shape[1]))
        for wave in self._waves.waves:
            ready_s = (end_s[wave.before] + delay_s[wave.links_before]).max(axis=1)
            end_s[wave.rows] = ready_s + duration_s[wave.rows]
        times_s: Floats = end_s.max(axis=0)
        return times_s

    def _luck(self, sibling: int) -> tuple[Floats, Floats]:
        """Factors by row (rows, draws) and delays by edge (edges + 1, draws; 0 for nobody)."""
        dice = np.random.default_rng((self._seed, sibling))
        factor = _log_normal(dice, self._noise.operation, (self._waves.size, self._draws))
        if self._noise.gpu:
            factor *= _log_normal(dice, self._noise.gpu, (self._stages, self._draws))[self._stage]
        delay_s = np.zeros((self._links + 1, self._draws))
        if self._noise.communication_s:
            size = (len(self._crossing), self._draws)
            delay_s[self._crossing] = dice.exponential(self._noise.communication_s, size)
        return factor, delay_s


def _log_normal(dice: np.random.Generator, deviation: float, size: tuple[int, int]) -> Floats:
    """Factors of mean 1 and the given standard deviation; exactly 1 where that is 0."""
    if not deviation:
        return np.ones(size)
    width = math.sqrt(math.log1p(deviation**2))
    factor: Floats = dice.standard_normal(size)
    factor *= width
    factor -= width**2 / 2
    return np.exp(factor, out=factor)
