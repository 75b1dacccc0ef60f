"""From a relaxed schedule to real clock options, without ever missing the deadline.

A sweep walks the operations in order of time. Each takes the best real option that ends by its
limit, and what it leaves over reaches the next ones (error diffusion), because they start when it
really ends. Limits come first from a relaxed schedule, then from the last sweep in the other
direction, so the deadline holds by construction. Thrift is how much of the slack an operation
leaves to others: it minimises cost + thrift * price * time, and thrift falls to 0 over a few
sweeps.

Then a local search varies windows of a few microbatches, one after another: new thrift, sweeps
inside the window alone, keep the cheaper. Nothing moves outside a window, so a trial costs the
window and not the iteration.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.activity_network import ActivityNetwork
from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.curves import Curve
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.relaxation import Relaxation

COMBINATIONS_ALL = 20_000  # up to here every combination is tried: a fifth of a second
THRIFTS = (0.8, 0.9, 0.95, 0.99)  # around 1 the two ends of a hull segment cost the same
# In every second pass a price is up to so much of the mean price higher: an operation that the
# relaxation gives time for nothing would else never give way.
SCATTER = 1.0
WINDOW = 64  # rows: about four microbatches of eight stages; half and twice as much did worse
TRIALS = 5  # per window before the next one has its turn
THRIFT_MAX = 1.3  # above 1 an operation gives way; far above 1 it gives way too much to come back
RAMP = 0.3  # thrift given up per sweep
DEADLINE_TOLERANCE = 1e-10  # contract: 1e-9
SLACK = 1e-6  # a relaxed iteration time may be so much below that of the options it is made of
FITS = 1e-13  # of the deadline: float sums in another order must not undo an option that fits


class _Rows(NamedTuple):
    """Options of row i are first[i] to last[i] of `time` and `cost`, fastest first and each
    cheaper than the one before. No option costs less than `hull`, which is convex in time.

    Rows before row i are enters[i] to enters[i + 1] of `before`, those after it leaves[i] to
    leaves[i + 1] of `after`; row `len(first)` takes no time and stands for none. `group` numbers
    the rows that are varied alike (microbatches).
    """

    before: Ints
    enters: Ints
    after: Ints
    leaves: Ints
    first: Ints
    last: Ints
    time: Floats
    cost: Floats
    hull: Floats
    group: Ints


class _Choice(NamedTuple):
    """An option per row, its earliest start and end, and the longest way from its end, and from
    its start, to the very end; the last two of row `len(option)` stay 0."""

    option: Ints
    head: Floats
    tail: Floats
    end: Floats
    rest: Floats


class Rounder:
    """One problem's options as arrays. `microbatch` is by operation. Where there are no more than
    `combinations_all` plans, all are tried."""

    def __init__(
        self,
        network: ActivityNetwork,
        microbatch: Ints,
        combinations_all: int = COMBINATIONS_ALL,
    ) -> None:
        curves, self._curve = network.curves.distinct, network.curve
        self._kept = [_cheapening(curve.cost_j) for curve in curves]
        size = np.array([len(kept) for kept in self._kept])
        first = np.cumsum(size) - size
        pairs = list(zip(curves, self._kept, strict=True))
        self._number = np.concatenate(self._kept)  # of the problem's option, by entry
        before = network.tails[network.entering]
        self._rows = _Rows(
            before=np.where(before >= 0, before, network.size),
            enters=network.enters,
            after=network.heads,
            leaves=network.leaves,
            first=first[self._curve],
            last=(first + size)[self._curve],
            time=np.concatenate([curve.time_s[kept] for curve, kept in pairs]),
            cost=np.concatenate([curve.cost_j[kept] for curve, kept in pairs]),
            hull=np.concatenate([_hull_j(curve)[kept] for curve, kept in pairs]),
            group=np.unique(microbatch[network.operation], return_inverse=True)[1],
        )
        # Logarithms: the product of many thousand sizes takes a second to write down.
        self.tries_all = bool(np.log(size[self._curve]).sum() <= math.log(combinations_all + 0.5))

    def best(
        self,
        relaxed: Relaxation,
        deadline_s: float,
        time_price_w: float,
        passes: int,
        seed: int,
        hints: Sequence[Ints] = (),
    ) -> Ints:
        """The best options found, by row: least cost + time_price * T with T <= deadline.

        Starts are sweeps from the relaxation, and `hints`, options by row, which compete. Then
        the windows are passed over so many times. Never dearer than any hint in time.
        """
        search = _Search(self._rows, relaxed, deadline_s, time_price_w)
        if self.tries_all:
            option = search.all()
        else:
            starts = [self._entries(hint) for hint in hints]
            option = search.varied(search.first(starts), passes, seed)
        best: Ints = self._number[option]
        return best

    def _entries(self, hint: Ints) -> Ints:
        """Options as entries of the menu: for one that is not in it, the faster and cheaper."""
        entries = self._rows.first.copy()
        for c, kept in enumerate(self._kept):
            rows = self._curve == c
            entries[rows] += np.searchsorted(kept, hint[rows], side="right") - 1
        return entries


class _Search:
    """One deadline; candidates are entries of the menu by row."""

    def __init__(
        self, rows: _Rows, relaxed: Relaxation, deadline_s: float, time_price_w: float
    ) -> None:
        self._rows, self._price_w = rows, time_price_w
        self._prices_w, self._limits_s = relaxed.price_w, relaxed.limits_s
        self._deadline_s = deadline_s
        self._least_s = min(deadline_s, relaxed.iteration_s * (1 + SLACK))

    def all(self) -> Ints:
        """The best of all combinations."""
        menus = zip(self._rows.first.tolist(), self._rows.last.tolist(), strict=True)
        every = itertools.product(*(range(*menu) for menu in menus))
        return min(map(np.array, every), key=self._value_j)

    def first(self, hints: Sequence[Ints]) -> Ints:
        """The best of: everything at its fastest, the hints, what has slack slowed in order of time
        (the rule of EnvPipe, ATC'23), a sweep for each thrift. Of equals the
        earlier, so that nothing changes without a reason."""
        found = [self._rows.first.copy(), *hints, self._slackened()]
        until_s = self._least_s * (1 + FITS)
        for thrift in THRIFTS:
            choice = _blank(self._rows)
            _begin(self._rows, choice, until_s, self._prices_w, self._limits_s, thrift)
            found.append(choice.option)
        return min(found, key=self._value_j)

    def _slackened(self) -> Ints:
        """Each row as slow as leaves the deadline to the fastest options of all after it."""
        choice, size = _blank(self._rows), len(self._rows.first)
        _tails(self._rows, choice, 0, size)
        until_s, none = self._deadline_s * (1 + FITS), np.zeros(size)
        _sweep(self._rows, choice, 0, size, until_s, none, none, True)
        return choice.option

    def varied(self, option: Ints, passes: int, seed: int) -> Ints:
        """Windows varied; never worse than what it began with."""
        rows, choice = self._rows, _blank(self._rows)
        horizon_s = max(float(_makespan(rows, option)), self._least_s)
        choice.option[:] = option
        state, dice = np.array([seed], dtype=np.uint64), np.random.default_rng(seed)
        until_s, mean_w = horizon_s * (1 + FITS), float(self._prices_w.mean())
        for k in range(passes):
            forwards, prices_w = k % 2 == 0, self._prices_w
            if not forwards:
                prices_w = prices_w + SCATTER * mean_w * dice.random(len(option))
            _vary(rows, choice, until_s, prices_w, state, forwards)
        return choice.option if self._value_j(choice.option) < self._value_j(option) else option

    def _value_j(self, option: Ints) -> float:
        """Infinite where late."""
        end_s = float(_makespan(self._rows, option))
        if end_s > self._deadline_s * (1 + DEADLINE_TOLERANCE):
            return math.inf
        return float(self._rows.cost[option].sum()) + self._price_w * end_s


def _blank(rows: _Rows) -> _Choice:
    """Everything at its fastest; no lengths yet."""
    size = len(rows.first)
    each, one_more = np.zeros(size), np.zeros(size + 1)
    return _Choice(rows.first.copy(), each, each.copy(), one_more, one_more.copy())


def _hull_j(curve: Curve) -> Floats:
    """What each option's time costs on the hull."""
    steps_j = curve.saved_w * np.diff(curve.hull_s)
    hull_j = curve.cost_j[curve.cheapest] + np.append(np.cumsum(steps_j[::-1])[::-1], 0.0)
    costs_j: Floats = np.interp(curve.time_s, curve.hull_s, hull_j)
    return costs_j


def _cheapening(cost_j: Floats) -> Ints:
    """Options, fastest first, that are cheaper than all before."""
    before = np.append(np.inf, np.minimum.accumulate(cost_j)[:-1])
    return np.flatnonzero(cost_j < before)


@compiled
def _longest(neighbour: Ints, first: int, last: int, length: Floats) -> float:
    longest = 0.0
    for e in range(first, last):
        longest = max(longest, length[neighbour[e]])
    return longest


@compiled
def _makespan(rows: _Rows, option: Ints) -> float:
    before, enters, time = rows.before, rows.enters, rows.time
    last, end = 0.0, np.zeros(len(option) + 1)
    for i in range(len(option)):
        end[i] = _longest(before, enters[i], enters[i + 1], end) + time[option[i]]
        last = max(last, end[i])
    return last


@compiled
def _heads(rows: _Rows, choice: _Choice, a: int, b: int) -> None:
    before, enters, time = rows.before, rows.enters, rows.time
    option, head, end = choice.option, choice.head, choice.end
    for i in range(a, b):
        head[i] = _longest(before, enters[i], enters[i + 1], end)
        end[i] = head[i] + time[option[i]]


@compiled
def _tails(rows: _Rows, choice: _Choice, a: int, b: int) -> None:
    after, leaves, time = rows.after, rows.leaves, rows.time
    option, tail, rest = choice.option, choice.tail, choice.rest
    for i in range(b - 1, a - 1, -1):
        tail[i] = _longest(after, leaves[i], leaves[i + 1], rest)
        rest[i] = tail[i] + time[option[i]]


@compiled
def _pick(
    time: Floats,
    cost: Floats,
    hull: Floats,
    first: int,
    last: int,
    now: int,
    left: float,
    price: float,
) -> int:
    """The best option that takes no longer than `left`, of equals the slowest; the fastest where
    none does. Sought from `now` on."""
    k = now
    while k + 1 < last and time[k + 1] <= left:
        k += 1
    while k > first and time[k] > left:
        k -= 1
    best, least = k, cost[k] + price * time[k]
    # The hull is convex: once it is above, it stays there.
    while price > 0.0 and k > first and hull[k - 1] + price * time[k - 1] <= least:
        k -= 1
        value = cost[k] + price * time[k]
        if value < least:
            best, least = k, value
    return best


@compiled
def _sweep(
    rows: _Rows,
    choice: _Choice,
    a: int,
    b: int,
    horizon: float,
    price: Floats,
    thrift: Floats,
    forwards: bool,
) -> None:
    """One walk over rows a to b; the other direction's lengths limit it."""
    # Taken out of their tuples: each access in the loop would count references.
    time, cost, hull, first, last = rows.time, rows.cost, rows.hull, rows.first, rows.last
    before, enters, after, leaves = rows.before, rows.enters, rows.after, rows.leaves
    option, head, tail, end, rest = choice
    for step in range(b - a):
        i = a + step if forwards else b - 1 - step
        if forwards:
            head[i] = _longest(before, enters[i], enters[i + 1], end)
        else:
            tail[i] = _longest(after, leaves[i], leaves[i + 1], rest)
        left = horizon - tail[i] - head[i]
        k = _pick(time, cost, hull, first[i], last[i], option[i], left, price[i] * thrift[i])
        option[i] = k
        if forwards:
            end[i] = head[i] + time[k]
        else:
            rest[i] = tail[i] + time[k]


@compiled
def _spend(
    rows: _Rows, choice: _Choice, a: int, b: int, horizon: float, price: Floats, thrift: Floats
) -> None:
    """Sweeps to and fro while thrift falls to 0, then once more."""
    forwards, more = True, True
    while more:
        _sweep(rows, choice, a, b, horizon, price, thrift, forwards)
        forwards = not forwards
        more = False
        for i in range(a, b):
            if thrift[i] > 0.0:
                more = True
                thrift[i] = thrift[i] - RAMP if thrift[i] > RAMP else 0.0
    _sweep(rows, choice, a, b, horizon, price, thrift, forwards)


@compiled
def _begin(
    rows: _Rows, choice: _Choice, horizon: float, price: Floats, limit: Floats, thrift: float
) -> None:
    """Rounds a relaxed schedule whose rows end at `limit`; what cannot end by then but still
    meets the horizon takes its fastest option."""
    size = len(rows.first)
    _tails(rows, choice, 0, size)
    for i in range(size):
        choice.tail[i] = max(choice.tail[i], horizon - limit[i] * (1.0 + 1e-9))
    share = np.full(size, thrift)
    _sweep(rows, choice, 0, size, horizon, price, share, True)
    _tails(rows, choice, 0, size)
    _spend(rows, choice, 0, size, horizon, price, share)


@compiled
def _vary(
    rows: _Rows,
    choice: _Choice,
    horizon: float,
    price: Floats,
    state: NDArray[np.uint64],
    forwards: bool,
) -> None:
    """One pass of the window over all rows, half a window at a time. Each trial gives the
    microbatches of the window new thrift, and stays where it is cheaper."""
    size = len(rows.first)
    width = min(WINDOW, size)
    thrift, by_group = np.zeros(size), np.zeros(size)  # no more microbatches than rows
    _heads(rows, choice, 0, size)
    _tails(rows, choice, 0, size)
    windows = 1 + (2 * (size - width) + width - 1) // width
    for w in range(windows):
        a = min(w * width // 2, size - width)
        if not forwards:
            a = size - width - a
        b = a + width
        _heads(rows, choice, a, b)
        _tails(rows, choice, a, b)
        option, cost = choice.option[a:b].copy(), _cost(rows, choice.option, a, b)
        for _ in range(TRIALS):
            for i in range(a, b):
                by_group[rows.group[i]] = THRIFT_MAX * _random(state)
            for i in range(a, b):
                thrift[i] = by_group[rows.group[i]]
            _spend(rows, choice, a, b, horizon, price, thrift)
            now = _cost(rows, choice.option, a, b)
            if now < cost - 1e-12 * abs(cost):
                option[:], cost = choice.option[a:b], now
            else:
                choice.option[a:b] = option
                _heads(rows, choice, a, b)
                _tails(rows, choice, a, b)


@compiled
def _cost(rows: _Rows, option: Ints, a: int, b: int) -> float:
    total = 0.0
    for i in range(a, b):
        total += rows.cost[option[i]]
    return total


@compiled
def _random(state: NDArray[np.uint64]) -> float:
    """Marsaglia's xorshift64, in (0, 1)."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return (float(x >> np.uint64(11)) + 0.5) / 9007199254740992.0
