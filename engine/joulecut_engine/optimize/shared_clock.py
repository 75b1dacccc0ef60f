"""One clock for each GPU (`gpu`): no hook in the training script, no change within an iteration.

Only a few numbers are chosen, so this is a search (`choice_search`), with exact longest paths as
judge. What balances the GPUs' times is among its starts.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.change_schedules import ChangeSchedules, lines_of
from joulecut_engine.optimize.choice_search import SMALL, ChoiceSearch
from joulecut_engine.optimize.computation import Computation, better, bounded, must_meet
from joulecut_engine.optimize.drawn_choices import DrawnChoices, Limit
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import ChangeLimits, Goal, Problem, Solution
from joulecut_engine.optimize.relaxation import Relaxation
from joulecut_engine.optimize.shared_clock_bound import Bounds, Task

COMBINATIONS_ALL = 60_000  # up to here every combination is judged: 3 stages of 38 clocks
JUDGED_ALL = 30_000_000  # ... if that is no more operations than this: half a second
AXES_MAX = 32  # of an array
BALANCED_MAX = 96  # times at which GPUs are balanced; with more, neighbours hardly differ
CASES = 16  # cases that the bound distinguishes at once: about 10 ms each at 8 x 96
CASES_POINT = 8  # per point of a frontier
ROUNDS_PROVE = 1_000
KNOWN_MAX = 128  # goals
STARTS_DRAWN = 6  # where every trial is many drawn iterations


class SharedClock:
    """One problem, prepared once. Raises NoCommonClock."""

    point_effort = CASES_POINT

    def __init__(self, computation: Computation) -> None:
        self.computation = computation
        lines = lines_of(computation.problem, 0.0)
        self._table = table = ChangeSchedules(computation.problem, ChangeLimits(0), lines)
        self._bounds = Bounds(table)
        self.known = computation.known_shared
        # Where a GPU has no clock that is fastest for all its operations: the best that is found.
        search = ChoiceSearch(table, math.inf, 1.0, cost_weight=0.0)
        busy_s = table.lengths(np.ones(len(computation.problem.graph.operations)))
        self._quickest = search.best(np.argmin(busy_s, axis=1)[:, None])[:, None]
        self._balanced = _balanced(busy_s)
        self.fastest_s = float(table.iteration_times(self._quickest)[0])
        slowest = np.argmin(table.cost_j, axis=1)[:, None]
        self.cheapest_s = float(table.iteration_times(slowest)[0])

    def solve(
        self,
        goal: Goal,
        relaxed: Relaxation,
        hints: Sequence[Solution] = (),
        effort: int | None = None,
    ) -> Solution:
        """The plan of least energy found; hints compete. Raises Infeasible.

        `effort` is how many cases the bound may distinguish.
        """
        must_meet(goal.deadline_s, self.fastest_s)
        search, task = self._search(goal), self._task(goal)
        every = self._every()
        if every is not None:
            values_j = search.values_j(every)
            best, value_j = every[:, int(np.argmin(values_j))], float(values_j.min())
            return self._solution(goal, best, value_j * (1 - SMALL), relaxed)
        bound = self._bounds.at(task)
        starts = [self._quickest, self._balanced, bound.choices, *self._seeds(hints)]
        best = search.best(np.concatenate(starts, axis=1))
        cases = CASES if effort is None else effort
        if cases:
            bound = self._bounds.refined(bound, task, search.value_j(best), cases)
            best = search.better(best, bound.choices)
        found = self.known[goal] = self._solution(goal, best, bound.bound_j, relaxed)
        if len(self.known) > KNOWN_MAX:
            del self.known[next(iter(self.known))]
        return found

    def steadied(self, goal: Goal, limit: Limit, found: Sequence[Solution]) -> Solution:
        """The plan of least energy found whose drawn iteration times keep the limit; the fastest
        where none does. `found` are plans for the goal, the first with its bound."""
        deadline_s = self._useful_s(goal)
        choices = DrawnChoices(self._table, limit, deadline_s)
        search = ChoiceSearch(choices, deadline_s, self.computation.time_price_w(goal))
        best, relaxed = self._quickest[:, 0], self.computation.relax(goal)
        if math.isfinite(search.value_j(best)):
            starts = [self._quickest, *self._seeds(found)]
            best = search.best(np.concatenate(starts, axis=1), STARTS_DRAWN)
        return bounded(self._solution(goal, best, 0.0, relaxed), found[0])

    def improvements(self, goal: Goal, found: Solution) -> Iterator[Solution]:
        """Better plans and higher bounds; ends where no case is open."""
        seeds = self._seeds((found,))
        if not seeds:
            return
        best, search, task = seeds[0][:, 0], self._search(goal), self._task(goal)
        relaxed, bound = self.computation.relax(goal), self._bounds.at(task)
        for _ in range(ROUNDS_PROVE):
            bound = self._bounds.refined(bound, task, search.value_j(best), CASES)
            best = search.better(best, bound.choices)
            found = better(found, self._solution(goal, best, bound.bound_j, relaxed))
            yield found
            if bound.closed(search.value_j(best)):
                return

    def _every(self) -> Ints | None:
        """All choices (groups, K) where they are few, and not more operations than half a second
        judges."""
        sizes = np.isfinite(self._table.cost_j).sum(axis=1).tolist()
        count, operations = math.prod(sizes), self.computation.network.size
        if count > COMBINATIONS_ALL or count * operations > JUDGED_ALL or len(sizes) > AXES_MAX:
            return None
        return np.indices(sizes).reshape(len(sizes), -1)

    def _seeds(self, plans: Sequence[Solution]) -> list[Ints]:
        """Former solutions as choices (groups, 1): of each GPU that changes its clock the cheapest
        that is nowhere slower."""
        known = [self._table.add_plan(plan.clocks) for plan in plans]
        return [self._table.index(keys)[:, None] for keys in known if keys is not None]

    def _search(self, goal: Goal) -> ChoiceSearch:
        return ChoiceSearch(self._table, self._useful_s(goal), self.computation.time_price_w(goal))

    def _task(self, goal: Goal) -> Task:
        price_w = self.computation.time_price_w(goal)
        return Task(self._useful_s(goal), price_w, self.computation.fastest_s)

    def _useful_s(self, goal: Goal) -> float:
        return max(self.fastest_s, min(goal.deadline_s, self.cheapest_s))

    def _solution(
        self, goal: Goal, best: Ints, value_bound_j: float, relaxed: Relaxation
    ) -> Solution:
        clocks = _everywhere(self.computation.problem, self._table.clocks(best))
        return self.computation.certified(goal, relaxed, "gpu", clocks, value_bound_j)


def _balanced(busy_s: Floats) -> Ints:
    """(groups, K): for each busy time (groups, choices) of some group every group's slowest choice
    within it, or its quickest, as a rule that balances stages sets clocks."""
    budgets_s = np.unique(busy_s[np.isfinite(busy_s)])
    budgets_s = budgets_s[:: max(1, len(budgets_s) // BALANCED_MAX)]
    within = [np.searchsorted(row, budgets_s, side="right") - 1 for row in busy_s]
    return np.maximum(np.stack(within), 0)


def _everywhere(problem: Problem, clocks: tuple[ClockOption, ...]) -> tuple[ClockOption, ...]:
    """What costs the same at every clock runs at that of its GPU."""
    found = list(clocks)
    for order in problem.graph.order:
        mhz = max(clocks[i].clock_mhz for i in order)
        for i in order:
            if clocks[i].clock_mhz != mhz:
                found[i] = ClockOption(mhz, clocks[i].time_s, clocks[i].energy_j)
    return tuple(found)
