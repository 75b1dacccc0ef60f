"""Pinned pairs: two operations that have to fit between two moments which cannot move.

At the fastest deadline every moment on the longest way is known. A stage beside it has to fit
two operations into each period there, and rounding (`solve.ticks`) may let in a pair of clocks
that misses the period by a few microseconds: in every period, cheaper than any that really fits.
But whatever tick the moment between the two falls into, what they can have at best is known
exactly. What their tables together leave out of that is charged to the first of them.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.events import Events
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import Network
from joulecut_engine.optimize.ticks import EDGE, Options

# Of the deadline: no plan is later, nor does a sum of floats in another order differ by more.
LATE = 1e-9
# Of a moment: what sums in another order differ by. Phases leave more (`phases.SURE`).
SOON = 1e-11


class Moments(NamedTuple):
    """By event: no plan within the deadline gets there before or after."""

    early_s: Floats
    late_s: Floats


class Pairs(NamedTuple):
    """Rows `first` and `second`, the one's end the other's begin; `moment[:, 0]` to `[:, 2]` are
    the events before, between and after them."""

    first: Ints
    second: Ints
    moment: Ints


def moments(network: Network, events: Events, deadline_s: float) -> Moments:
    """All else at its fastest."""
    early_s, late_s = np.zeros(events.count), np.full(events.count, deadline_s)
    fastest_s = network.fastest / network.second
    ends_s = network.ends(fastest_s)
    np.maximum.at(early_s, events.begin, network.starts(ends_s))
    np.maximum.at(early_s, events.done, ends_s)
    rest_s = _rests(network.tails, network.heads, fastest_s)
    np.minimum.at(late_s, events.begin, deadline_s - rest_s)
    np.minimum.at(late_s, events.done, deadline_s - rest_s + fastest_s)
    return Moments(early_s * (1.0 - SOON), late_s + LATE * deadline_s)


def held(events: Events, rows: Ints, pinned: NDArray[np.bool_], whole: Ints) -> Ints:
    """Ticks of rows between two moments whose ticks are known, -1 for others; `pinned` and
    `whole` are by event: whether they are, and which."""
    begin, done = events.begin[rows], events.done[rows]
    ticks: Ints = np.where(pinned[begin] & pinned[done], whole[done] - whole[begin], -1)
    return ticks


def pairs(
    events: Events, rows: Ints, follows: NDArray[np.bool_], pinned: NDArray[np.bool_]
) -> Pairs:
    """Of rows in order, where `follows[i]` row i + 1 in its run: those that a moment of unknown
    tick parts, between two whose ticks are known."""
    first, second = rows[:-1], rows[1:]
    before, between, after = events.begin[first], events.done[first], events.done[second]
    found = follows[:-1] & pinned[before] & ~pinned[between] & pinned[after]
    at = np.flatnonzero(found)
    return Pairs(at, at + 1, np.column_stack([before, between, after])[at])


def ticked(at_s: Floats, phase_s: Floats, tick_s: float) -> Ints:
    whole: Ints = np.floor((at_s - phase_s) / tick_s).astype(np.int64)
    return whole


@exact
def charged(
    options: Options, curve: Ints, pairs: Pairs, when: Moments, phase: Floats, tick: float,
    whole: Ints, cap: float, base: Ints, value: Floats, count: Ints,
) -> None:  # fmt: skip
    """Adds to `value` of each pair's first row, a table by ticks, what its options and those of
    the second cost more, together, than tables tell; `cap` at most. `curve` is by row of
    the tables, `whole` the ticks of known events when they come."""
    at, time, cost = options
    for p in range(len(pairs.first)):
        i, j = pairs.first[p], pairs.second[p]
        before, between, after = pairs.moment[p]
        begin, done, zero = when.early_s[before], when.late_s[after], phase[between]
        one, other = at[curve[i]], at[curve[j]]
        one_end, other_end = at[curve[i] + 1], at[curve[j] + 1]
        own, others = phase[before] - zero, zero - phase[after]
        slack = LATE * done  # differences in another order must not undo an option that fits
        for k in range(count[i] - 1):
            ticks = base[i] + k
            left = whole[after] - whole[before] - ticks
            told = _cheapest_ticks(time, cost, one, one_end, own, tick, ticks)
            told += _cheapest_ticks(time, cost, other, other_end, others, tick, left)
            if told == np.inf:
                continue
            low = (whole[before] + ticks) * tick + zero - slack
            high = low + tick + 2.0 * slack
            least = _cheapest(time, cost, one, one_end, low - begin + slack)
            least += _cheapest(time, cost, other, other_end, done - low + slack)
            for o in range(one, one_end):
                at_s = begin + time[o]
                if low < at_s <= high:
                    found = _cheapest(time, cost, one, one_end, time[o])
                    found += _cheapest(time, cost, other, other_end, done - at_s + slack)
                    least = min(least, found)
            value[i, k] += min(cap, max(0.0, least - told))


@exact
def _cheapest(time: Floats, cost: Floats, first: int, last: int, left: float) -> float:
    least = np.inf
    for o in range(first, last):
        if time[o] <= left:
            least = min(least, cost[o])
    return least


@exact
def _cheapest_ticks(
    time: Floats, cost: Floats, first: int, last: int, offset: float, tick: float, left: int
) -> float:
    """As tables tell it (`solve.ticks`)."""
    least = np.inf
    for o in range(first, last):
        if math.floor(time[o] * (1.0 - EDGE) / tick + offset / tick) <= left:
            least = min(least, cost[o])
    return least


@exact
def _rests(tails: Ints, heads: Ints, duration: Floats) -> Floats:
    """The longest way from each row's begin to the end; links are sorted by tail."""
    rest = duration.copy()
    for k in range(len(tails)):
        link = len(tails) - 1 - k
        row, after = tails[link], heads[link]
        if row >= 0 and after < len(duration):
            rest[row] = max(rest[row], duration[row] + rest[after])
    return rest
