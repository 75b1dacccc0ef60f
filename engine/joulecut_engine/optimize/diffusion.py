"""The walks over all operations that rounding is made of, compiled.

`begin` rounds a relaxed schedule (error diffusion), `roll` varies windows of a plan while
everything outside stands still: heads before a window and tails after it stay what they are,
so a trial costs the window and not the iteration.

Written for the compiler: indices are unsigned, since each signed one is asked whether it
counts from the end, arrays are taken out of their tuples before a loop (each access would count
references), and rows without a neighbour have one that takes no time, so that nobody need ask.
With searches that begin where the last one ended, a sweep takes a quarter of the time.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Floats, Ints

THRIFT_MAX = 1.3  # above 1 an operation gives way; far above 1 it gives way too much to come back
RAMP = 0.3  # thrift given up per sweep
TRIALS = 5  # per window before the next one has its turn

Mark = np.uint64
Marks = NDArray[np.uint64]
ZERO, ONE, TWO = Mark(0), Mark(1), Mark(2)


class Menu(NamedTuple):
    """Options of row i are first[i] to last[i] of `time` and `cost`, fastest first and each
    cheaper than the one before."""

    first: Ints
    last: Ints
    time: Floats
    cost: Floats


class Rows(NamedTuple):
    """A menu and its rows' neighbours. Those before row i are enters[i] to enters[i + 1] of
    `before`, those after it leaves[i] to leaves[i + 1] of `after`; row `len(first)` is what has
    none. No option costs less than `hull`, which is convex in time; `group` tells which rows
    are varied alike (microbatches)."""

    before: Marks
    enters: Marks
    after: Marks
    leaves: Marks
    first: Marks
    last: Marks
    time: Floats
    cost: Floats
    hull: Floats
    group: Marks


class Priced(NamedTuple):
    """What `_pick` reads of `Rows`."""

    time: Floats
    cost: Floats
    hull: Floats


class Choice(NamedTuple):
    """An option per row, its earliest start and end, and the longest way from its end, and from
    its start, to the very end; the last two of row `len(option)` stay 0."""

    option: Marks
    head: Floats
    tail: Floats
    end: Floats
    rest: Floats


def blank(rows: Rows) -> Choice:
    """Everything at its fastest; no lengths yet."""
    size = len(rows.first)
    return Choice(
        rows.first.copy(), np.zeros(size), np.zeros(size), np.zeros(size + 1), np.zeros(size + 1)
    )


@exact
def _longest(neighbour: Marks, first: Mark, last: Mark, length: Floats) -> float:
    longest = 0.0
    for e in range(first, last):
        longest = max(longest, length[neighbour[e]])
    return longest


@exact
def makespan(rows: Rows, option: Marks) -> float:
    before, enters, time = rows.before, rows.enters, rows.time
    size = Mark(len(option))
    last, end = 0.0, np.zeros(size + ONE)
    for i in range(size):
        end[i] = _longest(before, enters[i], enters[i + ONE], end) + time[option[i]]
        last = max(last, end[i])
    return last


@exact
def every(rows: Rows, option: Marks, limit: float, price: float) -> None:
    """The best of all combinations, counted through like an odometer; `option` begins at the
    fastest of each row and ends as the answer."""
    now, size = option.copy(), Mark(len(option))
    best = np.inf
    while True:
        end = makespan(rows, now)
        if end <= limit:
            value = rows.cost[now].sum() + price * end
            if value < best:
                best = value
                option[:] = now
        i = ZERO
        while i < size and now[i] + ONE == rows.last[i]:
            now[i] = rows.first[i]
            i += ONE
        if i == size:
            return
        now[i] += ONE


@exact
def _heads(rows: Rows, choice: Choice, a: Mark, b: Mark) -> None:
    before, enters, time = rows.before, rows.enters, rows.time
    option, head, end = choice.option, choice.head, choice.end
    for i in range(a, b):
        head[i] = _longest(before, enters[i], enters[i + ONE], end)
        end[i] = head[i] + time[option[i]]


@exact
def _tails(rows: Rows, choice: Choice, a: Mark, b: Mark) -> None:
    after, leaves, time = rows.after, rows.leaves, rows.time
    option, tail, rest = choice.option, choice.tail, choice.rest
    for done in range(b - a):
        i = b - ONE - done
        tail[i] = _longest(after, leaves[i], leaves[i + ONE], rest)
        rest[i] = tail[i] + time[option[i]]


@exact
def _pick(menu: Priced, first: Mark, last: Mark, now: Mark, left: float, price: float) -> Mark:
    """The best option that takes no longer than `left`, of equals the slowest; the fastest where
    none does. Sought from `now` on."""
    time, cost, hull = menu
    k = now
    while k + ONE < last and time[k + ONE] <= left:
        k += ONE
    while k > first and time[k] > left:
        k -= ONE
    best, least = k, cost[k] + price * time[k]
    # The hull is convex: once it is above, it stays there.
    while price > 0.0 and k > first and hull[k - ONE] + price * time[k - ONE] <= least:
        k -= ONE
        value = cost[k] + price * time[k]
        if value < least:
            best, least = k, value
    return best


@exact
def _sweep(
    rows: Rows,
    choice: Choice,
    a: Mark,
    b: Mark,
    horizon: float,
    price: Floats,
    thrift: Floats,
    forwards: bool,
) -> None:
    """One walk over rows a to b; the other direction's lengths limit it."""
    menu = Priced(rows.time, rows.cost, rows.hull)
    time, first, last = rows.time, rows.first, rows.last
    option, head, tail, end, rest = choice
    if forwards:
        before, enters = rows.before, rows.enters
        for i in range(a, b):
            head[i] = _longest(before, enters[i], enters[i + ONE], end)
            left = horizon - tail[i] - head[i]
            k = _pick(menu, first[i], last[i], option[i], left, price[i] * thrift[i])
            option[i], end[i] = k, head[i] + time[k]
    else:
        after, leaves = rows.after, rows.leaves
        for done in range(b - a):
            j = b - ONE - done
            tail[j] = _longest(after, leaves[j], leaves[j + ONE], rest)
            left = horizon - tail[j] - head[j]
            k = _pick(menu, first[j], last[j], option[j], left, price[j] * thrift[j])
            option[j], rest[j] = k, tail[j] + time[k]


@exact
def _spend(
    rows: Rows, choice: Choice, a: Mark, b: Mark, horizon: float, price: Floats, thrift: Floats
) -> None:
    """Sweeps to and fro while thrift falls to 0, then once more each way."""
    forwards, again, more = True, 2, True
    while more or again > 0:
        _sweep(rows, choice, a, b, horizon, price, thrift, forwards)
        forwards = not forwards
        if not more:
            again -= 1
        more = False
        for i in range(a, b):
            if thrift[i] > 0.0:
                more = True
                thrift[i] = thrift[i] - RAMP if thrift[i] > RAMP else 0.0


@exact
def begin(
    rows: Rows, choice: Choice, horizon: float, price: Floats, limit: Floats, thrift: float
) -> None:
    """Rounds a relaxed schedule whose rows end at `limit`; what cannot end by then but still
    meets the horizon takes its fastest option."""
    size = Mark(len(rows.first))
    _tails(rows, choice, ZERO, size)
    for i in range(size):
        choice.tail[i] = max(choice.tail[i], horizon - limit[i] * (1.0 + 1e-9))
    share = np.full(size, thrift)
    _sweep(rows, choice, ZERO, size, horizon, price, share, True)
    _tails(rows, choice, ZERO, size)
    _spend(rows, choice, ZERO, size, horizon, price, share)


@exact
def roll(
    rows: Rows,
    choice: Choice,
    horizon: float,
    price: Floats,
    state: NDArray[np.uint64],
    forwards: bool,
    alike: bool,
    heat: float,
    window: int,
) -> None:
    """One pass of the window over all rows, half a window at a time."""
    size = Mark(len(rows.first))
    width = min(Mark(window), size)
    thrift = np.zeros(size)
    by_group = np.zeros(rows.group.max() + ONE)
    _heads(rows, choice, ZERO, size)
    _tails(rows, choice, ZERO, size)
    windows = ONE + (TWO * (size - width) + width - ONE) // width
    for w in range(windows):
        a = min(w * width // TWO, size - width)
        if not forwards:
            a = size - width - a
        b = a + width
        _heads(rows, choice, a, b)
        _tails(rows, choice, a, b)
        option, head = choice.option[a:b].copy(), choice.head[a:b].copy()
        tail, cost = choice.tail[a:b].copy(), rows.cost[choice.option[a:b]].sum()
        for _ in range(TRIALS):
            _shuffle(rows, a, b, thrift, by_group, state, alike)
            _spend(rows, choice, a, b, horizon, price, thrift)
            now = rows.cost[choice.option[a:b]].sum()
            if now < cost - heat * np.log(_random(state)) * (heat > 0.0) - 1e-12 * abs(cost):
                option[:], head[:] = choice.option[a:b], choice.head[a:b]
                tail[:], cost = choice.tail[a:b], now
            else:
                choice.option[a:b], choice.head[a:b] = option, head
                choice.tail[a:b] = tail
        _heads(rows, choice, a, b)
        _tails(rows, choice, a, b)


@exact
def _shuffle(
    rows: Rows,
    a: Mark,
    b: Mark,
    thrift: Floats,
    by_group: Floats,
    state: NDArray[np.uint64],
    alike: bool,
) -> None:
    group = rows.group
    for i in range(a, b):
        thrift[i] = THRIFT_MAX * _random(state)
        by_group[group[i]] = thrift[i]
    if alike:
        for i in range(a, b):
            thrift[i] = by_group[group[i]]


@exact
def _random(state: NDArray[np.uint64]) -> float:
    """Marsaglia's xorshift64, in (0, 1)."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return (float(x >> np.uint64(11)) + 0.5) / 9007199254740992.0
