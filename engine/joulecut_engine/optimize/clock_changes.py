"""One clock for each GPU (`gpu`), or a few clock changes anywhere in the iteration (`changes`).

A GPU's whole clock schedule is one choice, and there are too many to list. So schedules are made as
they are needed, under prices of time (`schedule_prices`), which prove a bound as well. Plans are
one schedule for each GPU, searched by descent (`choice_search`) and judged by exact longest paths;
neighbours of the best plan join the table until none is better, and `annealing` goes on from there.
`gpu` is the case without a change: all schedules are known, and nothing is annealed.

More freedom never costs: a search begins with the answers of the next coarser questions (fewer
changes, a longer dwell) and with what rules of thumb and a clock per operation come to where that
is within its limits, and keeps the best.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.annealing import Rules
from joulecut_engine.optimize.change_schedules import ChangeSchedules, Keys, lines_of
from joulecut_engine.optimize.choice_search import (
    DEADLINE_TOLERANCE,
    SMALL,
    STARTS,
    ChoiceSearch,
    Task,
)
from joulecut_engine.optimize.computation import Computation, better, bounded, must_meet
from joulecut_engine.optimize.drawn_choices import DrawnChoices, Limit
from joulecut_engine.optimize.frontier import KeptPlans
from joulecut_engine.optimize.levels import Ints
from joulecut_engine.optimize.problem import ChangeLimits, Goal, NoCommonClock, Problem, Solution
from joulecut_engine.optimize.relaxation import Relaxation
from joulecut_engine.optimize.rules_of_thumb import RulesOfThumb
from joulecut_engine.optimize.schedule_prices import GAP_SMALL, Prices

# Limits of changes that are searched, one after another; what lies between has the plan of the rung
# below, so that more changes never cost.
RUNGS = (2, 4, 8, 16, 32, 64)
# Dwells that are searched before a shorter one, as shares of the fastest iteration.
DWELLS = (1 / 16, 1 / 4)
ROUNDS = 16  # of new schedules; more bring a hundredth of a per cent
ROUNDS_WORK = 150_000  # rounds x operations: 16 x 512 has fewer, or they alone take ten seconds
ROUNDS_MIN = 6  # and where another search begins
SEED = 7
# Where every trial is many drawn iterations.
ROUNDS_DRAWN, STARTS_DRAWN = 4, 2
RESERVES = (1, 2, 3, 4, 6)  # clocks above those of the plan without margin, to start from
WARM = (0.3, 1.0)  # temperatures, in turn, in what an operation has to save on average
# From so many plans, so many steps each: by operation and change, and at least and at most. A
# quarter of the steps costs up to 0.9 points of the baseline's energy with eight changes.
ANNEALED, STEPS_EACH, STEPS_RANGE = 10, 40, (8_000, 100_000)
ANNEALED_POINT, STEPS_POINT = 4, 8_000  # per point of a frontier
# Operations x changes up to which a point is asked as a single question first: 0.4 s each.
ASKED_ALONE_MAX = 100
IDLE_MAX = 3  # runs one after another that find nothing
LATE = 4.0  # what a second late costs, in what the last second of the deadline saves
LATE_NEVER = 1e12  # watts
# Operations x plans of one clock for each GPU up to which all are judged, in 0.2 s: mixtures of few
# clocks bound such plans badly.
COMBINATIONS_ALL = 40_000_000
AXES_MAX = 32  # of an array
ANSWERS_MAX = 128  # kept

Clocks = tuple[ClockOption, ...]  # by operation


# A point of a frontier, where another search begins (with a margin or more freedom), an answer by
# itself.
Effort = Literal["point", "start", "answer"]


def search_of(computation: Computation, limits: ChangeLimits) -> "ClockChanges":
    """The search of a problem under these limits, prepared once. Raises NoCommonClock."""
    if limits.per_iteration < RUNGS[0]:  # one change has no way back
        limits = ChangeLimits(0)
    if limits not in computation.searches:
        computation.searches[limits] = ClockChanges(computation, limits)
    return computation.searches[limits]


class ClockChanges:
    """One problem under one limit of changes; see `search_of`. Answers with limits 0 are `gpu`."""

    def __init__(self, computation: Computation, limits: ChangeLimits) -> None:
        self.computation, self.limits = computation, limits
        self.kept = KeptPlans()
        self._answers: dict[tuple[Goal, Effort], Solution] = {}
        most, dwell_s = limits.per_iteration, limits.min_dwell_s
        known = computation.rules.lines if computation.rules else None
        self._lines = lines_of(computation.problem, dwell_s, known)
        self._rules = computation.rules or RulesOfThumb(computation.problem, self._lines)
        computation.rules = self._rules
        self._rounds = min(ROUNDS, max(ROUNDS_MIN, ROUNDS_WORK // self._count))
        self._between = RUNGS[0] < most < RUNGS[-1] and most not in RUNGS
        self._coarser = list(self._searched_before())
        self._quickest: Clocks = ()
        self.fastest_s = 0.0
        self._quicken()

    def _searched_before(self) -> "Iterator[ClockChanges]":
        """Of fewer changes, and of a longer dwell."""
        most, dwell_s = self.limits.per_iteration, self.limits.min_dwell_s
        before = [max((rung for rung in RUNGS if rung < most), default=0)] if most else []
        limits = [replace(self.limits, per_iteration=fewer) for fewer in before]
        dwells_s = [share * self.computation.fastest_s for share in DWELLS] if most else []
        longer_s = [one for one in dwells_s if one > dwell_s * (1 + SMALL)][:1]
        limits += [replace(self.limits, min_dwell_s=one) for one in longer_s]
        for one in limits:
            with suppress(NoCommonClock):  # more freedom may still have schedules
                yield search_of(self.computation, one)

    def _quicken(self) -> None:
        """T_min: the least iteration time, searched as the least energy is, where joules do not
        count and a second costs one, unless a coarser question already has the least there is."""
        floor_s = self.computation.fastest_s
        for one in self._coarser:
            if one.fastest_s <= floor_s * (1 + SMALL):
                self._quickest, self.fastest_s = one._quickest, one.fastest_s
                return
        table, plans = self._table([one._quickest for one in self._coarser])
        search = ChoiceSearch(table, Task(math.inf, 1.0, cost_weight=0.0))
        fastest = np.argmin(table.lengths(np.ones(self._count)), axis=1)
        starts = [fastest, *map(table.index, plans)]
        fastest = search.best(np.stack(starts, axis=1))
        time_s = search.value_j(fastest)
        if self.limits.per_iteration and time_s > floor_s * (1 + SMALL):
            prices = Prices(
                table, table, Task(time_s, 1.0, floor_s, 0.0), table.critical(fastest), 1.0
            )
            keys = table.keys(fastest)
            prices.improve(ROUNDS)
            fastest, _ = self._climbed(table, search.again(), table.index(keys))
        self._quickest = table.clocks(fastest)
        self.fastest_s = float(table.iteration_times(fastest[:, None])[0])

    @cached_property
    def cheapest_s(self) -> float:
        """T_c: no plan that pays is slower."""
        table, _ = self._table(())
        table.add_cheapest(np.zeros(self._count))
        table.tabulate()
        return float(table.iteration_times(np.argmin(table.cost_j, axis=1)[:, None])[0])

    @property
    def _slowest_s(self) -> float:
        """No plan takes longer."""
        longest_s = [np.where(np.isfinite(one.seconds), one.seconds, 0.0).max(axis=1)
                     for one in self._lines.lines]  # fmt: skip
        return float(sum(one.sum() for one in longest_s)) + self._count * self.limits.cost_s

    def solve(
        self,
        goal: Goal,
        relaxed: Relaxation,
        hints: Sequence[Solution] = (),
        effort: Effort = "answer",
    ) -> Solution:
        """The plan of least energy found; hints compete. Raises Infeasible."""
        must_meet(goal.deadline_s, self.fastest_s)
        key = goal, effort
        if key in self._answers and (not hints or self._surpasses(goal, effort, hints)):
            return self._answers[key]
        self._answers[key] = found = self._searched(goal, relaxed, hints, effort)
        if len(self._answers) > ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        return found

    def _searched(
        self, goal: Goal, relaxed: Relaxation, hints: Sequence[Solution], effort: Effort
    ) -> Solution:
        most = self.limits.per_iteration
        if effort == "point" and 0 < most * self._count <= ASKED_ALONE_MAX:
            alone = self.solve(goal, relaxed)
            if not hints or self._surpasses(goal, "answer", hints):
                return alone
            known = [one.clocks for one in (alone, *hints)]
            return better(alone, self._solved(goal, relaxed, known, ROUNDS_MIN, None))
        known = [one.clocks for one in (*hints, *self._coarser_plans(goal, relaxed, effort))]
        if self._between:
            return self._solved(goal, relaxed, known, ROUNDS_MIN, None)
        if not most:
            return self._solved(goal, relaxed, known, self._rounds, 0)
        known += self._rules.plans(self.computation, goal, relaxed, effort)
        runs = ANNEALED if effort == "answer" else ANNEALED_POINT
        rounds = ROUNDS_MIN if effort == "start" else self._rounds
        return self._solved(goal, relaxed, known, rounds, runs)

    def _surpasses(self, goal: Goal, effort: Effort, hints: Sequence[Solution]) -> bool:
        """Whether what was answered before is no dearer than hints. Where a goal waits, their
        energies are for other times."""
        known_j = self._answers[goal, effort].energy_j
        return not goal.waits and all(hint.energy_j >= known_j for hint in hints)

    def steadied(self, goal: Goal, limit: Limit, found: Sequence[Solution]) -> Solution:
        """The plan of least energy found whose drawn iteration times keep the limit; the fastest
        where none does. `found` are plans for the goal, the first with its bound."""
        relaxed, clocks = self.computation.relax(goal), [plan.clocks for plan in found]
        # A little reserve everywhere, for the search to move where it is needed.
        clocks += [self._lines.faster(clocks[0], steps) for steps in RESERVES]
        plan = self._solved(goal, relaxed, clocks, ROUNDS_DRAWN, 0, limit=limit)
        return bounded(plan, found[0])

    def improvements(self, goal: Goal, found: Solution) -> Iterator[Solution]:
        """Better and better plans, without end; the bound rises as far as it can."""
        relaxed = self.computation.relax(goal)
        for number in itertools.count(1):
            rounds = ROUNDS * (1 + number)
            hints = (found.clocks,)
            other = self._solved(goal, relaxed, hints, rounds, ANNEALED, SEED + number)
            found = better(found, other)
            yield found

    def _coarser_plans(self, goal: Goal, relaxed: Relaxation, effort: Effort) -> Iterator[Solution]:
        """What the next coarser questions answer, if they can; a point of a frontier as that
        frontier would answer it."""
        for other in self._coarser:
            longer = other.limits.min_dwell_s > self.limits.min_dwell_s
            if goal.deadline_s < other.fastest_s or (longer and effort != "answer"):
                continue
            hints = other.kept.within(goal.deadline_s) if effort == "point" else ()
            other_effort = effort if other.limits.per_iteration else "start"
            found = other.solve(goal, relaxed, hints, other_effort)
            other.kept.add(found)
            yield found

    def _every(self, table: ChangeSchedules) -> Ints | None:
        """All plans of one clock for each GPU (stages, plans), where there are few enough to judge;
        none where clocks change."""
        sizes = np.isfinite(table.cost_j).sum(axis=1).tolist()
        few = len(sizes) <= AXES_MAX and math.prod(sizes) <= COMBINATIONS_ALL // self._count
        if self.limits.per_iteration or not few:
            return None
        return np.indices(sizes).reshape(len(sizes), -1)

    def _solved(
        self,
        goal: Goal,
        relaxed: Relaxation,
        hints: Sequence[Clocks],
        rounds: int,
        runs: int | None,
        seed: int = SEED,
        limit: Limit | None = None,
    ) -> Solution:
        """`runs` of annealing follow the descent; None is the best of `hints`, with a bound."""
        # Without a dwell nothing is cheaper than what takes `cheapest_s`.
        latest_s = self._slowest_s if self.limits.min_dwell_s else self.cheapest_s
        deadline_s = max(self.fastest_s, min(goal.deadline_s, latest_s))
        table, plans = self._table(hints, deadline_s)
        price_w = self.computation.time_price_w(goal)
        judge = table if limit is None else DrawnChoices(table, limit, deadline_s)
        task = Task(deadline_s, price_w, self.computation.fastest_s)
        search = ChoiceSearch(judge, task)
        quickest = table.index(plans[0])
        if not math.isfinite(search.value_j(quickest)):
            return self._solution(goal, table, quickest, 0.0, relaxed)
        every = self._every(table) if limit is None else None
        if every is not None:
            values_j = search.values_j(every)
            best, bound_j = every[:, int(np.argmin(values_j))], float(values_j.min()) * (1 - SMALL)
            return self._solution(goal, table, best, bound_j, relaxed)
        flow = self.computation.prices_w(relaxed), relaxed.arrives_w
        if runs:
            plans += self._filled_and_drained(table, goal, price_w)
        prices = Prices(table, judge, task, *flow)
        prices.improve(rounds)
        starts = [table.index(keys)[:, None] for keys in plans]
        if runs is None:
            known = np.concatenate(starts, axis=1)
            best = known[:, int(np.argmin(search.again().values_j(known)))]
            return self._solution(goal, table, best, prices.bound_j, relaxed)
        search = ChoiceSearch(judge, task, prices.weights)
        few = STARTS if limit is None else STARTS_DRAWN
        starts.append(prices.charged())
        if runs:  # one whose value is poor may lead far
            starts += [search.improved(start[:, 0])[:, None] for start in starts[: len(plans)]
                       if math.isfinite(search.value_j(start[:, 0]))]  # fmt: skip
        best = search.best(np.concatenate(starts, axis=1), few)
        best, search = self._climbed(table, search, best)
        if runs:
            late_w = LATE * max(relaxed.deadline_price_w + price_w, table.stake_j / deadline_s)
            rules = Rules(
                deadline_s * (1 + DEADLINE_TOLERANCE),
                self.limits.per_iteration,
                float(self.limits.min_dwell_s),
                self.limits.cost_s,
                self.limits.cost_j,
                price_w,
                late_w,
            )
            best = self._annealed(table, search, best, prices, runs, seed, rules)
        return self._solution(goal, table, best, prices.bound_j, relaxed)

    def _filled_and_drained(
        self, table: ChangeSchedules, goal: Goal, price_w: float
    ) -> list[list[Keys]]:
        """Such plans, added to the table; so are their schedules with any of the numbers of first
        and last operations."""
        rule = self._rules.fill_and_drain
        found = rule.within(goal.deadline_s, price_w)
        plans = [table.add_schedules(rule.schedules(*one)) for one in found]
        table.add([rule.schedules(edge, choice) for edge, _ in found for _, choice in found])
        table.tabulate()
        return [plan for plan in plans if plan is not None]

    def _annealed(
        self,
        table: ChangeSchedules,
        search: ChoiceSearch,
        best: Ints,
        prices: Prices,
        runs: int,
        seed: int,
        rules: Rules,
    ) -> Ints:
        """From a choice in time to the best that annealing from it, and from what each GPU would
        choose at other prices, passes through."""
        dice, value_j = np.random.default_rng(seed), search.value_j(best)
        keys, start, idle = table.keys(best), table.keys(best), 0
        steps = STEPS_EACH * self._count * self.limits.per_iteration
        steps = min(max(steps, STEPS_RANGE[0]), STEPS_RANGE[1])
        steps = STEPS_POINT if runs == ANNEALED_POINT else steps
        for number in range(runs):
            if idle == IDLE_MAX or value_j - prices.bound_j <= GAP_SMALL * abs(value_j):
                break
            if number:
                starts = prices.charged(dice)
                times_s = table.iteration_times(starts)
                late_w = rules.late_w if number % 2 else LATE_NEVER  # as good as that, or in time
                values_j = np.take_along_axis(table.cost_j, starts, axis=1).sum(axis=0)
                over_s = np.maximum(0.0, times_s - rules.deadline_s)
                values_j += rules.price_w * times_s + late_w * over_s
                start = table.keys(starts[:, int(np.argmin(values_j))])
            warm = WARM[number // 2 % len(WARM)]
            tried, tried_j = table.annealed(start, rules, warm, steps, seed + number)
            idle += 1
            if tried_j < value_j - SMALL * abs(value_j):
                keys, value_j, idle = tried, tried_j, 0
        found = table.add_schedules(keys)
        table.tabulate()
        assert found is not None
        return self._climbed(table, search.again(), table.index(found))[0]

    def _climbed(
        self, table: ChangeSchedules, search: ChoiceSearch, best: Ints
    ) -> tuple[Ints, ChoiceSearch]:
        """From a choice in time, until no neighbour is better."""
        while True:
            keys, value_j = table.keys(best), search.value_j(best)
            table.add_near(best)
            table.tabulate()
            search = search.again()
            best = search.improved(table.index(keys))
            if search.value_j(best) >= value_j - SMALL * abs(value_j):
                return best, search

    def _solution(
        self,
        goal: Goal,
        table: ChangeSchedules,
        best: Ints,
        value_bound_j: float,
        relaxed: Relaxation,
    ) -> Solution:
        time_s, start_s, count = table.timeline(best)
        clocks, timed, changes_j = table.clocks(best), (time_s, start_s), self.limits.cost_j * count
        if not self.limits.per_iteration:
            clocks = _everywhere(self.computation.problem, clocks)
            return self.computation.certified(goal, relaxed, "gpu", clocks, value_bound_j, timed)
        plan = self.computation.certified(
            goal, relaxed, "changes", clocks, value_bound_j, timed, changes_j
        )
        return replace(plan, limits=self.limits)

    def _table(
        self, plans: Sequence[Clocks], deadline_s: float = math.inf
    ) -> tuple[ChangeSchedules, list[list[Keys]]]:
        """Schedules of the fastest plan and of these; and the plans that have them, the fastest
        first."""
        table = ChangeSchedules(self.computation.problem, self.limits, self._lines, deadline_s)
        known = [table.add_plan(clocks) for clocks in (self._quickest, *plans) if clocks]
        table.tabulate()
        return table, [keys for keys in known if keys is not None]

    @property
    def _count(self) -> int:
        return len(self.computation.problem.graph.operations)


def _everywhere(problem: Problem, clocks: tuple[ClockOption, ...]) -> tuple[ClockOption, ...]:
    """What costs the same at every clock runs at that of its GPU."""
    found = list(clocks)
    for order in problem.graph.order:
        mhz = max(clocks[i].clock_mhz for i in order)
        for i in order:
            if clocks[i].clock_mhz != mhz:
                found[i] = ClockOption(mhz, clocks[i].time_s, clocks[i].energy_j)
    return tuple(found)
