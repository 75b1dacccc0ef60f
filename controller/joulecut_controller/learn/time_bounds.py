"""Bounds on iteration time at clocks that were never run.

A fit that takes one stage's time for another's is certain, and wrong. Windows alone prove bounds,
whatever the job is made of; fits may tighten them only by a part of what windows leave open.

A longest path is monotone, homogeneous and convex in its operations' times, and so is its mean
under jitter; an operation's time at clock f is at most linear and not falling in 1/f, with nothing
below zero at 1/f = 0 (flat where a power cap holds). Hence, for windows i that took T_i at
1/f = x_i by stage, and all weights mu_i >= 0 with sum mu_i >= 1 and sum mu_i x_i >= x by stage:

    T(x) <= sum mu_i T_i

The least such sum is a linear program with one row per stage and one more. T(x) is at least T_i
over the largest stretch from x to window i.
"""

import numpy as np

from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.regression import Floats
from joulecut_engine.optimize.compiled import compiled

PIVOTS_MAX = 200  # about three per row are needed; beyond, one window bounds
ROUNDING = 1e-12
FLOORS_AT_ONCE = 1024  # rows; with 96 windows of 8 stages 6 MB


def ceiling_s(times_s: Floats, clocks_mhz: Floats, asked_mhz: Floats) -> Floats:
    """Upper bound on iteration times at rows of `asked_mhz` (m, stages): (m,).

    Windows took `times_s` (n,) at `clocks_mhz` (n, stages); n >= 1.
    """
    windows, stages = clocks_mhz.shape
    table = np.zeros((stages + 2, windows + stages + 2))  # rows, then what they cost
    ceilings = np.empty(len(asked_mhz))
    for at, asked in enumerate(asked_mhz):
        table[:stages, :windows] = -(asked / clocks_mhz).T
        table[stages, :windows] = -1.0
        table[:-1, windows:-1] = np.eye(stages + 1)
        table[:-1, -1] = -1.0
        table[-1, :windows], table[-1, windows:] = times_s, 0.0
        single_s = np.min(times_s * np.maximum(1.0, (clocks_mhz / asked).max(axis=1)))
        ceilings[at] = min(single_s, _least(table))
    return ceilings


def floor_s(times_s: Floats, clocks_mhz: Floats, asked_mhz: Floats) -> Floats:
    """Lower bound on iteration times at rows of `asked_mhz`; arguments as `ceiling_s`."""
    floors = np.empty(len(asked_mhz))
    for begin in range(0, len(asked_mhz), FLOORS_AT_ONCE):
        asked = asked_mhz[begin : begin + FLOORS_AT_ONCE, None, :]
        stretch = np.maximum(1.0, (asked / clocks_mhz).max(axis=2))
        floors[begin : begin + FLOORS_AT_ONCE] = (times_s / stretch).max(axis=1)
    return floors


@compiled
def _least(table: Floats) -> float:
    """Minimum of the linear program by the dual simplex method; infinity if not found."""
    for _ in range(PIVOTS_MAX):
        leaves = int(np.argmin(table[:-1, -1]))
        if table[leaves, -1] >= -ROUNDING:
            return float(-table[-1, -1])
        enters, least = -1, np.inf
        for i in range(table.shape[1] - 1):
            if table[leaves, i] < -ROUNDING:
                price = -table[-1, i] / table[leaves, i]
                if price < least:
                    enters, least = i, price
        if enters < 0:
            break
        table[leaves] /= table[leaves, enters]
        for row in range(len(table)):
            if row != leaves:
                table[row] -= table[row, enters] * table[leaves]
    return np.inf


DOUBTS_WORST = 2.0  # standard deviations of a worst case that rests on fits
# By which a stage is assumed heavier than fitted.
HEAVIER_RATIOS = (0.06, 0.03, 0.015)
# Part of what windows leave open that fits may not decide. If all fits are wrong and the job is the
# worst possible, a window is late by no more than the rest. Fits decide nothing about a stage that
# was never lowered: the two worst windows met (1.5 and 0.75 points over) were a critical stage's
# first.
CEILING_PART = 0.35
CEILING_PART_NEW = 1.0
# Error of a fit away from measurements beyond its standard deviation, which is taken on one side
# of a kink.
UNSEEN = 0.0007


class TimeBounds:
    """Bounds from windows and a fit to them.

    Windows took `measured_s` (n,) at `measured_mhz` (n, stages); `sure_s` (n,) bounds their means.
    `base_doubt` is the standard deviation of the baseline, as a ratio.
    """

    def __init__(
        self,
        model: RateModel,
        measured_mhz: Floats,
        measured_s: Floats,
        sure_s: Floats,
        base_doubt: float,
    ) -> None:
        self._model, self._sure_s, self._base_doubt = model, sure_s, base_doubt
        self._top = np.array(model.default_mhz, dtype=np.float64)
        self._within_cap = np.minimum(measured_mhz, self._top)
        self._lowest = self._within_cap.min(axis=0)  # a clock above the cap is not lower
        self._least_s = np.minimum(measured_s, model.time_s(measured_mhz))
        self._alternatives: list[RateModel] | None = None

    def worst_s(self, rows: Floats, enough_s: float = 0.0) -> Floats:
        """Worst-case iteration times at rows of clocks (m, stages): (m,).

        By windows alone (`proven_s`) and, above `enough_s`, tightened by every fit that the
        measurements do not reject.
        """
        worst_s = self.proven_s(rows)
        above = worst_s > enough_s
        if above.any():
            guessed_s = self._guessed_s(np.minimum(rows[above], self._top), worst_s[above])
            worst_s[above] = np.minimum(worst_s[above], guessed_s)
        return worst_s

    def proven_s(self, rows: Floats) -> Floats:
        """Worst-case iteration times by measured windows alone."""
        return ceiling_s(self._sure_s, self._within_cap, np.minimum(rows, self._top))

    def raised_s(self, model: RateModel, rows: Floats) -> Floats:
        """Iteration times by a fit, raised to the lower bound that windows prove."""
        floors_s = floor_s(self._least_s, self._within_cap, np.minimum(rows, self._top))
        return np.asarray(np.maximum(model.time_s(rows), floors_s))

    def mean_s(self, rows: Floats) -> Floats:
        """Mean iteration times over the ensemble, each raised to the lower bound of windows."""
        floors_s = floor_s(self._least_s, self._within_cap, np.minimum(rows, self._top))
        guesses_s = np.maximum(self._model.ensemble_times_s(rows), floors_s[:, None])
        return np.asarray(guesses_s.mean(axis=1))

    def _guessed_s(self, asked: Floats, proven_s: Floats) -> Floats:
        """Worst case over all fits, within the part that they may decide."""
        least_s = floor_s(self._least_s, self._within_cap, asked)
        new = ((asked < self._lowest) & (self._lowest >= self._top)).any(axis=1)
        part = np.where(new, CEILING_PART_NEW, CEILING_PART)
        bounded_s = least_s + part * (proven_s - least_s)
        return np.maximum(self._pessimistic_s(asked), bounded_s)

    def _pessimistic_s(self, asked: Floats) -> Floats:
        """Largest upper band of all fits that measurements do not reject, one stage heavier each.

        Taken at the nearest measured clocks; below them every stage may be critical.
        """
        if self._alternatives is None:
            self._alternatives = [self._model, *self._heavier()]
        inside = np.maximum(asked, self._lowest)
        worst_s = np.zeros(len(asked))
        for fitted in self._alternatives:
            doubt = np.hypot(fitted.ratio_doubt(inside), UNSEEN)
            likely_s = self.raised_s(fitted, inside)
            worst_s = np.maximum(worst_s, likely_s * (1.0 + DOUBTS_WORST * doubt))
        floors_s = floor_s(self._least_s, self._within_cap, inside)
        guesses_s = np.maximum(self._model.ensemble_times_s(inside).max(axis=1), floors_s)
        beside = DOUBTS_WORST * np.hypot(self._base_doubt, UNSEEN)
        worst_s = np.maximum(worst_s, guesses_s * (1.0 + beside))
        return np.asarray(worst_s * (inside / asked).max(axis=1))

    def _heavier(self) -> list[RateModel]:
        """Fits with one stage heavier, by stage the heaviest that is not rejected."""
        found = []
        for stage in range(len(self._lowest)):
            fits = (self._model.lighter(stage, -ratio) for ratio in HEAVIER_RATIOS)
            heaviest = next((fitted for fitted in fits if fitted is not None), None)
            if heaviest is not None:
                found.append(heaviest)
        return found
