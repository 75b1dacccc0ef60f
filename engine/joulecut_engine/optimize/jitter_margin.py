"""The plan that still keeps its deadline when times jitter, and what that costs of the saving.

Two ways to take margin, and mixtures of them: plan for an earlier deadline, or take back part
of each operation's slowing, which leaves slack on all the paths that a plan had made
critical. The first is of no use where the deadline is the fastest time; the second always is.
The way that keeps most of the saving wins, and `exchange` then moves slowing from operations
that delay the iteration to others that do not: at slowdown 0 half of what is kept, from 2 % on
hardly anything, since there the earlier deadline is within half a point of the best possible.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.drawn_choices import Limit, Statistic
from joulecut_engine.optimize.jitter import Spread, Trials
from joulecut_engine.optimize.problem import Goal, Problem, Solution
from joulecut_engine.optimize.schedule import baseline, solution
from joulecut_engine.optimize.slack_reallocation import Exchange

# Granted on top of a slowdown, in shares of the baseline's time: no operation can be slowed at
# all that was critical in a single draw if a time must not rise by anything, and no job knows its
# own pace better (a baseline is taken with a standard error of 0.25 %).
TOLERANCE = 0.003
SEED_CRITICAL = 7_919  # any number that is not the seed of trials
# An earlier deadline is put off by as much as the last one was missed, and a jot more; three
# tries are enough in 99 of 100 cases.
TRIES = 4
MISS = 2e-4
STEPS = 7  # halvings: the margin is then known to a hundredth of itself
ROUNDING = 1e-10  # of the deadline: sums in another order
SHARES = (0.33, 0.67)  # of the earlier deadline, mixed with slowing taken back
# A search that sees the same draws again and again ends with a plan that suits them: at P95, the
# mean of ten, by 0.1-0.2 % of the time. Other luck shows it; then the search aims so much lower.
AIMS = 3


class Solves(Protocol):
    """One problem at one granularity, as `solver.Solver`. Raises Infeasible."""

    @property
    def fastest_s(self) -> float: ...

    def solve(self, goal: Goal, hints: Sequence[Solution] = ()) -> Solution: ...

    def steadied(self, goal: Goal, limit: Limit, found: Sequence[Solution]) -> Solution: ...


@dataclass(frozen=True, slots=True)
class Assured:
    """A plan with margin beside the one without; spreads are of the same luck, the judge's.

    `target_s` is what the statistic of the iteration time must not exceed. `met` is false
    where even the fastest plan exceeds it: then `plan` is that one.
    """

    plan: Solution
    spread: Spread
    unassured: Solution
    unassured_spread: Spread
    baseline_spread: Spread
    statistic: Statistic
    target_s: float
    met: bool

    @property
    def given_up_j(self) -> float:
        """Joules per iteration that the margin costs, on mean times."""
        return max(0.0, self.plan.energy_j - self.unassured.energy_j)


def of(spread: Spread, statistic: Statistic) -> float:
    """The number that is held against the target, in seconds."""
    return spread.p95_s if statistic == "p95" else spread.mean_s


def assured(
    problem: Problem,
    solver: Solves,
    goal: Goal,
    trials: Trials,
    *,
    statistic: Statistic = "p95",
    target_s: float | None = None,
    tolerance: float = TOLERANCE,
    judge: Trials | None = None,
) -> Assured:
    """The least energy found whose iteration time meets the target under jitter.

    Without `target_s` the deadline's slowdown is granted to the jittering baseline: target =
    statistic of the baseline x (deadline / iteration time of the baseline + tolerance). The
    mean-time deadline of `goal` is kept in any case. With a `judge` (trials of other luck) it
    is the judge's figures that meet the target. Raises Infeasible.
    """
    fastest = baseline(problem)
    granted = goal.deadline_s / fastest.iteration_time_s + tolerance
    judge = judge or trials

    def limit_of(one: Trials) -> float:
        if target_s is not None:
            return target_s
        return of(one.spread(fastest.clocks), statistic) * granted

    full = solver.solve(goal)
    search: _Search | _SharedSearch
    if full.granularity == "computation":
        search = _Search(problem, solver, goal, trials, statistic, full)
    else:
        search = _SharedSearch(solver, goal, trials, statistic, full)
    limit_s, target = limit_of(trials), limit_of(judge)
    plans: list[Solution] = []
    for _ in range(AIMS):
        plans.append(search.improved(limit_s))
        missed = of(judge.spread(plans[-1].clocks), statistic) / target
        if judge is trials or missed <= 1.0:
            break
        limit_s *= (1 - MISS) / missed
    plan = plans[0] if judge is trials else search.judged(plans, judge, target)
    found = judge.spread(plan.clocks)
    return Assured(
        plan=plan,
        spread=found,
        unassured=full,
        unassured_spread=judge.spread(full.clocks),
        baseline_spread=judge.spread(fastest.clocks),
        statistic=statistic,
        target_s=target,
        met=of(found, statistic) <= target,
    )


class _SharedSearch:
    """Where few clocks are chosen, the search itself is judged by drawn iterations."""

    def __init__(
        self, solver: Solves, goal: Goal, trials: Trials, statistic: Statistic, full: Solution
    ) -> None:
        self._solver, self._goal, self._full = solver, goal, full
        self._trials, self._statistic = trials, statistic

    def improved(self, limit_s: float) -> Solution:
        if of(self._trials.spread(self._full.clocks), self._statistic) <= limit_s:
            return self._full
        limit = Limit(self._trials, self._statistic, limit_s)
        return self._solver.steadied(self._goal, limit, (self._full,))

    def judged(self, plans: Sequence[Solution], judge: Trials, limit_s: float) -> Solution:
        """The cheapest that keeps the judge's limit, else the one that misses it least."""

        def missed(plan: Solution) -> tuple[float, float]:
            seconds = of(judge.spread(plan.clocks), self._statistic)
            return max(seconds, limit_s), plan.energy_j

        return min(plans, key=missed)


class _Search:
    def __init__(
        self,
        problem: Problem,
        solver: Solves,
        goal: Goal,
        trials: Trials,
        statistic: Statistic,
        full: Solution,
    ) -> None:
        self._problem, self._goal = problem, goal
        self._solver: Solves = solver
        self._trials, self._statistic = trials, statistic
        self._limit_s = 0.0
        self.full = full
        self._anchor = self._fastest()

    def improved(self, limit_s: float) -> Solution:
        """The plan of least energy found whose statistic is at most that; the fastest where
        none is."""
        self._limit_s = limit_s
        plan = self._best()
        if plan is self.full or not self._keeps(plan):
            return plan
        latest_s = self._goal.deadline_s * (1 + ROUNDING)
        return Exchange(self._problem).improved(
            plan,
            priced=self._priced,
            keeps=lambda one: one.iteration_time_s <= latest_s and self._keeps(one),
            critical=lambda one, number, draws: self._trials.criticality(
                one.clocks, SEED_CRITICAL + number, draws
            ),
        )

    def judged(self, plans: Sequence[Solution], judge: Trials, limit_s: float) -> Solution:
        """The cheapest of what another's luck leaves of the slowing of these plans."""
        self._trials, self._limit_s = judge, limit_s
        left = [plan if self._keeps(plan) else self._unslowed(plan) for plan in plans]
        return min(
            [plan for plan in left if self._keeps(plan)] or [self._anchor],
            key=lambda plan: plan.energy_j,
        )

    def _best(self) -> Solution:
        if self._keeps(self.full):
            return self.full
        candidates = [self._unslowed(self.full)]
        latest_s = min(self._goal.deadline_s, self.full.iteration_time_s)
        earliest_s = self._solver.fastest_s
        if latest_s > earliest_s:
            early_s, early = self._early_enough(latest_s)
            candidates.append(early)
            for part in SHARES:
                deadline_s = latest_s + (early_s - latest_s) * part
                candidates.append(self._unslowed(self._earlier(deadline_s)))
        kept = [plan for plan in candidates if self._keeps(plan)]
        return min(kept or [self._anchor], key=lambda plan: plan.energy_j)

    def _keeps(self, plan: Solution) -> bool:
        return self._measured_s(plan) <= self._limit_s

    def _measured_s(self, plan: Solution) -> float:
        return of(self._trials.spread(plan.clocks), self._statistic)

    def _early_enough(self, late_s: float) -> tuple[float, Solution]:
        """A deadline so much earlier that its plan keeps the target, and not much more."""
        plan = self.full
        early_s = late_s
        for _ in range(TRIES):
            late_s, missed = early_s, self._measured_s(plan) / self._limit_s
            early_s = max(self._solver.fastest_s, late_s / missed * (1 - MISS))
            plan = self._earlier(early_s)
            if self._keeps(plan):
                break
        between_s = (early_s + late_s) / 2
        between = self._earlier(between_s)
        return (between_s, between) if self._keeps(between) else (early_s, plan)

    def _earlier(self, deadline_s: float) -> Solution:
        """Planned for an earlier deadline, priced and bounded for the real one."""
        goal = replace(self._goal, deadline_s=max(deadline_s, self._solver.fastest_s))
        return self._priced(self._solver.solve(goal, (self.full,)).clocks)

    def _unslowed(self, plan: Solution) -> Solution:
        """As much of a plan's slowing as the target allows."""
        share = largest(lambda x: self._keeps(self._mixed(plan, x)))
        return self._mixed(plan, share)

    def _mixed(self, plan: Solution, share: float) -> Solution:
        """A share of the way from the fastest plan to this one, rounded to the fast side."""
        triples = list(zip(self._problem.options, self._anchor.clocks, plan.clocks, strict=True))
        # Microbatches share their menus and mostly their clocks: each is asked once.
        which = [(id(menu), id(fast), id(slow)) for menu, fast, slow in triples]
        mixed = {
            key: _mixed_by_time(*each, share)
            for key, each in dict(zip(which, triples, strict=True)).items()
        }
        return self._priced(tuple(mixed[key] for key in which))

    def _priced(self, clocks: tuple[ClockOption, ...]) -> Solution:
        full = self.full
        priced = solution(self._problem, self._goal, full.granularity, clocks, full.lower_bound_j)
        return replace(priced, bound_granularity=full.bound_granularity)

    def _fastest(self) -> Solution:
        return self._priced(baseline(self._problem).clocks)


def _mixed_by_time(
    menu: tuple[ClockOption, ...], fast: ClockOption, slow: ClockOption, share: float
) -> ClockOption:
    """The cheapest option no slower than the mixture: slower by share means never faster."""
    limit_s = fast.time_s + share * (slow.time_s - fast.time_s)
    if share >= 1.0:
        return slow
    fitting = [option for option in menu if fast.time_s <= option.time_s <= limit_s]
    return max(fitting, key=lambda o: (o.time_s, -o.energy_j), default=fast)


def largest(keeps: Callable[[float], bool]) -> float:
    """The largest share from 0 to 1 found to keep the target; 0 where none does."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low
