"""The door of the solver: a problem and a goal in, a plan with its certificate out.

`solve` answers at once. `improvements` goes on from an answer, for a better plan and a tighter
bound, as long as it is asked. The caller watches the clock. The search of a granularity is imported
where it is asked for: a typed plan is mostly imports.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.money import Iteration, Prices
from joulecut_engine.optimize.computation import Computation, must_meet
from joulecut_engine.optimize.frontier import Frontier
from joulecut_engine.optimize.problem import TWO_CHANGES, ChangeLimits, Goal, Problem, Solution
from joulecut_engine.optimize.schedule import baseline

if TYPE_CHECKING:
    from joulecut_engine.optimize.clock_changes import ClockChanges
    from joulecut_engine.optimize.drawn_choices import Limit
    from joulecut_engine.optimize.shared_clock import SharedClock


def solve(
    problem: Problem,
    goal: Goal,
    granularity: Granularity,
    *,
    hint: Solution | None = None,
    limits: ChangeLimits = TWO_CHANGES,
) -> Solution:
    """The plan of least energy found under a goal, with a bound that no plan can beat.

    `hint` is a former solution of the same problem; it competes, so the answer is no worse. Same
    input, same answer. Raises Infeasible, which names the fastest time, NoCommonClock (not for
    `computation`), and ValueError for an option that takes no time.
    """
    return Solver(problem, granularity, limits).solve(goal, () if hint is None else (hint,))


def frontier(
    problem: Problem,
    points: int,
    granularity: Granularity,
    *,
    progress: Callable[[int, int], None] | None = None,
    prices: Prices | None = None,
) -> tuple[Solution, ...]:
    """Plans from the fastest (T_min) to the one of least energy (T_E), ascending in time.

    At most `points` of them, at evenly spaced deadlines: where options are few, neighbours
    coincide, and nothing dominated is returned. With `prices` the point where energy and GPU time
    cost least is one more. Each bound is for the point's own time. `progress` gets (done, points).
    Raises ValueError for fewer than 2 points.
    """
    at_s = () if prices is None else (cheapest(problem, granularity, prices).time_s,)
    return prepared(problem, granularity).points(points, progress, beside_s=at_s)


def prepared(
    problem: Problem,
    granularity: Granularity,
    limits: ChangeLimits = TWO_CHANGES,
    beside: Frontier | None = None,
) -> Frontier:
    """A frontier to ask for one deadline after another. One of the same problem `beside` it shares
    what is known of its deadlines. Raises NoCommonClock, ValueError."""
    computation = beside.computation if beside else None
    return Frontier(Solver(problem, granularity, limits, computation).search)


def cheapest(
    problem: Problem,
    granularity: Granularity,
    prices: Prices,
    limits: ChangeLimits = TWO_CHANGES,
) -> Iteration:
    """Where energy and GPU time together cost least, one GPU for each stage. Time is priced as the
    power whose energy costs as much. Raises NoCommonClock.
    """
    time_w = len(problem.graph.order) * prices.time_power_w
    if time_w == float("inf"):  # energy is free
        fastest = baseline(problem)
        return Iteration(fastest.iteration_time_s, fastest.energy_j)
    priced = replace(problem, overhead_power_w=problem.overhead_power_w + time_w)
    frontier = prepared(priced, granularity, limits)
    found = frontier.at(Goal(frontier.cheapest_s))
    return Iteration(found.iteration_time_s, found.energy_j - time_w * found.iteration_time_s)


class Solver:
    """One problem at one granularity, prepared once; answers many goals. `limits` count with
    `changes` alone."""

    def __init__(
        self,
        problem: Problem,
        granularity: Granularity,
        limits: ChangeLimits = TWO_CHANGES,
        computation: Computation | None = None,
    ) -> None:
        self.problem = problem
        self._computation = computation or Computation(problem)
        self.search = _search_of(self._computation, granularity, limits)

    @property
    def fastest_s(self) -> float:
        """T_min at this granularity."""
        return self.search.fastest_s

    @property
    def cheapest_s(self) -> float:
        """T_c: iteration time of least effective cost; no plan that pays is slower."""
        return max(self.search.cheapest_s, self.search.fastest_s)

    def solve(self, goal: Goal, hints: Sequence[Solution] = ()) -> Solution:
        """The plan of least energy found; hints compete. Raises Infeasible."""
        must_meet(goal.deadline_s, self.fastest_s)
        return self.search.solve(goal, self._computation.relax(goal), hints)

    def steadied(self, goal: Goal, limit: "Limit", found: Sequence[Solution]) -> Solution:
        """The plan of least energy found whose drawn iteration times keep the limit, at `changes`
        and `gpu`; the fastest where none does."""
        assert not isinstance(self.search, Computation)
        return self.search.steadied(goal, limit, found)

    def improvements(self, goal: Goal, found: Solution) -> Iterator[Solution]:
        """From an answer to this goal on: no plan is dearer than the one before, no bound lower.
        May never end; where it does, nothing is left to prove."""
        return self.search.improvements(goal, found)


def _search_of(
    computation: Computation, granularity: Granularity, limits: ChangeLimits
) -> "Computation | SharedClock | ClockChanges":
    if granularity == "computation":
        return computation
    if granularity == "changes":
        from joulecut_engine.optimize.clock_changes import ClockChanges  # noqa: PLC0415 -- as above

        return ClockChanges(computation, limits)
    from joulecut_engine.optimize.shared_clock import SharedClock  # noqa: PLC0415 -- as above

    return SharedClock(computation)
