"""Plans found for other deadlines: one for a shorter deadline competes for a longer one."""

import bisect

from joulecut_engine.optimize.problem import Solution

KEPT_MAX = 128  # plans, thinned out beyond: 80 MB at 16,384 operations


class KeptPlans:
    """Of one problem at one granularity."""

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
