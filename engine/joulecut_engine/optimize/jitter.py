"""How late a plan really runs, because real times jitter and an exact plan leaves no slack.

A plan on mean times makes nearly every path critical; whichever operation is slow this time
delays the iteration, none that is quick hastens it. And data-parallel siblings meet once per
iteration, so the slowest of them sets the time. Here a plan is run on paper, a few hundred
times, with the measured variances; same seed, same answer.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Floats, Ints, levels_of
from joulecut_engine.optimize.problem import Problem
from joulecut_engine.optimize.recorded import Recorded

DRAWS = 200  # the standard error of the mean is then a 14th of the spread: 0.02 % at 3 % noise
SEED = 20_261_120  # any fixed number
DRAWS_JUDGED, SEED_JUDGED = 400, 65_537  # luck that no search has seen; any other seed
ENTRIES = 2_000_000  # operations x draws timed at once: 16 MB an array
ENTRIES_KEPT = 16_000_000  # luck that is not drawn again for every plan: 128 MB
SIBLINGS_CRITICAL = 64  # the slowest of more is hardly another: extremes grow with the logarithm
P95 = 0.95


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative standard deviations (fractions of the mean, which is kept) and siblings.

    `operation`: each operation on its own. `gpu`: one factor for all that a GPU does in an
    iteration. Both are log-normal, so nothing takes negative time. `communication_s`: mean of
    an exponentially distributed delay, in seconds, of each transfer between stages; it only
    ever adds. `siblings`: data-parallel pipelines that meet at the end of the iteration.
    `recorded`: iterations to draw from, in place of the distributions of operations and GPUs.
    """

    operation: float = 0.0
    gpu: float = 0.0
    communication_s: float = 0.0
    siblings: int = 1
    recorded: Recorded | None = None

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
        self.problem, self.noise = problem, noise
        self._draws, self._seed = draws, seed
        self._levels = levels_of(problem.graph)
        self._link = np.argsort(self._levels.edges[:, 1], kind="stable")  # as `before`
        operations = problem.graph.operations
        self._stage: Ints = np.array([operations[i].stage for i in self._levels.operation])
        self._stages = len(problem.blocking_power_w)
        crossing = [operations[a].stage != operations[b].stage for a, b in problem.graph.edges]
        self._crossing: Ints = np.flatnonzero(crossing)
        self._links = len(crossing) if noise.communication_s else 0
        self._kept: dict[int, tuple[Floats, Floats]] = {}  # luck of siblings from this one on

    def spread(self, clocks: Sequence[ClockOption]) -> Spread:
        """What the iteration of these options, one per operation, really takes."""
        times_s = self.times_s(clocks)
        return Spread(float(times_s.mean()), float(np.quantile(times_s, P95)))

    def times_s(self, clocks: Sequence[ClockOption]) -> Floats:
        """Iteration time of each draw, in seconds: the slowest sibling's."""
        return self.drawn_s(np.array([option.time_s for option in clocks]))

    def drawn_s(self, duration_s: Floats) -> Floats:
        """As `times_s`, of mean seconds by operation."""
        times_s = np.zeros(self._draws)
        for luck in self.luck():
            self._run(duration_s, *luck, times_s)
        return times_s

    def late(self, duration_s: Floats, which: Ints) -> Floats:
        """By operation, how much later these draws end on average per second that it takes."""
        factor, delay_s = next(self.luck())  # where siblings are many, the first of them
        times_s = np.zeros(len(which))
        return self._run(duration_s, factor[:, which], delay_s[:, which], times_s) / len(which)

    def luck(self) -> Iterator[tuple[Floats, Floats]]:
        """Some siblings at a time: factors (siblings, draws, rows) and delays in seconds
        (siblings, draws, edges of the graph), without edges where nothing is delayed."""
        each = self._draws * (self._levels.size + self._links)
        together = max(1, ENTRIES // each)
        for first in range(0, self.noise.siblings, together):
            last = min(first + together, self.noise.siblings)
            luck = self._kept.get(first)
            if luck is None:
                luck = self._luck(range(first, last))
                if last * each <= ENTRIES_KEPT:
                    self._kept[first] = luck
            yield luck

    def criticality(self, clocks: Sequence[ClockOption], seed: int, draws: int) -> Floats:
        """By operation, how much longer the mean iteration takes per second that it does.

        That is the probability to lie on the longest path of the slowest sibling, weighted by
        its own luck. From `draws` draws of another luck than that of `times_s`, so that a plan
        made with it does not flatter itself.
        """
        mean_s = np.array([option.time_s for option in clocks])
        siblings = min(self.noise.siblings, SIBLINGS_CRITICAL)
        luck = [one[None] for one in self._draw(np.random.default_rng((seed, 0)), siblings * draws)]
        factor, delay_s = (one.reshape(siblings, draws, -1) for one in luck)
        return self._run(mean_s, factor, delay_s, np.zeros(draws)) / draws

    def _run(self, mean_s: Floats, factor: Floats, delay_s: Floats, times_s: Floats) -> Floats:
        """Raises `times_s` (draws,) to the end of the slowest sibling of each draw.

        `mean_s` is by operation, `factor` and `delay_s` are as in `luck`. Answers, by operation,
        the sum over draws of d end / d mean: its factor in every draw in which it lies on the
        longest path.
        """
        levels = self._levels
        by_row, weight = np.zeros(levels.size), np.empty(levels.size)
        mean_s = mean_s[levels.operation]
        _run(levels.begins, levels.before, self._link, mean_s, factor, delay_s, times_s, by_row)
        weight[levels.operation] = by_row
        return weight

    def _luck(self, siblings: range) -> tuple[Floats, Floats]:
        """Factors (siblings, draws, rows) and delays (siblings, draws, edges)."""
        luck = [
            self._draw(np.random.default_rng((self._seed, sibling)), self._draws)
            for sibling in siblings
        ]
        return np.stack([factor for factor, _ in luck]), np.stack([delay for _, delay in luck])

    def _draw(self, dice: np.random.Generator, draws: int) -> tuple[Floats, Floats]:
        if self.noise.recorded is not None:
            factors = self.noise.recorded.factors[:, self._levels.operation]
            factor = factors[dice.integers(len(factors), size=draws)]
        else:
            factor = _log_normal(dice, self.noise.operation, (draws, self._levels.size))
        if self.noise.gpu and self.noise.recorded is None:
            factor *= _log_normal(dice, self.noise.gpu, (draws, self._stages))[:, self._stage]
        delay_s = np.zeros((draws, self._links))
        if self._links:
            size = (draws, len(self._crossing))
            delay_s[:, self._crossing] = dice.exponential(self.noise.communication_s, size)
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


def draws_of(noise: Noise, alone: int = DRAWS) -> int:
    """As many draws as make the mean as sure as `alone` draws of a lone pipeline do: the slowest of
    k siblings varies less than one (by 0.82 for two, 0.57 for twelve, 0.42 for sixty-four).
    """
    return math.ceil(alone / (1.0 + 0.8 * math.log(noise.siblings)))


def judge_of(problem: Problem, noise: Noise) -> Trials:
    """Trials of other luck: a plan made on some draws suits them, and these show by how much."""
    return Trials(problem, noise, draws=draws_of(noise, DRAWS_JUDGED), seed=SEED_JUDGED)


@compiled
def _pass(
    first: Ints,
    before: Ints,
    link: Ints,
    mean_s: Floats,
    factor: Floats,
    delay_s: Floats,
    end_s: Floats,
) -> int:
    """Writes the end of each row; answers the row that ends last."""
    latest, latest_s = 0, 0.0
    for row in range(len(mean_s)):
        ready_s = 0.0
        for k in range(first[row], first[row + 1]):
            at_s = end_s[before[k]]
            if len(delay_s):
                at_s += delay_s[link[k]]
            ready_s = max(ready_s, at_s)
        at_s = ready_s + mean_s[row] * factor[row]
        end_s[row] = at_s
        if at_s > latest_s:
            latest, latest_s = row, at_s
    return latest


@compiled
def _trace(
    first: Ints,
    before: Ints,
    link: Ints,
    factor: Floats,
    delay_s: Floats,
    end_s: Floats,
    row: int,
    weight: Floats,
) -> None:
    """Adds the factors of the rows on the longest path that ends with `row`."""
    while row >= 0:
        weight[row] += factor[row]
        ready_s, last = -1.0, -1
        for k in range(first[row], first[row + 1]):
            at_s = end_s[before[k]]
            if len(delay_s):
                at_s += delay_s[link[k]]
            if at_s > ready_s:
                ready_s, last = at_s, before[k]
        row = last


@compiled
def _run(
    first: Ints,
    before: Ints,
    link: Ints,
    mean_s: Floats,
    factor: Floats,
    delay_s: Floats,
    times_s: Floats,
    weight: Floats,
) -> None:
    siblings, draws, rows = factor.shape
    ends_s = np.zeros((2, rows))  # of the slowest sibling so far, and of the one that runs
    for draw in range(draws):
        slowest, row, mine = -1, -1, 0
        for k in range(siblings):
            end_s = ends_s[1 - mine]
            luck, late_s = factor[k, draw], delay_s[k, draw]
            latest = _pass(first, before, link, mean_s, luck, late_s, end_s)
            if end_s[latest] > times_s[draw]:
                times_s[draw] = end_s[latest]
                slowest, row, mine = k, latest, 1 - mine
        if row >= 0:
            luck, late_s = factor[slowest, draw], delay_s[slowest, draw]
            _trace(first, before, link, luck, late_s, ends_s[mine], row, weight)
