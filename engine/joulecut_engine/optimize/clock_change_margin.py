"""Jitter margin for plans whose clocks change late, seldom, and at a price.

The two ways of `jitter_margin`: an earlier deadline, and slowing taken back towards the fastest
plan by the same share of each clock, so no GPU changes more often. A change is asked for when the
operation before has ended, so the operation that it catches varies too: every draw is the
timeline that is really run. Dwell is not judged under jitter: where a stretch is too short, a
change is asked a little later.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from joulecut_engine.optimize.clock_change_moves import iterations
from joulecut_engine.optimize.clock_change_search import ClockChangeSearch
from joulecut_engine.optimize.clock_changes import (
    Switched,
    Switching,
    limits_of,
    run_of,
    track_of,
)
from joulecut_engine.optimize.jitter import P95, Spread, Trials
from joulecut_engine.optimize.jitter_margin import (
    MISS,
    TOLERANCE,
    Assured,
    Statistic,
    largest,
    of,
)
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import Goal, Infeasible
from joulecut_engine.optimize.schedule import baseline

AIMS = 2  # a second one where other luck finds the first too late; solving takes seconds here
EARLIER = 3  # deadlines tried, each from what the last one's plan missed or left
NEAR = 1e-3  # of the limit: nearer is not worth another solve


@dataclass(frozen=True, slots=True)
class SwitchAssured:
    """`assured.plan` and `assured.unassured` are those of `found` and `unassured`."""

    assured: Assured
    found: Switched
    unassured: Switched


def assured(
    search: ClockChangeSearch,
    goal: Goal,
    trials: Trials,
    judge: Trials,
    *,
    statistic: Statistic = "p95",
    target_s: float | None = None,
    tolerance: float = TOLERANCE,
) -> SwitchAssured:
    """As `jitter_margin.assured`, under switching: the judge's figures meet the target.

    Without `target_s` the deadline's slowdown is granted to the jittering baseline, whose
    clocks never change. Raises Infeasible where not even mean times keep the deadline.
    """
    fastest = baseline(search.problem)
    granted = goal.deadline_s / fastest.iteration_time_s + tolerance

    def limit_of(one: Trials) -> float:
        if target_s is not None:
            return target_s
        return of(one.spread(fastest.clocks), statistic) * granted

    full = search.solve(goal)
    seen, other = (SwitchTrials(one, search.switching) for one in (trials, judge))
    limit_s, target = limit_of(trials), limit_of(judge)
    margin = _Margin(search, goal, full)
    plans = [full]
    for _ in range(AIMS):
        plans.append(margin.best(_measured(search, seen, statistic), limit_s))
        missed = of(other.spread(search.asked(plans[-1])), statistic) / target
        if missed <= 1.0:
            break
        limit_s *= (1 - MISS) / missed
    plan = margin.left(plans, _measured(search, other, statistic), target)
    spread = other.spread(search.asked(plan))
    kept = Assured(
        plan=plan.plan,
        spread=spread,
        unassured=full.plan,
        unassured_spread=other.spread(search.asked(full)),
        baseline_spread=judge.spread(fastest.clocks),
        statistic=statistic,
        target_s=target,
        met=of(spread, statistic) <= target,
    )
    return SwitchAssured(kept, plan, full)


class SwitchTrials:
    """Plans under one kind of switching, run with the luck of `trials`."""

    def __init__(self, trials: Trials, switching: Switching) -> None:
        self.trials = trials
        problem = trials.problem
        self._track, self._limits = track_of(problem), limits_of(switching)
        self._run = run_of(self._track)
        link_of = {edge: link for link, edge in enumerate(problem.graph.edges)}
        heads = np.repeat(np.arange(len(self._track.stage)), np.diff(self._track.enters))
        links = zip(self._track.tails.tolist(), heads.tolist(), strict=True)
        self._edge: Ints = np.array([link_of.get(link, -1) for link in links], dtype=np.int64)
        self._row = trials.row

    def spread(self, asked: Ints) -> Spread:
        """What iterations really take that ask for these columns, one per operation."""
        times_s = self.times_s(asked)
        return Spread(float(times_s.mean()), float(np.quantile(times_s, P95)))

    def times_s(self, asked: Ints) -> Floats:
        """Iteration time of each draw, in seconds: the slowest sibling's. Infinite where an
        operation would run at a clock that it was not measured at."""
        times_s = np.zeros(self.trials.draws)
        for factor, delay_s in self.trials.luck():
            iterations(
                self._track,
                self._limits,
                asked,
                self._run,
                self._row,
                self._edge,
                factor,
                delay_s,
                times_s,
            )
        return times_s


Measured = Callable[[Ints], float]  # seconds of the statistic of what is asked


def _measured(search: ClockChangeSearch, trials: SwitchTrials, statistic: Statistic) -> Measured:
    """Infinite where mean times break a limit of the switching."""

    def seconds(asked: Ints) -> float:
        if not search.keeps(asked, math.inf):
            return math.inf
        spread: Spread = trials.spread(asked)
        return of(spread, statistic)

    return seconds


class _Margin:
    def __init__(self, search: ClockChangeSearch, goal: Goal, full: Switched) -> None:
        self._search, self._goal, self._full = search, goal, full
        self._anchor = self._earlier(search.fastest_s)

    def best(self, measured: Measured, limit_s: float) -> Switched:
        """The plan of least energy found whose statistic is at most the limit; the fastest
        where none is."""

        def seconds(plan: Switched) -> float:
            return measured(self._search.asked(plan))

        if seconds(self._full) <= limit_s:
            return self._full
        candidates = [self._unslowed(self._full, measured, limit_s)]
        plan = self._full
        for _ in range(EARLIER):
            aimed_s = plan.plan.iteration_time_s * limit_s / seconds(plan)
            early_s = min(aimed_s * (1 - MISS), self._goal.deadline_s)
            plan = self._earlier(max(early_s, self._search.fastest_s))
            candidates.append(self._unslowed(plan, measured, limit_s))
            if (1 - NEAR) * limit_s <= seconds(plan) <= limit_s:
                break
        kept = [plan for plan in candidates if seconds(plan) <= limit_s]
        return min(kept or [self._anchor], key=lambda plan: plan.plan.energy_j)

    def left(self, plans: list[Switched], measured: Measured, limit_s: float) -> Switched:
        """The cheapest of what a limit leaves of the slowing of these plans."""
        kept = [self._unslowed(plan, measured, limit_s) for plan in plans]
        kept = [plan for plan in kept if measured(self._search.asked(plan)) <= limit_s]
        return min(kept or [self._anchor], key=lambda plan: plan.plan.energy_j)

    def _earlier(self, deadline_s: float) -> Switched:
        """Planned for an earlier deadline, priced and bounded for the real one."""
        goal = replace(self._goal, deadline_s=max(deadline_s, self._search.fastest_s))
        try:
            plan = self._search.solve(goal, (self._full,))
        except Infeasible:  # the fastest time is that of the quick search
            plan = self._search.solve(goal, (self._full,), quick=True)
        return self._written(self._search.asked(plan))

    def _unslowed(self, plan: Switched, measured: Measured, limit_s: float) -> Switched:
        """As much of a plan's slowing as the limit allows."""
        slow, fast = self._search.asked(plan), self._search.asked(self._anchor)

        def mixed(share: float) -> Ints:
            return np.ceil(fast + share * (slow - fast)).astype(np.int64)

        def keeps(share: float) -> bool:
            asked = mixed(share)
            seconds = (
                measured(asked) if self._search.keeps(asked, self._goal.deadline_s) else math.inf
            )
            return seconds <= limit_s

        if keeps(1.0):
            return plan
        return self._written(mixed(largest(keeps)))

    def _written(self, asked: Ints) -> Switched:
        return self._search.written(asked, self._goal, self._full.plan.lower_bound_j)
