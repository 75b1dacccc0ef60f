"""What one clock for all operations of a GPU costs: the tables that `gpu` chooses from.

A group is a stage's GPU. Its operations with the same options form a class (its forwards, its
backwards). A choice is one clock per group, at which every class of the group was measured.
"""

import math
from collections.abc import Sequence

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.levels import Floats, Ints, levels_of
from joulecut_engine.optimize.problem import NoCommonClock, Problem

ENTRIES = 2_000_000  # classes x choices judged at once: 16 MB

BALANCED_MAX = 96  # times at which GPUs are balanced; with more, neighbours hardly differ

Paired = tuple[ClockOption, ...]  # one option per class of a stage, all at the same clock


class Groups:
    """Choices are index arrays, (groups,) or (groups, K); tables are padded with infinity.

    `cost_j` (groups, choices) is the effective cost of all operations of a group, `busy_s`
    the time they take; choices are sorted by it. Raises NoCommonClock.
    """

    def __init__(self, problem: Problem) -> None:
        self._levels = levels = levels_of(problem.graph)
        members: list[dict[int, list[int]]] = [{} for _ in problem.graph.order]
        measured = problem.measured or problem.options
        for i, operation in enumerate(problem.graph.operations):
            members[operation.stage].setdefault(id(measured[i]), []).append(i)
        self._class = np.zeros(len(measured), dtype=np.int64)  # by operation
        self._group: list[int] = []  # by class
        self.menus: list[list[Paired]] = []
        for group, classes in enumerate(members):
            counts = [len(indices) for indices in classes.values()]
            for indices in classes.values():
                self._class[indices] = len(self._group)
                self._group.append(group)
            options = [measured[indices[0]] for indices in classes.values()]
            power_w = problem.blocking_power_w[group]
            self.menus.append(_menu(group, options, counts, power_w))
        self._row_class = self._class[levels.operation]
        self._class_group = np.array(self._group, dtype=np.int64)
        self._first_class = np.searchsorted(self._class_group, np.arange(len(members)))
        self.sizes = np.bincount(self._class, minlength=len(self._group))
        self._seconds = self._tabulate(problem.blocking_power_w)
        self.busy_s = self.lengths(self.sizes.astype(np.float64))

    def _tabulate(self, powers_w: Sequence[float]) -> Floats:
        width = max(map(len, self.menus))
        self.cost_j = np.full((len(self.menus), width), np.inf)
        seconds = np.full((len(self._group), width), np.inf)
        for number, group in enumerate(self._group):
            within = number - int(self._first_class[group])
            for choice, paired in enumerate(self.menus[group]):
                seconds[number, choice] = paired[within].time_s
        for group, menu in enumerate(self.menus):
            sizes = self.sizes[self._class_group == group]
            self.cost_j[group, : len(menu)] = [_cost_j(p, sizes, powers_w[group]) for p in menu]
        return seconds

    def clocks(self, choice: Ints) -> tuple[ClockOption, ...]:
        """The option of each operation, by graph index, under one choice (groups,)."""
        result = []
        for number in self._class:
            group = self._group[number]
            paired = self.menus[group][int(choice[group])]
            result.append(paired[int(number - self._first_class[group])])
        return tuple(result)

    def seed(self, clocks: Sequence[ClockOption]) -> Ints | None:
        """A former solution as a choice (groups,); None where it is none of ours."""
        if len(clocks) != len(self._class):
            return None
        clock_mhz = {self._group[k]: o.clock_mhz for k, o in zip(self._class, clocks, strict=True)}
        choice = []
        for group, menu in enumerate(self.menus):
            offered = [paired[0].clock_mhz for paired in menu]
            if clock_mhz.get(group) not in offered:
                return None
            choice.append(offered.index(clock_mhz[group]))
        return np.array(choice, dtype=np.int64)

    def balanced(self) -> Ints:
        """(groups, K): for each busy time of some group every group's slowest choice within it, or
        its quickest, as a rule that balances stages sets clocks."""
        budgets_s = np.unique(self.busy_s[np.isfinite(self.busy_s)])
        budgets_s = budgets_s[:: max(1, len(budgets_s) // BALANCED_MAX)]
        within = [np.searchsorted(row, budgets_s, side="right") - 1 for row in self.busy_s]
        return np.maximum(np.stack(within), 0)

    def lengths(self, weight: Floats) -> Floats:
        """(groups, choices): sum over a group's classes of weight (per class) x seconds."""
        weighted = weight[:, None] * np.where(np.isfinite(self._seconds), self._seconds, 0.0)
        lengths = np.zeros_like(self.cost_j)
        np.add.at(lengths, self._class_group, weighted)
        return np.where(np.isfinite(self.cost_j), lengths, np.inf)

    def iteration_times(self, choice: Ints) -> Floats:
        """Exact makespans of (groups, K) choices: (K,) seconds."""
        every = np.arange(len(self._group))[:, None]
        step = max(1, ENTRIES // len(self._group))
        parts = []
        for first in range(0, choice.shape[1], step):
            chosen = choice[self._class_group, first : first + step]
            duration_s = self._seconds[every, chosen]
            parts.append(self._levels.iteration_times(duration_s, self._row_class))
        return np.concatenate(parts)

    def durations(self, choice: Ints) -> Floats:
        """Seconds by operation, (operations, K), of (groups, K) choices."""
        every = np.arange(len(self._group))[:, None]
        seconds: Floats = self._seconds[every, choice[self._class_group]]
        return seconds[self._class]

    def critical(self, choice: Ints) -> Floats:
        """How many operations of each class lie on one longest path of a choice (groups,)."""
        every = np.arange(len(self._group))
        return self.longest(self._seconds[every, choice[self._class_group]])[1]

    def longest(self, seconds: Floats) -> tuple[float, Floats]:
        """The makespan where each class takes so long, and the class counts of its path."""
        return self._levels.critical(seconds, self._row_class)

    def mixed_s(self, share: Floats) -> Floats:
        """By class: seconds where each group takes its choices (groups, choices) by shares."""
        seconds = np.where(np.isfinite(self._seconds), self._seconds, 0.0)
        mixed: Floats = (share[self._class_group] * seconds).sum(axis=1)
        return mixed

    def prices_w(self, price_w: Floats) -> Floats:
        """Prices by operation, added up per class: the weight of `lengths` in joules."""
        prices_w = np.bincount(self._class, price_w, minlength=len(self._group))
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
