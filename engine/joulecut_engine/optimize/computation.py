"""A clock for every operation: the finest granularity, and a bound for all others."""

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.activity_network import activity_network
from joulecut_engine.optimize.frontier import KeptPlans
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import ChangeLimits, Goal, Infeasible, Problem, Solution
from joulecut_engine.optimize.relaxation import ROUND_OFF, Relaxation, Relaxer
from joulecut_engine.optimize.rounding import COMBINATIONS_ALL, Rounder
from joulecut_engine.optimize.schedule import floor_j, solution

if TYPE_CHECKING:
    from joulecut_engine.optimize.clock_changes import ClockChanges
    from joulecut_engine.optimize.rules_of_thumb import RulesOfThumb

# A deadline may be below the fastest time by what float sums in another order differ by.
DEADLINE_SLACK = 1e-9
# Passes of the local search: so many operations in all, about 2 us each, and at least one, at most
# so many. A third of them loses 0.008 points where clocks are few; one instead of two at 65,536
# operations up to 0.013.
ROWS, PASSES_MAX = 15_000, 450
ROWS_POINT = 2_000  # per point of a frontier: at 8 x 96 a second pass saves 0.002 to 0.026 %
# Of a bound. What lies beyond is the order of sums, which depends on where memory happens to lie:
# the same problem shall have the same answer to the last bit.
BITS = 40
# Of the energy: relaxations of two deadlines mixed instead of one between them cost the bound at
# most so much, which is below any measurement.
MIXED_SHORT = 1e-4
RELAXED_MAX = 128  # relaxations kept, thinned out beyond: 100 MB at 16,384 operations
SEED = 88_172_645_463_325_252  # any odd number: same problem, same plan


class Computation:
    """One problem, prepared once; answers one goal after another. Not for two threads at once.

    Where there are no more than `combinations_all` plans, all are tried. Raises ValueError for an
    empty graph and where an option takes no time.
    """

    def __init__(
        self,
        problem: Problem,
        combinations_all: int = COMBINATIONS_ALL,
        beside: "Computation | None" = None,
    ) -> None:
        """`beside` is one of the same graph, options and blocking powers."""
        self.problem = problem
        if beside is None:
            _refuse(problem)
            self.network = activity_network(problem)
            microbatch = [operation.microbatch for operation in problem.graph.operations]
            self._rounder = Rounder(self.network, np.array(microbatch), combinations_all)
            self._relaxer = Relaxer(self.network)
        else:
            self.network = beside.network
            self._rounder, self._relaxer = beside._rounder, beside._relaxer
        self.fastest_s = self.network.fastest_s
        self.cheapest_s = self.network.cheapest_s
        self._floor_j = floor_j(problem, self.fastest_s)
        # By price of time, ascending in deadline.
        self._relaxed: defaultdict[float, list[Relaxation]] = defaultdict(list)
        self.kept = KeptPlans()
        # Of one clock for each GPU and of few changes: what one answers another begins with.
        self.searches: dict[ChangeLimits, ClockChanges] = {}
        self.rules: RulesOfThumb | None = None if beside is None else beside.rules
        self._dearer: Computation | None = None

    def dearer(self, time_w: float) -> "Computation":
        """The same where a second of the iteration costs so much more; the last one is kept."""
        power_w = self.problem.overhead_power_w + time_w
        if self._dearer is None or self._dearer.problem.overhead_power_w != power_w:
            self._dearer = Computation(replace(self.problem, overhead_power_w=power_w), beside=self)
        return self._dearer

    def relax(self, goal: Goal) -> Relaxation:
        """The relaxed optimum. Raises Infeasible. A deadline beyond the cheapest schedule's time
        changes nothing and is cut to it. Between two known deadlines a mixture may do.
        """
        deadline_s = self.useful_deadline_s(goal.deadline_s)
        price_w = self.time_price_w(goal)
        if price_w == 0.0 and deadline_s >= self.cheapest_s:
            return self._unhurried(deadline_s)
        known = self._relaxed[price_w]
        at = bisect.bisect_left(known, deadline_s, key=lambda one: one.deadline_s)
        if at < len(known) and known[at].deadline_s == deadline_s:
            return known[at]
        if 0 < at < len(known):
            found, short = known[at].between(known[at - 1], deadline_s)
            if short <= MIXED_SHORT:
                return found
        found = self._relaxer.relax(deadline_s, price_w)
        known.insert(at, found)
        if len(known) > RELAXED_MAX:
            del known[1::2]
        return found

    def _unhurried(self, deadline_s: float) -> Relaxation:
        """Where time costs nothing and there is enough of it, everything is at its cheapest."""
        network = self.network
        return Relaxation(
            bound_j=network.cheapest_j - ROUND_OFF * abs(network.cheapest_j),
            deadline_s=deadline_s,
            deadline_price_w=0.0,
            price_w=np.zeros(network.size),
            arrives_w=0.0,
            limits_s=(network.around(network.cheapest)[0] + network.cheapest) / network.second,
            iteration_s=self.cheapest_s,
        )

    def useful_deadline_s(self, deadline_s: float) -> float:
        must_meet(deadline_s, self.fastest_s)
        return min(max(deadline_s, self.fastest_s), max(self.cheapest_s, self.fastest_s))

    def bound_j(self, goal: Goal, relaxed: Relaxation) -> float:
        """On the energy of any plan under the goal, whatever deadline `relaxed` was made for."""
        bound_j = relaxed.bound_at_j(self.useful_deadline_s(goal.deadline_s))
        if goal.waits:
            bound_j += self.problem.time_price_w * goal.deadline_s
        return max(_rounded_down(bound_j), self._floor_j)

    def certified(
        self,
        goal: Goal,
        relaxed: Relaxation,
        granularity: Granularity,
        clocks: tuple[ClockOption, ...],
        value_bound_j: float,
        timed: tuple[float, tuple[float, ...]] | None = None,
        changes_j: float = 0.0,
    ) -> Solution:
        """Clocks of a coarser granularity, of which `value_bound_j` bounds sum c + time price * T;
        the better of that bound and the one of `relaxed`, which is free to choose finer. `timed` as
        for `solution`; `changes_j` is what changing clocks takes."""
        own_j = value_bound_j + (self.problem.time_price_w * goal.deadline_s if goal.waits else 0.0)
        finer_j = self.bound_j(goal, relaxed)
        bound_of: Granularity = granularity if own_j > finer_j else "computation"
        bound_j = max(own_j, finer_j)
        plan = solution(self.problem, goal, granularity, clocks, bound_j, bound_of, timed)
        energy_j = plan.energy_j + changes_j
        return replace(plan, energy_j=energy_j, lower_bound_j=min(bound_j, energy_j))

    def solve(
        self,
        goal: Goal,
        relaxed: Relaxation,
        hints: Sequence[Solution] = (),
        effort: str = "answer",
    ) -> Solution:
        """The plan of least energy found; hints compete. Points of a frontier cost less effort.
        Raises Infeasible."""
        return self._rounded(goal, relaxed, hints, SEED, effort)

    def improvements(self, goal: Goal, found: Solution) -> Iterator[Solution]:
        """Better and better plans, without end: each round varies the best. The bound stays."""
        relaxed = self.relax(goal)
        for number in itertools.count(1):
            found = better(found, self._rounded(goal, relaxed, (found,), SEED + 2 * number))
            yield found

    def _rounded(
        self,
        goal: Goal,
        relaxed: Relaxation,
        hints: Sequence[Solution],
        seed: int,
        effort: str = "answer",
    ) -> Solution:
        rows = ROWS_POINT if effort == "point" else ROWS
        choices = [choice for choice in map(self._choice, hints) if choice is not None]
        best = self._rounder.best(
            relaxed,
            self.useful_deadline_s(goal.deadline_s),
            self.time_price_w(goal),
            min(PASSES_MAX, max(1, rows // self.network.size)),
            seed,
            choices,
        )
        by_operation = best[self.network.row].tolist()
        menus = self.problem.options
        clocks = tuple([menu[k] for menu, k in zip(menus, by_operation, strict=True)])
        bound_j = self.bound_j(goal, relaxed)
        return solution(self.problem, goal, "computation", clocks, bound_j)

    def time_price_w(self, goal: Goal) -> float:
        return 0.0 if goal.waits else self.problem.time_price_w

    def prices_w(self, relaxed: Relaxation) -> Floats:
        """What a second more for each operation would save, by graph index."""
        return relaxed.price_w[self.network.row]

    @cached_property
    def _numbers(self) -> list[dict[ClockOption, int]]:
        """Of the options of each curve."""
        menus = dict(zip(self.network.curve.tolist(), self.network.operation.tolist(), strict=True))
        options = self.problem.options
        return [{o: k for k, o in enumerate(options[menus[c]])} for c in range(len(menus))]

    def _choice(self, hint: Solution) -> Ints | None:
        """A former solution as choices by row; None where its options are not ours."""
        if len(hint.clocks) != self.network.size:
            return None
        pairs = zip(self.network.curve.tolist(), self.network.operation.tolist(), strict=True)
        found = [self._numbers[curve].get(hint.clocks[i], -1) for curve, i in pairs]
        return None if -1 in found else np.array(found, dtype=np.int64)


def better(one: Solution, other: Solution) -> Solution:
    """The cheaper plan with the higher bound of two for the same goal; of equals the first."""
    plan = other if other.energy_j < one.energy_j else one
    bound = other if other.lower_bound_j > one.lower_bound_j else one
    bound_j = min(bound.lower_bound_j, plan.energy_j)
    return replace(plan, lower_bound_j=bound_j, bound_granularity=bound.bound_granularity)


def bounded(plan: Solution, known: Solution) -> Solution:
    """The plan with the bound of another for the same goal."""
    bound_j = min(known.lower_bound_j, plan.energy_j)
    return replace(plan, lower_bound_j=bound_j, bound_granularity=known.bound_granularity)


def must_meet(deadline_s: float, fastest_s: float) -> None:
    """Raises Infeasible where a deadline cannot be kept at all (or is not a number)."""
    if not deadline_s >= fastest_s * (1 - DEADLINE_SLACK):
        raise Infeasible(deadline_s, fastest_s)


def _refuse(problem: Problem) -> None:
    if not problem.graph.operations:
        raise ValueError("a graph without operations")
    for options in dict(zip(map(id, problem.options), problem.options, strict=True)).values():
        for option in options:
            if not 0.0 < option.time_s < float("inf"):
                operation = problem.graph.operations[problem.options.index(options)]
                raise ValueError(f"{operation} takes {option.time_s!r} s at {option.clock_mhz} MHz")


def _rounded_down(bound_j: float) -> float:
    """To so many bits; a lower bound is one still."""
    mantissa, exponent = math.frexp(bound_j)
    return math.ldexp(math.floor(math.ldexp(mantissa, BITS)), exponent - BITS)
