"""How far apart the relaxation and any real plan must be: a bound with whole choices in it.

The relaxation lets an operation sit between two clocks. What a plan uses beyond its bound is,
to the joule, a sum of terms that are never negative (the flow's prices on options and waits):

    sum over operations of (cost + price * time - the least of that) + sum over links of flow * wait

So the least that any part of the graph can lose, everything outside left free, adds to the
bound, and parts that share no term add up. A part is a strip: the operations of one stage in
order (the spine) and, beside each two of them that follow each other, the one or two operations
of another stage that run between the same two events. A spine operation and the wait after it
take x seconds, two together leave their sides no more than the sum. Dynamic programming over
x in cells of h seconds, each cell at the least that is possible in it, finds a bound on the
strip's loss; a finer h only raises it.

Where two stages hand over microbatch by microbatch, no averaging over the iteration helps: two
real options have to fit one period. That loss is what this adds (A40 profile, 8 x 96: 0.1-0.2 %
of the energy); the bound on the whole is Lagrangian decomposition with the relaxation's prices.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.solve.ascent import climbed, dual, paths_of, through
from joulecut_controller.solve.compiled import exact
from joulecut_controller.solve.events import Events, events_of
from joulecut_controller.solve.ladders import Ladder, Step, meetings, walked
from joulecut_controller.solve.network import Network
from joulecut_controller.solve.relaxation import Relaxation
from joulecut_controller.solve.waves import Floats, Ints

# Of what options cost apart, mean over rows that have a choice: what loses more counts as so
# much, whatever it does to its sides. On public profiles half of it finds as much.
CAP = 0.3
CELLS_COARSE = 100  # per mean duration of the fastest options: enough to choose prices by
CELLS_FINE = (200.0, 800.0)
ROUNDS = 2
WORK = 2.5e8  # cells met by cells, for all strips together: 0.2 s
STRIPS_MAX = 3
ASKS_MIN, ASKS_PER_LINE = 32, 8  # prices tried; twice as many prove a fiftieth more
WORTH = 1e-5  # of the bound: a strip that adds less is not worth its time
EDGE = 1e-9  # of a cell: durations so near an edge count on both sides
ROUND_OFF = 1e-9  # of what is added
PATHS_MAX = 64  # operations looked at for one side: a spine of a pipeline has a few neighbours


@dataclass(frozen=True, slots=True)
class _Loss:
    """Least loss by cell: cell k is [(base + k) h, (base + k + 1) h); `beyond` after the last,
    infinite before the first."""

    base: int
    value: Floats
    beyond: float


class Strips:
    """One problem's network; `lines` are the rows of each stage in order."""

    def __init__(self, network: Network, lines: Sequence[Ints]) -> None:
        self._network, self._lines = network, lines
        self._events: Events = events_of(network)
        begins: dict[int, list[int]] = defaultdict(list)
        for row, event in enumerate(self._events.begin.tolist()):
            begins[event].append(row)
        self._begins = begins
        self._spines = [run for line in lines for run in self._runs(line.tolist())]
        self._mean_s = float(network.fastest.mean()) / network.second

    def raised(self, relaxed: Relaxation, time_price_w: float) -> Relaxation:
        """The same relaxation with the parts' losses in its bound, at the prices that prove
        most; these lead to better plans, too. `time_price_w` is the one it was made for."""
        if relaxed.link_w is None or not self._spines:
            return relaxed
        network, deadline_s = self._network, relaxed.deadline_s
        lines = [line for line in self._lines if len(line)]
        paths = paths_of(network, lines, relaxed.link_w)[::-1]  # the last stages press most

        def value_j(link_w: Floats, cells: float) -> float:
            pricing = _Pricing(network, link_w, self._mean_s / cells)
            gain_j = sum(pricing.loss_j(part) for part in chosen)
            return dual(network, link_w, time_price_w, deadline_s)[0] + gain_j * (1.0 - ROUND_OFF)

        best, link_w = relaxed, relaxed.link_w
        for _ in range(ROUNDS):
            chosen = self._chosen(_Pricing(network, link_w, self._mean_s / CELLS_COARSE))
            link_w = climbed(link_w, paths, lambda w: value_j(w, CELLS_COARSE), ASKS_MIN)
        for flow_w in (relaxed.link_w, link_w):
            for cells in CELLS_FINE:
                found_j = value_j(flow_w, cells)
                if found_j > best.bound_j:
                    _, back_w = dual(network, flow_w, time_price_w, deadline_s)
                    best = replace(
                        best,
                        bound_j=found_j,
                        deadline_price_w=back_w,
                        price_w=through(network, flow_w),
                        link_w=flow_w,
                    )
        return best

    def _chosen(self, pricing: "_Pricing") -> "list[_Strip | Ladder]":
        """Parts that lose most together, no row in two: its loss would count twice."""
        gains = [pricing.loss_j(part) for part in self._parts]
        order = sorted(range(len(gains)), key=lambda k: (-gains[k], k))
        rows = [set(part.rows) for part in self._parts]
        best, best_j = list[int](), -1.0
        for first in order:
            taken, used = [first], set(rows[first])
            for k in order:
                if used.isdisjoint(rows[k]):
                    taken.append(k)
                    used |= rows[k]
            if (found_j := sum(gains[k] for k in taken)) > best_j:
                best, best_j = taken, found_j
        free = np.ones(self._network.size, dtype=np.bool_)
        chosen = [self._parts[k] for k in best]
        for part in chosen:
            free[list(part.rows)] = False
        for run in self._spines:  # what is left over, with fewer sides
            if free[run].all():
                chosen.append(self._strip(run, free))
                free[list(chosen[-1].rows)] = False
        return chosen

    @cached_property
    def _parts(self) -> "list[_Strip | Ladder]":
        free = np.ones(self._network.size, dtype=np.bool_)
        strips = [self._strip(run, free) for run in self._spines]
        return [*self._ladders(free), *strips]

    def _ladders(self, free: NDArray[np.bool_]) -> list[Ladder]:
        events = self._events
        passed = [[int(events.begin[run[0]]), *events.done[run].tolist()] for run in self._spines]
        found = list[Ladder]()
        for i, j in combinations(range(len(passed)), 2):
            for met in meetings(passed[i], passed[j]):
                first, second = self._spines[i], self._spines[j]
                used, steps = {*first, *second}, list[Step]()
                for a, b in met:
                    sides = [
                        self._side(passed[k][at - 1], passed[k][at + 1], used, free)
                        if 0 < at < len(self._spines[k])
                        else ()
                        for k, at in ((i, a), (j, b))
                    ]
                    used.update(*sides)
                    steps.append(
                        Step(
                            tuple(first[max(a - 1, 0) : a]),
                            tuple(second[max(b - 1, 0) : b]),
                            tuple(first[a : a + 1]),
                            tuple(second[b : b + 1]),
                            sides[0],
                            sides[1],
                        )
                    )
                found.append(Ladder(tuple(steps)))
        return found

    def _runs(self, line: list[int]) -> list[list[int]]:
        """A stage's rows where each begins when the one before is done."""
        events, runs = self._events, [line[:1]]
        for before, after in pairwise(line):
            if events.done[before] == events.begin[after]:
                runs[-1].append(after)
            else:
                runs.append([after])
        return [run for run in runs if len(run) > 1]

    def _strip(self, spine: list[int], free: NDArray[np.bool_]) -> "_Strip":
        """Sides of free rows, none of them twice."""
        done, sides, used = self._events.done, list[tuple[int, ...]](), set(spine)
        for first, second in pairwise(spine):
            side = self._side(int(self._events.begin[first]), int(done[second]), used, free)
            used.update(side)
            sides.append(side)
        return _Strip(tuple(spine), tuple(sides))

    def _side(
        self, start: int, end: int, used: set[int], free: NDArray[np.bool_]
    ) -> tuple[int, ...]:
        """One or two rows from one event to another; none where there are no such."""
        done, looked = self._events.done, 0
        for row in self._begins[start]:
            if row in used or not free[row]:
                continue
            if done[row] == end:
                return (row,)
            for after in self._begins[int(done[row])]:
                looked += 1
                if after not in used and free[after] and done[after] == end:
                    return row, after
                if looked > PATHS_MAX:
                    return ()
        return ()


@dataclass(frozen=True, slots=True)
class _Strip:
    spine: tuple[int, ...]
    sides: tuple[tuple[int, ...], ...]  # beside rows k and k + 1 of the spine; may be empty

    @property
    def rows(self) -> tuple[int, ...]:
        return self.spine + tuple(row for side in self.sides for row in side)


class _Pricing:
    """The losses of one relaxation's options and waits, in cells of `cell_s` seconds."""

    def __init__(self, network: Network, link_w: Floats, cell_s: float) -> None:
        self._network, self._cell_s = network, cell_s
        self._price_w = through(network, link_w)
        curves = [network.curves.distinct[c] for c in network.curve]
        apart_j = [float(c.cost_j[0] - c.cost_j.min()) for c in curves if len(c.hull_s) > 1]
        self._cap_j = CAP * float(np.mean(apart_j)) if apart_j else 0.0
        self._kept: dict[tuple[tuple[int, float], ...], _Loss] = {}

    def loss_j(self, strip: "_Strip | Ladder") -> float:
        """What any plan loses in a part, at least."""
        if isinstance(strip, Ladder):
            return self._ladder_j(strip)
        spine = [self._loss((row,)) for row in strip.spine]
        sides = [self._loss(side) for side in strip.sides]
        value, count = _table(spine)
        side, side_count = _table(sides)
        return _least(
            np.array([one.base for one in spine]),
            value,
            count,
            np.array([one.beyond for one in spine]),
            np.array([one.base for one in sides]),
            side,
            side_count,
        )

    def _ladder_j(self, ladder: Ladder) -> float:
        numbers: dict[int, int] = {}
        losses = list[_Loss]()
        which = np.empty((len(ladder.steps), 6), dtype=np.int64)
        for step, row in zip(ladder.steps, which, strict=True):
            for k, rows in enumerate(step):
                one = self._loss(rows)
                if id(one) not in numbers:
                    numbers[id(one)] = len(losses)
                    losses.append(one)
                row[k] = numbers[id(one)]
        value, count = _table(losses)
        base, beyond = np.array([one.base for one in losses]), np.array([o.beyond for o in losses])
        return walked(base, value, count, beyond, which)

    def _loss(self, rows: tuple[int, ...]) -> _Loss:
        key = tuple((int(self._network.curve[row]), float(self._price_w[row])) for row in rows)
        if key not in self._kept:
            self._kept[key] = self._new(rows)
        return self._kept[key]

    def _new(self, rows: tuple[int, ...]) -> _Loss:
        """Of rows one after another and of the waits between and after them."""
        time_s, loss_j = np.zeros(1), np.zeros(1)
        for row in rows:
            curve = self._network.curves.distinct[self._network.curve[row]]
            priced_j = curve.cost_j + self._price_w[row] * curve.time_s
            time_s = (time_s[:, None] + curve.time_s).ravel()
            loss_j = (loss_j[:, None] + (priced_j - priced_j.min())).ravel()
        wait_w = min((float(self._price_w[row]) for row in rows), default=0.0)
        order = np.argsort(time_s, kind="stable")
        base = int(np.floor(time_s[order[0]] / self._cell_s - EDGE))
        span = int((time_s[order[-1]] - time_s[order[0]]) / self._cell_s) + 2
        if wait_w > 0.0:
            span += min(int(self._cap_j / (wait_w * self._cell_s)) + 1, span)
        value, beyond = _cells(
            time_s[order], loss_j[order], wait_w, self._cell_s, base, span, EDGE * self._cell_s
        )
        value, beyond = np.minimum(value, self._cap_j), min(beyond, self._cap_j)
        if len(rows) == 1:  # of a spine: what costs the cap anyway is one state
            cheap = np.flatnonzero(value < self._cap_j)
            value = value[: int(cheap[-1]) + 1] if len(cheap) else value[:1]
        return _Loss(base, value, beyond)


def _table(losses: list[_Loss]) -> tuple[Floats, Ints]:
    count = np.array([len(one.value) for one in losses])
    table = np.full((len(losses), int(count.max())), np.inf)
    for row, one in zip(table, losses, strict=True):
        row[: len(one.value)] = one.value
    return table, count


@exact
def _cells(
    time: Floats, loss: Floats, wait: float, cell: float, base: int, count: int, edge: float
) -> tuple[Floats, float]:
    """Least of `loss[o] + wait * (x - time[o])` over options with time[o] <= x, for the x of
    each cell, and for all x beyond; options by time."""
    value = np.empty(count)
    now, o = np.inf, 0  # at the cell's lower edge
    for k in range(count):
        upper = (base + k + 1) * cell
        least, then = now, now + wait * cell
        while o < len(time) and time[o] <= upper + edge:
            least = min(least, loss[o])
            then = min(then, loss[o] + wait * max(0.0, upper - time[o]))
            o += 1
        value[k] = least
        now = then
    for rest in range(o, len(time)):
        now = min(now, loss[rest])
    return value, now


@exact
def _least(
    base: Ints,
    value: Floats,
    count: Ints,
    beyond: Floats,
    side_base: Ints,
    side: Floats,
    side_count: Ints,
) -> float:
    """The least sum of spine and sides: a walk along the spine over the cells of its rows.

    Cell i of one row and cell j of the next leave their side anything within two cells, whose
    cheaper half counts. One more state stands for all that is beyond a row's cells: sides are
    free then.
    """
    most = value.shape[1]
    now, then = np.empty(most), np.empty(most)
    double = np.empty(side.shape[1])
    now[: count[0]] = value[0, : count[0]]
    other = beyond[0]
    for row in range(1, len(base)):
        before, here, sides = count[row - 1], count[row], side_count[row - 1]
        # double[k]: within the two cells that begin one before side cell k.
        double[0] = side[row - 1, 0]
        for k in range(1, sides):
            double[k] = min(side[row - 1, k - 1], side[row - 1, k])
        least = other
        for i in range(before):
            least = min(least, now[i])
        shift = base[row - 1] + base[row] - side_base[row - 1] + 1
        for j in range(here):
            best = other
            low = max(0, -shift - j)
            fits = min(before, sides - shift - j)
            for i in range(low, fits):
                best = min(best, now[i] + double[shift + j + i])
            for i in range(max(low, fits), before):
                best = min(best, now[i])
            then[j] = best + value[row, j]
        other = least + beyond[row]
        now, then = then, now
    last: float = other
    for i in range(count[-1]):
        last = min(last, now[i])
    return last
