"""Search over clock schedules of all GPUs: simulated annealing on exact longest paths.

A schedule names a clock for each operation of a GPU and changes it only so often (Kirkpatrick,
Gelatt and Vecchi, Science 220, 1983). Each step gives one GPU a clock for a stretch of operations,
or moves a change. Being late costs more than any slowing saves, so that the way may lead
through late plans and ends in time. Most steps are refused before a longest path is computed: a
stretch that is slower ends no earlier than its own operations do.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Floats, Ints

REACH = 4  # columns by which a clock moves at once, at most; near ones are likelier
SHIFT = 8  # operations by which a change moves, likewise
# Kinds of steps, cumulative: move a change, another clock for a stretch, for a part, merge two.
MOVES, CLOCKS, PARTS = 0.4, 0.75, 0.9
HALF = 0.5
COPIED = 0.3  # of the parts: they take a clock that the GPU has elsewhere


class Board(NamedTuple):
    """One problem, by GPU. `row` is the row of each operation, in order, in the graph's levels;
    `asks` is the operation whose clock it has. `seconds` and `cost_j` are (GPUs, operations,
    columns), infinite where a clock was not measured. `works` is 1 for an operation that occupies
    its GPU, 0 for a send. `next_safe` is the place after each change at which every plan has kept
    the dwell (`dwell`).
    """

    row: Ints
    length: Ints
    asks: Ints
    columns: Ints
    seconds: Floats
    cost_j: Floats
    works: Floats
    next_safe: Ints
    begins: Ints
    before: Ints
    last: Ints


class Rules(NamedTuple):
    """What plans must keep: iteration time, changes of a GPU, dwell. What counts: a change in
    seconds and joules, watts for each second of iteration time and for being late."""

    deadline_s: float
    most: int
    dwell_s: float
    change_s: float
    change_j: float
    price_w: float
    late_w: float


class Step(NamedTuple):
    """Operations of a GPU whose time or cost a step changes, first ones alone: their rows, and what
    they took and take then."""

    row: Ints
    was_s: Floats
    new_s: Floats


@compiled
def annealed(
    board: Board,
    rules: Rules,
    keys: NDArray[np.int16],
    warm_j: float,
    cold_j: float,
    steps: int,
    seed: int,
) -> tuple[NDArray[np.int16], float]:
    """The best plan in time that so many steps pass through, and its value in joules: the sum of
    costs and `price_w` x time. Infinite where none is in time. Starts at `keys` (GPUs, operations),
    columns; the temperature falls from `warm_j` to `cold_j`.
    """
    rows = len(board.begins) - 1
    state = np.array([np.uint64(seed) * np.uint64(2) + np.uint64(88172645463325253)])
    now, best, old = keys.copy(), keys.copy(), keys[0].copy()
    step = Step(np.zeros(len(old), dtype=np.int64), np.empty(len(old)), np.empty(len(old)))
    busy_s, total_j = np.zeros(rows), 0.0
    for gpu in range(len(now)):
        total_j += _laid(now[gpu], gpu, board, rules, busy_s)
    end_s, tail_s = np.zeros(rows), np.zeros(rows)
    _forward(0, busy_s, board, end_s)
    _tails(busy_s, board, tail_s)
    time_s, tried_s = _longest(end_s, board), end_s.copy()
    value_j = _value_j(total_j, time_s, rules)
    best_j = value_j if time_s <= rules.deadline_s else np.inf
    for number in range(steps):
        heat_j = warm_j * (cold_j / warm_j) ** (number / steps)
        gpu = int(_random(state) * len(now))
        mine, size = now[gpu], board.length[gpu]
        old[:size] = mine[:size]
        touched, added_j, slower = 0, 0.0, False
        if _moved(mine, size, board.columns[gpu], rules.most, state):
            touched, added_j, slower = _weighed(gpu, mine, old, busy_s, board, rules, step)
        limit_j = value_j - heat_j * np.log(_random(state))
        least_s = max(time_s, _reached_s(touched, step, end_s, tail_s)) if slower else 0.0
        first = rows
        if touched > 0 and _value_j(total_j + added_j, least_s, rules) <= limit_j:
            first = _tried(touched, step, busy_s, board, end_s, tried_s)
            time_tried_s = _longest(tried_s, board)
            tried_j = _value_j(total_j + added_j, time_tried_s, rules)
        if first == rows or tried_j > limit_j:
            mine[:size] = old[:size]
            if first < rows:
                busy_s[step.row[:touched]] = step.was_s[:touched]
            continue
        total_j, value_j, time_s = total_j + added_j, tried_j, time_tried_s
        end_s, tried_s = tried_s, end_s
        _tails(busy_s, board, tail_s)
        if time_s <= rules.deadline_s and value_j < best_j:
            best_j = value_j
            best[:] = now
    return best, best_j


@compiled
def _value_j(total_j: float, time_s: float, rules: Rules) -> float:
    late_s = max(0.0, time_s - rules.deadline_s)
    return total_j + rules.price_w * time_s + rules.late_w * late_s


@compiled
def _weighed(
    gpu: int,
    mine: NDArray[np.int16],
    old: NDArray[np.int16],
    busy_s: Floats,
    board: Board,
    rules: Rules,
    step: Step,
) -> tuple[int, float, bool]:
    """Writes what a step changes; answers how many operations, joules, and whether none is faster.
    No operations where the schedule is not within the limits."""
    size, touched, changes, added_j, slower = board.length[gpu], 0, 0, 0.0, True
    for k in range(size):
        mine[k] = mine[board.asks[gpu, k]]
    for k in range(size):
        was = k - 1 if k > 0 else size - 1
        here, there = mine[k] != mine[was], old[k] != old[was]
        changes += here
        added_j += rules.change_j * (int(here) - int(there))
        if mine[k] == old[k] and (here == there or rules.change_s == 0.0):
            continue
        to_s = board.seconds[gpu, k, mine[k]] + rules.change_s * here
        if not to_s < np.inf:
            return 0, 0.0, False
        at = board.row[gpu, k]
        slower = slower and to_s >= busy_s[at]
        added_j += board.cost_j[gpu, k, mine[k]] - board.cost_j[gpu, k, old[k]]
        step.row[touched], step.was_s[touched], step.new_s[touched] = at, busy_s[at], to_s
        touched += 1
    if changes > rules.most or not _dwells(mine, gpu, board, rules.dwell_s):
        return 0, 0.0, False
    return touched, added_j, slower


@compiled
def _dwells(mine: NDArray[np.int16], gpu: int, board: Board, dwell_s: float) -> bool:
    """Whether the schedule of a GPU keeps the dwell in every plan, over the end of the iteration
    too."""
    size, first, last, own_s = board.length[gpu], -1, -1, 0.0
    for at in range(2 * size if dwell_s > 0.0 else 0):
        k = at % size
        if mine[k] != mine[k - 1 if k > 0 else size - 1]:
            if last >= 0 and at < board.next_safe[gpu, last] and own_s < dwell_s:
                return False
            if at == first + size:
                return True
            first, last, own_s = at if first < 0 else first, at, 0.0
        own_s += board.works[gpu, k] * board.seconds[gpu, k, mine[k]]
    return True


@compiled
def _reached_s(touched: int, step: Step, end_s: Floats, tail_s: Floats) -> float:
    """When the iteration ends at the earliest after a step that hastens nothing."""
    least_s, reached_s = 0.0, 0.0
    for n in range(touched):
        row = step.row[n]
        reached_s = max(reached_s, end_s[row] - step.was_s[n]) + step.new_s[n]
        least_s = max(least_s, reached_s + tail_s[row])
    return least_s


@compiled
def _tried(
    touched: int, step: Step, busy_s: Floats, board: Board, end_s: Floats, tried_s: Floats
) -> int:
    """Takes a step and writes the ends after it; answers the first row that it changes."""
    first = len(busy_s)
    for n in range(touched):
        busy_s[step.row[n]], first = step.new_s[n], min(first, step.row[n])
    tried_s[:first] = end_s[:first]
    _forward(first, busy_s, board, tried_s)
    return first


@compiled
def _laid(mine: NDArray[np.int16], gpu: int, board: Board, rules: Rules, busy_s: Floats) -> float:
    """Writes what the operations of a GPU take; answers what they cost."""
    size, total_j = board.length[gpu], 0.0
    for k in range(size):
        changed = mine[k] != mine[k - 1 if k > 0 else size - 1]
        busy_s[board.row[gpu, k]] = board.seconds[gpu, k, mine[k]] + rules.change_s * changed
        total_j += board.cost_j[gpu, k, mine[k]] + rules.change_j * changed
    return total_j


@compiled
def _forward(first: int, busy_s: Floats, board: Board, end_s: Floats) -> None:
    """Writes the ends of the rows from `first` on."""
    begins, before = board.begins, board.before
    for row in range(first, len(busy_s)):
        ready_s = 0.0
        for link in range(begins[row], begins[row + 1]):
            ready_s = max(ready_s, end_s[before[link]])
        end_s[row] = ready_s + busy_s[row]


@compiled
def _tails(busy_s: Floats, board: Board, tail_s: Floats) -> None:
    """Writes the longest way from the end of each row to the end of the iteration."""
    tail_s[:] = 0.0
    for row in range(len(busy_s) - 1, -1, -1):
        through_s = tail_s[row] + busy_s[row]
        for link in range(board.begins[row], board.begins[row + 1]):
            first = board.before[link]
            tail_s[first] = max(tail_s[first], through_s)


@compiled
def _longest(end_s: Floats, board: Board) -> float:
    """The iteration time."""
    longest_s = 0.0
    for row in board.last:
        longest_s = max(longest_s, end_s[row])
    return longest_s


@compiled
def _moved(
    mine: NDArray[np.int16], size: int, columns: int, most: int, state: NDArray[np.uint64]
) -> bool:
    """Changes the schedule of one GPU at random; false where that is not possible."""
    kind, at = _random(state), int(_random(state) * size)
    step = 1 + int(_random(state) ** 2 * REACH)
    if _random(state) < HALF:
        step = -step
    now, first, count = mine[at], at, size
    to = now + step
    if most > 1 and kind < MOVES:
        return _shifted(mine, size, at, step, state)
    if most > 1 and CLOCKS <= kind < PARTS:
        count = 1 + int(_random(state) ** 2 * size)
        if _random(state) < COPIED:
            to = mine[int(_random(state) * size)]
    elif most > 1:
        first, count = _stretch(mine, size, at)
        if kind >= PARTS:
            to = mine[first - 1 if first > 0 else size - 1]
    if to == now or not 0 <= to < columns:
        return False
    for k in range(first, first + count):
        mine[k % size] = to
    return True


@compiled
def _stretch(mine: NDArray[np.int16], size: int, at: int) -> tuple[int, int]:
    """The operations around one that have its clock: the first, and how many."""
    first, count = at, 1
    while count < size and mine[first - 1 if first > 0 else size - 1] == mine[at]:
        first, count = first - 1 if first > 0 else size - 1, count + 1
    while count < size and mine[(first + count) % size] == mine[at]:
        count += 1
    return first, count


@compiled
def _shifted(
    mine: NDArray[np.int16], size: int, at: int, step: int, state: NDArray[np.uint64]
) -> bool:
    """Moves the next change after an operation; false where there is none."""
    tried = 0
    while mine[at] == mine[at - 1 if at > 0 else size - 1] and tried < size:
        at = at + 1 if at + 1 < size else 0
        tried += 1
    shift = min(size, 1 + int(_random(state) ** 2 * SHIFT))
    after, before = mine[at], mine[at - 1 if at > 0 else size - 1]
    for k in range(shift):
        if step < 0:
            mine[(at - 1 - k) % size] = after
        else:
            mine[(at + k) % size] = before
    return tried < size


@compiled
def _random(state: NDArray[np.uint64]) -> float:
    """Marsaglia's xorshift64, in (0, 1)."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return (float(x >> np.uint64(11)) + 0.5) / 9007199254740992.0
