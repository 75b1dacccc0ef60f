"""A clock for every operation: the finest granularity, and a bound for all others.

Two methods find the relaxed optimum: an interior-point method from nothing (a cold deadline)
and a walk along the frontier (a deadline near the last). They share the network and the
search for real options, and check each other in the tests.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.deadline_presolve import fitting
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import network_of
from joulecut_engine.optimize.problem import Goal, Infeasible, Problem, Solution
from joulecut_engine.optimize.relaxation import ROUND_OFF, Interior, Relaxation
from joulecut_engine.optimize.rounding import COMBINATIONS_ALL, GAP_SMALL, Rounder
from joulecut_engine.optimize.schedule import floor_j, solution
from joulecut_engine.optimize.strips import Strips
from joulecut_engine.optimize.sweep import Sweep

# A deadline may be below the fastest time by what float sums in another order differ by.
DEADLINE_SLACK = 1e-9
# Multiplications per operation and step of the interior point above which the walk is used
# for cold deadlines too. Pipelines need 100-500; random graphs in which everything may wait for
# everything 500,000, and there the walk takes 0.1 s where the interior point takes 5.
WORK_WIDE = 20_000.0
# Up to here the walk, which counts in whole numbers, is as quick (4 ms), and exact where ties
# leave the interior point a millionth of the energy short.
SIZE_SMALL = 128
# Where the interior point stalls further from the optimum than this, its bound would be loose:
# seen where the slowest option takes twenty times the fastest. The walk cannot stall.
APART_MAX = 1e-6
# Of a bound. What lies beyond is the order of sums, which depends on where memory happens to lie:
# the same problem shall have the same answer to the last bit.
BITS = 40
SIZE_AGAIN = 4096  # operations; more have too few of these moves each
MOVES_AGAIN = 12  # times the moves of the first search: two seconds, a hundredth of a percent
CHAINS_ROW = 160_000.0  # then chains of events, per operation: 1.5 s twice at 8 x 48
# What is promised from so many microbatches on. Where a little more is left when all is done,
# prices of stages are climbed to, and then, still nearer, half a minute of search follows: each
# gains a hundredth of a percent or two.
LONG, BAR_LONG = 48, 1e-3
REACH_BOUND, REACH_PLAN = 4e-4, 2.5e-4
MOVES_LAST, MOVES_LAST_ROW = 64_000_000, 42_000
SURE = 0.99  # of a bar: what is proven so far is not above it for the order of sums
# Of the bound. Where so much is open, one operation outweighs the others and jumps from option to
# option: the relaxed time lies where no real plan belongs. Pipelines of a model are far below.
GAP_POOR = 0.02
SOONER = 6  # shorter times that compete then, from the fastest on, evenly spaced in logarithm
KNOWN_MAX = 128  # former answers recognised without looking their options up again


class Computation:
    """One problem, prepared once; answers one goal after another. Not for two threads at once.

    Where there are no more than `combinations_all` plans, all are tried. Raises ValueError
    where an option takes no time.
    """

    def __init__(self, problem: Problem, combinations_all: int = COMBINATIONS_ALL) -> None:
        _refuse(problem)
        self.problem = problem
        self.network = network_of(problem)
        self.fastest_s = self.network.fastest_s
        self.cheapest_s = self.network.cheapest_s
        microbatch = [operation.microbatch for operation in problem.graph.operations]
        groups = np.array(microbatch, dtype=np.int64)
        self._rounder = Rounder(self.network, groups, combinations_all)
        self._long = len({number for number in microbatch if number >= 0}) >= LONG
        self._floor_j = floor_j(problem, self.fastest_s)
        self._known: OrderedDict[int, tuple[tuple[ClockOption, ...], Ints | None]] = OrderedDict()

    @cached_property
    def _interior(self) -> Interior:
        return Interior(self.network)

    @cached_property
    def _sweep(self) -> Sweep:
        return Sweep(self.network)

    @cached_property
    def _strips(self) -> Strips:
        return Strips(self.network, [self.network.row[list(o)] for o in self.problem.graph.order])

    def relax(self, goal: Goal, *, near: bool = False) -> Relaxation:
        """The relaxed optimum. Raises Infeasible.

        `near` says that other deadlines of this problem are asked for as well. A deadline
        beyond the cheapest schedule's time changes nothing and is cut to it.
        """
        deadline_s = self.useful_deadline_s(goal.deadline_s)
        price_w = self.time_price_w(goal)
        if price_w == 0.0 and deadline_s >= self.cheapest_s:
            return self._unhurried(deadline_s)
        size = self.network.size
        if near or size <= SIZE_SMALL or self.network.envelope.work > WORK_WIDE * size:
            return self._sweep.relax(deadline_s, price_w)
        relaxed = self._interior.relax(deadline_s, price_w)
        if relaxed.apart_ratio <= APART_MAX:
            return relaxed
        return self._sweep.relax(deadline_s, price_w)

    def raised(self, goal: Goal, relaxed: Relaxation) -> Relaxation:
        """With what whole choices cost in its bound as well (a second at 8 x 96)."""
        return self._strips.raised(relaxed, self.time_price_w(goal))

    def finer(
        self, goal: Goal, relaxed: Relaxation, raised: Relaxation, enough_j: float = np.inf
    ) -> Relaxation:
        """A bound beyond that of `raised`, at prices for proofs alone; seconds at 8 x 96, less
        where `enough_j`, a bound for the goal, is reached."""
        enough_j += raised.bound_j - self.bound_j(goal, raised)
        return self._strips.finer(relaxed, raised, self.time_price_w(goal), enough_j)

    def _unhurried(self, deadline_s: float) -> Relaxation:
        """Where time costs nothing and there is enough of it, everything is at its cheapest."""
        network = self.network
        ends_s = network.ends(network.cheapest) / network.second
        return Relaxation(
            bound_j=network.cheapest_j - ROUND_OFF * abs(network.cheapest_j),
            deadline_s=deadline_s,
            deadline_price_w=0.0,
            price_w=np.zeros(network.size),
            limits_s=(ends_s,),
            iteration_s=self.cheapest_s,
            steps=0,
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

    def solve(
        self,
        goal: Goal,
        relaxed: Relaxation,
        hints: Sequence[Solution] = (),
        rolls: int = 0,
        moves: int = 0,
        chains: float = 0.0,
    ) -> Solution:
        """Raises Infeasible. Hints compete; the last three say how long to search.

        Without hints, and where much is left open, plans for shorter times compete as well, and
        options that have no time are left out of the bound.
        """
        found = self._rounded(goal, relaxed, hints, rolls, moves, chains)
        if hints or found.gap <= GAP_POOR or self._rounder.tries_all:
            return found
        sooner = self._sooner(goal, relaxed.iteration_s)
        found = self._rounded(goal, relaxed, (found, *sooner), rolls, moves, chains)
        inner = self._fitting(goal, relaxed, found)
        if inner is None:
            return found
        again = inner._rounded(goal, inner.relax(goal), (found,), rolls, moves, chains)
        return _better(found, again)

    def _fitting(self, goal: Goal, relaxed: Relaxation, found: Solution) -> "Computation | None":
        """The same with options that have time alone; None where that would change little."""
        if found.energy_j <= self.bound_j(goal, relaxed) * (1.0 + GAP_POOR):
            return None
        deadline_s = self.useful_deadline_s(goal.deadline_s)
        problem = fitting(self.problem, self.network, deadline_s)
        return None if problem is None else Computation(problem)

    def _sooner(self, goal: Goal, iteration_s: float) -> list[Solution]:
        span = max(1.0, iteration_s / self.fastest_s)
        goals = [
            replace(goal, deadline_s=self.fastest_s * span ** (k / SOONER)) for k in range(SOONER)
        ]
        return [self._rounded(one, self.relax(one)) for one in goals]

    def _rounded(
        self,
        goal: Goal,
        relaxed: Relaxation,
        hints: Sequence[Solution] = (),
        rolls: int = 0,
        moves: int = 0,
        chains: float = 0.0,
    ) -> Solution:
        seeds = [seed for seed in map(self._seed, hints) if seed is not None]
        deadline_s = self.useful_deadline_s(goal.deadline_s)
        price_w = self.time_price_w(goal)
        best = self._rounder.best(relaxed, deadline_s, price_w, rolls, seeds, moves, chains)
        return self._solution(goal, best, self.bound_j(goal, relaxed))

    def _solution(self, goal: Goal, best: Ints, bound_j: float) -> Solution:
        by_operation = best[self.network.row].tolist()
        options = self.problem.options
        clocks = tuple([menu[k] for menu, k in zip(options, by_operation, strict=True)])
        self._remember(clocks, best)
        timed = self._timed(best)
        return solution(self.problem, goal, "computation", clocks, bound_j, timed=timed)

    def sharpened(
        self, goal: Goal, relaxed: Relaxation, hints: Sequence[Solution], rolls: int, moves: int
    ) -> Solution:
        """As `solve`; where a gap is left, the bound is raised, then the search goes on. What is
        left then is proven in finer cells, and the search goes on once more."""
        found = self.solve(goal, relaxed, hints, rolls)
        if found.gap <= GAP_SMALL:
            return found
        inner = self._fitting(goal, relaxed, found)
        if inner is not None:
            other = inner.sharpened(goal, inner.relax(goal), (found,), rolls, moves)
            return _better(found, other)
        raised = self.raised(goal, relaxed)
        found = self.solve(goal, raised, (*hints, found), rolls, moves)
        if found.gap <= GAP_SMALL:
            return found
        finer = self.finer(goal, relaxed, raised, found.energy_j / (1.0 + GAP_SMALL))
        bound_j = max(found.lower_bound_j, self.bound_j(goal, finer))
        again = moves > 0 and self.network.size <= SIZE_AGAIN
        if again and found.energy_j > bound_j * (1.0 + GAP_SMALL):
            aimed = replace(raised, bound_j=max(raised.bound_j, finer.bound_j))
            more = MOVES_AGAIN * moves
            chains = CHAINS_ROW * self.network.size
            found = self.solve(goal, aimed, (found,), moves=more, chains=chains)
        found = replace(found, lower_bound_j=min(bound_j, found.energy_j))
        if not (again and self._long and BAR_LONG < found.gap <= BAR_LONG + REACH_BOUND):
            return found
        return self.insisted(goal, relaxed, finer, found, BAR_LONG)

    def insisted(
        self,
        goal: Goal,
        relaxed: Relaxation,
        finer: Relaxation,
        found: Solution,
        bar: float,
        reach: float = REACH_PLAN,
    ) -> Solution:
        """As `found`, or better, after more work of both kinds where its gap is above the bar:
        half a minute or more. The search only where the bar is within reach then."""
        if found.gap <= bar:
            return found
        enough_j = found.energy_j / (1.0 + SURE * bar) + finer.bound_j - self.bound_j(goal, finer)
        climbed = self._strips.climbed(relaxed, finer, self.time_price_w(goal), enough_j)
        bound_j = max(found.lower_bound_j, self.bound_j(goal, climbed))
        found = replace(found, lower_bound_j=min(bound_j, found.energy_j))
        seed = self._seed(found)
        if not bar < found.gap <= bar + reach or seed is None:
            return found
        deadline_s, price_w = self.useful_deadline_s(goal.deadline_s), self.time_price_w(goal)
        moves = min(MOVES_LAST, MOVES_LAST_ROW * self.network.size)
        best = self._rounder.cooled(climbed, deadline_s, price_w, seed, moves)
        other = self._solution(goal, best, found.lower_bound_j)
        return other if other.energy_j < found.energy_j else found

    def _timed(self, choice: Ints) -> tuple[float, tuple[float, ...]]:
        """As `schedule.makespan`, to the last bit: same sums in the same order."""
        network = self.network
        duration_s = self._seconds[network.curve, choice]
        ends_s = network.ends(duration_s)
        starts_s = network.starts(ends_s)[network.row]
        return float(ends_s.max()), tuple(starts_s.tolist())

    @cached_property
    def _seconds(self) -> Floats:
        """(curves, options), padded with 0."""
        curves = self.network.curves.distinct
        table = np.zeros((len(curves), max(len(c.time_s) for c in curves)))
        for row, curve in zip(table, curves, strict=True):
            row[: len(curve.time_s)] = curve.time_s
        return table

    def _remember(self, clocks: tuple[ClockOption, ...], choice: Ints) -> None:
        self._known[id(clocks)] = clocks, choice
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def time_price_w(self, goal: Goal) -> float:
        return 0.0 if goal.waits else self.problem.time_price_w

    def prices_w(self, relaxed: Relaxation) -> Floats:
        """What a second more for each operation would save, by graph index."""
        return relaxed.price_w[self.network.row]

    def _seed(self, hint: Solution) -> Ints | None:
        """A former solution as choices by row; None where its options are not ours."""
        clocks, choice = self._known.get(id(hint.clocks), ((), None))
        if clocks is hint.clocks:
            return choice
        options = self.problem.options
        if len(hint.clocks) != len(options):
            return None
        try:
            found = [options[i].index(hint.clocks[i]) for i in self.network.operation]
        except ValueError:
            return None
        return np.array(found, dtype=np.int64)


def _better(one: Solution, other: Solution) -> Solution:
    """The cheaper plan with the higher bound of two for the same goal; of equals the first."""
    bound_j = max(one.lower_bound_j, other.lower_bound_j)
    plan = min(one, other, key=lambda found: found.energy_j)
    return replace(plan, lower_bound_j=min(bound_j, plan.energy_j))


def must_meet(deadline_s: float, fastest_s: float) -> None:
    """Raises Infeasible where a deadline cannot be kept at all (or is not a number)."""
    if not deadline_s >= fastest_s * (1 - DEADLINE_SLACK):
        raise Infeasible(deadline_s, fastest_s)


def _refuse(problem: Problem) -> None:
    """Raises ValueError for an empty graph and for an option that takes no time."""
    if not problem.graph.operations:
        raise ValueError("a graph without operations")
    for options in {id(options): options for options in problem.options}.values():
        for option in options:
            if not 0.0 < option.time_s < float("inf"):
                operation = problem.graph.operations[problem.options.index(options)]
                raise ValueError(f"{operation} takes {option.time_s!r} s at {option.clock_mhz} MHz")


def _rounded_down(bound_j: float) -> float:
    """To so many bits; a lower bound is one still."""
    mantissa, exponent = math.frexp(bound_j)
    return math.ldexp(math.floor(math.ldexp(mantissa, BITS)), exponent - BITS)
