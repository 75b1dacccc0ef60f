"""The door of the solver: a problem and a goal in, a plan with its certificate out."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from joulecut_controller.solve.computation import Computation, must_meet
from joulecut_controller.solve.gpu import Gpu
from joulecut_controller.solve.problem import Goal, Problem, Solution
from joulecut_controller.workload import Granularity


def solve(
    problem: Problem, goal: Goal, granularity: Granularity, *, hint: Solution | None = None
) -> Solution:
    """The plan of least energy found under a goal, with a bound that no plan can beat.

    `hint` is a former solution of the same problem; it competes, so the answer is no worse.
    Same input, same answer. Raises Infeasible, which names the fastest time, NoCommonClock
    (`gpu` only), and ValueError for a granularity that is not built.
    """
    return Solver(problem, granularity).solve(goal, () if hint is None else (hint,))


def frontier(
    problem: Problem,
    points: int,
    granularity: Granularity,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Solution, ...]:
    """Plans from the fastest (T_min) to the one of least energy (T_E), ascending in time.

    At most `points` of them, at evenly spaced deadlines: where options are few, neighbours
    coincide, and nothing dominated is returned. Each bound is for the point's own time.
    `progress` hears (done, points). Raises ValueError for fewer than 2 points.
    """
    if points < 2:
        raise ValueError(f"{points} points: a frontier has at least 2")
    solver = Solver(problem, granularity)
    least = solver.solve(Goal(solver.cheapest_s))
    found: list[Solution] = []
    hints: tuple[Solution, ...] = ()
    for done, deadline_s in enumerate(
        np.linspace(solver.fastest_s, least.iteration_time_s, points).tolist()
    ):
        last = (least,) if done == points - 1 else ()
        found.append(solver.solve_at_own_time(Goal(deadline_s), (*hints, *last)))
        hints = (found[-1],)
        if progress is not None:
            progress(done + 1, points)
    return _undominated(found)


class Solver:
    """One problem at one granularity, prepared once; answers many goals."""

    def __init__(self, problem: Problem, granularity: Granularity) -> None:
        self._computation = Computation(problem)
        if granularity == "computation":
            self._search: Computation | Gpu = self._computation
        elif granularity == "gpu":
            self._search = Gpu(self._computation)
        else:
            raise ValueError(f"granularity {granularity!r} is not available")

    @property
    def fastest_s(self) -> float:
        """T_min at this granularity."""
        return self._search.fastest_s

    @property
    def cheapest_s(self) -> float:
        """Iteration time of least effective cost: no plan that pays is slower."""
        return max(self._search.cheapest_s, self._search.fastest_s)

    def solve(self, goal: Goal, hints: tuple[Solution, ...] = ()) -> Solution:
        """Raises Infeasible."""
        must_meet(goal.deadline_s, self.fastest_s)
        return self._search.solve(goal, self._computation.relax(goal), hints)

    def solve_at_own_time(self, goal: Goal, hints: tuple[Solution, ...]) -> Solution:
        """As `solve`, with the bound sharpened to the time the plan really takes."""
        relaxed = self._computation.relax(goal)
        found = self._search.solve(goal, relaxed, hints)
        bound_j = self._computation.bound_j(Goal(found.iteration_time_s), relaxed)
        return replace(found, lower_bound_j=min(bound_j, found.energy_j))


def _undominated(found: list[Solution]) -> tuple[Solution, ...]:
    """Ascending in time, strictly descending in energy; of equals the first stays."""
    kept: list[Solution] = []
    for solution in sorted(found, key=lambda s: (s.iteration_time_s, s.energy_j)):
        if not kept or solution.energy_j < kept[-1].energy_j:
            kept.append(solution)
    return tuple(kept)
