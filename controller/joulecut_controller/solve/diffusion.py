"""The walks over all operations that rounding is made of, compiled.

`begin` rounds a relaxed schedule (error diffusion), `roll` varies windows of a plan while
everything outside stands still: heads before a window and tails after it stay what they are,
so a trial costs the window and not the iteration.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.solve.compiled import exact
from joulecut_controller.solve.waves import Floats, Ints

THRIFT_MAX = 1.3  # above 1 an operation gives way; far above 1 it gives way too much to come back
RAMP = 0.3  # thrift given up per sweep
TRIALS = 5  # per window before the next one has its turn


class Menu(NamedTuple):
    """Options of row i are first[i] to last[i] of `time` and `cost`, fastest first and each
    cheaper than the one before; links as in `Network`; `group` tells which rows are varied
    alike (microbatches)."""

    tails: Ints
    heads: Ints
    leaves: Ints
    enters: Ints
    entering: Ints
    first: Ints
    last: Ints
    time: Floats
    cost: Floats
    group: Ints


class Choice(NamedTuple):
    """An option per row, its earliest start, and the longest way from its end to the very end."""

    option: Ints
    head: Floats
    tail: Floats


@exact
def makespan(menu: Menu, option: Ints) -> float:
    last, end = 0.0, np.zeros(len(option))
    for i in range(len(option)):
        begin = 0.0
        for e in range(menu.enters[i], menu.enters[i + 1]):
            before = menu.tails[menu.entering[e]]
            if before >= 0:
                begin = max(begin, end[before])
        end[i] = begin + menu.time[option[i]]
        last = max(last, end[i])
    return last


@exact
def every(menu: Menu, option: Ints, limit: float, price: float) -> None:
    """The best of all combinations, counted through like an odometer; `option` begins at the
    fastest of each row and ends as the answer."""
    now = option.copy()
    best = np.inf
    while True:
        end = makespan(menu, now)
        if end <= limit:
            value = menu.cost[now].sum() + price * end
            if value < best:
                best = value
                option[:] = now
        i = 0
        while i < len(now) and now[i] + 1 == menu.last[i]:
            now[i] = menu.first[i]
            i += 1
        if i == len(now):
            return
        now[i] += 1


@exact
def _heads(menu: Menu, choice: Choice, a: int, b: int) -> None:
    for i in range(a, b):
        choice.head[i] = _earliest(menu, choice, i)


@exact
def _tails(menu: Menu, choice: Choice, a: int, b: int) -> None:
    for i in range(b - 1, a - 1, -1):
        choice.tail[i] = _rest(menu, choice, i)


@exact
def _earliest(menu: Menu, choice: Choice, i: int) -> float:
    start = 0.0
    for e in range(menu.enters[i], menu.enters[i + 1]):
        before = menu.tails[menu.entering[e]]
        if before >= 0:
            start = max(start, choice.head[before] + menu.time[choice.option[before]])
    return start


@exact
def _rest(menu: Menu, choice: Choice, i: int) -> float:
    rest = 0.0
    for link in range(menu.leaves[i], menu.leaves[i + 1]):
        after = menu.heads[link]
        if after < len(menu.first):
            rest = max(rest, choice.tail[after] + menu.time[choice.option[after]])
    return rest


@exact
def _pick(menu: Menu, i: int, left: float, price: float) -> int:
    """The best option that takes no longer than `left`; the fastest where none does."""
    k: int = menu.first[i]
    if price <= 0.0:
        while k + 1 < menu.last[i] and menu.time[k + 1] <= left:
            k += 1
        return k
    best: int = k
    least = menu.cost[k] + price * menu.time[k]
    k += 1
    while k < menu.last[i] and menu.time[k] <= left:
        value = menu.cost[k] + price * menu.time[k]
        if value <= least:
            best, least = k, value
        k += 1
    return best


@exact
def _sweep(
    menu: Menu,
    choice: Choice,
    a: int,
    b: int,
    horizon: float,
    price: Floats,
    thrift: Floats,
    forwards: bool,
) -> None:
    """One walk over rows a to b; the other direction's lengths limit it."""
    if forwards:
        for i in range(a, b):
            choice.head[i] = _earliest(menu, choice, i)
            left = horizon - choice.tail[i] - choice.head[i]
            choice.option[i] = _pick(menu, i, left, price[i] * thrift[i])
    else:
        for i in range(b - 1, a - 1, -1):
            choice.tail[i] = _rest(menu, choice, i)
            left = horizon - choice.tail[i] - choice.head[i]
            choice.option[i] = _pick(menu, i, left, price[i] * thrift[i])


@exact
def _spend(
    menu: Menu, choice: Choice, a: int, b: int, horizon: float, price: Floats, thrift: Floats
) -> None:
    """Sweeps to and fro while thrift falls to 0, then once more each way."""
    forwards, again, more = True, 2, True
    while more or again > 0:
        _sweep(menu, choice, a, b, horizon, price, thrift, forwards)
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
    menu: Menu, choice: Choice, horizon: float, price: Floats, limit: Floats, thrift: float
) -> None:
    """Rounds a relaxed schedule whose rows end at `limit`; what cannot end by then but still
    meets the horizon takes its fastest option."""
    rows = len(menu.first)
    _tails(menu, choice, 0, rows)
    for i in range(rows):
        choice.tail[i] = max(choice.tail[i], horizon - limit[i] * (1.0 + 1e-9))
    share = np.full(rows, thrift)
    _sweep(menu, choice, 0, rows, horizon, price, share, True)
    _tails(menu, choice, 0, rows)
    _spend(menu, choice, 0, rows, horizon, price, share)


@exact
def roll(
    menu: Menu,
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
    rows = len(menu.first)
    width = min(window, rows)
    thrift = np.zeros(rows)
    by_group = np.zeros(menu.group.max() + 1)
    _heads(menu, choice, 0, rows)
    _tails(menu, choice, 0, rows)
    windows = 1 + (2 * (rows - width) + width - 1) // width
    for w in range(windows):
        a = min(w * width // 2, rows - width)
        if not forwards:
            a = rows - width - a
        b = a + width
        _heads(menu, choice, a, b)
        _tails(menu, choice, a, b)
        option, head = choice.option[a:b].copy(), choice.head[a:b].copy()
        tail, cost = choice.tail[a:b].copy(), menu.cost[choice.option[a:b]].sum()
        for _ in range(TRIALS):
            _shuffle(menu, a, b, thrift, by_group, state, alike)
            _spend(menu, choice, a, b, horizon, price, thrift)
            now = menu.cost[choice.option[a:b]].sum()
            if now < cost - heat * np.log(_random(state)) * (heat > 0.0) - 1e-12 * abs(cost):
                option[:], head[:] = choice.option[a:b], choice.head[a:b]
                tail[:], cost = choice.tail[a:b], now
            else:
                choice.option[a:b], choice.head[a:b] = option, head
                choice.tail[a:b] = tail
        _heads(menu, choice, a, b)
        _tails(menu, choice, a, b)


@exact
def _shuffle(
    menu: Menu,
    a: int,
    b: int,
    thrift: Floats,
    by_group: Floats,
    state: NDArray[np.uint64],
    alike: bool,
) -> None:
    for i in range(a, b):
        thrift[i] = THRIFT_MAX * _random(state)
        by_group[menu.group[i]] = thrift[i]
    if alike:
        for i in range(a, b):
            thrift[i] = by_group[menu.group[i]]


@exact
def _random(state: NDArray[np.uint64]) -> float:
    """Marsaglia's xorshift64, in (0, 1)."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return (float(x >> np.uint64(11)) + 0.5) / 9007199254740992.0
