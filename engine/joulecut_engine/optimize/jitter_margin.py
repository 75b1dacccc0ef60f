"""The plan that still keeps its deadline when times jitter, and what that costs of the saving.

A clock per operation takes margin in two ways: from a plan for an earlier deadline, or where part
of each operation's slowing is taken back, which leaves slack on all the paths that a plan had made
critical. The first is of no use where the deadline is the fastest time; the second always is. The
cheaper one is kept. Then slowing moves (`_Exchange`) from operations that delay the iteration to
others that do not: at slowdown 0 half of what is kept, from 2 % on hardly anything, since there the
earlier deadline is within half a point of the best possible.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.curves import curves_of
from joulecut_engine.optimize.drawn_choices import Limit, Statistic
from joulecut_engine.optimize.jitter import Spread, Trials
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import Goal, Problem, Solution
from joulecut_engine.optimize.schedule import baseline, solution

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
# A search that sees the same draws again and again ends with a plan that suits them: at P95, the
# mean of ten, by 0.1-0.2 % of the time. Other luck shows it; then the search aims so much lower.
AIMS = 3
SHARE_FIRST = 0.2  # of the decisions that change at once; halved where that saves nothing
DRAWS = 48  # for the criticality of one round; more rounds see more than more draws do
HALVINGS = 6  # then changes are single ones up to 8 x 48, and too small to see beyond
ROUNDS = 48  # of exchange; later ones gain a hundredth of what the first did
WINDS = 2  # starts with large changes: the second one gains half as much again at slowdown 0
MEMORY = 0.75  # of the criticality seen in earlier rounds: plans differ little, draws are few
TAKEN_STEPS = 6  # halvings of the number taken back: to a sixty-fourth of the decisions
# An operation that no draw showed critical counts as critical once in three times the draws: the
# "rule of three" bounds an event not seen in n trials by 3 / n, and less is as likely.
UNSEEN = 1.0 / 3.0


class Solves(Protocol):
    """One problem at one granularity, as `solver.Solver`. Raises Infeasible."""

    @property
    def fastest_s(self) -> float: ...

    def solve(
        self, goal: Goal, hints: Sequence[Solution] = (), *, quick: bool = False
    ) -> Solution: ...

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

    full = solver.solve(goal, quick=True)
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
        return _Exchange(self, self._problem).improved(plan)

    def exchanges(self, plan: Solution) -> bool:
        """Whether a plan keeps what a margin has to."""
        latest_s = self._goal.deadline_s * (1 + ROUNDING)
        return plan.iteration_time_s <= latest_s and self._keeps(plan)

    def critical(self, plan: Solution, number: int) -> Floats:
        """By operation, how much later the mean is per second that it takes: of draws that no
        other round sees, so that a plan made with it does not flatter itself."""
        seed, noise = SEED_CRITICAL + number, self._trials.noise
        drawn = Trials(self._problem, noise, draws=DRAWS, seed=seed)
        return drawn.mean(np.array([option.time_s for option in plan.clocks]))[1]

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
            candidates.append(self._early_enough(latest_s))
        kept = [plan for plan in candidates if self._keeps(plan)]
        return min(kept or [self._anchor], key=lambda plan: plan.energy_j)

    def _keeps(self, plan: Solution) -> bool:
        return self._measured_s(plan) <= self._limit_s

    def _measured_s(self, plan: Solution) -> float:
        return of(self._trials.spread(plan.clocks), self._statistic)

    def _early_enough(self, late_s: float) -> Solution:
        """Planned for a deadline so much earlier that it keeps the target, and not much more."""
        plan = self.full
        early_s = late_s
        for _ in range(TRIES):
            late_s, missed = early_s, self._measured_s(plan) / self._limit_s
            early_s = max(self._solver.fastest_s, late_s / missed * (1 - MISS))
            plan = self._earlier(early_s)
            if self._keeps(plan):
                break
        between = self._earlier((early_s + late_s) / 2)
        return between if self._keeps(between) else plan

    def _earlier(self, deadline_s: float) -> Solution:
        """Planned for an earlier deadline, priced and bounded for the real one."""
        goal = replace(self._goal, deadline_s=max(deadline_s, self._solver.fastest_s))
        return self.priced(self._solver.solve(goal, (self.full,)).clocks)

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
        return self.priced(tuple(mixed[key] for key in which))

    def priced(self, clocks: tuple[ClockOption, ...]) -> Solution:
        full = self.full
        priced = solution(self._problem, self._goal, full.granularity, clocks, full.lower_bound_j)
        return replace(priced, bound_granularity=full.bound_granularity)

    def _fastest(self) -> Solution:
        return self.priced(baseline(self._problem).clocks)


class _Exchange:
    """Seconds moved to where they delay least: the last of a margin's saving, regained.

    Slowing is taken back where it buys most of the deadline per joule and given where it costs
    least, as long as that saves energy: the price of an operation's second is its criticality, the
    share of jittering iterations whose longest path it lies on.
    """

    def __init__(self, search: "_Search", problem: Problem) -> None:
        self._search, self._options = search, problem.options
        curves = curves_of(problem)
        width = max(len(c.time_s) for c in curves.distinct)
        seconds = np.full((len(curves.distinct), width), np.inf)
        cost_j = np.full_like(seconds, np.inf)
        for k, curve in enumerate(curves.distinct):
            seconds[k, : len(curve.time_s)] = curve.time_s
            cost_j[k, : len(curve.time_s)] = curve.cost_j
        self._seconds = seconds[curves.curve]
        self._cost_j = cost_j[curves.curve]

    def improved(self, plan: Solution) -> Solution:
        """The plan, or a cheaper one that keeps the target too. `plan` has to keep it."""
        choice = self._choice(plan.clocks)
        if choice is None:
            return plan
        share, halvings, winds = SHARE_FIRST, 0, WINDS
        weight = self._search.critical(plan, 0)
        for number in range(1, ROUNDS + 1):
            found = self._exchanged(choice, weight + UNSEEN / DRAWS, share)
            if found is None or found[0].energy_j >= plan.energy_j:
                share, halvings = share / 2, halvings + 1
                if halvings == HALVINGS or share * len(choice) < 0.5:
                    # Single moves no longer save: begin again with large ones, or end.
                    share, halvings, winds = SHARE_FIRST, 0, winds - 1
                    if not winds:
                        return plan
            else:
                plan, choice = found
            weight = MEMORY * weight + (1 - MEMORY) * self._search.critical(plan, number)
        return plan

    def _exchanged(
        self, choice: Ints, weight: Floats, share: float
    ) -> tuple[Solution, Ints] | None:
        """Some decisions slowed, and the fewest others taken back that the target asks for."""
        slower, gain, faster, loss = self._moves(choice, weight)
        count = max(1, int(share * len(choice)))
        giving = np.argsort(-gain, kind="stable")[:count]
        giving = giving[gain[giving] > 0.0]
        slowed = choice.copy()
        slowed[giving] = slower[giving]
        taking = np.argsort(loss, kind="stable")
        taking = taking[np.isfinite(loss[taking]) & ~np.isin(taking, giving)]

        def tried(taken: int) -> tuple[Solution, Ints]:
            moved = slowed.copy()
            moved[taking[:taken]] = faster[taking[:taken]]
            return self._search.priced(self._clocks(moved)), moved

        best = tried(0)
        if self._search.exchanges(best[0]):
            return best
        low, high = 0, min(len(taking), 4 * count)
        best = tried(high)
        if not self._search.exchanges(best[0]):
            return None
        for _ in range(TAKEN_STEPS):
            if high - low < 2:
                break
            middle = (low + high) // 2
            found = tried(middle)
            if self._search.exchanges(found[0]):
                high, best = middle, found
            else:
                low = middle
        return best

    def _moves(self, choice: Ints, weight: Floats) -> tuple[Ints, Floats, Ints, Floats]:
        """By decision: the best slower choice and the joules it saves per second of delay, the
        best faster one and the joules that costs; 0 and infinity where there is none."""
        every = np.arange(len(choice))
        cost_j, length_s = self._cost_j, weight[:, None] * self._seconds
        real = np.isfinite(cost_j)
        now_j, now_s = cost_j[every, choice][:, None], length_s[every, choice][:, None]
        saved_j = np.where(real, now_j - np.where(real, cost_j, 0.0), 0.0)
        later_s = np.where(real, np.where(real, length_s, 0.0) - now_s, 0.0)
        slow = real & (later_s > 0) & (saved_j > 0)
        fast = real & (later_s < 0)
        rate = np.divide(saved_j, later_s, out=np.zeros_like(cost_j), where=slow | fast)
        gain = np.where(slow, rate, 0.0)
        loss = np.where(fast, rate, np.inf)
        slower, faster = gain.argmax(axis=1), loss.argmin(axis=1)
        return slower, gain[every, slower], faster, loss[every, faster]

    def _clocks(self, choice: Ints) -> tuple[ClockOption, ...]:
        menus = self._options
        return tuple(menu[k] for menu, k in zip(menus, choice.tolist(), strict=True))

    def _choice(self, clocks: tuple[ClockOption, ...]) -> Ints | None:
        try:
            found = [menu.index(o) for menu, o in zip(self._options, clocks, strict=True)]
        except ValueError:
            return None
        return np.array(found, dtype=np.int64)


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
