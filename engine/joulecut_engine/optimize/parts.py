"""Parts of a graph that lose something whatever the plan: a stage with its neighbours, or two.

What any plan loses in one is found by dynamic programming over durations in small cells, a cell
counted at its least; parts without a common row add up (`solve.strips` chooses them).
"""

from dataclasses import dataclass

import numpy as np

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.ladders import Ladder, walked
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.losses import Losses

CELLS_LADDER, CELLS_STRIP = 400.0, 1600.0  # to choose parts by, where time allows


@dataclass(frozen=True, slots=True)
class Strip:
    """A stage in order, and what its neighbours run between the same moments."""

    spine: tuple[int, ...]
    sides: tuple[tuple[int, ...], ...]  # beside rows k and k + 1 of the spine; may be empty

    @property
    def rows(self) -> tuple[int, ...]:
        return self.spine + tuple(row for side in self.sides for row in side)


class Part:
    """A strip or a ladder with its tables named; rows are its own."""

    def __init__(self, losses: Losses, shape: Strip | Ladder) -> None:
        self.rows = frozenset(shape.rows)
        self._losses, self.ladder = losses, isinstance(shape, Ladder)
        # Cells worth choosing it by, and with which power of them its work grows.
        self.most, self.power = (CELLS_LADDER, 3) if self.ladder else (CELLS_STRIP, 2)
        if isinstance(shape, Ladder):
            spine = [rows for step in shape.steps for rows in step[:4]]
            sides = [rows for step in shape.steps for rows in step[4:]]
        else:
            spine, sides = [(row,) for row in shape.spine], list(shape.sides)
        self._spines = len(spine)
        self._tables = losses.rows([*spine, *sides], self._spines)

    def loss_j(self, price_w: Floats, cell_s: float, share: float = 1.0) -> tuple[float, float]:
        """What any plan loses in it, at least; and cells met by cells to find out."""
        tables = self._losses.tables(self._tables, price_w, cell_s, share)
        base, value, count, beyond = tables
        k = self._spines
        if self.ladder:
            n = int(count[:k].max())
            return walked(base, value, count, beyond, k // 4, n)
        work = float(np.sum(count[: k - 1] * count[1:k]))
        return _least(
            base[:k], value[:k], count[:k], beyond[:k], base[k:], value[k:], count[k:]
        ), work


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
