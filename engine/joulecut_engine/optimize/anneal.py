"""Plans as times of events, shaken and cooled: finds what windows of operations cannot.

Given a time for every event (`solve.events`), each operation takes its best option that fits,
so a plan is priced without a sweep: moving a few events changes a few operations. A move
takes one event to where some operation at it fits exactly an option, and takes neighbours
along that would be in the way, and some others by chance; it is kept if the plan gets cheaper,
or, while it is warm, with a chance that falls with what it costs (Metropolis 1953). A few
hundred nanoseconds per move, a thousand moves per operation.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.diffusion import Menu
from joulecut_engine.optimize.events import events_of
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import Network

# Of what options cost apart, mean over operations that have a choice; between half and twice that
# nothing was best everywhere. It ends where a move that costs a thousandth of that is rare.
HOT, COLD = 0.012, 0.001
TAKEN_ALONG = 0.1  # chance of a neighbour that is not in the way; 0 and 0.25 do worse
TAKEN_MAX = 12  # events per move
COOLED_EVERY = 1024  # moves
TOLERANCE = 1e-14  # of the horizon: float differences of times that fit exactly


class Arcs(NamedTuple):
    """Rows as arcs between events, then waits (whose `first` is -1); `arcs` at event v are
    `at[v]` to `at[v + 1]`."""

    begin: Ints
    done: Ints
    first: Ints
    last: Ints
    arcs: Ints
    at: Ints


class Scratch(NamedTuple):
    mark: Ints  # by event: the last move that it took part in
    moved: Ints
    changed: Ints  # arcs whose option would change, and to which
    option: Ints
    counts: Ints  # of `moved` and `changed`


class Annealer:
    """One problem; `cooled` improves one plan after another."""

    def __init__(self, network: Network, menu: Menu) -> None:
        self._network, self.menu = network, menu
        events = events_of(network)
        self._events = events
        inner = (network.tails >= 0) & (network.heads < network.size)
        waits = np.column_stack(
            [events.done[network.tails[inner]], events.begin[network.heads[inner]]]
        )
        waits = np.unique(waits[waits[:, 0] != waits[:, 1]], axis=0)
        begin = np.concatenate([events.begin, waits[:, 0]])
        done = np.concatenate([events.done, waits[:, 1]])
        none = np.full(len(waits), -1)
        both = np.concatenate([begin, done])
        order = np.argsort(both, kind="stable")
        self.arcs = Arcs(
            begin,
            done,
            np.concatenate([menu.first, none]),
            np.concatenate([menu.last, none]),
            order % len(begin),
            np.searchsorted(both[order], np.arange(events.count + 1)),
        )
        start = int(events.begin[network.heads[network.tails < 0][0]])
        self.ends = start, int(events.done[network.tails[network.heads == network.size][0]])
        apart_j = (menu.cost[menu.first] - menu.cost[menu.last - 1])[menu.last - menu.first > 1]
        self.heat_j = float(apart_j.mean()) if len(apart_j) else 0.0

    def cooled(self, option: Ints, horizon_s: float, price_w: float, moves: int, seed: int) -> Ints:
        """The cheapest plan met: costs + price * end, ends by the horizon; at least as good as
        `option`, which does too."""
        rows, count, arcs = self._network.size, self._events.count, len(self.arcs.begin)
        best = np.full(arcs, -1)
        best[:rows] = option
        scratch = Scratch(
            np.full(count, -1),
            np.zeros(count, dtype=np.int64),
            np.zeros(arcs, dtype=np.int64),
            np.zeros(arcs, dtype=np.int64),
            np.zeros(2, dtype=np.int64),
        )
        state = np.array([seed], dtype=np.uint64)
        heats = (HOT * self.heat_j, COLD * self.heat_j)
        time, cost = self.menu.time, self.menu.cost
        when = self.times(option)
        _cool(
            self.arcs,
            time,
            cost,
            when,
            best,
            scratch,
            self.ends,
            horizon_s,
            price_w,
            moves,
            heats,
            state,
        )
        return best[:rows]

    def times(self, option: Ints) -> Floats:
        """Earliest, by event."""
        end = self._network.ends(self.menu.time[option])
        when = np.zeros(self._events.count)
        np.maximum.at(when, self._events.begin, self._network.starts(end))
        np.maximum.at(when, self._events.done, end)
        return when


@exact
def _cool(
    arcs: Arcs,
    time: Floats,
    cost: Floats,
    when: Floats,
    best: Ints,
    scratch: Scratch,
    ends: tuple[int, int],
    horizon: float,
    price: float,
    moves: int,
    heats: tuple[float, float],
    state: NDArray[np.uint64],
) -> None:
    option = best.copy()
    edge = TOLERANCE * horizon
    now = least = 0.0
    hot, cold = heats
    heat = hot
    for move in range(moves):
        if move % COOLED_EVERY == 0:
            heat = hot * (cold / hot) ** (move / moves)
        event = int(_random(state) * len(when))
        if event == ends[0]:
            continue
        shift, by = _target(arcs, time, when, option, event, state)
        if abs(shift) <= edge or not _gather(
            arcs, time, when, scratch, ends[0], event, by, shift, move, edge, state
        ):
            continue
        change = 0.0
        if scratch.mark[ends[1]] == move:
            if when[ends[1]] + shift > horizon:
                continue
            change = price * shift
        change += _change(arcs, time, cost, when, option, scratch, shift, move, edge)
        if change <= 0.0 or _random(state) < np.exp(-change / heat):
            for k in range(scratch.counts[0]):
                when[scratch.moved[k]] += shift
            for k in range(scratch.counts[1]):
                option[scratch.changed[k]] = scratch.option[k]
            now += change
            if now < least - 1e-12 * abs(hot):
                least = now
                best[:] = option


@exact
def _target(
    arcs: Arcs, time: Floats, when: Floats, option: Ints, event: int, state: NDArray[np.uint64]
) -> tuple[float, int]:
    """How far to move an event so that one of its arcs fits an option near its present one."""
    degree = arcs.at[event + 1] - arcs.at[event]
    arc: int = arcs.arcs[arcs.at[event] + int(_random(state) * degree)]
    length = 0.0
    if arcs.first[arc] >= 0:
        k, far = option[arc], 0
        while far < 5 and _random(state) < 0.4:
            far += 1
        k += far if _random(state) < 0.5 else -1 - far
        k = min(max(k, arcs.first[arc]), arcs.last[arc] - 1)
        length = time[k]
    if arcs.begin[arc] == event:
        return when[arcs.done[arc]] - length - when[event], arc
    return when[arcs.begin[arc]] + length - when[event], arc


@exact
def _gather(
    arcs: Arcs,
    time: Floats,
    when: Floats,
    scratch: Scratch,
    start: int,
    event: int,
    by: int,
    shift: float,
    move: int,
    edge: float,
    state: NDArray[np.uint64],
) -> bool:
    """Marks the events that move; false where one that is in the way cannot."""
    count, looked = 1, 0
    scratch.moved[0] = event
    scratch.mark[event] = move
    while looked < count:
        event = scratch.moved[looked]
        looked += 1
        for at in range(arcs.at[event], arcs.at[event + 1]):
            arc = arcs.arcs[at]
            ahead = arcs.begin[arc] == event
            other = arcs.done[arc] if ahead else arcs.begin[arc]
            if scratch.mark[other] == move:
                continue
            left = when[arcs.done[arc]] - when[arcs.begin[arc]] + (-shift if ahead else shift)
            needed = time[arcs.first[arc]] if arcs.first[arc] >= 0 else 0.0
            blocked = left < needed - edge
            if not blocked and (arc == by or _random(state) >= TAKEN_ALONG):
                continue
            if other == start or count == TAKEN_MAX:
                if blocked:
                    return False
                continue
            scratch.moved[count] = other
            scratch.mark[other] = move
            count += 1
    scratch.counts[0] = count
    return True


@exact
def _change(
    arcs: Arcs,
    time: Floats,
    cost: Floats,
    when: Floats,
    option: Ints,
    scratch: Scratch,
    shift: float,
    move: int,
    edge: float,
) -> float:
    """What it costs more if the marked events move, and which options change."""
    change, changed = 0.0, 0
    for k in range(scratch.counts[0]):
        event = scratch.moved[k]
        for at in range(arcs.at[event], arcs.at[event + 1]):
            arc = arcs.arcs[at]
            ahead = arcs.begin[arc] == event
            other = arcs.done[arc] if ahead else arcs.begin[arc]
            if scratch.mark[other] == move or arcs.first[arc] < 0:
                continue
            left = when[arcs.done[arc]] - when[arcs.begin[arc]] + (-shift if ahead else shift)
            best, after = arcs.first[arc], arcs.last[arc]
            while after - best > 1:
                middle = (best + after) // 2
                if time[middle] <= left + edge:
                    best = middle
                else:
                    after = middle
            if best != option[arc]:
                change += cost[best] - cost[option[arc]]
                scratch.changed[changed] = arc
                scratch.option[changed] = best
                changed += 1
    scratch.counts[1] = changed
    return change


@exact
def _random(state: NDArray[np.uint64]) -> float:
    """Marsaglia's xorshift64, in (0, 1)."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return (float(x >> np.uint64(11)) + 0.5) / 9007199254740992.0
