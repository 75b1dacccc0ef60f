"""The cheapest clocks of one GPU's operations when they may change only so often.

Where prices say what a second of each operation is worth, stages no longer touch each other. A
schedule of one GPU is then a row of stretches at one clock, at most so many, and each ends where it
may: not before its dwell is over, and not after the iteration would be late with it. Iterations
repeat, so the way back from the last clock to the first is a change too. Dynamic programming, from
the last operation to the first, finds the best of all such rows, so what it finds under the prices
of a flow also proves a bound.
"""

from typing import NamedTuple

import numpy as np

from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Floats, Ints

ROUND_OFF = 1e-12  # of the largest sum: terms are added in another order
LAYERS_MAX = 64  # changes counted one by one; memory is operations x clocks x this
ANY = -1  # in the place of a column: a row of stretches may end at any clock


class _Asked(NamedTuple):
    """`total` (operations + 1, columns) is what all operations before one cost at a clock. A
    stretch that begins at an operation ends from `until` to `last`."""

    total: Floats
    until: Ints
    last: Ints
    change: float
    counted: bool
    closed: bool


class _Queue(NamedTuple):
    """By changes left and column: ends of a stretch that may still be the best, the best first, and
    what rows cost with them from the beginning on; those from `front` to `back` count. They leave
    as the latest end comes nearer, and where an earlier end is as good. Ends from `reached` on have
    been in it."""

    ends: Ints
    sums: Floats
    front: Ints
    back: Ints
    reached: Ints


@compiled
def cheapest(
    cost: Floats, until: Ints, latest: Ints, most: int, change: float, closed: bool
) -> tuple[float, Ints]:
    """The least sum and its clocks (columns), one per operation.

    `cost` (operations, columns) is infinite where a clock was not measured, each change costs
    `change` more. At most `most` changes, uncounted above LAYERS_MAX. A stretch at a column from an
    operation on ends before one from `until` to `latest` (operations, columns; neither falls with
    the operation); the number of operations is the end of the row, and a larger `until` forbids the
    stretch. The first stretch may end sooner. `closed` rows end at the clock they began with.
    Infinite where there is no such row.
    """
    size, columns = cost.shape
    counted = most <= LAYERS_MAX
    layers = most + 1 if counted else 1
    ahead, value = np.empty((size + 1, layers, columns)), np.empty((size + 1, layers, columns))
    ends = np.empty((size, layers, columns), dtype=np.int64)
    onto = np.empty((size + 1, layers, 2), dtype=np.int64)
    total, last = _totals(cost, latest)
    asked = _Asked(total, until, last, change, counted, closed)
    behind = np.full((size, layers), -np.inf)
    _stretches(asked, ANY, behind, np.zeros_like(ahead), np.inf, ahead, ends, onto)
    best, clocks, within = np.inf, np.zeros(size, dtype=np.int64), np.inf
    if not closed and counted and most > 0:  # a change is left for the way back
        within = ahead[0, layers - 2].min() + change
    for start in np.argsort(ahead[0, layers - 1]):
        limit = min(within, best) + ROUND_OFF * np.abs(total).max()
        if ahead[0, layers - 1, start] > limit or not ahead[0, layers - 1, start] < best:
            break
        if counted:
            _behind(total, start, change, behind)
        _stretches(asked, start, behind, ahead, limit, value, ends, onto)
        if not value[0, layers - 1, start] < best:
            continue
        best, at, layer, column = value[0, layers - 1, start], 0, layers - 1, start
        while at < size:
            end = ends[at, layer, column]
            clocks[at:end] = column
            if end < size:
                layer = layer - 1 if counted else layer
                other = onto[end, layer, 0]
                column = other if other != column else onto[end, layer, 1]
            at = end
    return best, clocks


@compiled
def _totals(cost: Floats, latest: Ints) -> tuple[Floats, Ints]:
    """What all operations before each one cost at each clock, and the latest ends of stretches that
    hold no operation without this clock."""
    size, columns = cost.shape
    total, last = np.zeros((size + 1, columns)), latest.copy()
    for f in range(columns):
        barred = size
        for k in range(size):
            total[k + 1, f] = total[k, f] + (cost[k, f] if cost[k, f] < np.inf else 0.0)
        for k in range(size - 1, -1, -1):
            barred = k if not cost[k, f] < np.inf else barred
            last[k, f] = min(last[k, f], barred)
    return total, last


@compiled
def _behind(total: Floats, start: int, change: float, behind: Floats) -> None:
    """Writes, by operation and changes left, what lies before a stretch that begins there costs at
    least in a row that begins with the column `start`, the change included."""
    size, layers = behind.shape
    columns = total.shape[1]
    behind[:, layers - 1] = np.inf
    behind[0, layers - 1] = 0.0
    for layer in range(layers - 2, -1, -1):
        begun = np.full(columns, np.inf)
        for k in range(size):
            behind[k, layer] = np.inf
            for f in range(columns):
                behind[k, layer] = min(behind[k, layer], begun[f] + total[k, f] + change)
                if layer < layers - 2 or f == start:
                    begun[f] = min(begun[f], behind[k, layer + 1] - total[k, f])


@compiled
def _stretches(
    asked: _Asked,
    start: int,
    behind: Floats,
    ahead: Floats,
    limit: float,
    value: Floats,
    ends: Ints,
    onto: Ints,
) -> None:
    """Writes, by operation, changes left and column, the least sum from there on of rows that have
    a stretch begin there, and where it ends; `onto` are the two best columns of the next one. Rows
    end at the column `start`, or pay for the way back. Those that cost more than `limit` are left
    out, as far as what lies `behind` and `ahead` at least says so."""
    size, layers, columns = ends.shape
    places = np.empty((layers, columns, size + 1), dtype=np.int64)
    front, reached = np.zeros((layers, columns), np.int64), np.full((layers, columns), size + 1)
    queue = _Queue(places, np.empty(places.shape), front, front.copy(), reached)
    value[size] = np.inf
    for k in range(size - 1, -1, -1):
        for layer in range(layers):
            left, first, second = layer - 1 if asked.counted else layer, -1, -1
            for f in range(columns):
                value[k, layer, f], ends[k, layer, f] = np.inf, size
                way_back = 0.0
                if start not in (ANY, f):
                    way_back = np.inf if asked.closed or left < 0 else asked.change
                if start not in (ANY, f) and (k == 0 or left < 0):
                    continue
                if behind[k, layer] + ahead[k, layer, f] > limit:
                    continue
                at = _best_end(asked, k, layer, left, f, way_back, queue, value, onto)
                if at < 0:
                    continue
                value[k, layer, f] = queue.sums[layer, f, at] - asked.total[k, f]
                ends[k, layer, f] = queue.ends[layer, f, at]
                if first < 0 or value[k, layer, f] < value[k, layer, first]:
                    first, second = f, first
                elif second < 0 or value[k, layer, f] < value[k, layer, second]:
                    second = f
            onto[k, layer, 0], onto[k, layer, 1] = first, second


@compiled
def _best_end(
    asked: _Asked,
    k: int,
    layer: int,
    left: int,
    f: int,
    way_back: float,
    queue: _Queue,
    value: Floats,
    onto: Ints,
) -> int:
    """Where the best end of a stretch stands in its queue, brought up to date; -1 without one."""
    size, ends, sums = len(onto) - 1, queue.ends[layer, f], queue.sums[layer, f]
    head, tail = queue.front[layer, f], queue.back[layer, f]
    earliest = asked.until[k, f] if k > 0 else 1
    for end in range(queue.reached[layer, f] - 1, earliest - 1, -1):
        rest = way_back if end == size else np.inf
        if end < size and left >= 0:
            to = onto[end, left, 0] if onto[end, left, 0] != f else onto[end, left, 1]
            rest = asked.change + value[end, left, to] if to >= 0 else np.inf
        if rest < np.inf:
            while tail > head and sums[tail - 1] >= asked.total[end, f] + rest:
                tail -= 1
            ends[tail], sums[tail] = end, asked.total[end, f] + rest
            tail += 1
    while head < tail and ends[head] > asked.last[k, f]:
        head += 1
    queue.reached[layer, f] = min(queue.reached[layer, f], earliest)
    queue.front[layer, f], queue.back[layer, f] = head, tail
    return head if head < tail else -1
