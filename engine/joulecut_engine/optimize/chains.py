"""Chains of events moved at once: where clocks are few, no small move helps any more.

Annealing (`solve.anneal`) moves an event and what is in its way. With forty clocks that is
enough; with three, the next clock takes a quarter longer, and what that pushes is a stage's
whole line. Here a chain of events, each the end of an operation that begins at the one before,
is drawn at random. Every event of it gets some times to choose
from: as it is, shifted like others of the chain, or where an operation fits exactly. All else
stands still, so dynamic programming finds the best of all combinations. While it is warm, every
choice is charged a random sum that often is small (Gumbel 1954: then combinations are drawn as
annealing would; Papandreou and Yuille 2011 use it so).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.anneal import Annealer, Arcs
from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Floats, Ints

# Of what options cost apart, at first and at last; ten times as much loses what was found.
HEATS = (0.01, 0.0005)
TIMES = 24  # for each event of a chain; 12 do a little worse
SHIFTS = 12  # of these, alike for all of a chain
SHORTEST, LONGEST = 4, 60  # events; 20 and 200 do a little worse
PARALLEL = 4  # arcs between two events that follow each other
NEARBY = 0.4  # chance of one clock further
FURTHEST = 5
TOLERANCE = 1e-14  # of the horizon: float differences of times that fit exactly
LATE = -1  # instead of an option: none is quick enough
WAIT = -2  # an arc that is no operation


class Scratch(NamedTuple):
    mark: Ints  # by event: its place in the chain, or -1
    path: Ints
    between: Ints  # (LONGEST, PARALLEL), arcs from the event before; -1 where there are no more
    shift: Floats
    when: Floats  # (LONGEST, TIMES)
    counts: Ints
    own: Floats  # what arcs to all that stands still cost
    least: Floats
    origin: Ints


class Menu(NamedTuple):
    time: Floats
    cost: Floats


class Chains:
    """One problem; `drawn` improves one plan after another."""

    def __init__(self, annealer: Annealer) -> None:
        self._annealer = annealer
        self._menu = Menu(annealer.menu.time, annealer.menu.cost)

    def drawn(self, option: Ints, horizon_s: float, price_w: float, work: float, seed: int) -> Ints:
        """The cheapest plan met: costs + price * end, ends by the horizon; at least as good as
        `option`, which does too. `work` counts pairs of times; a hundred million take a second."""
        annealer, rows = self._annealer, len(option)
        arcs, when = annealer.arcs, annealer.times(option)
        scratch = Scratch(
            np.full(len(when), -1),
            np.zeros(LONGEST, dtype=np.int64),
            np.zeros((LONGEST, PARALLEL), dtype=np.int64),
            np.zeros(SHIFTS),
            np.zeros((LONGEST, TIMES)),
            np.zeros(LONGEST, dtype=np.int64),
            np.zeros((LONGEST, TIMES)),
            np.zeros((LONGEST, TIMES)),
            np.zeros((LONGEST, TIMES), dtype=np.int64),
        )
        state = np.array([seed], dtype=np.uint64)
        best = when.copy()
        joules = (HEATS[0] * annealer.heat_j, HEATS[1] * annealer.heat_j)
        _draw(
            arcs, self._menu, when, best, scratch, annealer.ends, horizon_s, price_w, work,
            joules, state,
        )  # fmt: skip
        found = np.empty(len(arcs.begin), dtype=np.int64)
        _read(arcs, self._menu.time, best, TOLERANCE * horizon_s, found)
        late = (found[:rows] == LATE).any()
        return option if late else found[:rows]


@exact
def _draw(
    arcs: Arcs,
    menu: Menu,
    when: Floats,
    best: Floats,
    scratch: Scratch,
    ends: tuple[int, int],
    horizon: float,
    price: float,
    work: float,
    heats: tuple[float, float],
    state: NDArray[np.uint64],
) -> None:
    edge, worked = TOLERANCE * horizon, 0.0
    now = least = 0.0
    hot, cold = heats
    while worked < work:
        heat = hot * (cold / hot) ** (worked / work)
        n, looked = _path(arcs, scratch, len(when), ends[0], state)
        worked += looked
        if n > 0:
            _shifts(arcs, menu.time, when, scratch, n, edge, state)
            for i in range(n):
                worked += _times(arcs, menu.time, when, scratch, i, horizon, edge, state)
                worked += _own(arcs, menu, when, scratch, i, ends[1], price, edge)
            worked += _combined(arcs, menu, scratch, n, heat, edge, state)
            now += _taken(arcs, menu, when, scratch, n, edge)
            for i in range(n):
                scratch.mark[scratch.path[i]] = -1
            if now < least - 1e-12 * abs(hot):
                least = now
                best[:] = when


@exact
def _path(
    arcs: Arcs, scratch: Scratch, events: int, start: int, state: NDArray[np.uint64]
) -> tuple[int, int]:
    """Marks a chain none of whose events has arcs to another but its neighbours; how long it is,
    and how many arcs were looked at."""
    event = int(_random(state) * events)
    longest = int(SHORTEST + _random(state) * (LONGEST - SHORTEST))
    n, looked = 0, 0
    while event != start and n < longest and scratch.mark[event] < 0:
        parallel, alone, seen, after = 0, True, 0.0, -1
        for at in range(arcs.at[event], arcs.at[event + 1]):
            arc = arcs.arcs[at]
            if arcs.begin[arc] == event:
                place = scratch.mark[arcs.done[arc]]
                seen += 1.0
                if _random(state) * seen < 1.0:
                    after = arc
            else:
                place = scratch.mark[arcs.begin[arc]]
                if place == n - 1 and place >= 0 and parallel < PARALLEL:
                    scratch.between[n, parallel] = arc
                    parallel += 1
                    continue
            alone = alone and place < 0
        looked += arcs.at[event + 1] - arcs.at[event]
        if not alone:
            break
        scratch.between[n, parallel:] = -1
        scratch.path[n] = event
        scratch.mark[event] = n
        n += 1
        if after < 0:
            break
        event = arcs.done[after]
    return n, looked


@exact
def _shifts(
    arcs: Arcs,
    time: Floats,
    when: Floats,
    scratch: Scratch,
    n: int,
    edge: float,
    state: NDArray[np.uint64],
) -> None:
    """By how much all of a chain may move alike: so that some arc at it fits another option."""
    for k in range(SHIFTS):
        event = scratch.path[int(_random(state) * n)]
        degree = arcs.at[event + 1] - arcs.at[event]
        arc = arcs.arcs[arcs.at[event] + int(_random(state) * degree)]
        length = when[arcs.done[arc]] - when[arcs.begin[arc]]
        shift = _near(arcs, time, arc, length, edge, state) - length
        scratch.shift[k] = shift if _random(state) < 0.5 else -shift
    scratch.shift[0] = 0.0


@exact
def _near(
    arcs: Arcs, time: Floats, arc: int, length: float, edge: float, state: NDArray[np.uint64]
) -> float:
    """How long an option near the present one takes, or none."""
    if arcs.first[arc] < 0:
        return 0.0
    k, far = _option(arcs.first, arcs.last, time, arc, length, edge), 0
    while far < FURTHEST and _random(state) < NEARBY:
        far += 1
    k += far if _random(state) < 0.5 else -1 - far
    found: float = time[min(max(k, arcs.first[arc]), arcs.last[arc] - 1)]
    return found


@exact
def _times(
    arcs: Arcs,
    time: Floats,
    when: Floats,
    scratch: Scratch,
    i: int,
    horizon: float,
    edge: float,
    state: NDArray[np.uint64],
) -> int:
    """What event i of the chain may choose from; the first is as it is. Returns the work."""
    event = scratch.path[i]
    first, last = arcs.at[event], arcs.at[event + 1]
    # Half of what is tolerated later: sums in another order must not make a wait late.
    low, high = -edge / 2, horizon + edge / 2
    for at in range(first, last):
        arc = arcs.arcs[at]
        needed = time[arcs.first[arc]] if arcs.first[arc] >= 0 else 0.0
        if arcs.begin[arc] == event:
            if scratch.mark[arcs.done[arc]] < 0:
                high = min(high, when[arcs.done[arc]] - needed + edge / 2)
        elif scratch.mark[arcs.begin[arc]] < 0:
            low = max(low, when[arcs.begin[arc]] + needed - edge / 2)
    count = 1
    scratch.when[i, 0] = when[event]
    for k in range(1, SHIFTS):
        at_s = when[event] + scratch.shift[k]
        if low <= at_s <= high:
            scratch.when[i, count] = at_s
            count += 1
    for _ in range(TIMES):
        if count == TIMES:
            break
        arc = arcs.arcs[first + int(_random(state) * (last - first))]
        ahead = arcs.begin[arc] == event
        other = arcs.done[arc] if ahead else arcs.begin[arc]
        length = _near(arcs, time, arc, when[arcs.done[arc]] - when[arcs.begin[arc]], edge, state)
        begins, place = when[other], scratch.mark[other]
        if 0 <= place < i:
            begins = scratch.when[place, int(_random(state) * scratch.counts[place])]
        at_s = begins - length if ahead else begins + length
        if low <= at_s <= high:
            scratch.when[i, count] = at_s
            count += 1
    scratch.counts[i] = count
    work: int = last - first
    return work


@exact
def _own(
    arcs: Arcs,
    menu: Menu,
    when: Floats,
    scratch: Scratch,
    i: int,
    end: int,
    price: float,
    edge: float,
) -> int:
    """What each time costs by itself. Returns the work."""
    event, count = scratch.path[i], scratch.counts[i]
    first, last = arcs.at[event], arcs.at[event + 1]
    first_of, last_of, time, mark = arcs.first, arcs.last, menu.time, scratch.mark
    for k in range(count):
        at_s = scratch.when[i, k]
        cost = price * (at_s - when[event]) if event == end else 0.0
        for at in range(first, last):
            arc = arcs.arcs[at]
            ahead = arcs.begin[arc] == event
            other = arcs.done[arc] if ahead else arcs.begin[arc]
            if first_of[arc] >= 0 and mark[other] < 0:
                left = when[other] - at_s if ahead else at_s - when[other]
                option = _option(first_of, last_of, time, arc, left, edge)
                cost += menu.cost[option] if option >= 0 else np.inf
        scratch.own[i, k] = cost
    work: int = count * (last - first)
    return work


@exact
def _combined(
    arcs: Arcs,
    menu: Menu,
    scratch: Scratch,
    n: int,
    heat: float,
    edge: float,
    state: NDArray[np.uint64],
) -> int:
    """The least of all combinations, up to each time of each event. Returns the work."""
    # Arrays by name and no calls: handing them on for each pair takes ten times as long.
    first, last, time, cost = arcs.first, arcs.last, menu.time, menu.cost
    own, least, when = scratch.own, scratch.least, scratch.when
    work = 0
    for i in range(n):
        between, others = scratch.between[i], scratch.counts[i - 1] if i > 0 else 0
        for k in range(scratch.counts[i]):
            best, origin = np.inf if i > 0 else 0.0, 0
            for j in range(others):
                total = least[i - 1, j]
                if total >= best:
                    continue
                left = when[i, k] - when[i - 1, j] + edge
                for arc in between:
                    if arc < 0:
                        break
                    option = first[arc]
                    if left < (time[option] if option >= 0 else 0.0):
                        total = np.inf
                        break
                    if option >= 0:
                        after = last[arc]
                        while after - option > 1:
                            middle = (option + after) // 2
                            if time[middle] <= left:
                                option = middle
                            else:
                                after = middle
                        total += cost[option]
                if total < best:
                    best, origin = total, j
            least[i, k] = best + own[i, k] + heat * np.log(-np.log(_random(state)))
            scratch.origin[i, k] = origin
            work += 1 + others
    return work


@exact
def _between(
    between: Ints, first: Ints, last: Ints, time: Floats, cost: Floats, left: float, edge: float
) -> float:
    """What the arcs from the event before cost if they have so much time."""
    sum_j = 0.0
    for k in range(PARALLEL):
        if between[k] < 0:
            break
        option = _option(first, last, time, between[k], left, edge)
        if option == LATE:
            return np.inf
        if option >= 0:
            sum_j += cost[option]
    return sum_j


@exact
def _taken(arcs: Arcs, menu: Menu, when: Floats, scratch: Scratch, n: int, edge: float) -> float:
    """Moves the chain as is best; returns what that costs more."""
    k = int(np.argmin(scratch.least[n - 1, : scratch.counts[n - 1]]))
    if scratch.least[n - 1, k] == np.inf:
        return 0.0
    change = 0.0
    for i in range(n - 1, -1, -1):
        change += scratch.own[i, k] - scratch.own[i, 0]
        if i > 0:
            j = scratch.origin[i, k]
            now = scratch.when[i, 0] - scratch.when[i - 1, 0]
            then = scratch.when[i, k] - scratch.when[i - 1, j]
            change += _between(
                scratch.between[i], arcs.first, arcs.last, menu.time, menu.cost, then, edge
            ) - _between(scratch.between[i], arcs.first, arcs.last, menu.time, menu.cost, now, edge)
            when[scratch.path[i]] = scratch.when[i, k]
            k = j
        else:
            when[scratch.path[0]] = scratch.when[0, k]
    return change


@exact
def _read(arcs: Arcs, time: Floats, when: Floats, edge: float, option: Ints) -> None:
    for arc in range(len(option)):
        left = when[arcs.done[arc]] - when[arcs.begin[arc]]
        option[arc] = _option(arcs.first, arcs.last, time, arc, left, edge)


@exact
def _option(first: Ints, last: Ints, time: Floats, arc: int, left: float, edge: float) -> int:
    """The slowest, so the cheapest, that fits; LATE or WAIT instead."""
    best = first[arc]
    if best < 0:
        return int(WAIT) if left + edge >= 0.0 else int(LATE)
    if left + edge < time[best]:
        return int(LATE)
    after = last[arc]
    while after - best > 1:
        middle = (best + after) // 2
        if time[middle] <= left + edge:
            best = middle
        else:
            after = middle
    found: int = best
    return found


@exact
def _random(state: NDArray[np.uint64]) -> float:
    """Marsaglia's xorshift64, in (0, 1)."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return (float(x >> np.uint64(11)) + 0.5) / 9007199254740992.0
