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

DRAWS = 200  # the standard error of the mean is then a 14th of the spread: 0.02 % at 3 % noise
SEED = 20_261_120  # any fixed number
DRAWS_JUDGED, SEED_JUDGED = 400, 65_537  # luck that no search has seen; any other seed
ENTRIES = 2_000_000  # operations x draws timed at once: 16 MB an array
ENTRIES_KEPT = 16_000_000  # luck that is not drawn again for every plan: 128 MB
LANES = 16  # draws side by side: one at a time, the processor waits for each sum
P95 = 0.95


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative standard deviations (fractions of the mean, which is kept) and siblings.

    `operation`: each operation on its own. `gpu`: one factor for all that a GPU does in an
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

    @property
    def still(self) -> bool:
        """Whether every iteration takes as long as the model says."""
        return not (self.operation or self.gpu or self.communication_s)


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
        self._stage: Ints = np.array([operation.stage for operation in operations])
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
            self._run(duration_s, *luck, times_s, traced=False)
        return times_s

    def mean(self, duration_s: Floats) -> tuple[float, Floats]:
        """The mean iteration time, and by operation how much later it is per second that this
        takes; of that, where siblings are many, the part of the first of them."""
        times_s, weight = np.zeros(self._draws), np.zeros(0)
        for luck in self.luck():
            first = not len(weight)
            found = self._run(duration_s, *luck, times_s, traced=first)
            weight = found if first else weight
        return float(times_s.mean()), weight / self._draws

    def late(self, duration_s: Floats, which: Ints) -> Floats:
        """By operation, how much later these draws end on average per second that it takes."""
        factor, delay_s = next(self.luck())  # where siblings are many, the first of them
        times_s = np.zeros(len(which))
        at = np.s_[:, which // LANES, :, which % LANES]
        mine, late_s = (_in_lanes(np.moveaxis(one[at], 0, 1)) for one in (factor, delay_s))
        return self._run(duration_s, mine, late_s, times_s) / len(which)

    def luck(self) -> Iterator[tuple[Floats, Floats]]:
        """Some siblings at a time: factors (siblings, groups, rows, LANES) of groups of draws, and
        delays in seconds (siblings, groups, edges of the graph, LANES), without edges where nothing
        is delayed."""
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

    def _run(
        self,
        mean_s: Floats,
        factor: Floats,
        delay_s: Floats,
        times_s: Floats,
        *,
        traced: bool = True,
    ) -> Floats:
        """Raises `times_s` (draws,) to the end of the slowest sibling of each draw.

        `mean_s` is by operation, `factor` and `delay_s` are as in `luck`. Answers, by operation,
        the sum over draws of d end / d mean: its factor in every draw in which it lies on the
        longest path; zeros where that is not to be `traced`.
        """
        path, weight = (self._levels.begins, self._levels.before), np.zeros(self._levels.size)
        _run(*path, self._link, mean_s, factor, delay_s, times_s, weight, traced)
        return weight

    def _luck(self, siblings: range) -> tuple[Floats, Floats]:
        """See `luck`."""
        luck = [
            self._draw(np.random.default_rng((self._seed, sibling)), self._draws)
            for sibling in siblings
        ]
        factor, delay_s = zip(*luck, strict=True)
        return _in_lanes(np.stack(factor)), _in_lanes(np.stack(delay_s))

    def _draw(self, dice: np.random.Generator, draws: int) -> tuple[Floats, Floats]:
        factor = _log_normal(dice, self.noise.operation, (draws, self._levels.size))
        if self.noise.gpu:
            factor *= _log_normal(dice, self.noise.gpu, (draws, self._stages))[:, self._stage]
        delay_s = np.zeros((draws, self._links))
        if self._links:
            size = (draws, len(self._crossing))
            delay_s[:, self._crossing] = dice.exponential(self.noise.communication_s, size)
        return factor, delay_s


def _in_lanes(luck: Floats) -> Floats:
    """(siblings, draws, rows) as (siblings, groups, rows, LANES); the last group is filled up."""
    siblings, draws, rows = luck.shape
    groups = -(-draws // LANES)
    padded = np.zeros((siblings, groups * LANES, rows))
    padded[:, :draws] = luck
    return np.ascontiguousarray(padded.reshape(siblings, groups, LANES, rows).swapaxes(2, 3))


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
    top_s: Floats,
) -> None:
    """Writes the ends of each row (rows, LANES) of a group of draws, and the last ones."""
    delayed = len(delay_s) > 0
    top_s[:] = 0.0
    for row in range(len(mean_s)):
        end, own_s, luck = end_s[row], mean_s[row], factor[row]
        for lane in range(LANES):
            end[lane] = 0.0
        for k in range(first[row], first[row + 1]):
            done = end_s[before[k]]
            if delayed:
                late_s = delay_s[link[k]]
                for lane in range(LANES):
                    end[lane] = max(end[lane], done[lane] + late_s[lane])
                continue
            for lane in range(LANES):
                one, other = done[lane], end[lane]
                end[lane] = one if one > other else other  # noqa: FURB136 (twice as slow)
        for lane in range(LANES):
            end[lane] += own_s * luck[lane]
            one, other = end[lane], top_s[lane]
            top_s[lane] = one if one > other else other  # noqa: FURB136


@compiled
def _trace(
    first: Ints,
    before: Ints,
    link: Ints,
    factor: Floats,
    delay_s: Floats,
    lane: int,
    end_s: Floats,
    weight: Floats,
) -> None:
    """Adds the factors of the rows on the longest path of a draw."""
    row = 0
    for at in range(1, len(end_s)):
        row = at if end_s[at, lane] > end_s[row, lane] else row
    while row >= 0:
        weight[row] += factor[row, lane]
        ready_s, last = -1.0, -1
        for k in range(first[row], first[row + 1]):
            at_s = end_s[before[k], lane]
            if len(delay_s):
                at_s += delay_s[link[k], lane]
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
    traced: bool,
) -> None:
    siblings, groups, rows, _ = factor.shape
    end_s, top_s = np.zeros((rows, LANES)), np.zeros(LANES)
    slowest = np.empty(LANES, dtype=np.int64)
    for group in range(groups):
        start = group * LANES
        lanes = min(LANES, len(times_s) - start)
        slowest[:] = -1
        for k in range(siblings):
            luck, late_s = factor[k, group], delay_s[k, group]
            _pass(first, before, link, mean_s, luck, late_s, end_s, top_s)
            for lane in range(lanes):
                if top_s[lane] > times_s[start + lane]:
                    times_s[start + lane], slowest[lane] = top_s[lane], k
        now = siblings - 1  # whose ends these are
        for k in range(siblings if traced else 0):
            luck, late_s = factor[k, group], delay_s[k, group]
            for lane in range(lanes):
                if slowest[lane] == k:
                    if now != k:
                        _pass(first, before, link, mean_s, luck, late_s, end_s, top_s)
                        now = k
                    _trace(first, before, link, luck, late_s, lane, end_s, weight)
