"""Plans whose clocks change only as often, and as late, as clocks really can.

The free plan, the plans with one or two clocks per GPU and walks of few changes compete. Under
the prices of the relaxation the best walk of one GPU is known exactly (`k_change_dp`); together
they are usually late, and prices a little higher keep the deadline. The best of these are varied
on the timeline that is really run (`clock_change_moves`).

The same prices prove the bound: time is charged to operations at a balanced flow, so each GPU may
choose on its own, as cheaply as its limit of changes allows (Lagrange). What late arrival and
dwell forbid is left out, and so is the stop of a change: that only lowers the bound.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.clock_change_moves import ON_TIME, realise
from joulecut_engine.optimize.clock_change_trial import SEED, TRIALS_MAX, Trial
from joulecut_engine.optimize.clock_changes import (
    Switched,
    Switching,
    changes_of,
    columns_of,
    limits_of,
    options_of,
    run_of,
    track_of,
)
from joulecut_engine.optimize.clock_groups import inner
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.frontier import undominated
from joulecut_engine.optimize.levels import Ints, levels_of
from joulecut_engine.optimize.problem import Goal, Infeasible, NoCommonClock, Problem, Solution
from joulecut_engine.optimize.relaxation import Relaxation
from joulecut_engine.optimize.schedule import solution
from joulecut_engine.optimize.solver import Solver

COMBINATIONS_ALL = 2_000  # up to here every plan is run: 10 ms
RUNGS = (2, 4, 8, 16, 64)  # limits of changes solved on the way to a higher one
GRANULARITIES: tuple[Granularity, ...] = ("computation", "edge", "gpu")  # the finest first
SMALL = 1e-12


class ClockChangeSearch:
    """One problem under one kind of switching, prepared once; answers one goal after another.

    For `computation`, `edge` (two clocks per GPU, each asked for where its operations begin) and
    `gpu` (which never changes any). Where there are no more than `combinations_all` plans, all
    are run. Raises NoCommonClock (not for `computation`), ValueError where an option takes no
    time.
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
        self._run, self._levels = run_of(self._track), levels_of(problem.graph)
        self._group = _groups(problem, granularity)
        self._combinations_all = combinations_all
        self._solvers: dict[Granularity, Solver | None] = {}
        # Allowing more changes must never cost: so the answer for fewer always competes.
        fewer = [rung for rung in RUNGS if rung < switching.max_per_iteration]
        self._fewer: ClockChangeSearch | None = None
        if fewer and granularity == "computation":
            tighter = replace(switching, max_per_iteration=fewer[-1])
            self._fewer = ClockChangeSearch(problem, tighter, granularity, combinations_all)

    def solve(self, goal: Goal, hints: Sequence[Switched] = (), *, quick: bool = False) -> Switched:
        """The best plan found; hints compete. Raises Infeasible with the fastest time found."""
        return self._solved(goal, hints, self._rivals(goal), quick=quick)

    def improvements(self, goal: Goal, found: Switched) -> Iterator[Switched]:
        """Better and better plans, without end, each varied from the best. The bound stays."""
        bound_j = found.plan.lower_bound_j
        trial, _ = self._trial(goal)
        for number in itertools.count(1):
            asked = trial.varied(self.asked(found), TRIALS_MAX, bound_j, SEED - 2 * number)
            again = self.written(asked, goal, bound_j)
            if again.plan.energy_j < found.plan.energy_j:
                found = again
            yield found

    def points(
        self, count: int, until_s: float, progress: Callable[[int, int], None] | None = None
    ) -> tuple[Switched, ...]:
        """Undominated plans at up to `count` evenly spaced deadlines from the fastest found to
        `until_s`; what was found for a shorter deadline competes. `progress` gets (done, count).
        Raises Infeasible where no plan keeps the limits at all."""
        found: list[Switched] = []
        for deadline_s in np.linspace(self.fastest_s, max(self.fastest_s, until_s), count).tolist():
            found.append(self.solve(Goal(deadline_s), found[-1:], quick=True))
            if progress is not None:
                progress(len(found), count)
        kept = {id(plan) for plan in undominated([each.plan for each in found])}
        return tuple(each for each in found if id(each.plan) in kept)

    @cached_property
    def fastest_s(self) -> float:
        """The least iteration time found. Raises Infeasible where nothing keeps the limits."""
        try:
            found = self.solve(Goal(self._computation.fastest_s), quick=True)
        except Infeasible as none:
            if not math.isfinite(none.fastest_s):
                raise
            return none.fastest_s
        return found.plan.iteration_time_s

    def asked(self, found: Switched) -> Ints:
        """What a plan of this search asks for, as columns by operation."""
        asked = columns_of(self._track, found.asked_mhz)
        assert asked is not None  # its clocks are the problem's
        return asked

    def keeps(self, asked: Ints, deadline_s: float) -> bool:
        """Whether the timeline of what is asked keeps the limits and the deadline."""
        seconds, _, _ = realise(self._track, self._limits, asked, self._run)
        return seconds <= deadline_s * (1 + ON_TIME)

    def written(self, asked: Ints, goal: Goal, bound: float | Solution) -> Switched:
        """What is asked, as a plan: the timeline that it leads to. The bound may be that of the
        same plan where switching is free."""
        track, run = self._track, self._run
        seconds, _, count = realise(track, self._limits, asked, run)
        bound_j = bound.lower_bound_j if isinstance(bound, Solution) else bound
        plan = solution(
            self.problem,
            goal,
            self._granularity,
            options_of(track, run),
            bound_j,
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

    def _solved(
        self,
        goal: Goal,
        hints: Sequence[Switched],
        rivals: Sequence[Solution],
        *,
        quick: bool,
    ) -> Switched:
        ours = rivals[0]
        if ours.iteration_time_s <= goal.deadline_s * (1 + ON_TIME) and self._unharmed(ours):
            return self.written(self._columns(ours), goal, ours)
        trial, relaxed = self._trial(goal)
        if trial.combinations() <= self._combinations_all:
            best = trial.all()
            least_j = self.written(best, goal, math.inf).plan.energy_j
            return self.written(best, goal, least_j * (1 - SMALL))
        if self._fewer is not None:
            with contextlib.suppress(Infeasible):  # with more changes there may be a plan
                hints = [*hints, self._fewer._solved(goal, hints, rivals, quick=quick)]
        starts = [self._columns(rival) for rival in rivals]
        starts += [self.asked(hint) for hint in hints]
        free = self._granularity == "computation"
        if free:
            starts += [*map(trial.ahead, starts), *trial.walks()]
        own_j = trial.raised_j(self._levels, self._computation.fastest_s)
        if free:
            starts += trial.walks()
        waited_j = self.problem.time_price_w * goal.deadline_s if goal.waits else 0.0
        bound_j = max(self._computation.bound_j(self._reachable(goal), relaxed), own_j + waited_j)
        return self.written(trial.best(starts, own_j, quick=quick), goal, bound_j)

    def _trial(self, goal: Goal) -> tuple[Trial, Relaxation]:
        """One deadline, at the prices of the relaxation."""
        relaxed = self._computation.relax(self._reachable(goal))
        time_price_w = self._computation.time_price_w(goal)
        trial = Trial(
            self._track,
            self.switching,
            self._group,
            goal.deadline_s,
            time_price_w,
            self._computation.prices_w(relaxed),
            time_price_w + relaxed.deadline_price_w,
        )
        return trial, relaxed

    def _reachable(self, goal: Goal) -> Goal:
        return replace(goal, deadline_s=max(goal.deadline_s, self._computation.fastest_s))

    def _rivals(self, goal: Goal) -> list[Solution]:
        """What this granularity answers where switching is free, then what coarser ones do, as
        near the deadline as they can."""
        found = []
        for granularity in GRANULARITIES[GRANULARITIES.index(self._granularity) :]:
            solver = self._solver(granularity)
            if solver is not None:
                deadline_s = max(goal.deadline_s, solver.fastest_s)
                found.append(solver.solve(replace(goal, deadline_s=deadline_s)))
        return found

    def _solver(self, granularity: Granularity) -> Solver | None:
        """None where a coarser granularity than that asked for has no common clock."""
        if granularity not in self._solvers:
            try:
                self._solvers[granularity] = Solver(self.problem, granularity)
            except NoCommonClock:
                if granularity == self._granularity:
                    raise
                self._solvers[granularity] = None
        return self._solvers[granularity]

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


def _groups(problem: Problem, granularity: Granularity) -> Ints:
    """By operation, which of its GPU's clocks it always shares; -1 where it is free."""
    group = np.full(len(problem.graph.operations), 0 if granularity == "gpu" else -1)
    if granularity == "edge":
        group[:] = 0
        for indices in problem.graph.order:
            for k in inner(problem, indices):
                group[indices[k]] = 1
    return group
