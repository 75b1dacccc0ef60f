"""What one clock for a whole stage costs: the table that granularity `gpu` chooses from.

Operations of a stage with the same options form a class (its forwards, its backwards). A
choice is one clock per stage, at which every class of the stage was measured.
"""

import math
from collections.abc import Sequence

import numpy as np

from joulecut_controller.hardware import ClockOption
from joulecut_controller.solve.problem import NoCommonClock, Problem
from joulecut_controller.solve.waves import Floats, Ints, Waves

ENTRIES = 2_000_000  # rows x choices judged at once: 16 MB

Paired = tuple[ClockOption, ...]  # one option per class of a stage, all at the same clock


class Stages:
    """Choices are index arrays, (stages,) or (stages, K); tables are padded with infinity.

    `cost_j` (stages, choices) is the effective cost of all operations of a stage, `busy_s`
    the time they take; choices are sorted by it. Raises NoCommonClock.
    """

    def __init__(self, problem: Problem, waves: Waves) -> None:
        self._waves = waves
        members: list[dict[int, list[int]]] = [{} for _ in problem.blocking_power_w]
        measured = problem.measured or problem.options
        for i, operation in enumerate(problem.graph.operations):
            members[operation.stage].setdefault(id(measured[i]), []).append(i)
        self._class = np.zeros(len(measured), dtype=np.int64)  # by operation
        self._stage: list[int] = []  # by class
        self.menus: list[list[Paired]] = []
        for stage, classes in enumerate(members):
            counts = [len(indices) for indices in classes.values()]
            for indices in classes.values():
                self._class[indices] = len(self._stage)
                self._stage.append(stage)
            options = [measured[indices[0]] for indices in classes.values()]
            power_w = problem.blocking_power_w[stage]
            self.menus.append(_menu(stage, options, counts, power_w))
        self._row_class = self._class[waves.operation]
        self._class_stage = np.array(self._stage, dtype=np.int64)
        self._first_class = np.searchsorted(self._class_stage, np.arange(len(members)))
        self.sizes = np.bincount(self._class, minlength=len(self._stage))
        self._seconds = self._tabulate(problem)
        self.busy_s = self.lengths(self.sizes.astype(np.float64))
        self._before = _before(waves)

    def _tabulate(self, problem: Problem) -> Floats:
        width = max(map(len, self.menus))
        self.cost_j = np.full((len(self.menus), width), np.inf)
        seconds = np.full((len(self._stage), width), np.inf)
        for number, stage in enumerate(self._stage):
            within = number - int(self._first_class[stage])
            for choice, paired in enumerate(self.menus[stage]):
                seconds[number, choice] = paired[within].time_s
        for stage, menu in enumerate(self.menus):
            power_w = problem.blocking_power_w[stage]
            sizes = self.sizes[self._class_stage == stage]
            self.cost_j[stage, : len(menu)] = [_cost_j(p, sizes, power_w) for p in menu]
        return seconds

    def clocks(self, choice: Ints) -> tuple[ClockOption, ...]:
        """The option of each operation, by graph index, under one choice (stages,)."""
        result = []
        for number in self._class:
            stage = self._stage[number]
            paired = self.menus[stage][int(choice[stage])]
            result.append(paired[int(number - self._first_class[stage])])
        return tuple(result)

    def seed(self, clocks: Sequence[ClockOption]) -> Ints | None:
        """A former solution as a choice (stages,); None where it is none of ours."""
        if len(clocks) != len(self._class):
            return None
        clock_mhz = {self._stage[k]: o.clock_mhz for k, o in zip(self._class, clocks, strict=True)}
        choice = []
        for stage, menu in enumerate(self.menus):
            offered = [paired[0].clock_mhz for paired in menu]
            if clock_mhz.get(stage) not in offered:
                return None
            choice.append(offered.index(clock_mhz[stage]))
        return np.array(choice, dtype=np.int64)

    def lengths(self, weight: Floats) -> Floats:
        """(stages, choices): sum over a stage's classes of weight (per class) x seconds."""
        weighted = weight[:, None] * np.where(np.isfinite(self._seconds), self._seconds, 0.0)
        lengths = np.zeros_like(self.cost_j)
        np.add.at(lengths, self._class_stage, weighted)
        return np.where(np.isfinite(self.cost_j), lengths, np.inf)

    def iteration_times(self, choice: Ints) -> Floats:
        """Exact makespans of (stages, K) choices: (K,) seconds."""
        step = max(1, ENTRIES // self._waves.size)
        stage = self._class_stage[self._row_class]
        parts = []
        for first in range(0, choice.shape[1], step):
            chosen = choice[stage, first : first + step]
            duration_s = self._seconds[self._row_class[:, None], chosen]
            parts.append(self._waves.iteration_times(duration_s))
        return np.concatenate(parts)

    def critical(self, choice: Ints) -> Floats:
        """How many operations of each class lie on one longest path of a choice (stages,)."""
        chosen = choice[self._class_stage[self._row_class]]
        end_s = np.append(self._waves.ends(self._seconds[self._row_class, chosen]), -1.0)
        counts = np.zeros(len(self._stage))
        row = int(np.argmax(end_s))
        while row < self._waves.size:
            counts[self._row_class[row]] += 1.0
            before = self._before[row]
            row = int(before[np.argmax(end_s[before])])
        return counts

    def prices_w(self, price_w: Floats) -> Floats:
        """Prices by row, added up per class: the weight of `lengths` in joules."""
        prices_w = np.bincount(self._row_class, price_w, minlength=len(self._stage))
        return np.asarray(prices_w, dtype=np.float64)


def _menu(stage: int, options: list[Paired], counts: Sequence[int], power_w: float) -> list[Paired]:
    """Clocks all classes were measured at, without those another beats on every time and on
    cost; by busy time. Quadratic in the number of clocks, of which a GPU has about a hundred."""
    at: list[dict[int, ClockOption]] = []
    for menu in options:
        best: dict[int, ClockOption] = {}
        for option in sorted(menu, reverse=True):
            best[option.clock_mhz] = option  # of several at one clock the fastest stays
        at.append(best)
    shared = sorted(set(at[0]).intersection(*at[1:]))
    if not shared:
        raise NoCommonClock(stage)
    pairs = [tuple(menu[clock] for menu in at) for clock in shared]
    cost = np.array([[*(o.time_s for o in p), _cost_j(p, counts, power_w)] for p in pairs])
    no_worse = (cost[:, None, :] <= cost[None, :, :]).all(axis=2)
    # Of equals the first stays, which is the lowest clock.
    equal = no_worse & no_worse.T
    beats = no_worse & (~equal | (np.arange(len(pairs))[:, None] < np.arange(len(pairs))))
    np.fill_diagonal(beats, False)
    kept = [pair for k, pair in enumerate(pairs) if not beats[:, k].any()]
    return sorted(kept, key=lambda p: sum(n * o.time_s for n, o in zip(counts, p, strict=True)))


def _cost_j(paired: Paired, counts: Sequence[int] | Ints, power_w: float) -> float:
    return math.fsum(
        int(count) * option.effective_cost_j(power_w)
        for count, option in zip(counts, paired, strict=True)
    )


def _before(waves: Waves) -> Ints:
    """Predecessors of every row in one table, padded with the row that stands for nobody."""
    table = np.full((waves.size, max(w.before.shape[1] for w in waves.waves)), waves.size)
    for wave in waves.waves:
        table[wave.rows, : wave.before.shape[1]] = wave.before
    return table
