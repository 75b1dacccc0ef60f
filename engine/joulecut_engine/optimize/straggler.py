"""A pipeline that must wait for a slower sibling: it runs late, on purpose.

Data-parallel pipelines meet once per iteration. One that would be early waits, and waiting
draws power whatever it planned; so with a sibling that takes T' it may take
T = max(T', min(D, T_E)) and spend the least effective cost within that (Perseus, SOSP'24,
section 3.2; D is its own deadline, T_E the time of least energy of a lone pipeline).
Stragglers come and go faster than a solver should be asked, so answers come from a kept
frontier. With a synchronisation per layer it is unknown which iteration is early: no credit.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from joulecut_engine.optimize.frontier import Frontier, halving
from joulecut_engine.optimize.problem import Goal, Infeasible, Solution
from joulecut_engine.optimize.schedule import energy

Sync = Literal["iteration", "layer"]

POINTS = 64  # neighbours then differ by a third of a percent in time, less in energy
SLACK = 1e-9  # relative: a deadline is kept to this


@dataclass(frozen=True, slots=True)
class Answer:
    """A kept plan, priced for the time the iteration will take.

    `iteration_time_s` is when all siblings are done, `plan.iteration_time_s` when this
    pipeline is; `energy_j` includes its waiting. No plan that ends by then, charged until then,
    uses less than `lower_bound_j`.
    """

    plan: Solution
    iteration_time_s: float
    energy_j: float
    lower_bound_j: float


def time_s(deadline_s: float, cheapest_s: float, straggler_s: float, sync: Sync) -> float:
    """How long an iteration will take: T = max(T', min(D, T_E)), in seconds."""
    own_s = min(deadline_s, cheapest_s)
    return own_s if sync == "layer" else max(straggler_s, own_s)


class Kept:
    """The frontier of effective cost of one pipeline, from T_min to T_c; kept in memory.

    Built once with `points` solves (`progress` gets (done, points)); then `answer` costs
    microseconds. Raises ValueError for fewer than 2 points.
    """

    def __init__(
        self,
        frontier: Frontier,
        points: int = POINTS,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        if points < 2:
            raise ValueError(f"{points} points: a frontier has at least 2")
        self._problem = frontier.problem
        self.fastest_s = frontier.fastest_s
        self._deadlines_s: list[float] = np.linspace(
            frontier.fastest_s, frontier.cheapest_s, points
        ).tolist()
        plans: dict[int, Solution] = {}
        for done, k in enumerate(halving(points)):
            plans[k] = frontier.at(Goal(self._deadlines_s[k], waits=True))
            if progress is not None:
                progress(done + 1, points)
        self._fill([plans[k] for k in range(points)])

    def _fill(self, plans: list[Solution]) -> None:
        """Sorted by the time plans really take; each strictly cheaper than those before."""
        price_w = self._problem.time_price_w
        # Costs only fall as deadlines grow, so a bound at a later deadline holds earlier too.
        self._bounds_j = [
            plan.lower_bound_j - price_w * deadline_s
            for plan, deadline_s in zip(plans, self._deadlines_s, strict=True)
        ]
        self.plans: list[Solution] = []
        self._costs_j: list[float] = []
        for plan in sorted(plans, key=lambda p: (p.iteration_time_s, p.energy_j)):
            cost_j = energy(self._problem, plan.clocks, 0.0)
            if not self._costs_j or cost_j < self._costs_j[-1]:
                self.plans.append(plan)
                self._costs_j.append(cost_j)
        self._times_s = [plan.iteration_time_s for plan in self.plans]
        totals_j = [
            cost_j + price_w * time_s
            for cost_j, time_s in zip(self._costs_j, self._times_s, strict=True)
        ]
        # T_E: among equals the fastest.
        self._best = [0]
        for k in range(1, len(totals_j)):
            self._best.append(k if totals_j[k] < totals_j[self._best[-1]] else self._best[-1])
        self.cheapest_s = self._times_s[self._best[-1]]

    def answer(
        self, deadline_s: float, straggler_s: float = 0.0, sync: Sync = "iteration"
    ) -> Answer:
        """The best kept plan for a deadline of one's own and a sibling's iteration time.

        Raises Infeasible where the deadline is below T_min.
        """
        if not deadline_s >= self._times_s[0] * (1 - SLACK):
            raise Infeasible(deadline_s, self.fastest_s)
        until_s = time_s(deadline_s, self.cheapest_s, straggler_s, sync)
        within = max(0, bisect_right(self._times_s, until_s * (1 + SLACK)) - 1)
        if straggler_s <= until_s * (1 - SLACK) or sync == "layer":
            # Without a straggler to wait for the iteration ends with this plan.
            within = self._best[within]
            until_s = self._times_s[within]
        price_w = self._problem.time_price_w
        energy_j = self._costs_j[within] + price_w * until_s
        after = min(bisect_left(self._deadlines_s, until_s), len(self._bounds_j) - 1)
        bound_j = self._bounds_j[after] + price_w * until_s
        return Answer(self.plans[within], until_s, energy_j, min(bound_j, energy_j))
