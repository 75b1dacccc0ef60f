"""The cheapest clocks of one GPU's operations when they may change only so often.

Where prices say what a second of each operation is worth, stages no longer touch each other,
and one is a walk over its operations: at each either the clock stays or it changes, at most so
many times and not too soon again. Iterations repeat, so the way back from the last clock to the
first is a change too. Dynamic programming finds the best of all such walks, so what it finds under
the prices of a flow also proves a bound.

The walk knows when its own changes may follow each other, but not yet how soon the first one comes
after the last one of the iteration before. Where that is too soon, the first is later or the last
is earlier: both cases are walked, cheapest first.
"""

import heapq
import math

import numpy as np

from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Floats, Ints

LAYERS_MAX = 64  # changes counted one by one; memory is operations x clocks x this
CASES_MAX = 16  # walks of one GPU; a few are the rule


def cheapest(
    cost: Floats, most: int, change: float, again: Ints, wrap: Ints
) -> tuple[float, Ints | None]:
    """A bound on the sum of every walk, and the clocks (columns) of a walk, one per operation.

    `cost` (operations, columns) is infinite where a clock was not measured, each change costs
    `change` more. At most `most` changes, uncounted above LAYERS_MAX. After one at operation k the
    next comes at operation `again[k]` at the earliest, and after the last one of an iteration, k,
    the first one of the next at `wrap[k]`. The bound is the sum of the walk, unless there were too
    many cases. Infinite where there is no walk.
    """
    size, serial = len(cost), 0
    cases = [(0.0, serial, 0, size - 1, np.zeros(0, dtype=np.int64))]
    while cases:
        least, number, first, last, clocks = heapq.heappop(cases)
        if len(clocks):
            at = np.flatnonzero(clocks != np.roll(clocks, 1))
            if not len(at) or at[0] >= wrap[at[-1]]:
                return least, clocks
            if number > CASES_MAX:
                return least, None
            tried = [(int(at[0]) + 1, last), (first, int(at[-1]) - 1)]
        else:
            tried = [(first, last)]
        for begin, end in tried:
            serial += 1
            value, clocks = _cheapest(cost, again, most, change, begin, end)
            if value < math.inf:
                heapq.heappush(cases, (max(value, least), serial, begin, end, clocks))
    return math.inf, None


@compiled
def _cheapest(
    cost: Floats, again: Ints, most: int, change: float, begin: int, end: int
) -> tuple[float, Ints]:
    """The cheapest walk whose changes stand at operations `begin` to `end`."""
    size, columns = cost.shape
    counted = most <= LAYERS_MAX
    layers = most + 1 if counted else 1
    value = np.empty((size + 1, layers, columns))
    came = np.empty((size + 1, layers, columns), dtype=np.int64)
    total, barred = np.zeros((size + 1, columns)), np.zeros((size + 1, columns), dtype=np.int64)
    for k in range(size):
        for f in range(columns):
            finite = cost[k, f] < np.inf
            total[k + 1, f] = total[k, f] + (cost[k, f] if finite else 0.0)
            barred[k + 1, f] = barred[k, f] + (0 if finite else 1)
    best, clocks = np.inf, np.zeros(size, dtype=np.int64)
    _open_walks(cost, again, total, barred, counted, change, begin, end, value)
    open_ends = value[0, layers - 1].copy()  # no walk from there and back costs less
    for start in np.argsort(open_ends):
        if not open_ends[start] < best:
            break
        _walk(cost, again, total, barred, counted, change, begin, end, start, value, came)
        layer = int(np.argmin(value[size, :, start]))
        if not value[size, layer, start] < best:
            continue
        best = value[size, layer, start]
        at, column = size, start
        while at > 0:
            k, origin = came[at, layer, column] // columns, came[at, layer, column] % columns
            clocks[k:at] = column
            if counted and origin != column:
                layer -= 1
            at, column = k, origin
    return best, clocks


@compiled
def _open_walks(
    cost: Floats,
    again: Ints,
    total: Floats,
    barred: Ints,
    counted: bool,
    change: float,
    begin: int,
    end: int,
    value: Floats,
) -> None:
    """Writes the least sums from each operation on, by changes left and column before it, without
    the way back to the first clock."""
    size, columns = cost.shape
    layers = value.shape[1]
    value[:] = np.inf
    value[size] = 0.0
    moved = np.empty(columns)
    for k in range(size - 1, -1, -1):
        to = min(again[k], size)
        for layer in range(layers):
            left = layer - 1 if counted else layer
            for f in range(columns):
                value[k, layer, f] = cost[k, f] + value[k + 1, layer, f]
                moved[f] = np.inf
                if left >= 0 and begin <= k <= end and barred[to, f] == barred[k, f]:
                    spent = cost[k, f] if to == k + 1 else total[to, f] - total[k, f]
                    moved[f] = change + spent + value[to, left, f]
            best, second = _least(moved)
            for f in range(columns):
                onto = best if f != best else second
                if onto >= 0 and moved[onto] < value[k, layer, f]:
                    value[k, layer, f] = moved[onto]


@compiled
def _walk(
    cost: Floats,
    again: Ints,
    total: Floats,
    barred: Ints,
    counted: bool,
    change: float,
    begin: int,
    end: int,
    start: int,
    value: Floats,
    came: Ints,
) -> None:
    """Writes the least sums of walks that come from column `start`, and where they came from."""
    size, columns = cost.shape
    layers = value.shape[1]
    value[:] = np.inf
    value[0, 0, start] = 0.0
    for k in range(size):
        to = min(again[k], size)
        for layer in range(layers):
            now, on = value[k, layer], value[k + 1, layer]
            best, second = _least(now)
            if best < 0:
                continue
            for f in range(columns):
                if now[f] + cost[k, f] < on[f]:
                    on[f] = now[f] + cost[k, f]
                    came[k + 1, layer, f] = k * columns + f
            up = layer + 1 if counted else layer
            if not begin <= k <= end or up == layers:
                continue
            for f in range(columns):
                origin = best if f != best else second
                if origin < 0 or barred[to, f] > barred[k, f]:
                    continue
                spent = cost[k, f] if to == k + 1 else total[to, f] - total[k, f]
                moved = now[origin] + change + spent
                if moved < value[to, up, f]:
                    value[to, up, f] = moved
                    came[to, up, f] = k * columns + origin


@compiled
def _least(now: Floats) -> tuple[int, int]:
    """The two smallest, -1 for what is not there."""
    best, second = -1, -1
    for f in range(len(now)):
        if now[f] < np.inf:
            if best < 0 or now[f] < now[best]:
                best, second = f, best
            elif second < 0 or now[f] < now[second]:
                second = f
    return best, second
