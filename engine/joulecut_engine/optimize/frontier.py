"""The whole trade-off of one problem, asked a point at a time and remembered.

Nothing is computed before it is asked for. A plan found for a shorter deadline competes, so more
time never gives a worse plan.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from joulecut_engine.optimize.computation import Computation, must_meet
from joulecut_engine.optimize.kept_plans import KeptPlans
from joulecut_engine.optimize.problem import Goal, Problem, Solution
from joulecut_engine.optimize.relaxation import Relaxation

if TYPE_CHECKING:
    from joulecut_engine.optimize.clock_changes import ClockChanges
    from joulecut_engine.optimize.shared_clock import SharedClock


class Frontier:
    """One problem at one granularity, prepared; one thread at a time.

    `at` answers any goal from T_min on: a lone pipeline's, or one that waits for a straggler.
    """

    def __init__(self, search: "Computation | SharedClock | ClockChanges") -> None:
        self._search = search
        self.computation = search if isinstance(search, Computation) else search.computation
        self._kept = KeptPlans()

    @property
    def problem(self) -> Problem:
        return self.computation.problem

    @property
    def fastest_s(self) -> float:
        """T_min."""
        return self._search.fastest_s

    @property
    def cheapest_s(self) -> float:
        """T_c: beyond it not even a pipeline that waits has anything to gain."""
        return max(self._search.cheapest_s, self._search.fastest_s)

    @cached_property
    def least(self) -> Solution:
        """The plan of least energy; its iteration time is T_E. As thorough as a single answer."""
        goal = Goal(self.cheapest_s)
        found = self._search.solve(goal, self.computation.relax(goal))
        self._kept.add(found)
        return found

    def at(self, goal: Goal) -> Solution:
        """The plan for a goal, with a bound for that goal. Raises Infeasible."""
        must_meet(goal.deadline_s, self.fastest_s)
        return self._found(goal, self.computation.relax(goal))

    def points(
        self,
        count: int,
        progress: Callable[[int, int], None] | None = None,
        shared_s: Sequence[float] = (),
        beside_s: Sequence[float] = (),
    ) -> tuple[Solution, ...]:
        """Undominated plans at up to `count` evenly spaced deadlines from T_min to T_E, or at
        these ends and those `shared_s` between; at those `beside_s` in any case; each with the
        bound for its own time. `progress` gets (done, count). Raises ValueError for fewer than 2.
        """
        if count < 2:
            raise ValueError(f"{count} points: a frontier has at least 2")
        first_s, last_s = self.fastest_s, self.least.iteration_time_s
        between_s = shared_s or np.linspace(first_s, last_s, count).tolist()
        inner = {t for t in (*between_s, *beside_s) if first_s < t < last_s}
        deadlines_s = [first_s, *sorted(inner), last_s]
        found: list[Solution] = []
        for done, k in enumerate(halving(len(deadlines_s))):
            found.append(self._at_own_time(deadlines_s[k]))
            if progress is not None:
                progress(done + 1, len(deadlines_s))
        return undominated(found)

    def improvements(self, points: Sequence[Solution]) -> Iterator[tuple[Solution, ...]]:
        """Better plans and higher bounds for points of this frontier, one after another and round
        after round; undominated."""
        best = list(points)
        goals = [Goal(point.iteration_time_s) for point in points]
        pairs = zip(goals, points, strict=True)
        rounds = {k: self._search.improvements(*pair) for k, pair in enumerate(pairs)}
        while rounds:
            for k, better in list(rounds.items()):
                found = next(better, None)
                if found is None:
                    del rounds[k]
                else:
                    best[k] = found
                yield undominated(best)

    def _at_own_time(self, deadline_s: float) -> Solution:
        """A lone pipeline's plan, with the bound for the time it really takes."""
        goal = Goal(deadline_s)
        relaxed = self.computation.relax(goal)
        found = self._found(goal, relaxed)
        bound_j = self.computation.bound_j(Goal(found.iteration_time_s), relaxed)
        if bound_j <= found.lower_bound_j:  # that of a longer deadline holds for a shorter one
            return found
        bound_j = min(bound_j, found.energy_j)
        return replace(found, lower_bound_j=bound_j, bound_granularity="computation")

    def _found(self, goal: Goal, relaxed: Relaxation) -> Solution:
        hints = self._kept.within(goal.deadline_s)
        found = self._search.solve(goal, relaxed, hints, self._search.point_effort)
        self._kept.add(found)
        return found


def halving(count: int) -> list[int]:
    """All places: both ends, then the middle between each two known, again and again. So most
    deadlines lie between two that are relaxed already."""
    found, apart = dict.fromkeys((0, count - 1)), count - 1
    while len(found) < count:
        found |= dict.fromkeys(range(0, count, apart))
        apart = max(1, apart // 2)
    return list(found)


def undominated(found: list[Solution]) -> tuple[Solution, ...]:
    """Ascending in time, strictly descending in energy; of equals the first stays. Bounds descend
    as well: a plan within a time is one within any longer time, so that a bound for the longer
    holds for the shorter.
    """
    ordered = sorted(found, key=lambda s: (s.iteration_time_s, s.energy_j))
    highest: list[Solution] = []  # by solution: the highest bound of it and of all longer ones
    for solution in reversed(ordered):
        higher = not highest or solution.lower_bound_j >= highest[-1].lower_bound_j
        highest.append(solution if higher else highest[-1])
    kept: list[Solution] = []
    for solution, bound in zip(ordered, reversed(highest), strict=True):
        if not kept or solution.energy_j < kept[-1].energy_j:
            bound_j = min(bound.lower_bound_j, solution.energy_j)
            kept.append(
                replace(solution, lower_bound_j=bound_j, bound_granularity=bound.bound_granularity)
            )
    return tuple(kept)
