"""Plans whose clocks change only as often, and as late, as clocks really can.

The free plan, the plans with one or two clocks per GPU and the walks that the bound's prices
lead to compete; the best of them are varied under the eyes of the timeline that is really run
(`switchmoves`). What is printed is that timeline, and the bound is one for these limits.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.frontier import undominated
from joulecut_engine.optimize.groups import inner
from joulecut_engine.optimize.levels import Ints
from joulecut_engine.optimize.problem import (
    Effort,
    Goal,
    Infeasible,
    NoCommonClock,
    Problem,
    Solution,
)
from joulecut_engine.optimize.schedule import solution
from joulecut_engine.optimize.solver import Solver
from joulecut_engine.optimize.switchbound import SwitchBound
from joulecut_engine.optimize.switching import (
    Switched,
    Switching,
    changes_of,
    columns_of,
    limits_of,
    options_of,
    run_of,
    track_of,
)
from joulecut_engine.optimize.switchmoves import ON_TIME, realise
from joulecut_engine.optimize.switchtrial import Trial
from joulecut_engine.optimize.switchwalk import Walker

COMBINATIONS_ALL = 2_000  # up to here every plan is run: 10 ms
# Operations that trials run in all: 12 ns each. And tries to raise the bound.
WORK: dict[Effort, float] = {"quick": 4e5, "usual": 4e6, "thorough": 6e7}
RAISES: dict[Effort, int] = {"quick": 10, "usual": 60, "thorough": 300}
RUNGS = (2, 4, 8, 16, 64)  # limits of changes solved on the way to a higher one
STARTS: dict[Effort, int] = {"quick": 1, "usual": 2, "thorough": 4}
SMALL = 1e-12


class SwitchSearch:
    """One problem under one kind of switching, prepared once; answers one goal after another.

    For `computation`, `edge` (two clocks per GPU, each asked for where its operations begin)
    and `gpu` (which never changes any). Where there are no more than `combinations_all` plans,
    all are run. Raises NoCommonClock (not for `computation`), ValueError where an option takes
    no time.
    """

    def __init__(
        self,
        problem: Problem,
        switching: Switching,
        granularity: Granularity = "computation",
        combinations_all: int = COMBINATIONS_ALL,
    ) -> None:
        self.problem, self.switching, self._granularity = problem, switching, granularity
        self._computation = Computation(problem)
        self._track, self._limits = track_of(problem), limits_of(switching)
        self._run = run_of(self._track)
        self._group = _groups(problem, granularity)
        self._bound = SwitchBound(self._track, switching, self._computation.fastest_s)
        self._combinations_all = combinations_all
        self._finders: dict[tuple[Granularity, Effort], Solver] = {}
        # Allowing more changes must never cost: so the answer for fewer always competes.
        fewer = [rung for rung in RUNGS if rung < switching.max_per_iteration]
        self._fewer: SwitchSearch | None = None
        if fewer and granularity == "computation":
            tighter = replace(switching, max_per_iteration=fewer[-1])
            self._fewer = SwitchSearch(problem, tighter, granularity, combinations_all)

    def solve(
        self, goal: Goal, hints: Sequence[Switched] = (), effort: Effort = "usual"
    ) -> Switched:
        """The best plan found; hints compete. Raises Infeasible with the fastest time found."""
        return self._solved(goal, hints, effort, self._rivals(goal, effort))

    def _solved(
        self, goal: Goal, hints: Sequence[Switched], effort: Effort, rivals: Sequence[Solution]
    ) -> Switched:
        price_w = self._computation.time_price_w(goal)
        waited_j = self.problem.time_price_w * goal.deadline_s if goal.waits else 0.0
        ours = rivals[0]
        if ours.iteration_time_s <= goal.deadline_s * (1 + ON_TIME) and self._unharmed(ours):
            return self.written(self._columns(ours), goal, ours)
        trial = Trial(self._track, self._limits, self._group, goal.deadline_s, price_w)
        if trial.combinations() <= self._combinations_all:
            best = trial.all()
            own_j = trial.value_j(best) + waited_j
            return self.written(best, goal, own_j - SMALL * abs(own_j))
        if self._fewer is not None:
            with contextlib.suppress(Infeasible):  # with more changes there may be a plan
                hints = [*hints, self._fewer._solved(goal, hints, effort, rivals)]
        reachable = replace(goal, deadline_s=max(goal.deadline_s, self._computation.fastest_s))
        relaxed = self._computation.relax(reachable)
        flow = self._bound.flow_of(self._computation.prices_w(relaxed))
        charges = self._bound.raised(flow, goal.deadline_s, price_w, RAISES[effort])
        starts = [self._columns(rival) for rival in rivals]
        for hint in hints:
            asked = columns_of(self._track, hint.asked_mhz)
            starts += [] if asked is None else [asked]
        if self._granularity == "computation":
            walker = Walker(self._track, self._limits, self._bound, trial)
            starts += [walker.ahead(start) for start in starts]
            starts += walker.starts(charges, few=effort == "quick")
        own_j = charges[-1].value_j
        best = trial.best(starts, charges[-1].price_w, own_j, STARTS[effort], WORK[effort])
        bound_j = max(self._computation.bound_j(reachable, relaxed), own_j + waited_j)
        return self.written(best, goal, bound_j)

    def points(
        self, count: int, until_s: float, progress: Callable[[int, int], None] | None = None
    ) -> tuple[Switched, ...]:
        """Undominated plans at up to `count` evenly spaced deadlines from the fastest found to
        `until_s`; what was found for a shorter deadline competes. `progress` hears
        (done, count). Raises Infeasible where no plan keeps the limits at all."""
        found: list[Switched] = []
        for deadline_s in np.linspace(self.fastest_s, max(self.fastest_s, until_s), count).tolist():
            found.append(self.solve(Goal(deadline_s), found[-1:], "quick"))
            if progress is not None:
                progress(len(found), count)
        kept = {id(plan) for plan in undominated([each.plan for each in found])}
        return tuple(each for each in found if id(each.plan) in kept)

    @cached_property
    def fastest_s(self) -> float:
        """The least iteration time found. Raises Infeasible where nothing keeps the limits."""
        try:
            found = self.solve(Goal(self._computation.fastest_s), (), "quick")
        except Infeasible as none:
            if not math.isfinite(none.fastest_s):
                raise
            return none.fastest_s
        return found.plan.iteration_time_s

    def _rivals(self, goal: Goal, effort: Effort) -> list[Solution]:
        """What this granularity answers where switching is free, then what coarser ones do, as
        near the deadline as they can."""
        order: tuple[Granularity, ...] = ("computation", "edge", "gpu")
        found = []
        for granularity in order[order.index(self._granularity) :]:
            try:
                finder = self._finder(granularity, effort)
            except NoCommonClock:
                if granularity == self._granularity:
                    raise
                continue
            deadline_s = max(goal.deadline_s, finder.fastest_s)
            found.append(finder.solve(replace(goal, deadline_s=deadline_s)))
        return found

    def _finder(self, granularity: Granularity, effort: Effort) -> Solver:
        key = (granularity, effort)
        if key not in self._finders:
            self._finders[key] = Solver(self.problem, granularity, effort)
        return self._finders[key]

    def asked(self, found: Switched) -> Ints:
        """What a plan of this search asks for, as columns by operation."""
        asked = columns_of(self._track, found.asked_mhz)
        assert asked is not None  # its clocks are the problem's
        return asked

    def keeps(self, asked: Ints, deadline_s: float) -> bool:
        """Whether the timeline of what is asked keeps the limits and the deadline."""
        seconds, _, _ = realise(self._track, self._limits, asked, self._run)
        return seconds <= deadline_s * (1 + ON_TIME)

    def _columns(self, plan: Solution) -> Ints:
        asked = columns_of(self._track, [option.clock_mhz for option in plan.clocks])
        assert asked is not None  # its options are the problem's
        return asked

    def _unharmed(self, plan: Solution) -> bool:
        """Whether it runs exactly as planned, at no cost."""
        asked = self._columns(plan)
        seconds, _, changes = realise(self._track, self._limits, asked, self._run)
        return (
            seconds <= plan.iteration_time_s * (1 + SMALL)
            and options_of(self._track, self._run) == plan.clocks
            and changes * self.switching.cost_j == 0.0
        )

    def written(self, asked: Ints, goal: Goal, bound: float | Solution) -> Switched:
        """What is asked, as a plan: the timeline that it leads to. The bound may be that of
        the same plan where switching is free."""
        track, run = self._track, self._run
        seconds, _, count = realise(track, self._limits, asked, run)
        bound_j = bound.lower_bound_j if isinstance(bound, Solution) else bound
        plan = solution(
            self.problem,
            goal,
            self._granularity,
            options_of(track, run),
            min(bound_j, math.inf),
            bound.bound_granularity if isinstance(bound, Solution) else "computation",
            timed=(seconds, tuple(run.start.tolist())),
        )
        energy_j = plan.energy_j + count * self.switching.cost_j
        mhz = np.where(track.clocked, track.clocks[track.stage, asked], ANY_CLOCK_MHZ)
        return Switched(
            replace(plan, energy_j=energy_j, lower_bound_j=min(bound_j, energy_j)),
            tuple(mhz.tolist()),
            changes_of(track, self._limits, run, asked),
        )


def _groups(problem: Problem, granularity: Granularity) -> Ints:
    """By operation, which of its GPU's clocks it always shares; -1 where it is free."""
    group = np.full(len(problem.graph.operations), 0 if granularity == "gpu" else -1)
    if granularity == "edge":
        group[:] = 0
        for indices in problem.graph.order:
            for k in inner(problem, indices):
                group[indices[k]] = 1
    return group
