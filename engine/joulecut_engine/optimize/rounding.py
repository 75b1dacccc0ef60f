"""From a relaxed schedule to real clock options, without ever missing the deadline.

A sweep walks the operations in time order; each takes the best real option that ends by its
limit, and what it leaves over reaches the next ones (error diffusion), because they start
when it really ends. Limits come first from an optimal relaxed schedule, then from the last
sweep in the other direction, so the deadline holds by construction. Thrift says how much of
the slack an operation leaves to others: it minimises cost + thrift * price * time, and thrift
falls to 0 over a few sweeps.

Then windows of a few microbatches are varied, one after another: new thrift, sweeps inside
the window alone, keep what is cheaper. Outside a window nothing moves: heads before it and
tails after it stay what they are, so a trial costs the window and not the iteration.
"""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from joulecut_engine.optimize.anneal import Annealer
from joulecut_engine.optimize.chains import Chains
from joulecut_engine.optimize.curves import Curve
from joulecut_engine.optimize.diffusion import (
    Marks,
    Menu,
    Rows,
    begin,
    blank,
    every,
    makespan,
    roll,
)
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import Network
from joulecut_engine.optimize.relaxation import Relaxation

COMBINATIONS_ALL = 20_000  # up to here every combination is tried: a few milliseconds
# Around 1 the two ends of a hull segment cost the same; nothing between 0.8 and 1 was best
# everywhere, and one start costs less than asking which.
THRIFTS = (0.8, 0.9, 0.95, 0.99)
THRIFTS_FEW = (0.0, 0.2, 0.5, *THRIFTS, 1.05, 1.3)  # where options are coarse, and trying is cheap
ROWS_FEW = 64
# Where no deadline presses, real options may still fit a little later best: by so much.
LATER = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0)
WINDOW = 64  # rows: about four microbatches of eight stages; half and twice as much did worse
WINDOW_WIDE = 256  # now and then, microbatches varied as a whole: frees what 64 rows cannot
HEAT = 0.004  # of what options cost apart: at first a trial may cost so much more (times a log)
ROLLS_STARTS = 24  # with so many passes, half of them go to other starts than the best
STARTS = 4
GAP_SMALL = 9.5e-4  # of the bound: what is promised for long pipelines; less is not asked for
DEADLINE_TOLERANCE = 1e-10  # contract: 1e-9
SLACK = 1e-6  # a relaxed iteration time may be so much below that of the options it is made of
FITS = 1e-13  # of the deadline: float sums in another order must not undo an option that fits
MOVES_ONCE = 1_200_000  # half a second; fewer cool too quickly
MOVES_SLOW, MOVES_ROW = 24_000_000, 32_000  # ten seconds: what is missed by little, it finds
SEED = 88_172_645_463_325_252  # any odd number: same problem, same plan


class Rounder:
    """One problem's options as arrays; `best` answers one deadline after another.

    `microbatch` is by operation. Where there are no more than `combinations_all` plans, all
    are tried.
    """

    def __init__(
        self, network: Network, microbatch: Ints, combinations_all: int = COMBINATIONS_ALL
    ) -> None:
        self._network = network
        curves, curve = network.curves.distinct, network.curve
        kept = [_cheapening(c.cost_j) for c in curves]
        size = np.array([len(k) for k in kept])
        first = np.cumsum(size) - size
        self._first = first[curve]
        self._number = np.concatenate(kept)  # of the problem's option, by entry of the menu
        self._kept, self._curve = kept, curve
        self.menu = Menu(
            first[curve],
            (first + size)[curve],
            np.concatenate([c.time_s[k] for c, k in zip(curves, kept, strict=True)]),
            np.concatenate([c.cost_j[k] for c, k in zip(curves, kept, strict=True)]),
        )
        hull = [_hull_j(c)[k] for c, k in zip(curves, kept, strict=True)]
        self._rows = _rows(network, self.menu, np.concatenate(hull), microbatch)
        self._heat_j = HEAT * float(
            (self.menu.cost[self.menu.first] - self.menu.cost[self.menu.last - 1]).mean()
        )
        self.tries_all = math.prod(size[curve].tolist()) <= combinations_all

    def best(
        self,
        relaxed: Relaxation,
        deadline_s: float,
        time_price_w: float,
        rolls: int,
        seeds: Sequence[Ints] = (),
        moves: int = 0,
        chains: float = 0.0,
    ) -> Ints:
        """The best options found, by row: least cost + time_price * T with T <= deadline.

        `seeds` are options by row that compete. The windows are passed over `rolls` times, then
        events are moved `moves` times, or until what is left to gain is small. `chains` is the
        work of drawing them, once before and once after all is cooled in one go.
        """
        search = _Search(self._rows, relaxed, deadline_s, time_price_w)
        if self.tries_all:
            option = search.all()
        else:
            options = search.first([self._entries(seed) for seed in seeds])
            option = search.improved(options, rolls, self._heat_j)
            while moves > 0 and not search.enough(option):
                once = min(moves, MOVES_ONCE)
                option = search.cooled(self._annealer, option, once, SEED + 2 * moves)
                moves -= once
            for last in (False, True):
                if chains > 0.0 and not search.enough(option):
                    option = search.drawn(self._chains, option, chains, SEED + 2 * last)
                if chains > 0.0 and not last and not search.enough(option):
                    slow = min(MOVES_SLOW, MOVES_ROW * self._network.size)
                    option = search.cooled(self._annealer, option, slow, SEED)
        best: Ints = self._number[option]
        return best

    def cooled(
        self, relaxed: Relaxation, deadline_s: float, time_price_w: float, seed: Ints, moves: int
    ) -> Ints:
        """Options by row, no dearer and no later than `seed`: so many moves, cooled in one go."""
        search = _Search(self._rows, relaxed, deadline_s, time_price_w)
        option = self._entries(seed)
        if not search.enough(option):
            option = search.cooled(self._annealer, option, moves, SEED)
        best: Ints = self._number[option]
        return best

    @cached_property
    def _annealer(self) -> Annealer:
        return Annealer(self._network, self.menu)

    @cached_property
    def _chains(self) -> Chains:
        return Chains(self._annealer)

    def _entries(self, seed: Ints) -> Marks:
        """Options as entries of the menu: for one that is not in it, the faster and cheaper."""
        entries = np.empty_like(seed)
        for c, kept in enumerate(self._kept):
            rows = self._curve == c
            entries[rows] = np.searchsorted(kept, seed[rows], side="right") - 1
        entries += self._first
        return entries.astype(np.uint64)


class _Search:
    """One deadline; candidates are entries of the menu by row."""

    def __init__(
        self, rows: Rows, relaxed: Relaxation, deadline_s: float, time_price_w: float
    ) -> None:
        self._rows, self._relaxed = rows, relaxed
        self._deadline_s, self._price_w = deadline_s, time_price_w
        self._least_s = min(deadline_s, relaxed.iteration_s * (1 + SLACK))
        self._enough_j = relaxed.bound_j + GAP_SMALL * abs(relaxed.bound_j)

    def all(self) -> Marks:
        option = self._rows.first.copy()
        every(self._rows, option, self._deadline_s * (1 + DEADLINE_TOLERANCE), self._price_w)
        return option

    def first(self, seeds: Sequence[Marks]) -> list[Marks]:
        """Everything at its fastest, the seeds, a sweep for each thrift, limit and horizon:
        those on time, best first. Of equals the earlier, so that nothing changes without a
        reason."""
        relaxed, found = self._relaxed, [self._rows.first.copy(), *seeds]
        least_s = self._least_s
        few = len(self._rows.first) <= ROWS_FEW
        thrifts: tuple[float, ...] = THRIFTS_FEW if few else THRIFTS
        horizons_s = [least_s]
        if self._deadline_s > least_s * (1 + DEADLINE_TOLERANCE):
            later_s = [min(self._deadline_s, least_s * (1 + share)) for share in LATER]
            horizons_s += sorted(set(later_s))
        for horizon_s in horizons_s:
            until_s, limits_s = horizon_s * (1 + FITS), relaxed.limits_s
            if horizon_s > least_s and not few:  # rarely better where operations are many
                thrifts, limits_s = THRIFTS[:1], limits_s[:1]
            for limit_s in limits_s:
                shifted_s = limit_s * (horizon_s / least_s)
                for thrift in thrifts:
                    choice = blank(self._rows)
                    begin(self._rows, choice, until_s, relaxed.price_w, shifted_s, thrift)
                    found.append(choice.option)
        values = [self._value_j(option) for option in found]
        order = np.argsort(values, kind="stable")
        return [found[k] for k in order if math.isfinite(values[k])]

    def improved(self, options: list[Marks], rolls: int, heat_j: float) -> Marks:
        """The best that windows lead to, from the best start or several; never a worse one."""
        if rolls >= ROLLS_STARTS:
            starts, share = _distinct(options, STARTS), rolls // 2 // STARTS
            ends = [self._polished(option, share, heat_j) for option in starts]
            options = sorted(ends, key=self._value_j)
            rolls -= share * STARTS
        return self._polished(options[0], rolls, heat_j)

    def enough(self, option: Marks) -> bool:
        return self._value_j(option) <= self._enough_j

    def cooled(self, annealer: Annealer, option: Marks, moves: int, seed: int) -> Marks:
        """Never worse, never late."""
        signed = annealer.cooled(
            option.astype(np.int64), self._deadline_s, self._price_w, moves, seed
        )
        found = signed.astype(np.uint64)
        return found if self._value_j(found) < self._value_j(option) else option

    def drawn(self, chains: Chains, option: Marks, work: float, seed: int) -> Marks:
        """Never worse, never late."""
        signed = chains.drawn(option.astype(np.int64), self._deadline_s, self._price_w, work, seed)
        found = signed.astype(np.uint64)
        return found if self._value_j(found) < self._value_j(option) else option

    def _polished(self, option: Marks, rolls: int, heat_j: float) -> Marks:
        """Windows varied; never worse than what it began with."""
        rows, choice, keep = self._rows, blank(self._rows), option.copy()
        horizon_s = max(self._ends_s(option), self._least_s)
        choice.option[:] = option
        state = np.array([SEED], dtype=np.uint64)
        enough_j = self._enough_j - self._price_w * horizon_s
        until_s, prices_w = horizon_s * (1 + FITS), self._relaxed.price_w
        for k in range(rolls):
            if rows.cost[keep].sum() <= enough_j:
                break
            heat = heat_j * max(0.0, 1.0 - 1.2 * k / rolls)
            forwards, alike = k % 2 == 0, k % 4 < 2
            window = WINDOW_WIDE if k % 8 >= 6 else WINDOW
            alike = alike or window == WINDOW_WIDE
            roll(rows, choice, until_s, prices_w, state, forwards, alike, heat, window)
            if rows.cost[choice.option].sum() < rows.cost[keep].sum():
                keep[:] = choice.option
        return keep if self._value_j(keep) < self._value_j(option) else option

    def _value_j(self, option: Marks) -> float:
        """Infinite where late."""
        end_s = self._ends_s(option)
        if end_s > self._deadline_s * (1 + DEADLINE_TOLERANCE):
            return math.inf
        return float(self._rows.cost[option].sum()) + self._price_w * end_s

    def _ends_s(self, option: Marks) -> float:
        return float(makespan(self._rows, option))


def _rows(network: Network, menu: Menu, hull: Floats, microbatch: Ints) -> Rows:
    before = network.tails[network.entering]
    return Rows(
        before=np.where(before >= 0, before, network.size).astype(np.uint64),
        enters=network.enters.astype(np.uint64),
        after=network.heads.astype(np.uint64),
        leaves=network.leaves.astype(np.uint64),
        first=menu.first.astype(np.uint64),
        last=menu.last.astype(np.uint64),
        time=menu.time,
        cost=menu.cost,
        hull=hull,
        group=(microbatch - microbatch.min())[network.operation].astype(np.uint64),
    )


def _hull_j(curve: Curve) -> Floats:
    """What each option's time costs on the hull."""
    steps_j = curve.saved_w * np.diff(curve.hull_s)
    hull_j = curve.cost_j[curve.cheapest] + np.append(np.cumsum(steps_j[::-1])[::-1], 0.0)
    costs_j: Floats = np.interp(curve.time_s, curve.hull_s, hull_j)
    return costs_j


def _cheapening(cost_j: Floats) -> Ints:
    """Options, fastest first, that are cheaper than all before."""
    before = np.append(np.inf, np.minimum.accumulate(cost_j)[:-1])
    return np.flatnonzero(cost_j < before)


def _distinct(options: list[Marks], count: int) -> list[Marks]:
    """The first few that differ."""
    kept: list[Marks] = []
    for option in options:
        if len(kept) < count and not any(np.array_equal(option, other) for other in kept):
            kept.append(option)
    return kept
