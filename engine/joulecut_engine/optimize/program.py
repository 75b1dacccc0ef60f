"""Whole choices, exactly: a few dozen operations as an integer program, solved by branching.

Between two real options of an operation lies a plan that nobody can run; in a long pipeline
such halves add up to little, in a short one to percents of the energy. What is asked here may be
a whole iteration, or a piece of one whose borders are held or priced by those who ask.

HiGHS branches up to a number of nodes, counted and not timed, so that the same question has the
same answer. It keeps constraints to a tolerance, not exactly: bounds are lowered by what that can
be worth, and plans are for the caller to time again.
"""

from dataclasses import dataclass

import numpy as np

from joulecut_engine.optimize.levels import Floats, Ints

UNITS = 10.0  # times are in tenths of the horizon: tolerances below are absolute
# HiGHS: by how much a constraint or a whole number may be missed. Prices are kept to a tenth of
# it, in units of the largest, and a moment ranges over UNITS: the same.
FEASIBLE = 1e-6
NEAR = 1e-12  # relative: sums in another order


@dataclass(frozen=True, slots=True)
class Piece:
    """Least sum of option costs, waits at their prices, and moments at theirs.

    Row i takes one of `time_s[i]` at `cost_j[i]`, begins at `earliest_s[i]` or later and ends by
    `latest_s[i]`. `links` (before, after) are rows, the end of the iteration being one more; it
    comes by `horizon_s` and costs `end_w` a second. What waits between the two ends of a link
    costs `wait_w`; `start_w[i]` is the price of each second before row i begins. `flow_w` is what
    a second is worth at all links together, about.
    """

    time_s: tuple[Floats, ...]
    cost_j: tuple[Floats, ...]
    links: Ints  # (links, 2)
    wait_w: Floats
    start_w: Floats
    earliest_s: Floats
    latest_s: Floats
    horizon_s: float
    flow_w: float
    end_w: float = 0.0
    end_earliest_s: float = 0.0
    offset_j: float = 0.0  # added to the cost of all


@dataclass(frozen=True, slots=True)
class Proof:
    """`bound_j` holds for every choice; `choice` by row is the best found, None where none is."""

    bound_j: float
    choice: Ints | None


def branched(piece: Piece, nodes: int, close: float) -> Proof:
    """Branches for so many nodes, or until best and bound differ by a share `close` of the best."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 -- slow to load
    from scipy.sparse import coo_array  # noqa: PLC0415

    table = _Table(piece)
    at, columns, values = table.entries()
    shape = (len(table.low), len(table.cost))
    found = milp(
        table.cost / table.scale_j,
        integrality=table.whole,
        bounds=Bounds(table.least, table.most),
        constraints=LinearConstraint(
            coo_array((values, (at, columns)), shape=shape).tocsc(), table.low, table.high
        ),
        # Without presolve: what presolve found had to be mended afterwards, and HiGHS writes a
        # line about that to standard output, whatever it is told (1.12, issue 2783).
        options={
            "node_limit": nodes,
            "mip_rel_gap": close,
            "presolve": False,
        },
    )
    bound = getattr(found, "mip_dual_bound", None)
    if bound is None or not np.isfinite(bound):
        return Proof(-np.inf, None)
    bound_j = float(bound) * table.scale_j - table.slack_j()
    return Proof(bound_j, None if found.x is None else table.choice(found.x))


class _Table:
    """The program as arrays. Of each row's options the first has no column: it is what is left
    where none of the others is taken. Then a column per start, one for the end, and one that is
    always 1 and costs what nothing else does: shares are of the whole."""

    def __init__(self, piece: Piece) -> None:
        self._piece, self._unit_s = piece, piece.horizon_s / UNITS
        counts = [len(menu) - 1 for menu in piece.time_s]
        self._first = np.concatenate(([0], np.cumsum(counts)))
        self._starts = int(self._first[-1])
        self.end = self._starts + len(counts)
        self.whole = np.zeros(self.end + 2, dtype=np.int64)
        self.whole[: self._starts] = 1
        self._rows: list[tuple[int, int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._limit()
        self._charge()
        self._choose_one()
        self._order()
        self.low, self.high = np.array(self._low), np.array(self._high)

    def entries(self) -> tuple[Ints, Ints, Floats]:
        at, columns, values = (np.array(part) for part in zip(*self._rows, strict=True))
        return at, columns, values

    def choice(self, values: Floats) -> Ints:
        """The option taken, by row."""
        taken = np.zeros(len(self._piece.time_s), dtype=np.int64)
        for i in range(len(taken)):
            mine = values[self._first[i] : self._first[i + 1]]
            if mine.sum() > 0.5:  # whole numbers, up to a tolerance
                taken[i] = 1 + int(mine.argmax())
        return taken

    def slack_j(self) -> float:
        """What HiGHS's tolerances can be worth: a moment missed at every link, a choice not quite
        whole in every row (the time it takes is worth what it costs), prices not quite right in
        every column."""
        piece = self._piece
        moments_j = FEASIBLE * self._unit_s * piece.flow_w
        apart_j = 2 * sum(float(np.ptp(menu)) for menu in piece.cost_j)
        return moments_j + FEASIBLE * (apart_j + self.scale_j * len(self.cost))

    def _limit(self) -> None:
        piece = self._piece
        self.least, self.most = np.zeros(self.end + 2), np.ones(self.end + 2)
        self.least[-1] = 1.0
        shortest_s = np.array([menu.min() for menu in piece.time_s])
        starts = slice(self._starts, self.end)
        self.least[starts] = piece.earliest_s / self._unit_s
        self.most[starts] = (piece.latest_s - shortest_s) / self._unit_s
        self.least[self.end] = piece.end_earliest_s / self._unit_s
        self.most[self.end] = UNITS
        self.most = np.maximum(self.most, self.least)  # round-off

    def _charge(self) -> None:
        piece = self._piece
        self.cost = np.zeros(self.end + 2)
        self.cost[self._starts : self.end] = piece.start_w * self._unit_s
        self.cost[self.end] = piece.end_w * self._unit_s
        constant_j = piece.offset_j + float(sum(menu[0] for menu in piece.cost_j))
        for i, menu in enumerate(piece.cost_j):
            self.cost[self._first[i] : self._first[i + 1]] = menu[1:] - menu[0]
        for (before, after), price_w in zip(piece.links, piece.wait_w, strict=True):
            self.cost[self._starts + after] += price_w * self._unit_s
            self.cost[self._starts + before] -= price_w * self._unit_s
            lasts_s = piece.time_s[before]
            constant_j -= float(price_w * lasts_s[0])
            columns = slice(self._first[before], self._first[before + 1])
            self.cost[columns] -= price_w * (lasts_s[1:] - lasts_s[0])
        self.scale_j = float(np.abs(self.cost).max()) or 1.0
        self.cost[-1] = constant_j

    def _choose_one(self) -> None:
        for i in range(len(self._piece.time_s)):
            if self._first[i + 1] - self._first[i] > 1:
                columns = range(self._first[i], self._first[i + 1])
                self._row([(k, 1.0) for k in columns], -np.inf, 1.0)

    def _order(self) -> None:
        """Links, and latest ends where those that follow do not say as much."""
        piece = self._piece
        until_s = np.full(len(piece.time_s), np.inf)  # what those that follow leave
        for before, after in piece.links.tolist():
            at_s = float(piece.time_s[before][0]) / self._unit_s
            self._row([(self._starts + after, 1.0), *self._ends(before)], at_s, np.inf)
            latest = self.most[self._starts + after] * self._unit_s
            until_s[before] = min(until_s[before], latest)
        for i in np.flatnonzero(piece.latest_s < until_s * (1.0 - NEAR)).tolist():
            ends = [(column, -value) for column, value in self._ends(i)]
            by = float(piece.latest_s[i] - piece.time_s[i][0]) / self._unit_s
            self._row(ends, -np.inf, by)

    def _ends(self, row: int) -> list[tuple[int, float]]:
        """Minus the end of a row, but for the time of its first option."""
        lasts = (self._piece.time_s[row] - self._piece.time_s[row][0]) / self._unit_s
        first = int(self._first[row])
        columns = ((first + k - 1, -float(lasts[k])) for k in range(1, len(lasts)))
        return [(self._starts + row, -1.0), *columns]

    def _row(self, entries: list[tuple[int, float]], low: float, high: float) -> None:
        self._rows += [(len(self._low), column, value) for column, value in entries]
        self._low.append(low)
        self._high.append(high)
