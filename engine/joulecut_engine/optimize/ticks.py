"""Time in whole ticks: what a row loses by so many, and which tick loses least by it.

If every moment of a plan is rounded down to a tick, an operation that took t seconds has at
least floor(t / tick) ticks between its moments (floor(a + b) >= floor(a) + floor(b)). So the
problem with rounded times, in which all is whole numbers and sums are exact, is no harder than
the real one: what bounds its plans bounds all plans. It is easier by what rounding gives away,
and that depends on the tick: clocks are few, and some ticks fit the ones that matter. Moments
may be rounded from zeros of their own (`solve.phases`); a row's offset tells by how much its ends
differ in that.
"""

import math
from typing import NamedTuple

import numpy as np

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import Network
from joulecut_engine.optimize.phases import Menu

EDGE = 1e-12  # of a time: what is a whole number of ticks but for round-off counts as less
WIDEST = 1.3  # a tick may be so much wider than asked for, to fit
TICKS_TRIED = 512
NEAR = 0.1  # of the cap: options that lose less matter for which tick and phases are best


class Options(NamedTuple):
    """Those of curve c are `at[c]` to `at[c + 1]`."""

    at: Ints
    time_s: Floats
    cost_j: Floats


class Tables(NamedTuple):
    """Losses in joules by ticks: `value[i, k]` of row i given `base[i] + k`, the last of
    `counts[i]` for all that is longer."""

    base: Ints
    value: Floats
    counts: Ints


class Ticks:
    """One network's options; rows are given when asked."""

    def __init__(self, network: Network) -> None:
        self._network = network
        curves = network.curves.distinct
        self._at = np.cumsum([0, *(len(c.time_s) for c in curves)])
        self._time = np.concatenate([c.time_s for c in curves])
        self._cost = np.concatenate([c.cost_j for c in curves])
        self.options = Options(self._at, self._time, self._cost)

    def tables(
        self, rows: Ints, price_w: Floats, tick_s: float, cap_j: float, offset_s: Floats
    ) -> Tables:
        """`price_w` and `offset_s` by row of the network. From where on all lose more than the
        cap, it is one entry: the least of it."""
        curve, price, offset = self._network.curve[rows], price_w[rows], offset_s[rows]
        shortest = np.minimum.reduceat(self._time, self._at[:-1])[curve]
        longest = np.maximum.reduceat(self._time, self._at[:-1])[curve]
        base = _floored(shortest, tick_s, offset)
        span = _floored(longest, tick_s, offset) - base
        with np.errstate(all="ignore"):  # nothing flows: waits are free, no ticks for them
            waits = np.where(price > 0.0, cap_j / (price * tick_s), 0.0)
        count = span + np.minimum(waits, span.max()).astype(np.int64) + 2
        value = np.empty((len(rows), int(count.max())))
        # What a row's ticks are more than its time is charged back, whatever they are.
        least_j = self._least_j(rows, price_w) + price * offset
        _fill(self._at, self._time * (1.0 - EDGE) / tick_s, self._cost, least_j, curve,
              offset / tick_s, price * tick_s, cap_j, base, value, count)  # fmt: skip
        return Tables(base, np.ascontiguousarray(value[:, : int(count.max())]), count)

    def given_j(self, rows: Ints, price_w: Floats, tick_s: float, offset_s: Floats) -> float:
        """What rows of no table lose by rounding; never above 0."""
        found_j = np.empty(len(rows))
        curve = self._network.curve[rows]
        for number in range(len(self._at) - 1):
            one, own = slice(self._at[number], self._at[number + 1]), curve == number
            offset = offset_s[rows[own]][:, None]
            whole_s = _floored(self._time[one], tick_s, offset) * tick_s - offset
            priced_j = self._cost[one] + price_w[rows[own]][:, None] * whole_s
            found_j[own] = priced_j.min(axis=1)
        return float((found_j - self._least_j(rows, price_w)).sum())

    def near(self, price_w: Floats, cap_j: float) -> Menu:
        """Options that lose little, by row of the network; they share what flows."""
        curve = self._network.curve
        time_s, weight_w = list[Floats](), list[Floats]()
        first = np.zeros(len(curve) + 1, dtype=np.int64)
        for row, number in enumerate(curve.tolist()):
            one = slice(self._at[number], self._at[number + 1])
            priced_j = self._cost[one] + price_w[row] * self._time[one]
            kept_s = self._time[one][priced_j - priced_j.min() < NEAR * cap_j]
            time_s.append(kept_s)
            weight_w.append(np.full(len(kept_s), price_w[row] / max(len(kept_s), 1)))
            first[row + 1] = first[row] + len(kept_s)
        return Menu(first, np.concatenate(time_s), np.concatenate(weight_w))

    def fitting_s(self, price_w: Floats, tick_s: float, cap_j: float) -> float:
        """A tick near the one asked for that gives little away where options are good."""
        weight = np.zeros(len(self._time))
        for number in range(len(self._at) - 1):
            own_w = price_w[self._network.curve == number]
            one = slice(self._at[number], self._at[number + 1])
            priced_j = self._cost[one] + own_w[:, None] * self._time[one]
            near = priced_j - priced_j.min(axis=1, keepdims=True) < NEAR * cap_j
            weight[one] = (own_w[:, None] * near / near.sum(axis=1, keepdims=True)).sum(axis=0)
        ticks_s = tick_s * WIDEST ** (np.arange(TICKS_TRIED) / TICKS_TRIED)
        lost = self._time - _floored(self._time, ticks_s[:, None], 0.0) * ticks_s[:, None]
        return float(ticks_s[np.argmin(lost @ weight)])

    def _least_j(self, rows: Ints, price_w: Floats) -> Floats:
        least_j = np.empty(len(rows))
        curve = self._network.curve[rows]
        for number in range(len(self._at) - 1):
            one, own = slice(self._at[number], self._at[number + 1]), curve == number
            priced_j = self._cost[one] + price_w[rows[own]][:, None] * self._time[one]
            least_j[own] = priced_j.min(axis=1)
        return least_j


def _floored(time_s: Floats, tick_s: Floats | float, offset_s: Floats | float) -> Ints:
    whole: Ints = np.floor(time_s * (1.0 - EDGE) / tick_s + offset_s / tick_s).astype(np.int64)
    return whole


@exact
def _fill(
    at: Ints,
    time: Floats,
    cost: Floats,
    least: Floats,
    curve: Ints,
    offset: Floats,
    price: Floats,
    cap: float,
    base: Ints,
    value: Floats,
    count: Ints,
) -> None:
    """Shortens `count`, too; times and offsets are in ticks."""
    whole = np.empty(len(time), dtype=np.int64)
    for i in range(len(curve)):
        first, last, row = at[curve[i]], at[curve[i] + 1], value[i]
        row[:] = np.inf
        for o in range(first, last):  # where an option begins to fit
            whole[o] = math.floor(time[o] + offset[i])
            k = whole[o] - base[i]
            row[k] = min(row[k], cost[o])
        now, worth = np.inf, 0
        for k in range(count[i]):
            now = min(now, row[k])
            row[k] = now + price[i] * (base[i] + k) - least[i]
            if row[k] < cap:
                worth = k
        count[i] = min(count[i], worth + 2)
        end = count[i] - 1
        for o in range(first, last):
            k = max(whole[o] - base[i], end)
            row[end] = min(row[end], cost[o] + price[i] * (base[i] + k) - least[i])
