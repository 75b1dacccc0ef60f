"""Cells: how finely parts are asked, so that their bound is worth the time it takes.

A bound in coarse cells is valid and low. While prices are moved coarse ones do; with the prices
found they are halved as long as time allows.
"""

from typing import NamedTuple

import numpy as np

from joulecut_engine.optimize.ascent import dual, through
from joulecut_engine.optimize.levels import Floats
from joulecut_engine.optimize.network import Network
from joulecut_engine.optimize.parts import Part

CELLS_COARSE = 100.0  # per mean duration of the fastest options: enough to choose prices by
CELLS_LEAST, CELLS_CLIMB_MAX, CELLS_MAX = 25.0, 400.0, 10_000.0
WORK = 1e8  # cells met by cells: 0.1 s; three times as many prove a fiftieth more
# Where options are many, nine tenths of the cells of a ladder are of losses no plan would take.
SHARE_LEAST, SHARE_WORTH = 0.125, 0.99
ASKS = 24  # prices tried for each choice of parts; five times as many prove a fiftieth more
ROUND_OFF = 1e-9  # of what is added


class Asked:
    """The bound that parts prove, for one flow after another; `mean_s` is the mean duration of
    the fastest options, which cells are counted by."""

    def __init__(
        self,
        network: Network,
        mean_s: float,
        parts: list[Part],
        time_price_w: float,
        deadline_s: float,
    ) -> None:
        self._network, self._mean_s, self._parts = network, mean_s, parts
        self._price_w, self._deadline_s = time_price_w, deadline_s
        self._work = 0.0  # cells met by cells for the last value
        self._growth = 8.0 if any(part.ladder for part in parts) else 4.0  # cells halved

    def value_j(self, link_w: Floats, cells: float, share: float = 1.0) -> float:
        price_w, gain_j, self._work = through(self._network, link_w), 0.0, 0.0
        for part in self._parts:
            loss_j, work = part.loss_j(price_w, self._mean_s / cells, share)
            gain_j, self._work = gain_j + loss_j, self._work + work
        relaxed_j, _ = dual(self._network, link_w, self._price_w, self._deadline_s)
        return relaxed_j + gain_j * (1.0 - ROUND_OFF)

    def best(self, flows_w: list[Floats], cells: float, work: float) -> "Tried":
        """The flow that proves most, the first of equals."""
        found_j = [self.finest_j(link_w, cells, work) for link_w in flows_w]
        most = int(np.argmax(found_j))
        return Tried(self, flows_w[most], found_j[most])

    def cells(self, link_w: Floats) -> float:
        """So many that all asking takes about as long as one answer of the finest."""
        cells = CELLS_COARSE
        self.value_j(link_w, cells)
        while self._work * ASKS > WORK and cells > CELLS_LEAST:
            cells /= 2
            self.value_j(link_w, cells)
        while self._growth * self._work * ASKS < WORK and cells < CELLS_CLIMB_MAX:
            cells *= 2
            self.value_j(link_w, cells)
        return cells

    def finest_j(self, link_w: Floats, cells: float, work: float) -> float:
        """Cells halved while time allows, and the cap where that makes time."""
        share, best_j = 1.0, self.value_j(link_w, cells)
        last_j = best_j
        plain_j, _ = dual(self._network, link_w, self._price_w, self._deadline_s)
        while cells < CELLS_MAX:
            while self._growth * self._work > work and share > SHARE_LEAST:
                lower_j = self.value_j(link_w, cells, share / 2)
                if lower_j - plain_j < SHARE_WORTH * (last_j - plain_j):
                    return best_j
                share /= 2
            if self._growth * self._work > work:
                break
            cells *= 2
            last_j = self.value_j(link_w, cells, share)
            best_j = max(best_j, last_j)
        return best_j


class Tried(NamedTuple):
    asked: Asked
    link_w: Floats
    bound_j: float
