"""The plan that still keeps its deadline when times jitter, and what that costs of the saving.

Two ways to take margin, and mixtures of them: plan for an earlier deadline, or take back part
of each operation's slowing, which leaves slack on all the paths that a plan had made
critical. The first is of no use where the deadline is the fastest time; the second always is.
The way that keeps most of the saving wins.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from joulecut_controller.hardware import ClockOption
from joulecut_controller.solve.jitter import Spread, Trials
from joulecut_controller.solve.problem import Goal, Problem, Solution
from joulecut_controller.solve.schedule import baseline, solution
from joulecut_controller.solve.solver import Solver
from joulecut_controller.workload import Granularity

Statistic = Literal["p95", "mean"]

STEPS = 7  # halvings: the margin is then known to a hundredth of itself
SHARES = (0.33, 0.67)  # of the earlier deadline, mixed with slowing taken back


@dataclass(frozen=True, slots=True)
class Assured:
    """A plan with margin beside the one without; spreads are of the same luck.

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
    solver: Solver,
    goal: Goal,
    trials: Trials,
    *,
    statistic: Statistic = "p95",
    target_s: float | None = None,
) -> Assured:
    """The least energy found whose iteration time meets the target under jitter.

    Without `target_s` the deadline's slowdown is granted to the jittering baseline: target =
    statistic of the baseline x deadline / iteration time of the baseline. The mean-time
    deadline of `goal` is kept in any case. Raises Infeasible.
    """
    fastest = baseline(problem)
    base = trials.spread(fastest.clocks)
    if target_s is None:
        target_s = of(base, statistic) * goal.deadline_s / fastest.iteration_time_s
    limit_s = target_s

    def keeps(plan: Solution) -> bool:
        return of(trials.spread(plan.clocks), statistic) <= limit_s

    search = _Search(problem, solver, goal, keeps)
    plan = search.best()
    found = trials.spread(plan.clocks)
    return Assured(
        plan=plan,
        spread=found,
        unassured=search.full,
        unassured_spread=trials.spread(search.full.clocks),
        baseline_spread=base,
        statistic=statistic,
        target_s=target_s,
        met=of(found, statistic) <= target_s,
    )


class _Search:
    def __init__(
        self,
        problem: Problem,
        solver: Solver,
        goal: Goal,
        keeps: Callable[[Solution], bool],
    ) -> None:
        self._problem, self._solver, self._goal = problem, solver, goal
        self._keeps = keeps
        self.full = solver.solve(goal)
        self._menus = _menus(problem, self.full.granularity)
        self._anchor = self._fastest()

    def best(self) -> Solution:
        if self._keeps(self.full):
            return self.full
        candidates = [self._unslowed(self.full)]
        latest_s = min(self._goal.deadline_s, self.full.iteration_time_s)
        earliest_s = self._solver.fastest_s
        if latest_s > earliest_s:
            share = _largest(
                lambda x: self._keeps(self._earlier(latest_s + (earliest_s - latest_s) * (1 - x)))
            )
            early = self._earlier(latest_s + (earliest_s - latest_s) * (1 - share))
            candidates.append(early)
            for part in SHARES:
                deadline_s = latest_s + (earliest_s - latest_s) * (1 - share) * part
                candidates.append(self._unslowed(self._earlier(deadline_s)))
        kept = [plan for plan in candidates if self._keeps(plan)]
        return min(kept or [self._anchor], key=lambda plan: plan.energy_j)

    def _earlier(self, deadline_s: float) -> Solution:
        """Planned for an earlier deadline, priced and bounded for the real one."""
        goal = replace(self._goal, deadline_s=max(deadline_s, self._solver.fastest_s))
        return self._priced(self._solver.solve(goal, (self.full,)).clocks)

    def _unslowed(self, plan: Solution) -> Solution:
        """As much of a plan's slowing as the target allows."""
        share = _largest(lambda x: self._keeps(self._mixed(plan, x)))
        return self._mixed(plan, share)

    def _mixed(self, plan: Solution, share: float) -> Solution:
        """A share of the way from the fastest plan to this one, rounded to the fast side."""
        one = _mixed_by_clock if plan.granularity != "computation" else _mixed_by_time
        clocks = tuple(
            one(menu, fast, slow, share)
            for menu, fast, slow in zip(self._menus, self._anchor.clocks, plan.clocks, strict=True)
        )
        return self._priced(clocks)

    def _priced(self, clocks: tuple[ClockOption, ...]) -> Solution:
        full = self.full
        priced = solution(self._problem, self._goal, full.granularity, clocks, full.lower_bound_j)
        return replace(priced, bound_granularity=full.bound_granularity)

    def _fastest(self) -> Solution:
        if self.full.granularity == "computation":
            return self._priced(baseline(self._problem).clocks)
        return self._priced(self._solver.solve(Goal(self._solver.fastest_s)).clocks)


def _menus(problem: Problem, granularity: Granularity) -> tuple[tuple[ClockOption, ...], ...]:
    """What each operation may take; where operations share a clock, what all of a stage have."""
    if granularity == "computation":
        return problem.options
    menus = problem.measured or problem.options
    shared: list[set[int]] = []
    for indices in problem.graph.order:
        clocks = [{o.clock_mhz for o in menus[i]} for i in indices if len(menus[i]) > 1]
        shared.append(set.intersection(*clocks) if clocks else set())
    return tuple(
        tuple(o for o in menu if o.clock_mhz in shared[operation.stage])
        for operation, menu in zip(problem.graph.operations, menus, strict=True)
    )


def _mixed_by_time(
    menu: tuple[ClockOption, ...], fast: ClockOption, slow: ClockOption, share: float
) -> ClockOption:
    """The cheapest option no slower than the mixture: slower by share means never faster."""
    limit_s = fast.time_s + share * (slow.time_s - fast.time_s)
    if share >= 1.0:
        return slow
    fitting = [option for option in menu if fast.time_s <= option.time_s <= limit_s]
    return max(fitting, key=lambda o: (o.time_s, -o.energy_j), default=fast)


def _mixed_by_clock(
    menu: tuple[ClockOption, ...], fast: ClockOption, slow: ClockOption, share: float
) -> ClockOption:
    """Operations that share a clock share the mixture's: it depends on clocks alone."""
    if share >= 1.0:
        return slow
    limit_mhz = fast.clock_mhz + share * (slow.clock_mhz - fast.clock_mhz)
    low, high = sorted((fast.clock_mhz, slow.clock_mhz))
    between = [option for option in menu if max(low, limit_mhz) <= option.clock_mhz <= high]
    return min(between, key=lambda o: (o.clock_mhz, o.time_s), default=fast)


def _largest(keeps: Callable[[float], bool]) -> float:
    """The largest share from 0 to 1 found to keep the target; 0 where none does."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low
