"""The cheapest clocks of one GPU's operations when they may change only so often.

Where prices say what a second of each operation is worth, stages no longer touch each other,
and one is a walk over its operations: at each either the clock stays or it changes, at most so
many times. Dynamic programming finds the best of all such walks, so what it finds under the
prices of a flow also proves a bound.
"""

import numpy as np

from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Floats, Ints

LAYERS_MAX = 64  # changes counted one by one; memory is operations x clocks x this


@compiled
def cheapest(
    cost: Floats, change: Floats, most: int, counted: bool, free: Ints, tied: int
) -> tuple[float, Ints]:
    """The least sum and its clocks (columns), one per operation of a line.

    `cost` (operations, columns) is infinite where a clock was not measured; `change[k]` is what
    a change before operation k costs. At most `most` changes, uncounted where `counted` is
    false; after one before k the next may come before `free[k]` > k. With `tied` >= 0 the line
    begins and ends at that column. Infinite where there is no such walk.
    """
    size, columns = cost.shape
    layers = most + 1 if counted else 1
    value = np.full((size + 1, layers, columns), np.inf)
    came = np.full((size + 1, layers, columns), -1, dtype=np.int64)
    total, barred = _sums(cost)
    for f in range(columns):
        if tied in (-1, f):
            value[0, 0, f] = 0.0
    for k in range(size):
        until = min(free[k], size)
        for layer in range(layers):
            now, on = value[k, layer], value[k + 1, layer]
            for f in range(columns):
                if now[f] + cost[k, f] < on[f]:
                    on[f] = now[f] + cost[k, f]
                    came[k + 1, layer, f] = k * columns + f
            up = layer + 1 if counted else layer
            if k == 0 or up == layers:
                continue
            best, second = _least(now)
            for f in range(columns):
                origin = best if f != best else second
                if origin < 0 or barred[until, f] > barred[k, f]:
                    continue
                spent = cost[k, f] if until == k + 1 else total[until, f] - total[k, f]
                moved = now[origin] + change[k] + spent
                if moved < value[until, up, f]:
                    value[until, up, f] = moved
                    came[until, up, f] = k * columns + origin
    return _walked(value, came, counted, tied)


@compiled
def _sums(cost: Floats) -> tuple[Floats, Ints]:
    """Of all operations before each, by column: what they cost, and how many have no price."""
    size, columns = cost.shape
    total, barred = np.zeros((size + 1, columns)), np.zeros((size + 1, columns), dtype=np.int64)
    for k in range(size):
        for f in range(columns):
            finite = cost[k, f] < np.inf
            total[k + 1, f] = total[k, f] + (cost[k, f] if finite else 0.0)
            barred[k + 1, f] = barred[k, f] + (0 if finite else 1)
    return total, barred


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


@compiled
def _walked(value: Floats, came: Ints, counted: bool, tied: int) -> tuple[float, Ints]:
    """The best end and the way to it."""
    size, layers, columns = value.shape
    least, layer, column = np.inf, 0, 0
    for j in range(layers):
        for f in range(columns):
            if value[size - 1, j, f] < least and tied in (-1, f):
                least, layer, column = value[size - 1, j, f], j, f
    clocks = np.zeros(size - 1, dtype=np.int64)
    at = size - 1
    while at > 0 and least < np.inf:
        k, origin = came[at, layer, column] // columns, came[at, layer, column] % columns
        clocks[k:at] = column
        if counted and origin != column:
            layer -= 1
        at, column = k, origin
    return least, clocks
