"""The cheapest clocks of one GPU's operations when they may change only so often.

Where prices say what a second of each operation is worth, stages no longer touch each other,
and one is a walk over its operations: at each either the clock stays or it changes, at most so
many times. Iterations repeat, so the way back from the last clock to the first is a change too.
Dynamic programming finds the best of all such walks, so what it finds under the prices of a flow
also proves a bound.
"""

import numpy as np

from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Floats, Ints

ROUND_OFF = 1e-12  # of a sum, in another order of its terms
LAYERS_MAX = 64  # changes counted one by one; memory is operations x clocks x this


@compiled
def cheapest(
    cost: Floats, until: Ints, most: int, change: float, closed: bool
) -> tuple[float, Ints]:
    """The least sum and its clocks (columns), one per operation.

    `cost` (operations, columns) is infinite where a clock was not measured, each change costs
    `change` more. At most `most` changes, uncounted above LAYERS_MAX. `until` (operations, columns)
    is the first place of the next change after one to a column before an operation: the number of
    operations is the end of the walk, a larger number forbids the change. `closed` walks end at
    the clock they began with. Infinite where there is no such walk.
    """
    size, columns = cost.shape
    counted = most <= LAYERS_MAX
    layers = most + 1 if counted else 1
    value, ahead = np.empty((size + 1, layers, columns)), np.empty((size + 1, layers, columns))
    came = np.empty((size + 1, layers, columns), dtype=np.int64)
    kept = _kept(cost, until, change)
    best, clocks = np.inf, np.zeros(size, dtype=np.int64)
    _open_walks(cost, until, kept, counted, ahead)
    open_ends = ahead[0, layers - 1]  # no walk from there and back costs less
    for start in np.argsort(open_ends):
        if not open_ends[start] < best:
            break
        _walk(cost, until, kept, counted, start, value, came, ahead, best)
        least, layer, column = _end(value[size], counted, change, start, closed)
        if not least < best:
            continue
        best, at = least, size
        while at > 0:
            k, origin = came[at, layer, column] // columns, came[at, layer, column] % columns
            clocks[k:at] = column
            if counted and origin != column:
                layer -= 1
            at, column = k, origin
    return best, clocks


@compiled
def _kept(cost: Floats, until: Ints, change: float) -> Floats:
    """What a change to each column before each operation costs until the next may come; infinite
    where there is none."""
    size, columns = cost.shape
    kept = np.full((size, columns), np.inf)
    for f in range(columns):
        total, barred = np.zeros(size + 1), np.zeros(size + 1, dtype=np.int64)
        for at in range(size):
            finite = cost[at, f] < np.inf
            total[at + 1] = total[at] + (cost[at, f] if finite else 0.0)
            barred[at + 1] = barred[at] + (0 if finite else 1)
        for k in range(1, size):
            to = until[k, f]
            if to <= size and barred[to] == barred[k]:
                spent = cost[k, f] if to == k + 1 else total[to] - total[k]
                kept[k, f] = change + spent
    return kept


@compiled
def _open_walks(cost: Floats, until: Ints, kept: Floats, counted: bool, value: Floats) -> None:
    """Writes the least sums from each operation on, by changes left and column, without the way
    back to the first clock."""
    size, columns = cost.shape
    layers = value.shape[1]
    value[size] = 0.0
    moved = np.empty(columns)
    for k in range(size - 1, -1, -1):
        for layer in range(layers):
            left, now, on = layer - 1 if counted else layer, value[k, layer], value[k + 1, layer]
            for f in range(columns):
                now[f] = cost[k, f] + on[f]
            if left < 0:
                continue
            for f in range(columns):
                moved[f] = np.inf
                if kept[k, f] < np.inf:
                    moved[f] = kept[k, f] + value[until[k, f], left, f]
            best, second = _least(moved)
            for f in range(columns):
                onto = best if f != best else second
                if onto >= 0 and moved[onto] < now[f]:
                    now[f] = moved[onto]


@compiled
def _walk(
    cost: Floats,
    until: Ints,
    kept: Floats,
    counted: bool,
    start: int,
    value: Floats,
    came: Ints,
    ahead: Floats,
    least: float,
) -> None:
    """Writes the least sums of walks that begin at column `start`, and where they came from. What
    cannot end below `least`, as `ahead` says (`_open_walks`), is left out."""
    size, columns = cost.shape
    layers = value.shape[1]
    value[:] = np.inf
    value[0, 0, start] = 0.0
    within = least + ROUND_OFF * abs(least)
    for k in range(size):
        for layer in range(layers):
            now, on, to_go = value[k, layer], value[k + 1, layer], ahead[k, layers - 1 - layer]
            for f in range(columns):
                if now[f] + to_go[f] > within:
                    now[f] = np.inf
            best, second = _least(now)
            if best < 0:
                continue
            for f in range(columns):
                if now[f] + cost[k, f] < on[f]:
                    on[f] = now[f] + cost[k, f]
                    came[k + 1, layer, f] = k * columns + f
            up = layer + 1 if counted else layer
            if k == 0 or up == layers:
                continue
            for f in range(columns):
                origin, to = best if f != best else second, until[k, f]
                if origin < 0 or not kept[k, f] < np.inf:
                    continue
                moved = now[origin] + kept[k, f]
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


@compiled
def _end(
    last: Floats, counted: bool, change: float, start: int, closed: bool
) -> tuple[float, int, int]:
    """The best end of walks from `start`, the way back there counted."""
    layers, columns = last.shape
    least, layer, column = np.inf, 0, 0
    for j in range(layers):
        for f in range(columns):
            back = f != start
            if back and (closed or (counted and j + 1 == layers)):
                continue
            reached = last[j, f] + (change if back else 0.0)
            if reached < least:
                least, layer, column = reached, j, f
    return least, layer, column
