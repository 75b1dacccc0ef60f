"""What one or two operations in a row lose, cell by cell of the time they are given.

By given prices an option loses what it costs (cost + price * time) beyond the best one, and a
wait what flows past it. Given x seconds, two operations in a row lose the least over pairs of
options that fit, the wait for the rest included. Cells are so many seconds wide, each counted
at the least that is possible in it, so sums over them bound every plan.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import Network

# Of what options cost apart, mean over rows that have a choice: what loses more counts as so
# much, whatever it does to its sides. Two bad choices that do not fit may cost half of it each.
CAP = 0.6
EDGE = 1e-9  # of a cell: durations so near an edge count on both sides


class Tables(NamedTuple):
    """Least losses in joules: cell k of table i is [(base[i] + k) h, (base[i] + k + 1) h) for
    k < counts[i]; `beyond[i]` is after the last, infinite loss before the first."""

    base: Ints
    value: Floats
    counts: Ints
    beyond: Floats


@dataclass(frozen=True, slots=True)
class Rows:
    """Which tables: of one row (`second` is -1), of two, or of none (`first` is -1, too)."""

    first: Ints
    second: Ints
    kind: Ints
    spine: NDArray[np.bool_]  # what costs the cap anyway needs no cells


class _Menus(NamedTuple):
    """Options by curve, then pairs of options by kind, both flat; pairs by time."""

    at: Ints
    time: Floats
    cost: Floats
    pairs_at: Ints
    first: Ints
    second: Ints
    sum: Floats


class Losses:
    """One problem; `tables` answers for one set of prices after another."""

    def __init__(self, network: Network) -> None:
        self._network = network
        curves = network.curves.distinct
        none = np.zeros(1)  # the menu of no operation
        self._times = [*(c.time_s for c in curves), none]
        self._costs = [*(c.cost_j for c in curves), none]
        self._numbers: dict[tuple[int, int], int] = {}
        self._pairs = list[tuple[Ints, Ints, Floats]]()
        self._menus: _Menus | None = None
        rows = [curves[c] for c in network.curve]
        apart_j = [float(c.cost_j[0] - c.cost_j.min()) for c in rows if len(c.hull_s) > 1]
        self._cap_j = CAP * float(np.mean(apart_j)) if apart_j else 0.0

    def rows(self, each: list[tuple[int, ...]], spines: int) -> Rows:
        """Tables of these rows, the first few of them of a spine."""
        none = len(self._times) - 1
        first = np.array([rows[0] if rows else -1 for rows in each], dtype=np.int64)
        second = np.array([rows[1] if len(rows) > 1 else -1 for rows in each], dtype=np.int64)
        curve = np.append(self._network.curve, none)  # row -1 has no curve
        pairs = zip(curve[first].tolist(), curve[second].tolist(), strict=True)
        kind = np.array([self._number(*pair) for pair in pairs], dtype=np.int64)
        return Rows(first, second, kind, np.arange(len(each)) < spines)

    def _number(self, first: int, second: int) -> int:
        if (first, second) not in self._numbers:
            self._numbers[first, second] = len(self._pairs)
            sums = (self._times[first][:, None] + self._times[second]).ravel()
            order = np.argsort(sums, kind="stable")
            width = len(self._times[second])
            self._pairs.append((order // width, order % width, sums[order]))
            self._menus = None
        return self._numbers[first, second]

    def _flat(self) -> tuple[_Menus, Ints, Ints]:
        if self._menus is None:
            at = np.cumsum([0, *map(len, self._times)])
            pairs_at = np.cumsum([0, *(len(sums) for _, _, sums in self._pairs)])
            self._menus = _Menus(
                at,
                np.concatenate(self._times),
                np.concatenate(self._costs),
                pairs_at,
                *(np.concatenate([pair[k] for pair in self._pairs]) for k in range(3)),
            )
        kinds = np.array(list(self._numbers), dtype=np.int64)
        return self._menus, kinds[:, 0].copy(), kinds[:, 1].copy()

    def tables(self, rows: Rows, price_w: Floats, cell_s: float, share: float) -> Tables:
        """At what flows through each row of the network, in watts; capped at a share of CAP."""
        cap_j = share * self._cap_j
        menus, first, second = self._flat()
        price = np.append(price_w, 0.0)
        own_w, other_w = price[rows.first], price[rows.second]
        wait_w = np.where(rows.second >= 0, np.minimum(own_w, other_w), own_w)
        starts = menus.sum[menus.pairs_at[:-1]][rows.kind]
        spans = menus.sum[menus.pairs_at[1:] - 1][rows.kind] - starts
        base = np.floor(starts / cell_s - EDGE).astype(np.int64)
        count = (spans / cell_s).astype(np.int64) + 2
        with np.errstate(all="ignore"):  # nothing flows: waits are free, no cells for them
            waits = np.where(wait_w > 0.0, cap_j / (wait_w * cell_s), 0.0)
        count += np.where(wait_w > 0.0, np.minimum(waits, count - 1).astype(np.int64) + 1, 0)
        value = np.full((len(base), int(count.max())), np.inf)
        beyond = np.empty(len(base))
        _fill(
            menus, first[rows.kind], second[rows.kind], rows.kind, rows.spine,
            (own_w, other_w, wait_w), cell_s, cap_j, base, value, count, beyond,
        )  # fmt: skip
        return Tables(base, value, count, beyond)


@exact
def _fill(
    menus: _Menus,
    first: Ints,
    second: Ints,
    kind: Ints,
    spine: NDArray[np.bool_],
    prices: tuple[Floats, Floats, Floats],
    cell: float,
    cap: float,
    base: Ints,
    value: Floats,
    count: Ints,
    beyond: Floats,
) -> None:
    most = 0
    for k in range(len(menus.pairs_at) - 1):
        most = max(most, menus.pairs_at[k + 1] - menus.pairs_at[k])
    loss = np.empty(most)
    for i in range(len(base)):
        a, b = menus.pairs_at[kind[i]], menus.pairs_at[kind[i] + 1]
        one, own = menus.at[first[i]], prices[0][i]
        two, other = menus.at[second[i]], prices[1][i]
        least_one = least_two = np.inf
        for o in range(one, menus.at[first[i] + 1]):
            least_one = min(least_one, menus.cost[o] + own * menus.time[o])
        for o in range(two, menus.at[second[i] + 1]):
            least_two = min(least_two, menus.cost[o] + other * menus.time[o])
        for k in range(a, b):
            o, t = one + menus.first[k], two + menus.second[k]
            loss[k - a] = (menus.cost[o] + own * menus.time[o] - least_one) + (
                menus.cost[t] + other * menus.time[t] - least_two
            )
        row, wait = value[i, : count[i]], prices[2][i]
        beyond[i] = min(
            cap, _cells(menus.sum[a:b], loss[: b - a], wait, cell, base[i], row, EDGE * cell)
        )
        for k in range(count[i]):
            row[k] = min(row[k], cap)
        if spine[i]:
            while count[i] > 1 and row[count[i] - 1] >= cap:
                count[i] -= 1


@exact
def _cells(
    time: Floats, loss: Floats, wait: float, cell: float, base: int, value: Floats, edge: float
) -> float:
    """Least of `loss[o] + wait * (x - time[o])` over options with time[o] <= x, for the x of
    each cell; returns it for all x beyond. Options by time."""
    now, o = np.inf, 0  # at the cell's lower edge
    for k in range(len(value)):
        upper = (base + k + 1) * cell
        least, then = now, now + wait * cell
        while o < len(time) and time[o] <= upper + edge:
            least = min(least, loss[o])
            then = min(then, loss[o] + wait * max(0.0, upper - time[o]))
            o += 1
        value[k] = least
        now = then
    for rest in range(o, len(time)):
        now = min(now, loss[rest])
    return now
