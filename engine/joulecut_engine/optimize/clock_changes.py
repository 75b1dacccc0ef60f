"""A few clock changes of each GPU, anywhere in the iteration (`changes`).

A GPU's whole clock schedule is one choice, and there are too many to list. So schedules are made as
they are needed (column generation, Gilmore and Gomory 1961): a small linear program mixes those
known so far and says what a second of each operation is worth; under such prices the best schedule
of each GPU is known exactly (`k_change_dp`). The same step proves a bound (Lagrange), so both end
together, a few tenths of a per cent apart. Prices are taken halfway to the best so far, or they
swing (Wentges 1997).

Plans are then found as for shared clocks: one schedule for each GPU, judged by exact longest paths,
with the neighbours of the best plan joining the table until none is better. Plans of `gpu`, `edge`
and fewer changes compete, so more freedom never costs.

Under a minimum dwell, whether a schedule is allowed depends on when its operations start, and so
on all GPUs. The best schedules are then sought for operations that start as in the plan without
dwell, and as in the best plan so far. Dwells are answered from the longest to the one that is asked
for (`_dwells_s`), and each plan competes under the next shorter: a shorter dwell never costs. The
bound knows the earliest and the latest start of each operation.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.change_schedules import ChangeSchedules, Starts, layout_of
from joulecut_engine.optimize.choice_search import SMALL, STARTS, ChoiceSearch
from joulecut_engine.optimize.computation import Computation, better, bounded, must_meet
from joulecut_engine.optimize.drawn_choices import DrawnChoices, Limit
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import ChangeLimits, Goal, NoCommonClock, Solution
from joulecut_engine.optimize.relaxation import Relaxation
from joulecut_engine.optimize.schedule import solution
from joulecut_engine.optimize.shared_clock import SharedClock
from joulecut_engine.optimize.shared_clock_bound import CLOSE, Task, mixture

COMBINATIONS_ALL = 20_000  # up to here every plan is judged
RUNGS = (2, 3, 4, 6, 8, 16, 32, 64)  # limits of changes that are answered: others as the next below
DWELL_STEP = 2.0**0.25  # between two dwells that are answered
ROUNDS = 16  # of new schedules; more bring a hundredth of a per cent
ROUNDS_WORK = 150_000  # rounds x operations: 16 x 512 has fewer, or they alone take ten seconds
ROUNDS_POINT, ROUNDS_MIN = 4, 6  # per point of a frontier; at least
SCALES = np.geomspace(0.25, 4.0, 6)  # of the relaxation's prices, for the first schedules
GAIN_MIN = 1e-4  # of the value: a longer dwell that costs so little is answered well enough
DESCENTS = 8  # dwells from one local search to the next; between, plans are repaired
ENDLESS = 1e6  # times the fastest iteration: a deadline that binds nothing
NEARER = 0.5  # to the best prices so far
CHARGES = np.geomspace(0.2, 5.0, 48)  # of the best prices: what each GPU would choose at these
ROUND_OFF = 1e-11  # of the largest term of a bound
SEED = 7
SCHEDULES_MAX = 200  # of a GPU: more slow every step down, and the search jumps no further
# Where every trial is many drawn iterations.
ROUNDS_DRAWN, STARTS_DRAWN, KICKS_DRAWN = 16, 8, 4
RESERVES = (1, 2, 3, 4, 6)  # clocks above those of the plan without margin, to start from
KICKS = 10  # a few GPUs jump to any schedule, and the search begins again

Clocks = tuple[ClockOption, ...]  # by operation


@dataclass(frozen=True, slots=True)
class _Ask:
    """Least cost_weight * cost + time price * T within the deadline. A flow to begin with: prices
    by operation, and how much of it arrives at the end."""

    task: Task
    cost_weight: float
    price_w: Floats
    arrives_w: float


@dataclass(frozen=True, slots=True)
class _Effort:
    rounds: int
    kicks: int
    seed: int = SEED
    starts: int = STARTS
    limit: Limit | None = None  # on drawn iterations


@dataclass(frozen=True, slots=True)
class _Found:
    plan: Clocks = ()
    value_j: float = math.inf


DWELLING = _Effort(0, 0, SEED, 1)


class ClockChanges:
    """One problem under one limit of changes, prepared once. Where there are no more than
    `combinations_all` plans, all are judged. Raises NoCommonClock."""

    point_effort = ROUNDS_POINT

    def __init__(
        self,
        computation: Computation,
        limits: ChangeLimits,
        combinations_all: int = COMBINATIONS_ALL,
    ) -> None:
        self.computation, self.limits = computation, limits
        self._combinations_all = combinations_all
        self._layout = layout_of(computation.problem)
        self._common: list[SharedClock] = []
        granularities: tuple[Granularity, ...] = ("gpu", "edge")
        for granularity in granularities[: limits.per_iteration]:
            try:
                self._common.append(SharedClock(computation, granularity))
            except NoCommonClock:  # changes may still have schedules
                continue
        most = limits.per_iteration
        own = [most] if most < RUNGS[0] or most > RUNGS[-1] else []
        self._ladder = [*(rung for rung in RUNGS if rung <= most), *own]
        fastest = self._fastest()
        self._quickest, self.fastest_s = fastest.plan, fastest.value_j

    def _fastest(self) -> _Found:
        """The plan of least iteration time that is found, and its time."""
        known = [common.quickest for common in self._common]
        fastest_s, ones = self.computation.fastest_s, np.ones(len(self._layout.graph.operations))
        table = ChangeSchedules(self._layout, self.limits)
        _, least_busy = table.add_cheapest(
            ones, self._starts(ENDLESS * self.computation.fastest_s), 0.0
        )
        table.tabulate()
        choice = table.place(least_busy)
        known.append(table.clocks(choice))
        time_s = table.timeline(choice)[0]
        ask = _Ask(Task(time_s, 1.0, fastest_s), 0.0, table.critical(choice), 1.0)
        quickest = self._least(self.limits, ask, known)
        if quickest.value_j <= fastest_s * (1 + SMALL):
            return quickest
        quickest, _ = self._answer(ask, known, _Effort(ROUNDS, KICKS))
        if not quickest.plan:
            raise NoCommonClock(None)
        return quickest

    @cached_property
    def cheapest_s(self) -> float:
        """T_c: no plan that pays is slower."""
        table = ChangeSchedules(self._layout, self.limits)
        table.add_cheapest(
            np.zeros(len(self._layout.graph.operations)),
            self._starts(ENDLESS * self.computation.fastest_s),
        )
        table.tabulate()
        return table.timeline(np.argmin(table.cost_j, axis=1))[0]

    def _starts(self, deadline_s: float) -> Starts:
        """When operations of any plan within the deadline may start."""
        network = self.computation.network
        fast, more_s = network.fastest, deadline_s - self.computation.fastest_s
        early_s = (network.ends(fast) - fast) / network.second
        late_s = (network.latest_ends(fast) - fast) / network.second + more_s
        return Starts(early_s[network.row], late_s[network.row], deadline_s)

    def solve(
        self,
        goal: Goal,
        relaxed: Relaxation,
        hints: Sequence[Solution] = (),
        effort: int | None = None,
    ) -> Solution:
        """The plan of least energy found; hints compete. `effort` is how many rounds of new
        schedules there are. Raises Infeasible."""
        must_meet(goal.deadline_s, self.fastest_s)
        operations = len(self._layout.graph.operations)
        rounds = min(ROUNDS, max(ROUNDS_MIN, ROUNDS_WORK // operations))
        spent = _Effort(rounds, KICKS) if effort is None else _Effort(min(rounds, effort), 0)
        known = [self._quickest, *(plan.clocks for plan in hints)]
        common = [one for one in self._common if goal.deadline_s >= one.fastest_s]
        known += [one.solve(goal, relaxed, (), 0).clocks for one in common]
        found, bound_j = self._answer(self._ask(goal, relaxed), known, spent)
        return self._solution(goal, found.plan, bound_j, relaxed)

    def _ask(self, goal: Goal, relaxed: Relaxation) -> _Ask:
        deadline_s = max(self.fastest_s, goal.deadline_s)
        if not self.limits.min_dwell_s:  # then nothing is cheaper than what takes `cheapest_s`
            deadline_s = max(self.fastest_s, min(goal.deadline_s, self.cheapest_s))
        task = Task(deadline_s, self.computation.time_price_w(goal), self.computation.fastest_s)
        return _Ask(task, 1.0, self.computation.prices_w(relaxed), relaxed.arrives_w)

    def steadied(self, goal: Goal, limit: Limit, found: Sequence[Solution]) -> Solution:
        """The plan of least energy found whose drawn iteration times keep the limit; the fastest
        where none does. `found` are plans for the goal, the first with its bound."""
        relaxed, known = self.computation.relax(goal), [plan.clocks for plan in found]
        ask, effort = (
            self._ask(goal, relaxed),
            _Effort(ROUNDS_DRAWN, KICKS_DRAWN, SEED, STARTS_DRAWN, limit),
        )
        # A little reserve everywhere, for the search to move where it is needed.
        table = self._table(self.limits, known)
        known = [self._quickest, *known, *(table.faster(known[0], steps) for steps in RESERVES)]
        best = self._least(self.limits, ask, known[:1], limit)
        if math.isfinite(best.value_j):
            best, prices = self._free(self.limits.per_iteration, ask, known, effort)
            if self.limits.min_dwell_s:
                best = self._dwelling(self.limits, ask, prices, best.plan, known, effort)
        return bounded(self._solution(goal, best.plan or self._quickest, 0.0, relaxed), found[0])

    def improvements(self, goal: Goal, found: Solution) -> Iterator[Solution]:
        """Better and better plans, without end; the bound rises as long as it can."""
        relaxed = self.computation.relax(goal)
        ask = self._ask(goal, relaxed)
        for number in itertools.count(1):
            effort = _Effort(ROUNDS * (1 + number), KICKS, SEED + number)
            best, prices = self._free(self.limits.per_iteration, ask, [found.clocks], effort)
            if self.limits.min_dwell_s:
                known = [self._quickest, found.clocks]
                best = self._dwelling(self.limits, ask, prices, best.plan, known, effort)
            most = self.limits.per_iteration
            bound_j = self._bound_j(ask, prices, most, effort)
            found = better(found, self._solution(goal, best.plan, bound_j, relaxed))
            yield found

    def _answer(self, ask: _Ask, known: Sequence[Clocks], effort: _Effort) -> tuple[_Found, float]:
        """The best plan found, and a bound on its value."""
        table = self._table(self.limits, known)
        if table.add_all(self._combinations_all):
            table.tabulate()
            search = self._search(table, ask)
            best = search.all()
            value_j = search.value_j(best)
            return _Found(table.clocks(best), value_j), value_j * (1 - SMALL)
        free: list[tuple[int, _Found, _Prices]] = []
        for most in self._ladder:
            rivals = [*known, *(found.plan for _, found, _ in free[-1:])]
            # An odd number of changes is rarely better.
            spent = effort if most % 2 == 0 else replace(effort, kicks=0)
            try:
                found, prices = self._free(most, ask, rivals, spent)
            except NoCommonClock:  # more changes may still have schedules
                if most == self._ladder[-1]:
                    raise
                continue
            if found.plan:
                free.append((most, found, prices))
        kept = self._dwelt(ask, known, free, effort)
        plans = [*known, *(found.plan for _, found, _ in free), *kept]
        bound_j = self._bound_j(ask, prices, most, effort)
        return self._least(self.limits, ask, plans), bound_j

    def _dwelt(
        self,
        ask: _Ask,
        known: Sequence[Clocks],
        free: "Sequence[tuple[int, _Found, _Prices]]",
        effort: _Effort,
    ) -> list[Clocks]:
        """Plans that keep the dwell, by number of changes; `free` are those that may not."""
        dwells = list(self._dwells_s(ask.task.deadline_s))
        if not effort.kicks:
            dwells = dwells[-1:] if self.limits.min_dwell_s else []
        best = [_Found()] * len(free)
        for number, dwell_s in dwells:
            descent = DWELLING if number % DESCENTS == 0 else None
            for k, (most, found, prices) in enumerate(free):
                best[k] = min(best[max(0, k - 1) : k + 1], key=lambda one: one.value_j)
                if best[k].value_j <= found.value_j + GAIN_MIN * abs(found.value_j):
                    continue
                limits = replace(self.limits, per_iteration=most, min_dwell_s=dwell_s)
                rivals = [clocks for clocks in (*known, best[k].plan) if clocks]
                best[k] = self._dwelling(limits, ask, prices, found.plan, rivals, descent)
        return [one.plan for one in best if one.plan]

    def _dwells_s(self, deadline_s: float) -> Iterator[tuple[int, float]]:
        """Numbered, from the longest that has room twice in an iteration, to the last one above
        the limit's, or where every operation takes as long."""
        shortest_s = min(float(line.seconds[line.clocked].min()) for line in self._layout.lines)
        least_s, fastest_s = max(self.limits.min_dwell_s, shortest_s), self.computation.fastest_s
        first, last = (
            -math.log(seconds / fastest_s) / math.log(DWELL_STEP)
            for seconds in (deadline_s / 2, least_s)
        )
        for number in range(math.ceil(first), math.floor(last) + 1):
            yield number, fastest_s * DWELL_STEP**-number

    def _free(
        self, most: int, ask: _Ask, known: Sequence[Clocks], effort: _Effort
    ) -> "tuple[_Found, _Prices]":
        """The best plan of so many changes, whatever the dwell, and what seconds are worth."""
        limits = replace(self.limits, per_iteration=most, min_dwell_s=0.0)
        table = ChangeSchedules(self._layout, limits)
        table.add_steady()
        for clocks in known:
            table.add_plan(clocks)
        prices = _Prices(table, ask, self._starts(ask.task.deadline_s), effort.limit)
        prices.improve(effort.rounds)
        choices = [prices.charged(table), *_chosen(table, known)]
        return self._descended(table, ask, prices, choices, effort), prices

    def _dwelling(
        self,
        limits: ChangeLimits,
        ask: _Ask,
        prices: "_Prices",
        near: Clocks,
        known: Sequence[Clocks],
        effort: _Effort | None,
    ) -> _Found:
        """The best plan that keeps a dwell: known ones, and one repaired that may not; without an
        effort no search follows."""
        table = self._table(limits, [near, *known])
        kept = [table.keys(choice[:, 0]) for choice in _chosen(table, known)]
        (begun,) = _chosen(table, [near])
        repaired = table.add_repaired(begun[:, 0])
        kept += [repaired] if repaired else []
        table.tabulate()
        choices = [table.place(keys)[:, None] for keys in kept]
        if effort is None:
            plans = [table.clocks(choice[:, 0]) for choice in choices]
            return self._least(limits, ask, plans)
        return self._descended(table, ask, prices, choices, effort)

    def _descended(
        self,
        table: ChangeSchedules,
        ask: _Ask,
        prices: "_Prices",
        choices: Sequence[Ints],
        effort: _Effort,
    ) -> _Found:
        """The best that descents from choices (stages, K) reach; no plan where all are late."""
        search = self._search(table, ask, effort.limit, prices.weights)
        starts = np.concatenate(choices, axis=1)
        if not search.any(starts):
            return _Found()
        best, search = self._climbed(table, search, search.best(starts, effort.starts))
        dice = np.random.default_rng(effort.seed)
        for _ in range(effort.kicks):
            if table.cost_j.shape[1] > SCHEDULES_MAX:
                break
            keys = table.keys(best)
            other, search = self._climbed(table, search, search.jumped(best, dice))
            best = table.place(keys)
            if search.value_j(other) < search.value_j(best) * (1 - SMALL):
                best = other
        return _Found(table.clocks(best), search.value_j(best))

    def _climbed(
        self, table: ChangeSchedules, search: ChoiceSearch, best: Ints
    ) -> tuple[Ints, ChoiceSearch]:
        """From a choice in time, until no neighbour is better."""
        while True:
            keys, value_j = table.keys(best), search.value_j(best)
            table.add_near(best)
            table.tabulate()
            search = search.again()
            best = search.improved(table.place(keys))
            if search.value_j(best) >= value_j - SMALL * abs(value_j):
                return best, search

    def _bound_j(self, ask: _Ask, prices: "_Prices", most: int, effort: _Effort) -> float:
        """On the value of every plan, from prices for so many changes; a dwell counts."""
        known_j = prices.bound_j if most == self.limits.per_iteration else -math.inf
        if math.isfinite(known_j) and not self.limits.min_dwell_s:
            return known_j
        price_w, arrives_w = prices.best
        ask = replace(ask, price_w=price_w, arrives_w=arrives_w)
        table = ChangeSchedules(self._layout, self.limits)
        own = _Prices(table, ask, self._starts(ask.task.deadline_s))
        own.improve(effort.rounds)
        return max(own.bound_j, known_j)

    def _solution(
        self, goal: Goal, plan: Clocks, value_bound_j: float, relaxed: Relaxation
    ) -> Solution:
        problem = self.computation.problem
        own_j = value_bound_j + (problem.time_price_w * goal.deadline_s if goal.waits else 0.0)
        finer_j = self.computation.bound_j(goal, relaxed)
        table = self._table(self.limits, (plan,))
        ((choice,),) = [choice.T for choice in _chosen(table, (plan,))]
        time_s, start_s, count = table.timeline(choice)
        priced = solution(
            problem,
            goal,
            "changes",
            table.clocks(choice),
            max(own_j, finer_j),
            "changes" if own_j > finer_j else "computation",
            timed=(time_s, start_s),
        )
        energy_j = priced.energy_j + self.limits.cost_j * count
        bound_j = min(max(own_j, finer_j), energy_j)
        return replace(priced, energy_j=energy_j, lower_bound_j=bound_j, limits=self.limits)

    def _least(
        self, limits: ChangeLimits, ask: _Ask, plans: Sequence[Clocks], limit: Limit | None = None
    ) -> _Found:
        """The best of these plans; no plan where none is allowed and in time."""
        table = self._table(limits, plans)
        search, least = self._search(table, ask, limit), _Found()
        for choice in _chosen(table, plans):
            value_j = search.value_j(choice[:, 0])
            if value_j < least.value_j:
                least = _Found(table.clocks(choice[:, 0]), value_j)
        return least

    def _search(
        self,
        table: ChangeSchedules,
        ask: _Ask,
        limit: Limit | None = None,
        paths: Sequence[Floats] = (),
    ) -> ChoiceSearch:
        task = ask.task
        judge = table if limit is None else DrawnChoices(table, limit, task.deadline_s)
        return ChoiceSearch(judge, task.deadline_s, task.time_price_w, ask.cost_weight, paths)

    def _table(self, limits: ChangeLimits, plans: Sequence[Clocks]) -> ChangeSchedules:
        """Schedules of these plans."""
        table = ChangeSchedules(self._layout, limits)
        for clocks in plans:
            if clocks:
                table.add_plan(clocks)
        table.tabulate()
        return table


def _chosen(table: ChangeSchedules, plans: Sequence[Clocks]) -> list[Ints]:
    """Plans that the table has, as choices (stages, 1)."""
    choices = [table.choice_of(clocks) for clocks in plans if clocks]
    return [choice[:, None] for choice in choices if choice is not None]


class _Prices:
    """What a second of each operation is worth, and the schedules and the bound this leads to.

    Prices are a flow from the start of the iteration to its end: `weights` are flows of one watt,
    longest paths but for the first, the one to begin with; `best` are the prices of the highest
    bound. `bound_j` bounds the value of every plan where there is no limit on drawn iterations.
    """

    def __init__(
        self, table: ChangeSchedules, ask: _Ask, starts: Starts, limit: Limit | None = None
    ) -> None:
        self._table, self._ask, self._starts = table, ask, starts
        self._judge = table if limit is None else DrawnChoices(table, limit, ask.task.deadline_s)
        price_w, arrives_w = ask.price_w, ask.arrives_w
        self.bound_j, self.best = -math.inf, (price_w, arrives_w)
        self.weights = [price_w / arrives_w] if arrives_w > 0.0 else []
        self._prove(price_w, arrives_w)
        for scale in SCALES:
            table.add_cheapest(scale * price_w, starts, ask.cost_weight)
        table.tabulate()

    def improve(self, rounds: int) -> None:
        """Adds schedules, and raises the bound, so many times."""
        for _ in range(rounds):
            table, task = self._table, self._ask.task
            paths = [table.lengths(weight) for weight in self.weights]
            offered = np.isfinite(table.cost_j)
            cost_j = self._costs_j(table)
            share, time_s, prices_w = mixture(cost_j, paths, task, offered)
            price_w = np.zeros(len(self.best[0]))
            for one_w, weight in zip(prices_w.tolist(), self.weights, strict=True):
                price_w += one_w * weight
            best_w, best_arrives_w = self.best
            self._prove(
                price_w + NEARER * (best_w - price_w),
                float(prices_w.sum()) + NEARER * (best_arrives_w - float(prices_w.sum())),
            )
            longest_s, weight = self._judge.longest(share)
            if longest_s > time_s * (1 + CLOSE):
                self.weights.append(weight)
            table.tabulate()

    def charged(self, table: ChangeSchedules) -> Ints:
        """What each GPU would choose of a table at these prices, or a multiple: (stages, K)."""
        cost_j, charge_j = self._costs_j(table), table.lengths(self.best[0])
        charge_j = np.where(np.isfinite(charge_j), charge_j, 0.0)
        cheapest: Ints = np.argmin(cost_j[:, :, None] + charge_j[:, :, None] * CHARGES, axis=1)
        return cheapest

    def _costs_j(self, table: ChangeSchedules) -> Floats:
        offered = np.isfinite(table.cost_j)
        costs_j = self._ask.cost_weight * np.where(offered, table.cost_j, 0.0)
        return np.where(offered, costs_j, np.inf)

    def _prove(self, price_w: Floats, arrives_w: float) -> None:
        task = self._ask.task
        least_j, _ = self._table.add_cheapest(price_w, self._starts, self._ask.cost_weight)
        left_w = task.time_price_w - arrives_w
        time_j = left_w * (task.fastest_s if left_w > 0 else task.deadline_s)
        bound_j = least_j + time_j - ROUND_OFF * (abs(least_j) + abs(time_j))
        if bound_j > self.bound_j:
            self.bound_j, self.best = bound_j, (price_w, arrives_w)
