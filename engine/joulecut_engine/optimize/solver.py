"""The door of the solver: a problem and a goal in, a plan with its certificate out."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.allotment import allotted
from joulecut_engine.optimize.branching import GAP_ENOUGH, settled, sliced, small
from joulecut_engine.optimize.computation import Computation, must_meet
from joulecut_engine.optimize.contraction import contracted
from joulecut_engine.optimize.frontier import Frontier
from joulecut_engine.optimize.problem import Effort, Goal, Problem, Solution
from joulecut_engine.optimize.rounding import GAP_SMALL
from joulecut_engine.optimize.tied import Tied

# Operations whose surroundings are varied, in all passes over them together: about 10 us each.
ROWS: dict[Effort, int] = {"quick": 0, "usual": 12_000, "thorough": 120_000}
ROLLS_MIN, ROLLS_MAX = 2, 1200
# Then events moved, where a gap is left, against a bound that is raised before: a second.
MOVES: dict[Effort, int] = {"quick": 0, "usual": 0, "thorough": 400_000}
# Cases that a bound for one clock per group distinguishes: 20 ms each at 8 x 96, and as many more
# as there are fewer operations.
CASES: dict[Effort, int] = {"quick": 0, "usual": 16, "thorough": 60}
CASES_MAX, CASE_ROWS = 1_000, 200_000


def solve(
    problem: Problem,
    goal: Goal,
    granularity: Granularity,
    *,
    hint: Solution | None = None,
    effort: Effort = "usual",
) -> Solution:
    """The plan of least energy found under a goal, with a bound that no plan can beat.

    `hint` is a former solution of the same problem; it competes, so the answer is no worse.
    Same input, same answer. Raises Infeasible, which names the fastest time, NoCommonClock
    (not for `computation`), and ValueError for an option that takes no time.
    """
    hints = () if hint is None else (hint,)
    return Solver(problem, granularity, effort).solve(goal, hints)


def frontier(
    problem: Problem,
    points: int,
    granularity: Granularity,
    *,
    progress: Callable[[int, int], None] | None = None,
    effort: Effort = "usual",
) -> tuple[Solution, ...]:
    """Plans from the fastest (T_min) to the one of least energy (T_E), ascending in time.

    At most `points` of them, at evenly spaced deadlines: where options are few, neighbours
    coincide, and nothing dominated is returned. Each bound is for the point's own time.
    `progress` hears (done, points). Raises ValueError for fewer than 2 points.
    """
    return prepared(problem, granularity).points(points, progress, effort)


def prepared(problem: Problem, granularity: Granularity) -> Frontier:
    """The frontier as something that can be asked. Raises NoCommonClock, ValueError."""
    return Frontier(Solver(problem, granularity).search)


class Solver:
    """One problem at one granularity, prepared once; answers many goals."""

    def __init__(
        self, problem: Problem, granularity: Granularity, effort: Effort = "usual"
    ) -> None:
        self._computation = Computation(problem)
        self._tied = None
        if granularity != "computation":
            self._tied = Tied(self._computation, granularity)
        rolls = min(ROLLS_MAX, ROWS[effort] // len(problem.graph.operations))
        least = 0 if effort == "quick" else ROLLS_MIN
        self._moves = 0 if self._tied else MOVES[effort]
        self._contracted = contracted(problem) if self._moves else None
        self._rolls = max(least, rolls)
        if self._tied:
            more = min(CASES_MAX, CASE_ROWS // len(problem.graph.operations))
            self._rolls = max(CASES[effort], more if effort == "thorough" else 0)

    @property
    def search(self) -> Computation | Tied:
        return self._tied or self._computation

    @property
    def fastest_s(self) -> float:
        """T_min at this granularity."""
        return self.search.fastest_s

    @property
    def cheapest_s(self) -> float:
        """T_c: iteration time of least effective cost; no plan that pays is slower."""
        return max(self.search.cheapest_s, self.search.fastest_s)

    def solve(self, goal: Goal, hints: Sequence[Solution] = ()) -> Solution:
        """Raises Infeasible."""
        must_meet(goal.deadline_s, self.fastest_s)
        if self._contracted is not None:
            inside = (self._contracted.inside(hint, goal) for hint in hints)
            found = self._sharp(self._inner, goal, [hint for hint in inside if hint is not None])
            return self._contracted.outside(found, goal)
        if self._moves:
            return self._sharp(self._computation, goal, hints)
        return self.search.solve(goal, self._computation.relax(goal), hints, self._rolls)

    @cached_property
    def _inner(self) -> Computation:
        assert self._contracted is not None
        return Computation(self._contracted.problem)

    def _sharp(self, computation: Computation, goal: Goal, hints: Sequence[Solution]) -> Solution:
        """A small problem is branched; what that leaves open is searched like a large one, and
        what is open then is branched slice by slice."""
        relaxed, bound_j = computation.relax(goal), 0.0
        branches = small(computation)
        if branches:
            found = computation.solve(goal, relaxed, hints, ROLLS_MIN)
            if found.gap > GAP_ENOUGH:
                found = settled(computation, goal, found)
            if found.gap <= GAP_SMALL:
                return found
            hints, bound_j = (*hints, found), found.lower_bound_j
        hints = allotted(computation, goal, hints, self._rolls, self._moves)
        found = computation.sharpened(goal, relaxed, hints, self._rolls, self._moves)
        bound_j = max(found.lower_bound_j, min(bound_j, found.energy_j))
        found = replace(found, lower_bound_j=bound_j)
        return sliced(computation, goal, found) if branches else found
