"""One clock for each GPU (`gpu`): no hook in the training script, no change within an iteration.

Only a few numbers are chosen, so this is a search (`choice_search`), with exact longest paths as
judge. What balances the GPUs' times is among its starts.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.choice_search import SMALL, ChoiceSearch
from joulecut_engine.optimize.clock_groups import Groups
from joulecut_engine.optimize.computation import KNOWN_MAX, Computation, better, bounded, must_meet
from joulecut_engine.optimize.drawn_choices import DrawnChoices, Limit
from joulecut_engine.optimize.levels import Ints
from joulecut_engine.optimize.problem import Goal, Solution
from joulecut_engine.optimize.relaxation import Relaxation
from joulecut_engine.optimize.schedule import solution
from joulecut_engine.optimize.shared_clock_bound import Bounds, Task

COMBINATIONS_ALL = 60_000  # up to here every combination is judged: 3 stages of 38 clocks
JUDGED_ALL = 30_000_000  # ... if that is no more operations than this: half a second
CASES = 16  # cases that the bound distinguishes at once: about 10 ms each at 8 x 96
CASES_POINT = 8  # per point of a frontier
ROUNDS_PROVE = 1_000
STARTS_DRAWN, KICKS_DRAWN = 6, 4  # where every trial is many drawn iterations
SEED = 7


class SharedClock:
    """One problem, prepared once. Where there are no more
    than `combinations_all` choices, all are judged. Raises NoCommonClock."""

    point_effort = CASES_POINT

    def __init__(self, computation: Computation, combinations_all: int = COMBINATIONS_ALL) -> None:
        self.computation = computation
        self._combinations_all = combinations_all
        self._groups = Groups(computation.problem)
        self._bounds = Bounds(self._groups)
        self._balanced = self._groups.balanced()
        self.known = computation.known_shared
        self.fastest_s = self._fastest_s()
        slowest = np.argmin(self._groups.cost_j, axis=1)[:, None]
        self.cheapest_s = float(self._groups.iteration_times(slowest)[0])

    def solve(
        self,
        goal: Goal,
        relaxed: Relaxation,
        hints: Sequence[Solution] = (),
        effort: int | None = None,
    ) -> Solution:
        """The plan of least energy found; hints compete. Raises Infeasible.

        The bound is the better of its own and that of `relaxed`, which is free to choose finer;
        `effort` is how many cases its own may distinguish.
        """
        must_meet(goal.deadline_s, self.fastest_s)
        groups, search = self._groups, self._search(goal)
        count = math.prod(map(len, groups.menus))
        operations = len(self.computation.problem.graph.operations)
        if count <= self._combinations_all and count * operations <= JUDGED_ALL:
            best = search.all()
            return self._solution(goal, best, search.value_j(best) * (1 - SMALL), relaxed)
        task = self._task(goal)
        bound = self._bounds.at(task)
        seeds = [groups.seed(hint.clocks) for hint in hints]
        starts = [self._quickest, self._balanced, bound.choices]
        starts += [seed[:, None] for seed in seeds if seed is not None]
        best = search.best(np.concatenate(starts, axis=1))
        cases = CASES if effort is None else effort
        if cases:
            bound = self._bounds.refined(bound, task, search.value_j(best), cases)
            best = search.better(best, bound.choices)
        best = search.kicked(best, SEED)
        found = self.known[goal] = self._solution(goal, best, bound.bound_j, relaxed)
        if len(self.known) > KNOWN_MAX:
            del self.known[next(iter(self.known))]
        return found

    def steadied(self, goal: Goal, limit: Limit, found: Sequence[Solution]) -> Solution:
        """The plan of least energy found whose drawn iteration times keep the limit; the fastest
        where none does. `found` are plans for the goal, the first with its bound."""
        deadline_s = self._useful_s(goal)
        choices = DrawnChoices(self._groups, limit, deadline_s)
        search = ChoiceSearch(choices, deadline_s, self.computation.time_price_w(goal))
        best, relaxed = self._quickest[:, 0], self.computation.relax(goal)
        if math.isfinite(search.value_j(best)):
            seeds = [self._groups.seed(plan.clocks) for plan in found]
            starts = [self._quickest]
            starts += [seed[:, None] for seed in seeds if seed is not None]
            best = search.best(np.concatenate(starts, axis=1), STARTS_DRAWN)
            best = search.kicked(best, SEED, KICKS_DRAWN)
        return bounded(self._solution(goal, best, 0.0, relaxed), found[0])

    def improvements(self, goal: Goal, found: Solution) -> Iterator[Solution]:
        """Better plans and higher bounds; ends where no case is open."""
        best = self._groups.seed(found.clocks)
        if best is None:
            return
        search, task = self._search(goal), self._task(goal)
        relaxed, bound = self.computation.relax(goal), self._bounds.at(task)
        for number in range(1, ROUNDS_PROVE):
            bound = self._bounds.refined(bound, task, search.value_j(best), CASES)
            best = search.kicked(search.better(best, bound.choices), SEED + number)
            found = better(found, self._solution(goal, best, bound.bound_j, relaxed))
            yield found
            if bound.closed(search.value_j(best)):
                return

    def _search(self, goal: Goal) -> ChoiceSearch:
        return ChoiceSearch(self._groups, self._useful_s(goal), self.computation.time_price_w(goal))

    def _task(self, goal: Goal) -> Task:
        price_w = self.computation.time_price_w(goal)
        return Task(self._useful_s(goal), price_w, self.computation.fastest_s)

    def _useful_s(self, goal: Goal) -> float:
        return max(self.fastest_s, min(goal.deadline_s, self.cheapest_s))

    def _solution(
        self, goal: Goal, best: Ints, value_bound_j: float, relaxed: Relaxation
    ) -> Solution:
        problem = self.computation.problem
        own_j = value_bound_j + (problem.time_price_w * goal.deadline_s if goal.waits else 0.0)
        finer_j = self.computation.bound_j(goal, relaxed)
        clocks = self._groups.clocks(best)
        bound_of: Granularity = "gpu" if own_j > finer_j else "computation"
        return solution(problem, goal, "gpu", clocks, max(own_j, finer_j), bound_of)

    def _fastest_s(self) -> float:
        """The least iteration time: where a group has no clock that is fastest for all its
        operations, the best that the search finds."""
        least_busy = np.argmin(self._groups.busy_s, axis=1)[:, None]
        search = ChoiceSearch(self._groups, math.inf, 1.0, cost_weight=0.0)
        self._quickest = search.best(least_busy)[:, None]
        return float(self._groups.iteration_times(self._quickest)[0])
