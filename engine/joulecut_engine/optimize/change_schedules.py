"""Clock schedules of single GPUs with few changes: the choices that `changes` is made of.

A schedule names a clock for each operation of a GPU, in their order, and changes it only so
often. There are far too many to list. The cheapest under given prices of time is known exactly
(`k_change_dp`), and around a good one lie those with a change an operation earlier or later, or
with another clock in one of its stretches. This table holds the schedules found so far. Each keeps
the minimum dwell whatever the other GPUs do (`dwell`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import SENDS
from joulecut_engine.optimize.annealing import Board, Rules, annealed
from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.dwell import Spacing, spacing
from joulecut_engine.optimize.k_change_dp import cheapest
from joulecut_engine.optimize.levels import Floats, Ints, Levels, levels_of
from joulecut_engine.optimize.problem import ChangeLimits, NoCommonClock, Problem

ENTRIES = 2_000_000  # operations x choices judged at once: 16 MB
SHIFTS = (1, 2, 4)  # operations by which a neighbour's change comes earlier or later
COLD = 0.03  # temperature at the end of a search, in what an operation has to save on average
ROUND_OFF = 1e-12  # of a sum, in its terms' order

Keys = NDArray[np.int16]  # a schedule: columns of a stage's clocks, by operation in its order


@dataclass(frozen=True, slots=True)
class _Line:
    """One GPU's operations in order, at every clock; infinite where one was not measured."""

    operation: Ints
    clock_mhz: Ints
    asks: Ints  # by operation: the latest one, itself included, that has a clock
    option: tuple[tuple[ClockOption | None, ...], ...]  # [operation][column]
    seconds: Floats  # (operations, columns)
    cost_j: Floats
    work_s: Floats  # without sends, which run beside


class _Schedule(NamedTuple):
    """What the operations of a GPU take and cost, changes included."""

    keys: Keys
    seconds: Floats
    busy_s: float
    cost_j: float


class Lines(NamedTuple):
    """What all tables of one problem and dwell share; by stage. `turns` are the operations where
    walks begin, with the places to change again: the beginning of the iteration and, under a dwell,
    its middle, where most clocks are kept for long, so that one may be kept over the end."""

    levels: Levels
    lines: tuple[_Line, ...]
    spacings: tuple[Spacing, ...]
    turns: tuple[dict[int, Ints], ...]

    def keys_of(self, clocks: Sequence[ClockOption]) -> list[Keys]:
        """By stage, the columns of a plan; -1 for a clock that its GPU has not."""
        found = []
        for line in self.lines:
            column = {mhz: k for k, mhz in enumerate(line.clock_mhz.tolist())}
            asked = [clocks[i].clock_mhz for i in line.operation[line.asks].tolist()]
            keys = [column.get(mhz, -1) for mhz in asked]
            found.append(np.array(keys, dtype=np.int16))
        return found

    def options(self, schedules: Sequence[Keys]) -> tuple[ClockOption, ...]:
        """By operation; empty where a clock was not measured."""
        chosen: dict[int, ClockOption | None] = {}
        for line, keys in zip(self.lines, schedules, strict=True):
            rows = zip(line.operation.tolist(), line.option, keys.tolist(), strict=True)
            chosen |= {i: options[column] for i, options, column in rows}
        measured = [chosen[i] for i in range(len(chosen))]
        found = tuple([option for option in measured if option is not None])
        return found if len(found) == len(measured) else ()

    def faster(self, clocks: Sequence[ClockOption], steps: int) -> tuple[ClockOption, ...]:
        """A plan whose clocks below each GPU's highest are so many steps higher."""
        moved = []
        for keys in self.keys_of(clocks):
            higher = np.minimum(keys + steps, keys.max())
            moved.append(np.where(keys < keys.max(), higher, keys).astype(np.int16))
        return self.options(moved)


def lines_of(problem: Problem, dwell_s: float, known: Lines | None = None) -> Lines:
    """`known` are those of the same problem under another dwell."""
    levels = known.levels if known else levels_of(problem.graph)
    stages = range(len(problem.graph.order))
    lines = known.lines if known else tuple(_line_of(problem, stage) for stage in stages)
    fastest_s = np.empty(len(problem.graph.operations))
    for line in lines:
        fastest_s[line.operation] = line.seconds.min(axis=1)
    spacings = [spacing(levels, line.operation, fastest_s, line.work_s, dwell_s) for line in lines]
    firsts = [(0, len(line.operation) // 2) if dwell_s > 0.0 else (0,) for line in lines]
    pairs = zip(spacings, firsts, strict=True)
    turns = tuple({first: one.until(first) for first in mine} for one, mine in pairs)
    return Lines(levels, lines, tuple(spacings), turns)


class ChangeSchedules:
    """`cost_j` is (stages, schedules), padded with infinity and sorted by busy time, as
    `choice_search` takes it; classes are operations. Raises NoCommonClock where a GPU has no
    schedule within the limits. What `add_cheapest` returns holds for plans within the deadline."""

    def __init__(
        self, problem: Problem, limits: ChangeLimits, lines: Lines, deadline_s: float = math.inf
    ) -> None:
        self._problem, self._limits, self._shared = problem, limits, lines
        self._levels, self._lines, self._spacings, turns = lines
        self._dwells = limits.min_dwell_s > 0.0
        self._open = [
            (one.next_possible(deadline_s), one.latest(deadline_s)) for one in self._spacings
        ]
        self._turns = [
            {first: (until, one.latest(deadline_s, first)) for first, until in mine.items()}
            for one, mine in zip(self._spacings, turns, strict=True)
        ]
        self._known: list[dict[bytes, _Schedule]] = [{} for _ in self._lines]
        self._schedules: list[list[Keys]] = []
        for stage, line in enumerate(self._lines):
            for column in range(len(line.clock_mhz)):
                if np.isfinite(line.cost_j[:, column]).all():
                    self._add(stage, np.full(len(line.operation), column, dtype=np.int16))
        self.add_cheapest(np.full(len(problem.graph.operations), 1.0), cost_weight=0.0)

    def tabulate(self) -> bool:
        """Adds the new schedules to the table, if there are any: then it answers true, and indices
        of earlier choices are no longer valid."""
        sizes = [len(known) for known in self._known]
        if sizes == [len(known) for known in self._schedules]:
            return False
        for stage, known in enumerate(self._known):
            if not known:
                raise NoCommonClock(stage)
        self.cost_j = np.full((len(self._lines), max(map(len, self._known))), np.inf)
        self._seconds, self._schedules = [], []
        for stage, known in enumerate(self._known):
            mine = sorted(known.values(), key=lambda one: one.busy_s)
            self.cost_j[stage, : len(mine)] = [one.cost_j for one in mine]
            self._seconds.append(np.stack([one.seconds for one in mine], axis=1))
            self._schedules.append([one.keys for one in mine])
        return True

    def add_cheapest(self, price_w: Floats, cost_weight: float = 1.0) -> float:
        """Adds each GPU's schedule of least cost + price x time; returns the sum of these leasts,
        which no schedules within the limits can beat. `price_w` is by operation."""
        least_j = 0.0
        for stage, line in enumerate(self._lines):
            cost = cost_weight * np.where(np.isfinite(line.cost_j), line.cost_j, 0.0)
            cost += price_w[line.operation][:, None] * np.where(
                np.isfinite(line.seconds), line.seconds, 0.0
            )
            cost = np.where(np.isfinite(line.seconds), cost, np.inf)
            change, most = cost_weight * self._limits.cost_j, self._limits.per_iteration
            value, keys = cheapest(cost, *self._open[stage], most, change, False)
            if math.isinf(value):
                raise NoCommonClock(stage)
            least_j += value - ROUND_OFF * float(np.abs(cost[np.arange(len(keys)), keys]).sum())
            self._add(stage, keys.astype(np.int16))
            if self._dwells:
                self._add_walk(stage, cost, change)
        return least_j

    def _add_walk(self, stage: int, cost: Floats, change: float) -> Keys | None:
        """Adds a GPU's schedules of least cost (operations, columns) that keep the limits; returns
        the cheapest."""
        least, best, most = math.inf, None, self._limits.per_iteration
        for first, within in self._turns[stage].items():
            turned = np.roll(cost, -first, axis=0)
            value, keys = cheapest(turned, *within, most, change, self._dwells)
            if math.isfinite(value):
                known = self._add(stage, np.roll(keys, first).astype(np.int16))
                least, best = min((least, best), (value, known), key=lambda pair: pair[0])
        return best

    def add(self, plans: Sequence[Sequence[Keys]]) -> None:
        """Adds the schedules of plans, as far as they are within the limits."""
        for plan in plans:
            for stage, keys in enumerate(plan):
                self._add(stage, keys)

    def add_near(self, choice: Ints) -> None:
        """Adds the neighbours of each GPU's schedule of a choice (stages,)."""
        for stage, number in enumerate(choice.tolist()):
            for keys in self._near(stage, self._schedules[stage][number]):
                self._add(stage, keys)

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

    def _add(self, stage: int, keys: Keys) -> Keys | None:
        """The schedule as it is known from now on; None where it is not within the limits."""
        line, limits = self._lines[stage], self._limits
        keys = keys[line.asks]
        name = keys.tobytes()
        if name in self._known[stage]:
            return self._known[stage][name].keys
        seconds = np.empty(len(keys))
        count = _laid(keys, line.seconds, self._open[stage][1], limits.cost_s, seconds)
        if not 0 <= count <= limits.per_iteration:
            return None
        cost_j = float(line.cost_j[np.arange(len(keys)), keys].sum()) + limits.cost_j * count
        if not math.isfinite(cost_j):
            return None
        if self._dwells and count and not self._spacings[stage].kept(keys, _changes(keys)):
            return None
        self._known[stage][name] = _Schedule(keys, seconds, float(seconds.sum()), cost_j)
        return keys

    def add_plan(self, clocks: Sequence[ClockOption]) -> list[Keys] | None:
        """As `add_schedules`, of a plan's clocks by operation."""
        slowest_s = [np.array([clocks[i].time_s for i in line.operation.tolist()])
                     for line in self._lines]  # fmt: skip
        return self._added(self._shared.keys_of(clocks), slowest_s)

    def add_schedules(self, plan: Sequence[Keys]) -> list[Keys] | None:
        """Adds a schedule for each GPU and returns them: in the place of one that is not within the
        limits the cheapest that is nowhere slower. None where a GPU has none of them."""
        pairs = zip(plan, self._lines, strict=True)
        return self._added(plan, [one.seconds[np.arange(len(keys)), keys] for keys, one in pairs])

    def _added(self, plan: Sequence[Keys], slowest_s: Sequence[Floats]) -> list[Keys] | None:
        found = []
        for stage, (keys, most_s) in enumerate(zip(plan, slowest_s, strict=True)):
            known = self._add(stage, keys)
            if known is None:
                line = self._lines[stage]
                cost_j = np.where(line.seconds <= most_s[:, None], line.cost_j, np.inf)
                known = self._add_walk(stage, cost_j, self._limits.cost_j)
            if known is None:
                return None
            found.append(known)
        return found

    def annealed(
        self, keys: Sequence[Keys], rules: Rules, warm: float, steps: int, seed: int
    ) -> tuple[list[Keys], float]:
        """The best schedules in time that a search from a plan meets, and their value; infinite
        where none is. `warm` is in what an operation has to save on average."""
        board, unit_j = self._board, self.stake_j / len(self._problem.graph.operations) or 1.0
        packed = np.zeros(board.row.shape, dtype=np.int16)
        for mine, one in zip(packed, keys, strict=True):
            mine[: len(one)] = one
        found, value_j = annealed(board, rules, packed, warm * unit_j, COLD * unit_j, steps, seed)
        return [one[: len(mine)] for one, mine in zip(found, keys, strict=True)], value_j

    @cached_property
    def _board(self) -> Board:
        lines, levels = self._lines, self._levels
        longest = max(len(line.operation) for line in lines)
        widest = max(len(line.clock_mhz) for line in lines)
        row = np.zeros((len(lines), longest), dtype=np.int64)
        seconds, asks = np.full((*row.shape, widest), np.inf), np.zeros_like(row)
        cost_j, works, next_safe = np.full_like(seconds, np.inf), np.zeros(row.shape), row.copy()
        for gpu, line in enumerate(lines):
            count, width = line.seconds.shape
            works[gpu, :count] = line.work_s.max(axis=1) > 0.0
            next_safe[gpu, :count] = self._spacings[gpu].next_safe
            row[gpu, :count], asks[gpu, :count] = line.operation, line.asks
            seconds[gpu, :count, :width], cost_j[gpu, :count, :width] = line.seconds, line.cost_j
        length = np.array([len(line.operation) for line in lines])
        columns = np.array([len(line.clock_mhz) for line in lines])
        graph = (levels.begins, levels.before, levels.last)
        return Board(row, length, asks, columns, seconds, cost_j, works, next_safe, *graph)

    @cached_property
    def stake_j(self) -> float:
        """What slowing could save at all."""
        saved_j = 0.0
        for line in self._lines:
            fastest = np.argmin(line.seconds, axis=1)[:, None]
            fastest_j = np.take_along_axis(line.cost_j, fastest, axis=1)[:, 0]
            saved_j += float((fastest_j - line.cost_j.min(axis=1)).sum())
        return saved_j

    def clocks(self, choice: Ints) -> tuple[ClockOption, ...]:
        """The option of each operation, by graph index, under one choice (stages,)."""
        return self._shared.options(self.keys(choice))

    def timeline(self, choice: Ints) -> tuple[float, tuple[float, ...], int]:
        """Iteration time, starts by operation and number of changes of one choice (stages,)."""
        seconds, count = self.durations(choice[:, None])[:, 0], 0
        starts_s, _ = self._levels.around(seconds)
        time_s, ready_s = float((starts_s + seconds).max()), starts_s.tolist()
        for line, keys in zip(self._lines, self.keys(choice), strict=True):
            changed = line.operation[_changes(keys)].tolist()
            count += len(changed)
            for i in changed:
                ready_s[i] += self._limits.cost_s
        return time_s, tuple(ready_s), count

    def keys(self, choice: Ints) -> list[Keys]:
        return [self._schedules[stage][int(k)] for stage, k in enumerate(choice)]

    def index(self, keys: Sequence[Keys]) -> Ints:
        """Where schedules stand in the table now."""
        places = [
            next(k for k, one in enumerate(known) if one is mine)
            for known, mine in zip(self._schedules, keys, strict=True)
        ]
        return np.array(places, dtype=np.int64)

    def durations(self, choice: Ints) -> Floats:
        """By operation, (operations, K) seconds of (stages, K) choices."""
        seconds = np.empty((len(self._problem.graph.operations), choice.shape[1]))
        for stage, line in enumerate(self._lines):
            seconds[line.operation] = self._seconds[stage][:, choice[stage]]
        return seconds

    def iteration_times(self, choice: Ints) -> Floats:
        step = max(1, ENTRIES // len(self._problem.graph.operations))
        parts = [
            self._levels.iteration_times(self.durations(choice[:, first : first + step]))
            for first in range(0, choice.shape[1], step)
        ]
        return np.concatenate(parts)

    def critical(self, choice: Ints) -> Floats:
        return self._levels.critical(self.durations(choice[:, None])[:, 0])[1]

    def longest(self, share: Floats) -> tuple[float, Floats]:
        """The makespan where each GPU mixes its schedules by shares (stages, schedules), and how
        often its longest path takes each operation."""
        return self._levels.critical(self.mixed_s(share))

    def mixed_s(self, share: Floats) -> Floats:
        """Seconds by operation of such a mixture."""
        seconds = np.empty(len(self._problem.graph.operations))
        for line, table, mine in zip(self._lines, self._seconds, share, strict=True):
            seconds[line.operation] = table @ mine[: table.shape[1]]
        return seconds

    def lengths(self, weight: Floats) -> Floats:
        lengths = np.full_like(self.cost_j, np.inf)
        for stage, line in enumerate(self._lines):
            seconds = weight[line.operation] @ self._seconds[stage]
            lengths[stage, : len(seconds)] = seconds
        return lengths


@compiled
def _laid(keys: Keys, seconds: Floats, latest: Ints, change_s: float, taken_s: Floats) -> int:
    """Writes what each operation takes; answers how often the clock changes, -1 where a clock is
    none of this GPU's or a stretch is late by itself."""
    size, begin, count = len(keys), 0, 0
    for k in range(size):
        now, was = keys[k], keys[k - 1 if k > 0 else size - 1]
        if now < 0 or (k > 0 and now != was and latest[begin, keys[begin]] < k):
            return -1
        taken_s[k] = seconds[k, now]
        if now != was:
            begin, count = k, count + 1
            taken_s[k] += change_s
    return -1 if latest[begin, keys[begin]] < size else count


def _changes(keys: Keys) -> Ints:
    """The operations before which the clock changes; iterations repeat."""
    changes = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    return changes if keys[0] == keys[-1] else np.concatenate([[0], changes])


def _line_of(problem: Problem, stage: int) -> _Line:
    """Of several options at one clock the fastest counts. Clocks that another beats for every
    kind of operation are left out."""
    operations, menus = problem.graph.operations, problem.measured or problem.options
    order, power_w = problem.graph.order[stage], problem.blocking_power_w[stage]
    clocks = sorted({o.clock_mhz for i in order for o in menus[i]} - {ANY_CLOCK_MHZ})
    clocks = clocks or [ANY_CLOCK_MHZ]
    asked = [(id(menus[i]), id(problem.options[i])) for i in order]
    first = dict(zip(reversed(asked), reversed(order), strict=True))  # of each kind, an operation
    number = {key: k for k, key in enumerate(first)}
    rows = [_at_clocks(menus[i], problem.options[i], clocks) for i in first.values()]
    seconds = np.array([[math.inf if o is None else o.time_s for o in row] for row in rows])
    cost_j = np.array(
        [[math.inf if o is None else o.effective_cost_j(power_w) for o in row] for row in rows]
    )
    kept = _undominated(np.concatenate([seconds, cost_j]))
    which = [number[key] for key in asked]
    options = [tuple([row[k] for k in kept]) for row in rows]
    seconds, cost_j = (np.ascontiguousarray(one[which][:, kept]) for one in (seconds, cost_j))
    beside = np.array([operations[i].kind in SENDS for i in order])
    clocked = np.array([problem.options[i][0].clock_mhz != ANY_CLOCK_MHZ for i in order]) & ~beside
    asks = np.maximum.accumulate(np.where(clocked, np.arange(len(order)), -1))
    asks[asks < 0] = asks[-1] if clocked.any() else 0
    return _Line(
        operation=np.array(order, dtype=np.int64),
        clock_mhz=np.array(clocks, dtype=np.int64)[kept],
        asks=asks,
        option=tuple([options[k] for k in which]),
        seconds=seconds,
        cost_j=cost_j,
        work_s=np.where(beside[:, None], 0.0, seconds),
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


def _undominated(cost: Floats) -> list[int]:
    """Columns that no other beats in every row; of equals the first."""
    no_worse = (cost[:, :, None] <= cost[:, None, :]).all(axis=0)
    equal = no_worse & no_worse.T
    columns = np.arange(cost.shape[1])
    beats = no_worse & (~equal | (columns[:, None] < columns))
    np.fill_diagonal(beats, False)
    return [k for k in columns.tolist() if not beats[:, k].any()]
