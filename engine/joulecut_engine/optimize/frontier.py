"""Points of a frontier: which deadlines are asked, which plans are kept and which are shown."""

import bisect
from dataclasses import replace

from joulecut_engine.optimize.problem import Solution

KEPT_MAX = 128  # plans, thinned out beyond: 80 MB at 16,384 operations


class KeptPlans:
    """Of one problem: a plan for a shorter deadline competes for a longer one."""

    def __init__(self) -> None:
        self._plans: list[Solution] = []  # ascending in time

    def within(self, deadline_s: float) -> list[Solution]:
        """The one nearest to a deadline that keeps it, if any does."""
        last = bisect.bisect_right(self._plans, deadline_s, key=lambda one: one.iteration_time_s)
        return self._plans[max(0, last - 1) : last]

    def add(self, found: Solution) -> None:
        bisect.insort(self._plans, found, key=lambda one: one.iteration_time_s)
        if len(self._plans) > KEPT_MAX:
            del self._plans[1::2]


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
