"""The curves that predictions come from between two fits, and what they say at clocks asked for.

Evaluating a forest takes milliseconds and the same few clocks are asked again and again, so
answers are kept; bounded, and dropped with the fit that they belong to.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from joulecut_engine.estimate.estimator import Subject
from joulecut_engine.estimate.evidence import Work
from joulecut_engine.estimate.forest import Fitted, ForestCurve, Grid
from joulecut_engine.estimate.pooled import Snapshot
from joulecut_engine.estimate.window import Cell
from joulecut_engine.graph.pipeline import Kind

GRIDS_MAX = 512  # curves kept at the clocks last asked for
Z = 1.645  # two-sided 90 % of a normal distribution


@dataclass(frozen=True, slots=True)
class Expected:
    """Logarithms: time and power of a cell, and how far one reading may lie off."""

    time: float
    power: float
    low: float
    high: float


class InForce:
    """A fit, the snapshot it was made of, and answers kept. `expected_max` bounds the cells."""

    def __init__(self, expected_max: int) -> None:
        self.taken = Snapshot()
        self.fitted = Fitted()
        self._fitted_to: frozenset[Cell] = frozenset()
        self._expected_max = expected_max
        self._expected: dict[tuple[str, int, str, int], Expected] = {}
        self._grids: OrderedDict[tuple[Work, tuple[int, ...]], Grid] = OrderedDict()

    def put(self, taken: Snapshot, fitted: Fitted) -> None:
        self.taken, self.fitted = taken, fitted
        self._fitted_to = frozenset(cell for cell, _ in taken.cells)
        self._clear()

    def forget(self, workload: str) -> None:
        """Its curves are gone; `fitted_to` tells what was used, and stays."""
        curves = {w: c for w, c in self.fitted.curves.items() if w.workload != workload}
        cells = tuple(pair for pair in self.taken.cells if pair[0].workload != workload)
        self.taken = replace(self.taken, cells=cells)
        self.fitted = replace(self.fitted, curves=curves)
        self._clear()

    def fitted_to(self, cell: Cell) -> bool:
        """Whether the fit has seen readings of this cell."""
        return cell in self._fitted_to

    def curve(self, subject: Subject) -> ForestCurve | None:
        return self.fitted.curve(Work(subject.workload, subject.stage, subject.kind))

    def grid(self, subject: Subject, curve: ForestCurve, clocks_mhz: tuple[int, ...]) -> Grid:
        key = (Work(subject.workload, subject.stage, subject.kind), clocks_mhz)
        grid = self._grids.get(key)
        if grid is None:
            grid = self._grids[key] = curve.grid(np.asarray(clocks_mhz, dtype=np.float64))
            while len(self._grids) > GRIDS_MAX:
                self._grids.popitem(last=False)
        return grid

    def expect(self, cell: Cell) -> Expected | None:
        """What the curve says of a cell; None without one."""
        key = (cell.workload, cell.stage, cell.kind, cell.clock_mhz)
        found = self._expected.get(key)
        if found is not None:
            return found
        work = Work(cell.workload, cell.stage, cast("Kind", cell.kind))
        curve = self.fitted.curve(work)
        if curve is None:
            return None
        grid = curve.grid(np.array([cell.clock_mhz], dtype=np.float64))
        low_s, high_s = grid.band_s(Z * self.fitted.scatter)
        middle_s = float(grid.time_s[0])
        if len(self._expected) >= self._expected_max:
            self._expected.clear()
        self._expected[key] = found = Expected(
            time=math.log(middle_s),
            power=math.log(float(grid.power_w[0])),
            low=math.log(float(low_s[0]) / middle_s),
            high=math.log(float(high_s[0]) / middle_s),
        )
        return found

    def _clear(self) -> None:
        self._grids.clear()
        self._expected.clear()
