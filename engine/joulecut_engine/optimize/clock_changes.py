"""A few clock changes of each GPU, anywhere in the iteration (`changes`).

A GPU's whole clock schedule is one choice, and there are too many to list. So schedules are made as
they are needed (column generation, Gilmore and Gomory 1961): a small linear program mixes those
known so far and says what a second of each operation is worth; under such prices the best schedule
of each GPU is known exactly (`k_change_dp`). The same step proves a bound (Lagrange), so both end
together, a few tenths of a per cent apart. Prices are taken halfway to the best so far, or they
swing (Wentges 1997).

Plans are then found as for shared clocks: one schedule for each GPU, judged by exact longest paths,
with the neighbours of the best plan joining the table until none is better. Where no dwell has to
be kept, `annealing` goes on from there. What `gpu` and fewer changes answer competes, and what
rules of thumb and a clock per operation come to where that is within the limits, so more freedom
never costs.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.annealing import Rules
from joulecut_engine.optimize.change_schedules import ChangeSchedules, Keys, lines_of
from joulecut_engine.optimize.choice_search import DEADLINE_TOLERANCE, SMALL, STARTS, ChoiceSearch
from joulecut_engine.optimize.computation import Computation, better, bounded, must_meet
from joulecut_engine.optimize.drawn_choices import DrawnChoices, Limit
from joulecut_engine.optimize.frontier import KeptPlans
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import ChangeLimits, Goal, NoCommonClock, Solution
from joulecut_engine.optimize.relaxation import Relaxation
from joulecut_engine.optimize.rules_of_thumb import between, off_path
from joulecut_engine.optimize.shared_clock import SharedClock
from joulecut_engine.optimize.shared_clock_bound import CLOSE, Mask, Task, mixture

# Limits of changes that are searched, one after another; what lies between has the plan of the rung
# below, so that more changes never cost.
RUNGS = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
ROUNDS = 16  # of new schedules; more bring a hundredth of a per cent
ROUNDS_WORK = 150_000  # rounds x operations: 16 x 512 has fewer, or they alone take ten seconds
ROUNDS_POINT, ROUNDS_MIN = 4, 6  # per point of a frontier; at least
# Of the relaxation's prices, for the first schedules: without them tight deadlines under costs of
# changes lose up to 14 points, others nothing.
SCALES = np.geomspace(0.25, 4.0, 6)
NEARER = 0.5  # to the best prices so far
CHARGES = np.geomspace(0.2, 5.0, 48)  # of the best prices: what each GPU would choose at these
ROUND_OFF = 1e-11  # of the largest term of a bound
SEED = 7
SCHEDULES_MAX = 150  # of a GPU: more slow every step down, and neighbours of old plans are left out
# Where every trial is many drawn iterations.
ROUNDS_DRAWN, STARTS_DRAWN = 4, 4
RESERVES = (1, 2, 3, 4, 6)  # clocks above those of the plan without margin, to start from
# Prices shaken by up to so much from operation to operation, in these multiples, and the search
# begins again, so many times: of eight hard plans the best of several settings, by tenths of a
# point. Twice as many take twice the time for 0.1 points; half as many lose up to 5 where changes
# cost and deadlines are tight.
SHAKE, SCALES_SHAKEN, KICKS = 0.5, (0.8, 1.0, 1.25), 12
WARM = (0.3, 1.0)  # temperatures, in turn, in what an operation has to save on average
ANNEALED, STEPS = 10, 8_000  # from so many plans; longer ones from fewer plans find less
LATE = 4.0  # what a second late costs, in what the last second of the deadline saves
LATE_NEVER = 1e12  # watts

Clocks = tuple[ClockOption, ...]  # by operation


class ClockChanges:
    """One problem under one limit of changes, prepared once. Raises NoCommonClock."""

    point_effort = ROUNDS_POINT

    def __init__(self, computation: Computation, limits: ChangeLimits) -> None:
        self.computation, self.limits = computation, limits
        self.kept = KeptPlans()
        self._lines = lines_of(computation.problem, limits.min_dwell_s)
        fewer = [rung for rung in RUNGS if rung < limits.per_iteration]
        self._coarser: SharedClock | ClockChanges | None = None
        with suppress(NoCommonClock):  # more changes may still have schedules
            if fewer:
                self._coarser = ClockChanges(computation, replace(limits, per_iteration=fewer[-1]))
            else:
                self._coarser = SharedClock(computation)
        self._quickest: Clocks = ()
        self._quicken()

    def _quicken(self) -> None:
        """T_min: the least iteration time, searched as the least energy is, where joules do not
        count and a second costs one."""
        table, plans = self._table(self._plan_quickest())
        search = ChoiceSearch(table, math.inf, 1.0, cost_weight=0.0)
        fastest = np.argmin(table.lengths(np.ones(self._count)), axis=1)
        starts = [fastest, *map(table.index, plans)]
        fastest = search.best(np.stack(starts, axis=1))
        floor_s, time_s = self.computation.fastest_s, search.value_j(fastest)
        if time_s > floor_s * (1 + SMALL):
            keys, weight = table.keys(fastest), table.critical(fastest)
            task = Task(time_s, 1.0, floor_s)
            prices = _Prices(table, table, task, weight, 1.0, cost_weight=0.0)
            prices.improve(ROUNDS)
            search = ChoiceSearch(table, math.inf, 1.0, 0.0, prices.weights)
            starts = [table.index(keys)[:, None], prices.charged()]
            fastest = search.best(np.concatenate(starts, axis=1))
            fastest = self._kicked(table, search, fastest, prices, (), KICKS, SEED)
        self._quickest = table.clocks(fastest)
        self.fastest_s = float(table.iteration_times(fastest[:, None])[0])

    def _plan_quickest(self) -> tuple[Clocks, ...]:
        """That of the next coarser granularity."""
        other = self._coarser
        if other is None:
            return ()
        goal = Goal(other.fastest_s)
        relaxed = self.computation.relax(goal)
        if isinstance(other, SharedClock):
            return (other.solve(goal, relaxed, (), 0).clocks,)
        return (other.solve(goal, relaxed, (), 0, ()).clocks,)

    @cached_property
    def cheapest_s(self) -> float:
        """T_c: no plan that pays is slower."""
        table, _ = self._table(())
        table.add_cheapest(np.zeros(self._count))
        table.tabulate()
        return float(table.iteration_times(np.argmin(table.cost_j, axis=1)[:, None])[0])

    def solve(
        self,
        goal: Goal,
        relaxed: Relaxation,
        hints: Sequence[Solution] = (),
        effort: int | None = None,
        rules: Sequence[Clocks] | None = None,
    ) -> Solution:
        """The plan of least energy found; hints compete, and `rules`, which are made where they are
        not given. `effort` is how many rounds of new schedules there are. Raises Infeasible."""
        must_meet(goal.deadline_s, self.fastest_s)
        if self.limits.per_iteration < RUNGS[0] and isinstance(self._coarser, SharedClock):
            found = self._coarser.solve(goal, relaxed, hints, effort)  # one change has no way back
            return replace(found, granularity="changes", limits=self.limits)
        rules = self._rules(goal, relaxed) if rules is None else rules
        rounds = min(ROUNDS, max(ROUNDS_MIN, ROUNDS_WORK // self._count))
        between = RUNGS[0] < self.limits.per_iteration < RUNGS[-1]
        between = between and self.limits.per_iteration not in RUNGS
        kicks = KICKS if effort is None and not between else 0
        rounds = rounds if effort is None else min(rounds, effort)
        coarser = self._coarser_plan(goal, relaxed, effort, rules)
        known = [*(plan.clocks for plan in (*hints, coarser) if plan is not None), *rules]
        found = self._solved(goal, relaxed, known, rounds, kicks, SEED)
        if between and not hints and coarser is not None:
            found = replace(coarser, lower_bound_j=found.lower_bound_j, limits=self.limits,
                            bound_granularity=found.bound_granularity)  # fmt: skip
        return found

    def steadied(self, goal: Goal, limit: Limit, found: Sequence[Solution]) -> Solution:
        """The plan of least energy found whose drawn iteration times keep the limit; the fastest
        where none does. `found` are plans for the goal, the first with its bound."""
        relaxed, clocks = self.computation.relax(goal), [plan.clocks for plan in found]
        # A little reserve everywhere, for the search to move where it is needed.
        table, _ = self._table(clocks)
        clocks += [table.faster(clocks[0], steps) for steps in RESERVES]
        plan = self._solved(goal, relaxed, clocks, ROUNDS_DRAWN, 0, SEED, limit)
        return bounded(plan, found[0])

    def improvements(self, goal: Goal, found: Solution) -> Iterator[Solution]:
        """Better and better plans, without end; the bound rises as long as it can."""
        relaxed = self.computation.relax(goal)
        for number in itertools.count(1):
            rounds = ROUNDS * (1 + number)
            found = better(
                found, self._solved(goal, relaxed, (found.clocks,), rounds, KICKS, SEED + number)
            )
            yield found

    def _coarser_plan(
        self, goal: Goal, relaxed: Relaxation, effort: int | None, rules: Sequence[Clocks]
    ) -> Solution | None:
        """What the next coarser granularity answers, if it can."""
        other = self._coarser
        if other is None or goal.deadline_s < other.fastest_s:
            return None
        if isinstance(other, SharedClock):
            return other.known.get(goal) or other.solve(goal, relaxed, (), 0)
        if effort is None:
            return other.solve(goal, relaxed, (), None, rules)
        # A point of a frontier: as the frontier of fewer changes would answer it.
        found = other.solve(goal, relaxed, other.kept.within(goal.deadline_s), effort, rules)
        other.kept.add(found)
        return found

    def _rules(self, goal: Goal, relaxed: Relaxation) -> tuple[Clocks, ...]:
        """Plans that cost little to make; within the limits or not."""
        computation, price_w = self.computation, self.computation.time_price_w(goal)
        finest = computation.solve(goal, relaxed).clocks
        return finest, off_path(computation.problem), between(self._lines, goal.deadline_s, price_w)

    def _solved(
        self,
        goal: Goal,
        relaxed: Relaxation,
        hints: Sequence[Clocks],
        rounds: int,
        kicks: int,
        seed: int,
        limit: Limit | None = None,
    ) -> Solution:
        deadline_s = max(self.fastest_s, goal.deadline_s)
        if not self.limits.min_dwell_s:  # then nothing is cheaper than what takes `cheapest_s`
            deadline_s = max(self.fastest_s, min(goal.deadline_s, self.cheapest_s))
        table, plans = self._table(hints, deadline_s)
        price_w = self.computation.time_price_w(goal)
        judge = table if limit is None else DrawnChoices(table, limit, deadline_s)
        search = ChoiceSearch(judge, deadline_s, price_w)
        quickest = table.index(plans[0])
        if not math.isfinite(search.value_j(quickest)):
            return self._solution(goal, table, quickest, 0.0, relaxed)
        task = Task(deadline_s, price_w, self.computation.fastest_s)
        flow = self.computation.prices_w(relaxed), relaxed.arrives_w
        prices = _Prices(table, judge, task, *flow)
        prices.improve(rounds)
        starts = [table.index(keys)[:, None] for keys in plans]
        search = ChoiceSearch(judge, deadline_s, price_w, paths=prices.weights)
        few = STARTS if limit is None else STARTS_DRAWN
        starts.append(prices.charged())
        best = search.best(np.concatenate(starts, axis=1), few)
        late_w = LATE * max(relaxed.deadline_price_w + price_w, table.stake_j / deadline_s)
        rules = Rules(
            deadline_s * (1 + DEADLINE_TOLERANCE),
            self.limits.per_iteration,
            self.limits.cost_s,
            self.limits.cost_j,
            price_w,
            late_w,
        )
        free = limit is None and not self._lines.spacings
        best = self._kicked(
            table, search, best, prices, plans[1:][:kicks], kicks, seed, rules if free else None
        )
        return self._solution(goal, table, best, prices.bound_j, relaxed)

    def _kicked(
        self,
        table: ChangeSchedules,
        search: ChoiceSearch,
        best: Ints,
        prices: "_Prices",
        plans: Sequence[Sequence[Keys]],
        kicks: int,
        seed: int,
        rules: Rules | None = None,
    ) -> Ints:
        """From a choice in time to the best that climbs from it, from these plans and from what
        each GPU would choose at other prices, reach."""
        first = table.known()
        best, search = self._climbed(table, search, best)
        dice = np.random.default_rng(seed)
        for number in range(kicks):
            keys, value_j = table.keys(best), search.value_j(best)
            if table.cost_j.shape[1] > SCHEDULES_MAX:
                table.forget(first, keys)
            if number < len(plans):
                search = search.again()
                other = table.index(plans[number])
            else:
                starts, search = prices.charged(dice), search.again()
                other = starts[:, int(np.argmin(search.values_j(starts)))]
            if math.isfinite(search.value_j(other)):
                other, search = self._climbed(table, search, other)
            best = table.index(keys)
            if search.value_j(other) < value_j * (1 - SMALL):
                best = other
        if rules is not None and kicks:
            best = self._annealed(table, search.again(), best, prices, seed, rules)
        return best

    def _annealed(
        self,
        table: ChangeSchedules,
        search: ChoiceSearch,
        best: Ints,
        prices: "_Prices",
        seed: int,
        rules: Rules,
    ) -> Ints:
        """From a choice in time to the best that annealing from it, and from what each GPU would
        choose at other prices, passes through."""
        dice, value_j = np.random.default_rng(seed), search.value_j(best)
        keys, start = table.keys(best), table.keys(best)
        for number in range(ANNEALED):
            warm = WARM[number // 2 % len(WARM)]
            tried, tried_j = table.annealed(start, rules, warm, STEPS, seed + number)
            if tried_j < value_j - SMALL * abs(value_j):
                keys, value_j = tried, tried_j
            starts = prices.charged(dice)
            times_s = table.iteration_times(starts)
            late_w = LATE_NEVER if number % 2 else rules.late_w  # in time, or as good as that
            values_j = np.take_along_axis(table.cost_j, starts, axis=1).sum(axis=0)
            over_s = np.maximum(0.0, times_s - rules.deadline_s)
            values_j += rules.price_w * times_s + late_w * over_s
            start = table.keys(starts[:, int(np.argmin(values_j))])
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


class _Prices:
    """What a second of each operation is worth, and the schedules and the bound this leads to.

    Prices are a flow from the start of the iteration to its end: `weights` are flows of one watt,
    longest paths but for the first, the relaxation's. `bound_j` bounds sum c + time_price * T
    where the table is its own judge.
    """

    def __init__(
        self,
        table: ChangeSchedules,
        judge: ChangeSchedules | DrawnChoices,
        task: Task,
        price_w: Floats,
        arrives_w: float,
        cost_weight: float = 1.0,
    ) -> None:
        self._table, self._judge, self._task = table, judge, task
        self._cost_weight = cost_weight
        self.bound_j, self._best = -math.inf, (price_w, arrives_w)
        self.weights = [price_w / arrives_w] if arrives_w > 0.0 else []
        self._prove(price_w, arrives_w)
        for scale in SCALES:
            table.add_cheapest(scale * price_w, cost_weight)
        table.tabulate()

    def improve(self, rounds: int) -> None:
        """Adds schedules, and raises the bound, so many times."""
        for _ in range(rounds):
            _, price_w, arrives_w = self._mixed(np.isfinite(self._table.cost_j))
            best_w, best_arrives_w = self._best
            self._prove(
                price_w + NEARER * (best_w - price_w),
                arrives_w + NEARER * (best_arrives_w - arrives_w),
            )
            self._table.tabulate()

    def _mixed(self, allowed: Mask) -> tuple[Floats, Floats, float]:
        """Shares of the best mixture of what is allowed, and its prices: a flow by operation, and
        how much of it arrives. Its longest path joins those known where it is longer."""
        paths = [self._table.lengths(weight) for weight in self.weights]
        share, time_s, prices_w = mixture(self._costs(), paths, self._task, allowed)
        price_w = np.zeros(len(self._best[0]))
        for one_w, weight in zip(prices_w.tolist(), self.weights, strict=True):
            price_w += one_w * weight
        longest_s, weight = self._judge.longest(share)
        if longest_s > time_s * (1 + CLOSE):
            self.weights.append(weight)
        return share, price_w, float(prices_w.sum())

    def _costs(self) -> Floats:
        cost_j, offered = self._table.cost_j, np.isfinite(self._table.cost_j)
        return np.where(offered, self._cost_weight * np.where(offered, cost_j, 0.0), np.inf)

    def charged(self, shaken: np.random.Generator | None = None) -> Ints:
        """What each GPU would choose at these prices, or a multiple: (stages, K). Where they are
        shaken, schedules for these prices join the table."""
        price_w = self._best[0]
        if shaken is not None:
            price_w = price_w * (1.0 + SHAKE * shaken.random(len(price_w)))
            for scale in SCALES_SHAKEN:
                self._table.add_cheapest(scale * price_w, self._cost_weight)
            self._table.tabulate()
        cost_j, charge_j = self._costs(), self._table.lengths(price_w)
        charge_j = np.where(np.isfinite(charge_j), charge_j, 0.0)
        cheapest: Ints = np.argmin(cost_j[:, :, None] + charge_j[:, :, None] * CHARGES, axis=1)
        return cheapest

    def _prove(self, price_w: Floats, arrives_w: float) -> None:
        task, least_j = self._task, self._table.add_cheapest(price_w, self._cost_weight)
        left_w = task.time_price_w - arrives_w
        time_j = left_w * (task.fastest_s if left_w > 0 else task.deadline_s)
        bound_j = least_j + time_j - ROUND_OFF * (abs(least_j) + abs(time_j))
        if bound_j > self.bound_j:
            self.bound_j, self._best = bound_j, (price_w, arrives_w)
