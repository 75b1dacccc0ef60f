"""A clock for every operation: the finest granularity, and the bound for all others."""

import numpy as np

from joulecut_controller.hardware import ClockOption
from joulecut_controller.solve.circulation import Relaxation, relax
from joulecut_controller.solve.curves import curves_of
from joulecut_controller.solve.problem import Goal, Infeasible, Problem, Solution
from joulecut_controller.solve.rounding import Rounding
from joulecut_controller.solve.schedule import floor_j, solution
from joulecut_controller.solve.waves import Ints, waves_of

# A deadline may be below the fastest time by what float sums in another order differ by.
DEADLINE_SLACK = 1e-9


class Computation:
    """One problem, prepared once; answers one goal after another."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.waves = waves_of(problem.graph)
        self.curves = curves_of(problem)
        operations = problem.graph.operations
        microbatch = np.array([operations[i].microbatch for i in self.waves.operation])
        self._rounding = Rounding(self.waves, self.curves, microbatch)
        curve = self.curves.curve[self.waves.operation]
        fastest = np.array([c.time_s[0] for c in self.curves.distinct])[curve]
        cheapest = np.array([c.time_s[c.cheapest] for c in self.curves.distinct])[curve]
        self.fastest_s = float(self.waves.iteration_times(fastest))
        self._floor_j = floor_j(problem, self.fastest_s)
        self.cheapest_s = float(self.waves.iteration_times(cheapest))

    def relax(self, goal: Goal) -> Relaxation:
        """The relaxed optimum. Raises Infeasible.

        A deadline beyond the cheapest schedule's time changes nothing and is cut to it.
        """
        deadline_s = self.useful_deadline_s(goal.deadline_s)
        return relax(self.waves, self.curves, deadline_s, self._time_price_w(goal))

    def useful_deadline_s(self, deadline_s: float) -> float:
        must_meet(deadline_s, self.fastest_s)
        return min(max(deadline_s, self.fastest_s), max(self.cheapest_s, self.fastest_s))

    def bound_j(self, goal: Goal, relaxed: Relaxation) -> float:
        """On the energy of any plan under the goal, whatever deadline `relaxed` was made for."""
        bound_j = relaxed.bound_at_j(self.useful_deadline_s(goal.deadline_s))
        if goal.waits:
            bound_j += self.problem.time_price_w * goal.deadline_s
        return max(bound_j, self._floor_j)

    def solve(self, goal: Goal, relaxed: Relaxation, hints: tuple[Solution, ...] = ()) -> Solution:
        """Raises Infeasible. With hints, which compete, less is searched around them."""
        seeds = [seed for seed in map(self._seed, hints) if seed is not None]
        deadline_s = self.useful_deadline_s(goal.deadline_s)
        best = self._rounding.best(relaxed, deadline_s, self._time_price_w(goal), seeds)
        clocks: list[ClockOption] = [options[0] for options in self.problem.options]
        for row, choice in enumerate(best):
            operation = int(self.waves.operation[row])
            clocks[operation] = self.problem.options[operation][int(choice)]
        bound_j = self.bound_j(goal, relaxed)
        return solution(self.problem, goal, "computation", tuple(clocks), bound_j)

    def _time_price_w(self, goal: Goal) -> float:
        return 0.0 if goal.waits else self.problem.time_price_w

    def _seed(self, hint: Solution) -> Ints | None:
        """A former solution as choices by row; None where its options are not ours."""
        options = self.problem.options
        if len(hint.clocks) != len(options):
            return None
        try:
            choice = [options[i].index(hint.clocks[i]) for i in self.waves.operation]
        except ValueError:
            return None
        return np.array(choice, dtype=np.int64)


def must_meet(deadline_s: float, fastest_s: float) -> None:
    """Raises Infeasible where a deadline cannot be kept at all (or is not a number)."""
    if not deadline_s >= fastest_s * (1 - DEADLINE_SLACK):
        raise Infeasible(deadline_s, fastest_s)
