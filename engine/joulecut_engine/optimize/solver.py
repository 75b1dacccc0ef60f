"""The door of the solver: a problem and a goal in, a plan with its certificate out.

`solve` answers at once. `improvements` goes on from an answer, for a better plan and a tighter
bound, as long as it is asked. The caller watches the clock. The search of a granularity is imported
where it is asked for: a typed plan is mostly imports.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.money import Iteration, Prices
from joulecut_engine.optimize.computation import Computation, must_meet
from joulecut_engine.optimize.frontier import halving, undominated
from joulecut_engine.optimize.problem import TWO_CHANGES, ChangeLimits, Goal, Problem, Solution
from joulecut_engine.optimize.schedule import baseline

if TYPE_CHECKING:
    from joulecut_engine.optimize.clock_changes import ClockChanges, Effort
    from joulecut_engine.optimize.drawn_choices import Limit
    from joulecut_engine.optimize.relaxation import Relaxation


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
    """`Solver.points`. With `prices` the point where energy and GPU time cost least is one more."""
    solver = Solver(problem, granularity)
    at_s = () if prices is None else (solver.cheapest(prices).time_s,)
    return solver.points(points, progress, beside_s=at_s)


class Solver:
    """One problem at one granularity, prepared once; one thread at a time.

    A single answer is thorough (`solve`). Many are asked a point at a time and remembered (`at`,
    `points`): a plan found for a shorter deadline competes, so more time never gives a worse plan.
    Nothing is computed before it is asked for. `limits` count with `changes` alone. `beside` is of
    the same problem, and what it knows is used. Raises NoCommonClock, ValueError.
    """

    def __init__(
        self,
        problem: Problem,
        granularity: Granularity,
        limits: ChangeLimits = TWO_CHANGES,
        beside: Computation | None = None,
    ) -> None:
        self.problem, self._granularity, self._limits = problem, granularity, limits
        self.computation = beside or Computation(problem)
        self._search: Computation | ClockChanges = self.computation
        if granularity != "computation":
            from joulecut_engine.optimize.clock_changes import search_of  # noqa: PLC0415 -- as above

            limits = limits if granularity == "changes" else ChangeLimits(0)
            self._search = search_of(self.computation, limits)

    @property
    def fastest_s(self) -> float:
        """T_min at this granularity."""
        return self._search.fastest_s

    @property
    def cheapest_s(self) -> float:
        """T_c: iteration time of least effective cost; beyond it not even a pipeline that waits
        has anything to gain."""
        return max(self._search.cheapest_s, self._search.fastest_s)

    def solve(self, goal: Goal, hints: Sequence[Solution] = (), *, quick: bool = False) -> Solution:
        """The plan of least energy found; hints compete. A `quick` one of few changes is where
        another search begins. Raises Infeasible."""
        must_meet(goal.deadline_s, self.fastest_s)
        relaxed = self.computation.relax(goal)
        return self._labelled(
            self._search.solve(goal, relaxed, hints, "start" if quick else "answer")
        )

    def steadied(self, goal: Goal, limit: "Limit", found: Sequence[Solution]) -> Solution:
        """The plan of least energy found whose drawn iteration times keep the limit, at `changes`
        and `gpu`; the fastest where none does."""
        assert not isinstance(self._search, Computation)
        return self._labelled(self._search.steadied(goal, limit, found))

    def improvements(self, goal: Goal, found: Solution) -> Iterator[Solution]:
        """From an answer to this goal on, without end: no plan is dearer than the one before, no
        bound lower."""
        return map(self._labelled, self._search.improvements(goal, found))

    def cheapest(self, prices: Prices) -> Iteration:
        """Where energy and GPU time together cost least, one GPU for each stage. Time is priced as
        the power whose energy costs as much."""
        time_w = len(self.problem.graph.order) * prices.time_power_w
        if time_w == float("inf"):  # energy is free
            fastest = baseline(self.problem)
            return Iteration(fastest.iteration_time_s, fastest.energy_j)
        priced = self.computation.dearer(time_w)
        other = Solver(priced.problem, self._granularity, self._limits, priced)
        goal = Goal(other.cheapest_s)
        effort: Effort = "point" if self._granularity == "computation" else "start"
        found = other._search.solve(goal, other.computation.relax(goal), (), effort)
        return Iteration(found.iteration_time_s, found.energy_j - time_w * found.iteration_time_s)

    @cached_property
    def least(self) -> Solution:
        """The plan of least energy; its iteration time is T_E. As thorough as a single answer."""
        found = self.solve(Goal(self.cheapest_s))
        self._search.kept.add(found)
        return found

    def at(self, goal: Goal) -> Solution:
        """The plan for a goal, with a bound for that goal. Raises Infeasible."""
        must_meet(goal.deadline_s, self.fastest_s)
        if goal.deadline_s >= self.cheapest_s and not goal.waits:
            return self.least
        return self._found(goal, self.computation.relax(goal))

    def points(
        self,
        count: int,
        progress: Callable[[int, int], None] | None = None,
        shared_s: Sequence[float] = (),
        beside_s: Sequence[float] = (),
        known: Sequence[Solution] = (),
    ) -> tuple[Solution, ...]:
        """Undominated plans from the fastest (T_min) to the one of least energy (T_E), ascending in
        time, at up to `count` evenly spaced deadlines, or at these ends and those `shared_s`
        between; at those `beside_s` in any case. Plans that are `known` compete. Each bound is for
        the point's own time. Where options are few, neighbours coincide. `progress` gets (done,
        count). Raises ValueError for fewer than 2.
        """
        if count < 2:
            raise ValueError(f"{count} points: a frontier has at least 2")
        for one in known:
            self._search.kept.add(one)
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

    def _found(self, goal: Goal, relaxed: "Relaxation") -> Solution:
        hints = self._search.kept.within(goal.deadline_s)
        found = self._labelled(self._search.solve(goal, relaxed, hints, "point"))
        self._search.kept.add(found)
        return found

    def _labelled(self, found: Solution) -> Solution:
        """Fewer than two changes are answered as `gpu`."""
        if self._granularity != "changes":
            return found
        return replace(found, granularity="changes", limits=self._limits)
