"""The timeline that is run when clocks are asked for, and the search for better ones, compiled.

The search varies one plan at random, a stretch of operations at one clock at a time: its clock,
where it begins, whether there is it at all; or two of them on different GPUs, where one gives
the time that the other takes. Every trial is judged by the timeline, so that costs, late
arrival and dwell need no model of their own. Random numbers have a fixed seed.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.clock_changes import Limits, Run, Track
from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Floats, Ints

CLOSE = 1e-9  # relative: a dwell may be so much shorter, which is round-off of sums
ON_TIME = 1e-10  # relative, of the deadline; contract: 1e-9
# Shares of moves: another clock, another beginning, one stretch less; the rest is one more.
CLOCK, BEGIN, LESS = 0.4, 0.75, 0.85
TWO = 0.5  # of trials move two GPUs
BOTH = 0.8  # of new clocks of the first stretch are also taken by the last, if they were equal
REACH = 12  # operations by which a beginning moves at most


class _Desk(NamedTuple):
    """State of each stage while a timeline is run."""

    now: Ints  # the clock that it has
    wanted: Ints  # the clock it asked for last
    head: Ints  # changes under way are `lands` and `to` from head to tail
    tail: Ints
    asks: Ints  # changes, counted
    first: Floats  # when the first and the latest was
    latest: Floats


@compiled
def realise(track: Track, limits: Limits, asked: Ints, run: Run) -> tuple[float, float, int]:
    """Writes the timeline of what is asked (columns by operation) into `run`, all as early as
    possible. Returns its seconds, sum of effective cost in joules (changes included) and number
    of changes; infinite seconds where a limit is broken, an operation runs at a clock that it
    was not measured at, or a change has not come by the end of the iteration."""
    seconds, cost, changes, fair = through(track, limits, asked, run)
    return seconds if fair else np.inf, cost, changes


@compiled
def through(track: Track, limits: Limits, asked: Ints, run: Run) -> tuple[float, float, int, bool]:
    """As `realise`, and whether the limits are kept; seconds are exact also where they are not."""
    # Arrays by name, not in tuples: handing those on costs ten times as much as the work itself.
    desk = _opened(track, asked)
    now, wanted, head, tail, asks, first, latest = desk
    stage, clocked, before = track.stage, track.clocked, track.before
    tails, enters, time, energy = track.tails, track.enters, track.time, track.energy
    starts, durations, energies, column = run.start, run.duration, run.energy, run.column
    marks, lands, to, factor, delay = run.asks, run.lands, run.to, run.factor, run.delay
    end_all, cost, fair = 0.0, 0.0, True
    for i in range(len(stage)):
        start, s = 0.0, stage[i]
        for e in range(enters[i], enters[i + 1]):
            start = max(start, starts[tails[e]] + durations[tails[e]] + delay[e])
        marks[i] = -1.0
        if clocked[i] and asked[i] != wanted[s]:
            mark = starts[before[i]] + durations[before[i]] if before[i] >= 0 else 0.0
            start = max(start, mark + limits.stop)
            wanted[s], marks[i] = asked[i], mark
            lands[tail[s]], to[tail[s]] = mark + limits.latency, asked[i]
            tail[s] += 1
            if asks[s] == 0:
                first[s] = mark
            elif mark - latest[s] < limits.dwell * (1.0 - CLOSE):
                fair = False
            latest[s] = mark
            asks[s] += 1
        c = 0
        if clocked[i]:
            while head[s] < tail[s] and lands[head[s]] <= start:
                now[s] = to[head[s]]
                head[s] += 1
            c = now[s]
        seconds, joules, done, at = 0.0, 0.0, 0.0, start
        while limits.within and clocked[i] and head[s] < tail[s] and time[i, c] < np.inf:
            share = (lands[head[s]] - at) / (time[i, c] * factor[i])
            if done + share >= 1.0:
                break
            seconds += lands[head[s]] - at
            joules += share * energy[i, c]
            done, at = done + share, lands[head[s]]
            now[s] = to[head[s]]
            c = now[s]
            head[s] += 1
        starts[i], column[i] = start, c
        durations[i] = seconds + (1.0 - done) * time[i, c] * factor[i]
        energies[i] = joules + (1.0 - done) * energy[i, c]
        if not durations[i] < np.inf:
            return np.inf, np.inf, 0, False
        end_all = max(end_all, start + durations[i])
        cost += energies[i] - track.power[s] * durations[i]
    fair = fair and _in_order(limits, desk, lands, end_all)
    changes = asks.sum()
    return end_all, cost + limits.joules * changes, changes, fair


@compiled
def iterations(
    track: Track,
    limits: Limits,
    asked: Ints,
    run: Run,
    row: Ints,
    edge: Ints,
    factor: Floats,
    delay: Floats,
    times: Floats,
) -> None:
    """Raises `times` to the end of the slowest of these siblings, by draw. `factor` is by sibling,
    draw and row; `delay` by sibling, draw and edge."""
    for sibling in range(factor.shape[0]):
        for draw in range(factor.shape[1]):
            for i in range(len(row)):  # by operation
                run.factor[i] = factor[sibling, draw, row[i]]
            if delay.shape[2] > 0:
                for e in range(len(edge)):
                    run.delay[e] = delay[sibling, draw, edge[e]] if edge[e] >= 0 else 0.0
            seconds, _, _, _ = through(track, limits, asked, run)
            times[draw] = max(times[draw], seconds)


@compiled
def _in_order(limits: Limits, desk: _Desk, lands: Floats, end_all: float) -> bool:
    """Whether all changes have come by the end, are no more than allowed, and the first of the
    next iteration is long enough after the last."""
    fair = True
    for s in range(len(desk.asks)):
        if desk.head[s] < desk.tail[s] and lands[desk.tail[s] - 1] > end_all:
            fair = False
        if desk.asks[s] > 0:
            dwell = desk.first[s] + end_all - desk.latest[s]
            fair = fair and desk.asks[s] <= limits.most and dwell >= limits.dwell * (1.0 - CLOSE)
    return fair


@compiled
def _opened(track: Track, asked: Ints) -> _Desk:
    stages = len(track.power)
    now = np.zeros(stages, dtype=np.int64)
    for s in range(stages):
        if track.last[s] >= 0:
            now[s] = asked[track.last[s]]
    return _Desk(
        now,
        now.copy(),
        track.line_at[:-1].copy(),
        track.line_at[:-1].copy(),
        np.zeros(stages, dtype=np.int64),
        np.zeros(stages),
        np.zeros(stages),
    )


@compiled
def value_of(
    track: Track, limits: Limits, asked: Ints, run: Run, deadline: float, price: float, late: float
) -> tuple[float, bool]:
    """Sum of effective cost + price of time, `late` joules a second beyond the deadline; and
    whether that is kept."""
    seconds, cost, _ = realise(track, limits, asked, run)
    if not seconds < np.inf:
        return np.inf, False
    over = seconds - deadline
    return cost + price * seconds + late * max(0.0, over), over <= ON_TIME * deadline


@compiled
def vary(
    track: Track,
    limits: Limits,
    asked: Ints,
    group: Ints,
    run: Run,
    deadline: float,
    price: float,
    late: float,
    heat: float,
    trials: int,
    state: NDArray[np.uint64],
) -> float:
    """Varies what is asked in place, to the best that keeps the deadline; returns its value,
    infinite where there is none. With `group` (by operation, -1 for any) operations of a GPU
    in one group always ask for the same."""
    best, keep = np.inf, asked.copy()
    now, kept = value_of(track, limits, asked, run, deadline, price, late)
    if kept:
        best = now
    stages = len(track.power)
    saved, before = asked.copy(), np.zeros(len(track.line) + 2, dtype=np.int64)
    for trial in range(trials):
        first = int(_random(state) * stages)
        other = int(_random(state) * stages)
        both = other != first and _random(state) < TWO
        saved[:] = asked
        _move(track, asked, group, first, before, state)
        if both:
            _move(track, asked, group, other, before, state)
        value, kept = value_of(track, limits, asked, run, deadline, price, late)
        if kept and value < best:
            best = value
            keep[:] = asked
        warm = heat * max(0.0, 1.0 - 1.1 * trial / trials)
        if value < np.inf and value <= now - warm * np.log(_random(state)) * (warm > 0.0):
            now = value
        else:
            asked[:] = saved
    asked[:] = keep
    return best


@compiled
def _move(
    track: Track, asked: Ints, group: Ints, stage: int, begins: Ints, state: NDArray[np.uint64]
) -> None:
    """One random change of what a stage asks for."""
    low, high = track.line_at[stage], track.line_at[stage + 1]
    columns = track.columns[stage]
    if high == low or columns < 2:
        return
    step = 1 + int(3.0 * _random(state) ** 3)
    if _random(state) < 0.5:
        step = -step
    at = low + int(_random(state) * (high - low))
    if group[track.line[at]] >= 0:
        _paint(track, asked, low, high, group, group[track.line[at]], step, columns)
        return
    stretches = 0
    for p in range(low, high):
        if p == low or asked[track.line[p]] != asked[track.line[p - 1]]:
            begins[stretches] = p
            stretches += 1
    begins[stretches] = high
    kind = _random(state)
    if kind < CLOCK or (stretches == 1 and kind < LESS):
        j = int(_random(state) * stretches)
        together = _random(state) < BOTH
        _recolour(track, asked, begins, stretches, j, step, together, columns)
    elif kind < BEGIN:
        begin = begins[1 + int(_random(state) * (stretches - 1))]
        far = 1 + int(REACH * _random(state) ** 3)
        a, b = max(low, begin - far), min(high, begin + far)
        if step < 0:
            _fill(track, asked, a, begin, asked[track.line[begin]], columns)
        else:
            _fill(track, asked, begin, b, asked[track.line[begin - 1]], columns)
    elif kind < LESS:
        j = int(_random(state) * stretches)
        beside = begins[j] - 1 if step < 0 else begins[j + 1]
        beside = low + (beside - low) % (high - low)
        _fill(track, asked, begins[j], begins[j + 1], asked[track.line[beside]], columns)
    else:
        until = at + 1 + int((high - at) * _random(state) ** 2)
        _fill(track, asked, at, min(until, high), asked[track.line[at]] + step, columns)


@compiled
def _recolour(
    track: Track,
    asked: Ints,
    begins: Ints,
    stretches: int,
    j: int,
    step: int,
    together: bool,
    columns: int,
) -> None:
    """Another clock for stretch j; the first and the last stay equal where they are to."""
    first, last = asked[track.line[begins[0]]], asked[track.line[begins[stretches] - 1]]
    column = asked[track.line[begins[j]]] + step
    ends = j in (0, stretches - 1)
    if ends and together and first == last:
        _fill(track, asked, begins[0], begins[1], column, columns)
        j = stretches - 1
    _fill(track, asked, begins[j], begins[j + 1], column, columns)


@compiled
def _fill(track: Track, asked: Ints, low: int, high: int, column: int, columns: int) -> None:
    for p in range(low, high):
        asked[track.line[p]] = min(max(column, 0), columns - 1)


@compiled
def _paint(
    track: Track,
    asked: Ints,
    low: int,
    high: int,
    group: Ints,
    which: int,
    step: int,
    columns: int,
) -> None:
    for p in range(low, high):
        i = track.line[p]
        if group[i] == which:
            asked[i] = min(max(asked[i] + step, 0), columns - 1)


@compiled
def _random(state: NDArray[np.uint64]) -> float:
    """Marsaglia's xorshift64, in (0, 1)."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return (float(x >> np.uint64(11)) + 0.5) / 9007199254740992.0
