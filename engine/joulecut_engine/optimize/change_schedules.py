"""Clock schedules of single GPUs with few changes: the choices that `changes` is made of.

A schedule names a clock for each operation of a GPU, in their order, and changes it only so
often. There are far too many to list. The cheapest under given prices of time is known exactly
(`k_change_dp`), and around a good one lie those with a change an operation earlier or later, or
with another clock in one of its stretches. This table holds the schedules found so far.

Whether a clock is kept for the minimum dwell depends on when operations start, and so on all GPUs
together. The table judges that for a whole choice: one that breaks it takes for ever.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.graph import Graph
from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import SENDS
from joulecut_engine.optimize.k_change_dp import cheapest
from joulecut_engine.optimize.levels import Floats, Ints, Levels, levels_of
from joulecut_engine.optimize.problem import ChangeLimits, NoCommonClock, Problem

ENTRIES = 2_000_000  # operations x choices judged at once: 16 MB
SHIFTS = (1, 2, 4)  # operations by which a neighbour's change comes earlier or later
ROUND_OFF = 1e-12  # of a sum, in its terms' order

REPAIRS = 4  # starts move as clocks do; two are the rule
DWELL_TOLERANCE = 1e-10  # relative; the check's is 1e-9

Keys = NDArray[np.int16]  # a schedule: columns of a stage's clocks, by operation in its order


class Starts(NamedTuple):
    """The earliest and the latest start by operation, and the iteration time, in seconds."""

    early_s: Floats
    late_s: Floats
    period_s: float


@dataclass(frozen=True, slots=True)
class Line:
    """One GPU's operations in order, at every clock; infinite where one was not measured."""

    operation: Ints
    clock_mhz: Ints
    asks: Ints  # by operation: the latest one, itself included, that has a clock
    clocked: Ints  # operations that have one
    option: tuple[tuple[ClockOption | None, ...], ...]  # [operation][column]
    seconds: Floats  # (operations, columns)
    cost_j: Floats


class Layout(NamedTuple):
    """What all tables of one problem share."""

    graph: Graph
    levels: Levels
    lines: tuple[Line, ...]


class _Schedule(NamedTuple):
    keys: Keys
    seconds: Floats  # by operation, stops for changes included
    cost_j: float
    changes: Ints  # places


class ChangeSchedules:
    """`cost_j` is (stages, schedules), padded with infinity and sorted by busy time, as
    `choice_search` takes it; classes are operations."""

    def __init__(self, layout: Layout, limits: ChangeLimits) -> None:
        self._graph, self._levels, self._lines = layout
        self._limits = limits
        self._known: list[dict[bytes, _Schedule]] = [{} for _ in self._lines]

    def tabulate(self) -> None:
        """Takes what was added into the table. Choices of before are others now. Raises
        NoCommonClock where a GPU has no schedule."""
        for stage, known in enumerate(self._known):
            if not known:
                raise NoCommonClock(stage)
        self._schedules = [
            sorted(known.values(), key=lambda one: float(one.seconds.sum()))
            for known in self._known
        ]
        self._place = [
            {one.keys.tobytes(): k for k, one in enumerate(schedules)}
            for schedules in self._schedules
        ]
        self.cost_j = np.full((len(self._lines), max(map(len, self._known))), np.inf)
        self._seconds, self._changes = [], []
        for stage, schedules in enumerate(self._schedules):
            self.cost_j[stage, : len(schedules)] = [one.cost_j for one in schedules]
            self._seconds.append(np.stack([one.seconds for one in schedules]))
            places = np.full((max(len(one.changes) for one in schedules), len(schedules)), -1)
            for k, one in enumerate(schedules):
                places[: len(one.changes), k] = one.changes
            self._changes.append(places)

    def add_cheapest(
        self, price_w: Floats, starts: Starts, cost_weight: float = 1.0
    ) -> tuple[float, list[Keys]]:
        """Adds each GPU's schedule of least cost + price x time. Returns the sum of these leasts,
        which no schedules within the limits can beat whose operations start as in `starts`; and
        the schedules, or none where one was not found. `price_w` is by operation. Raises
        NoCommonClock."""
        least_j, found = 0.0, []
        for stage, line in enumerate(self._lines):
            finite = np.isfinite(line.seconds)
            cost = cost_weight * np.where(finite, line.cost_j, 0.0)
            cost += price_w[line.operation][:, None] * np.where(finite, line.seconds, 0.0)
            round_off_j = ROUND_OFF * float(np.abs(cost).max(axis=1).sum())
            value, keys = self._cheapest(line, np.where(finite, cost, np.inf), starts, cost_weight)
            if math.isinf(value):
                raise NoCommonClock(stage)
            least_j += value - round_off_j
            if keys is not None:
                found.append(keys)
                self.add(stage, keys)
        return least_j, found if len(found) == len(self._lines) else []

    def add_repaired(self, choice: Ints) -> list[Keys]:
        """Adds schedules that keep the dwell and are nowhere slower than those of a choice
        (stages,) that may not: of each GPU the cheapest. None where that does not help."""
        schedules = [self._schedules[stage][k] for stage, k in enumerate(choice.tolist())]
        slowest_s = [
            line.seconds[np.arange(len(one.keys)), one.keys, None]
            for line, one in zip(self._lines, schedules, strict=True)
        ]
        for _ in range(REPAIRS):
            period_s, start_s = self._start_s(schedules)
            starts, short = Starts(start_s, start_s, period_s), False
            for stage, line in enumerate(self._lines):
                at_s = start_s[line.operation[schedules[stage].changes]]
                kept_s = np.diff(np.append(at_s, at_s[:1] + period_s))
                if (kept_s >= self._limits.min_dwell_s * (1 - DWELL_TOLERANCE)).all():
                    continue
                short = True
                cost = np.where(line.seconds <= slowest_s[stage], line.cost_j, np.inf)
                _, keys = self._cheapest(line, cost, starts, 1.0)
                if keys is None:
                    return []
                self.add(stage, keys)
                schedules[stage] = self._known[stage][keys.tobytes()]
            if not short:
                return [one.keys for one in schedules]
        return []

    def _start_s(self, schedules: Sequence[_Schedule]) -> tuple[float, Floats]:
        """The iteration time, and starts by operation."""
        seconds = np.empty(len(self._graph.operations))
        for line, one in zip(self._lines, schedules, strict=True):
            seconds[line.operation] = one.seconds
        rows, ends_s = self._levels.operation, np.empty(len(seconds))
        ends_s[rows] = self._levels.ends(seconds[rows, None], np.arange(len(rows)))[:, 0]
        return float(ends_s.max()), ends_s - seconds

    def _cheapest(
        self, line: Line, cost: Floats, starts: Starts, cost_weight: float
    ) -> tuple[float, Keys | None]:
        """`k_change_dp.cheapest` for (operations, clocks), walked from the middle of the iteration
        on: there a clock is kept long enough without being asked."""
        each = np.zeros((len(line.clocked), cost.shape[1]))
        np.add.at(each, np.searchsorted(line.clocked, line.asks), cost)
        half, most = len(each) // 2, self._limits.per_iteration
        again, wrap = self._next(line, starts, half)
        change = cost_weight * self._limits.cost_j
        value, clocks = cheapest(np.roll(each, -half, axis=0), most, change, again, wrap)
        if clocks is None:
            return value, None
        keys = np.zeros(len(line.operation), dtype=np.int16)
        keys[line.clocked] = np.roll(clocks, half)
        return value, keys[line.asks]

    def _next(self, line: Line, starts: Starts, half: int) -> tuple[Ints, Ints]:
        """After a change at each of a GPU's operations with a clock, counted from operation `half`
        on: the earliest place of the next change, in this round (beyond its end: none) and in the
        next one."""
        operations, dwell_s = np.roll(line.operation[line.clocked], -half), self._limits.min_dwell_s
        round_s = np.zeros(len(operations))
        round_s[len(operations) - half :] = starts.period_s
        until_s = starts.early_s[operations] + round_s + dwell_s * (1 - DWELL_TOLERANCE)
        late_s = np.maximum.accumulate(starts.late_s[operations] + round_s)
        again = np.searchsorted(late_s, until_s)
        return (
            np.maximum(again, np.arange(len(operations)) + 1),
            np.searchsorted(late_s, until_s - starts.period_s),
        )

    def add_steady(self) -> None:
        """Adds the schedules without a change."""
        for stage, line in enumerate(self._lines):
            for column in range(len(line.clock_mhz)):
                self.add(stage, np.full(len(line.operation), column, dtype=np.int16))

    def add_near(self, choice: Ints) -> None:
        """Adds the neighbours of each GPU's schedule of a choice (stages,)."""
        for stage, keys in enumerate(self.keys(choice)):
            for near in self._near(stage, keys):
                self.add(stage, near)

    def _near(self, stage: int, keys: Keys) -> Iterator[Keys]:
        bounds = np.flatnonzero(np.diff(keys)) + 1
        for bound in bounds.tolist():
            for shift in SHIFTS:
                earlier, later = keys.copy(), keys.copy()
                earlier[max(0, bound - shift) : bound] = keys[bound]
                later[bound : bound + shift] = keys[bound - 1]
                yield from (earlier, later)
        columns = len(self._lines[stage].clock_mhz)
        stretch = np.searchsorted(bounds, np.arange(len(keys)), side="right")
        if keys[0] == keys[-1]:  # one stretch, over the end of the iteration
            stretch[stretch == len(bounds)] = 0
        for number in np.unique(stretch).tolist():
            for step in (-1, 1):
                moved = keys.copy()
                moved[stretch == number] += step
                if moved.min() >= 0 and moved.max() < columns:
                    yield moved

    def add(self, stage: int, keys: Keys) -> None:
        """Adds a schedule, if it changes its clock only so often and every clock was measured."""
        line, limits = self._lines[stage], self._limits
        keys = keys[line.asks]
        if keys.tobytes() in self._known[stage]:
            return
        changes = np.flatnonzero(keys[line.clocked] != np.roll(keys[line.clocked], 1))
        if len(changes) > limits.per_iteration or keys.min() < 0:
            return
        every, changes = np.arange(len(keys)), line.clocked[changes]
        seconds = line.seconds[every, keys]
        if not np.isfinite(seconds).all():
            return
        seconds[changes] += limits.cost_s
        cost_j = float(line.cost_j[every, keys].sum()) + limits.cost_j * len(changes)
        self._known[stage][keys.tobytes()] = _Schedule(keys, seconds, cost_j, changes)

    def add_plan(self, clocks: Sequence[ClockOption]) -> None:
        """Adds the schedules of a plan, as far as they are within the limits."""
        for stage, keys in enumerate(self._keys_of(clocks)):
            self.add(stage, keys)

    def add_all(self, most: int) -> bool:
        """Adds every schedule, where all GPUs together have at most so many combinations."""
        counts = [len(line.clock_mhz) ** len(line.clocked) for line in self._lines]
        if math.prod(counts) > most:
            return False
        for stage, line in enumerate(self._lines):
            for each in itertools.product(range(len(line.clock_mhz)), repeat=len(line.clocked)):
                keys = np.zeros(len(line.operation), dtype=np.int16)
                keys[line.clocked] = each
                self.add(stage, keys)
        return True

    def choice_of(self, clocks: Sequence[ClockOption]) -> Ints | None:
        """A plan as a choice (stages,) of the table; None where it is none of it."""
        keys = self._keys_of(clocks)
        known = zip(self._place, keys, strict=True)
        return self.place(keys) if all(one.tobytes() in place for place, one in known) else None

    def faster(self, clocks: Sequence[ClockOption], steps: int) -> tuple[ClockOption, ...]:
        """A plan of the table whose clocks below each GPU's highest are so many steps higher."""
        moved = []
        for keys in self._keys_of(clocks):
            higher = np.minimum(keys + steps, keys.max())
            moved.append(np.where(keys < keys.max(), higher, keys).astype(np.int16))
        return self._options(moved)

    def _keys_of(self, clocks: Sequence[ClockOption]) -> list[Keys]:
        found = []
        for line in self._lines:
            column = {mhz: k for k, mhz in enumerate(line.clock_mhz.tolist())}
            asked = [clocks[i].clock_mhz for i in line.operation[line.asks].tolist()]
            keys = [column.get(mhz, -1) for mhz in asked]
            found.append(np.array(keys, dtype=np.int16))
        return found

    def clocks(self, choice: Ints) -> tuple[ClockOption, ...]:
        """The option of each operation, by graph index, under one choice (stages,)."""
        return self._options(self.keys(choice))

    def _options(self, schedules: Sequence[Keys]) -> tuple[ClockOption, ...]:
        """Empty where a clock was not measured."""
        chosen: list[ClockOption | None] = [None] * len(self._graph.operations)
        for line, keys in zip(self._lines, schedules, strict=True):
            rows = zip(line.operation.tolist(), line.option, keys.tolist(), strict=True)
            for i, options, column in rows:
                chosen[i] = options[column]
        measured = tuple(option for option in chosen if option is not None)
        return measured if len(measured) == len(chosen) else ()

    def timeline(self, choice: Ints) -> tuple[float, tuple[float, ...], int]:
        """Iteration time, starts by operation and number of changes of one choice (stages,)."""
        seconds = self.durations(choice[:, None])[:, 0].tolist()
        ready_s = [0.0] * len(seconds)
        for first, second in self._graph.edges:  # sorted by what comes first
            ready_s[second] = max(ready_s[second], ready_s[first] + seconds[first])
        time_s, count = max(map(add, ready_s, seconds)), 0
        for line, schedules, k in zip(self._lines, self._schedules, choice.tolist(), strict=True):
            changed = line.operation[schedules[k].changes].tolist()
            count += len(changed)
            for i in changed:
                ready_s[i] += self._limits.cost_s
        return time_s, tuple(ready_s), count

    def keys(self, choice: Ints) -> list[Keys]:
        return [self._schedules[stage][int(k)].keys for stage, k in enumerate(choice)]

    def place(self, keys: Sequence[Keys]) -> Ints:
        """Where schedules stand in the table now."""
        known = zip(self._place, keys, strict=True)
        return np.array([place[one.tobytes()] for place, one in known], dtype=np.int64)

    def durations(self, choice: Ints) -> Floats:
        """By operation, (operations, K) seconds of (stages, K) choices."""
        seconds = np.empty((len(self._graph.operations), choice.shape[1]))
        for stage, line in enumerate(self._lines):
            seconds[line.operation] = self._seconds[stage][choice[stage]].T
        return seconds

    def iteration_times(self, choice: Ints) -> Floats:
        """Infinite where a clock is kept too short."""
        step = max(1, ENTRIES // len(self._graph.operations))
        rows = self._levels.operation
        parts = []
        for first in range(0, choice.shape[1], step):
            some = choice[:, first : first + step]
            durations_s = self.durations(some)
            every = np.arange(len(rows))
            if self._limits.min_dwell_s > 0.0:
                ends_s = np.empty_like(durations_s)
                ends_s[rows] = self._levels.ends(durations_s[rows], every)
                times_s = ends_s.max(axis=0)
                kept_s = self._kept_s(some, ends_s - durations_s, times_s)
                least_s = self._limits.min_dwell_s * (1 - DWELL_TOLERANCE)
                parts.append(np.where(kept_s >= least_s, times_s, np.inf))
            else:
                parts.append(self._levels.iteration_times(durations_s[rows], every))
        return np.concatenate(parts)

    def _kept_s(self, choice: Ints, start_s: Floats, times_s: Floats) -> Floats:
        """The shortest time for which a clock is kept, of (stages, K) choices: (K,)."""
        shortest_s = np.full(choice.shape[1], np.inf)
        column = np.arange(choice.shape[1])
        for stage, line in enumerate(self._lines):
            at = self._changes[stage][:, choice[stage]]  # (changes, K)
            if len(at):
                at_s = np.where(at >= 0, start_s[line.operation[at], column], np.inf)
                first_s = at_s[0] + times_s
                again_s = np.concatenate([at_s[1:], first_s[None]])
                again_s = np.where(np.isfinite(again_s), again_s, first_s)
                kept_s = np.where(at >= 0, again_s - np.where(at >= 0, at_s, 0.0), np.inf)
                shortest_s = np.minimum(shortest_s, kept_s.min(axis=0))
        return shortest_s

    def critical(self, choice: Ints) -> Floats:
        """What a longest path takes of each operation; dwell aside."""
        return self._path(self.durations(choice[:, None])[:, 0])[1]

    def prices_w(self, price_w: Floats) -> Floats:
        """Prices by operation as the weight of `lengths`: the same."""
        return price_w

    def mixed_s(self, share: Floats) -> Floats:
        """Seconds by operation where each GPU mixes its schedules by shares (stages, schedules)."""
        seconds = np.empty(len(self._graph.operations))
        for line, table, mine in zip(self._lines, self._seconds, share, strict=True):
            seconds[line.operation] = mine[: len(table)] @ table
        return seconds

    def longest(self, share: Floats) -> tuple[float, Floats]:
        """The makespan of such a mixture, and how often its longest path takes each operation."""
        return self._path(self.mixed_s(share))

    def _path(self, seconds: Floats) -> tuple[float, Floats]:
        rows = self._levels.operation
        longest_s, counts = self._levels.critical(seconds[rows], np.arange(len(rows)))
        weight = np.empty(len(rows))
        weight[rows] = counts
        return longest_s, weight

    def lengths(self, weight: Floats) -> Floats:
        lengths = np.full_like(self.cost_j, np.inf)
        for stage, line in enumerate(self._lines):
            seconds = self._seconds[stage] @ weight[line.operation]
            lengths[stage, : len(seconds)] = seconds
        return lengths


def layout_of(problem: Problem) -> Layout:
    lines = tuple(_line_of(problem, stage) for stage in range(len(problem.graph.order)))
    return Layout(problem.graph, levels_of(problem.graph), lines)


def _line_of(problem: Problem, stage: int) -> Line:
    """Of several options at one clock the fastest counts. Clocks that another beats for every
    kind of operation are left out."""
    operations, menus = problem.graph.operations, problem.measured or problem.options
    order, power_w = problem.graph.order[stage], problem.blocking_power_w[stage]
    clocks = sorted({o.clock_mhz for i in order for o in menus[i]} - {ANY_CLOCK_MHZ})
    clocks = clocks or [ANY_CLOCK_MHZ]
    made: dict[tuple[int, int], list[ClockOption | None]] = {}
    for i in order:
        key = (id(menus[i]), id(problem.options[i]))
        if key not in made:
            made[key] = _at_clocks(menus[i], problem.options[i], clocks)
    rows = [made[id(menus[i]), id(problem.options[i])] for i in order]
    kept = _undominated(list(made.values()), power_w)
    clock_mhz = np.array(clocks, dtype=np.int64)[kept]
    option = tuple(tuple(row[k] for k in kept) for row in rows)
    seconds = np.array([[math.inf if o is None else o.time_s for o in row] for row in option])
    cost_j = np.array(
        [[math.inf if o is None else o.effective_cost_j(power_w) for o in row] for row in option]
    )
    beside = np.array([operations[i].kind in SENDS for i in order])
    clocked = np.array([problem.options[i][0].clock_mhz != ANY_CLOCK_MHZ for i in order]) & ~beside
    asks = np.maximum.accumulate(np.where(clocked, np.arange(len(order)), -1))
    asks[asks < 0] = asks[-1] if clocked.any() else 0
    return Line(
        operation=np.array(order, dtype=np.int64),
        clock_mhz=clock_mhz,
        asks=asks,
        clocked=np.unique(asks),
        option=option,
        seconds=seconds,
        cost_j=cost_j,
    )


def _at_clocks(
    menu: tuple[ClockOption, ...], options: tuple[ClockOption, ...], clocks: list[int]
) -> list[ClockOption | None]:
    """What an operation takes at each clock; None where it was not measured."""
    if options[0].clock_mhz == ANY_CLOCK_MHZ:
        return [options[0]] * len(clocks)
    at: dict[int, ClockOption] = {}
    for option in sorted(menu, key=lambda o: (o.time_s, o.energy_j), reverse=True):
        at[option.clock_mhz] = option
    return [at.get(clock) for clock in clocks]


def _undominated(rows: list[list[ClockOption | None]], power_w: float) -> list[int]:
    """Columns that no other beats on time and cost of every row; of equals the first."""
    time_s = [[math.inf if o is None else o.time_s for o in row] for row in rows]
    cost_j = [[math.inf if o is None else o.effective_cost_j(power_w) for o in row] for row in rows]
    cost = np.array([*time_s, *cost_j])
    no_worse = (cost[:, :, None] <= cost[:, None, :]).all(axis=0)
    equal = no_worse & no_worse.T
    columns = np.arange(cost.shape[1])
    beats = no_worse & (~equal | (columns[:, None] < columns))
    np.fill_diagonal(beats, False)
    return [k for k in columns.tolist() if not beats[:, k].any()]
