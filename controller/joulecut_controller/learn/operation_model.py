"""Time and energy of a job that reports its operations, at every allowed clock.

Reported busy times give each stage's own curve of time against the clock, and its power samples
one of power, so all stages may change in one window. The graph makes iterations of operations.
Ratios to default clocks are what counts: noise that a whole window has in common cancels out.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.learn.advice import STEP_RATIO, Expected, lowest_of
from joulecut_controller.learn.longest_paths import LongestPaths
from joulecut_controller.learn.measurement_log import JobConstants, Measurement
from joulecut_engine.estimate.clock_curves import (
    ClockCurves,
    CurvePrior,
    CurveValues,
    Floats,
    Ints,
    below_cap,
)

# Public sweeps: work follows the clock by 0.25-0.93, stages of one job alike to 0.03; forward times
# of the A40 jump by 1 % between neighbouring clocks. The noise is what heat and neighbours add to
# the scatter of operations.
TIME = CurvePrior(0.75, 0.25, 0.04, residual_sd=0.004, reach=0.05, noise=0.001)
# What all operations of a window have in common: slow hours, a baseline that moved. A change that
# is thought impossible would be taken for the effect of the clocks.
COMMON_SD = 0.03
# Power while working falls with the 1.2th to 2.2nd power of the clock there. A counter moves every
# 100 ms, and a window's ends cut an iteration.
POWER = CurvePrior(-1.7, 0.5, 0.1, residual_sd=0.015, reach=0.15, noise=0.008)
POWER_COMMON_SD = 0.003  # of all GPUs in one window
# A slow window may be followed by another: its mean is less certain than that of independent ones.
MEMORY = 2.0
SPREAD_UNKNOWN = 0.01  # of an operation, where too few iterations were reported to know
# Of a longest path over the time of the iteration, at lower clocks over that at default ones.
PATH_SD = 0.003
# Time may stay flat for so much longer than power. Where power falls at once, no cap hides a clock:
# work that hardly follows its clock is another thing.
LATE_KNEE = 0.06
# Default clocks under a power cap may be faster than any lock near them: by 0.3 to 2 % on the
# public A40 sweep, forward and backward by different amounts. Logarithms; a narrower cap is the
# rounding to clocks of the table.
LOCKED_SD, CAPPED_WIDE = 0.01, 0.03
NOTHING_SD = 1e-6  # of an unknown that is known: 0
HIGH_SDS = 1.28  # of expected times: nine of ten are faster
# Power while waiting, of the mean power, and the standard deviation of its logarithm, where the
# policy does not give it: GPUs that wait more in one window than in another show it.
BLOCKING_UNKNOWN, BLOCKING_SD = 0.25, 0.35
WINDOWS_KEPT = 24  # the baseline and the newest: what older ones say, a job may have outlived


class OperationModel:
    """Tables (stages, clocks) of one state of the log; `grid_mhz` is padded with its last clock.

    `mean_s`, `high_s` and `worst_s` are seconds of one operation (stages, kinds, clocks): expected,
    HIGH_SDS standard deviations slower, and as slow as work can get below the clocks it was
    measured at.
    `power_w` (stages, clocks) is that of one GPU while it works, `waiting_w` while it waits.
    `cost_j` is the energy of a stage above waiting, per iteration.
    """

    def __init__(
        self,
        constants: JobConstants,
        grids: tuple[tuple[int, ...], ...],
        alike: tuple[int, ...],
        measurements: Sequence[Measurement],
        paths: LongestPaths,
        *,
        host_power_w: float = 0.0,
        expected: Expected | None = None,
        begins: bool = False,
    ) -> None:
        """The first measurement is at default clocks. All have busy times. `expected` are the
        slopes before any measurement; with `begins` no step is limited but by its worst case.
        """
        self._time_prior, self._power_prior = TIME, POWER
        if expected is not None:
            time_sd = min(TIME.slope_sd, expected.time_sd)
            power_sd = min(POWER.slope_sd, expected.power_sd)
            self._time_prior = replace(TIME, slope=expected.time, slope_sd=time_sd)
            self._power_prior = replace(POWER, slope=expected.power, slope_sd=power_sd)
        step_mhz = math.inf if begins else STEP_RATIO * constants.clock_max_mhz
        self.paths, self.stages = paths, len(grids)
        kept = [measurements[0], *measurements[1:][-(WINDOWS_KEPT - 1) :]]
        self.lowest = lowest_of(tuple(measurements))
        self._clocks = np.array([m.clocks_mhz for m in kept], dtype=np.float64).T
        self._default = np.array(constants.default_mhz, dtype=np.float64)
        self._busy_s = np.array([m.busy_s for m in kept]).transpose(1, 2, 0)
        self._stderr = MEMORY * np.array([m.stderr_ratio for m in kept])
        self._cards = np.unique(alike, return_inverse=True)[1]  # kind of GPU by stage
        self.grid_mhz, self.reachable = self._grid(grids, step_mhz)
        spreads = [m.operation_sd_ratio for m in kept if m.operation_sd_ratio is not None]
        self._spread = float(np.mean(spreads)) if spreads else SPREAD_UNKNOWN
        self._noise = self._scatter(kept, constants.pipeline.microbatches)
        fall = np.log(
            self._default[:, None] / self._clocks
        )  # below 0 where heat lowers default clocks
        ahead = np.log(self._default[:, None] / self.grid_mhz)
        self.power_w, capped = self._power(kept, fall, ahead, constants)
        self._tabulate_times(fall, ahead, capped, begins=begins)
        working_s = self.mean_s.sum(axis=1) * constants.pipeline.microbatches
        self.cost_j = working_s * (np.maximum(self.power_w, self.waiting_w) - self.waiting_w)
        self.second_j = self.stages * (self.waiting_w + host_power_w)
        self.default = np.full(self.stages, self.grid_mhz.shape[1] - 1)
        self.excess = self._excess(kept)
        self.base_s = self.jittered_s(self.mean_s, self.default)

    def _scatter(self, kept: Sequence[Measurement], microbatches: int) -> Floats:
        """Standard deviation of the mean operation of each window, a ratio: operations vary one by
        one, and a GPU for whole iterations.
        """
        iterations = np.array([m.iterations for m in kept], dtype=np.float64)
        known = [m.gpu_sd_ratio for m in kept if m.gpu_sd_ratio is not None]
        gpu = float(np.mean(known)) if known else 0.0
        variance = (self._spread**2 / microbatches + gpu**2) / iterations
        return np.asarray(np.sqrt(TIME.noise**2 + variance))

    def _grid(
        self, grids: tuple[tuple[int, ...], ...], step_mhz: float
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Allowed clocks by stage, ascending, padded below; and which are within one step of a
        clock measured there or on a GPU of its kind.
        """
        width = max(map(len, grids))
        grid = np.array([[g[0]] * (width - len(g)) + list(g) for g in grids], dtype=float)
        low, cards = np.array(self.lowest, dtype=np.float64), self._cards
        self._low_of_card = np.array([low[cards == card].min() for card in cards])
        reachable = grid >= np.minimum(low - step_mhz, self._low_of_card)[:, None]
        reachable &= np.arange(width) >= [[width - len(own)] for own in grids]  # no padding
        reachable[:, -1] = True
        return grid, reachable

    def _tabulate_times(self, fall: Floats, ahead: Floats, capped: Floats, *, begins: bool) -> None:
        kinds = len(self.paths.kinds)
        values = np.log(self._busy_s).reshape(self.stages * kinds, -1)
        group = (self._cards[:, None] * kinds + np.arange(kinds)).ravel()
        fall, ahead = np.repeat(fall, kinds, axis=0), np.repeat(ahead, kinds, axis=0)
        groups = np.eye(int(group.max()) + 1)[group][:, None, :]
        locked = groups * (fall > 0.0)[:, :, None]
        held = float(capped.max())
        locked_sd = np.full(locked.shape[2], LOCKED_SD if held > CAPPED_WIDE else NOTHING_SD)
        # A rate alone is one curve: what a window has in common cannot be told from its clock.
        common_sd = np.full(fall.shape[1], COMMON_SD if len(values) > 1 else NOTHING_SD)
        curves = below_cap(
            CurveValues(fall, values, group, common_sd, locked, locked_sd, self._noise),
            self._time_prior,
            held + LATE_KNEE if held > 0.0 else 0.0,
        )
        change, sd = curves.changes(ahead, groups * (ahead > 0.0)[:, :, None])
        mean, shape = np.exp(curves.levels()[:, None] + change), (self.stages, kinds, -1)
        high = mean * np.exp(HIGH_SDS * sd)
        self.mean_s, self.high_s = mean.reshape(shape), high.reshape(shape)
        # Below the lowest measured clock no work slows by more than its clock, and above the power
        # cap, as far as a GPU of the kind was measured, it does not slow at all.
        low = np.array(self.lowest, dtype=np.float64)
        at = (self.grid_mhz < low[:, None]).sum(axis=1)
        measured_s = np.take_along_axis(self.high_s, at[:, None, None], axis=2)
        if begins:  # a window counts in full, whatever other jobs let expect
            here = (self._clocks == low[:, None])[:, None, :]
            longer = np.where(here, self._busy_s / self._busy_s[:, :, :1], 0.0)
            seen_s = self.mean_s[:, :, -1:] * longer.max(axis=2, keepdims=True)
            measured_s = np.maximum(measured_s, seen_s)
        edge_mhz = np.minimum(low, np.maximum(self._default * np.exp(-capped), self._low_of_card))
        stretch = np.maximum(1.0, edge_mhz[:, None] / self.grid_mhz)[:, None, :]
        unseen = (self.grid_mhz < low[:, None])[:, None, :]
        self.worst_s = np.where(unseen, np.maximum(measured_s * stretch, self.high_s), self.high_s)

    def _power(
        self, kept: Sequence[Measurement], fall: Floats, ahead: Floats, constants: JobConstants
    ) -> tuple[Floats, Floats]:
        """Watts while working (stages, clocks), and down to which fall a power cap holds each."""
        work_s = self._busy_s.sum(axis=1) * constants.pipeline.microbatches
        times_s = np.array([m.time_s for m in kept])
        energy_j = np.array([m.energy_j for m in kept]).T
        waits = np.maximum(0.0, times_s - work_s) / work_s
        common_sd = np.full(len(kept), POWER_COMMON_SD)

        def fitted(waiting_w: float, doubt_sd: float) -> ClockCurves:
            watts = np.maximum(energy_j / work_s - waiting_w * waits, waiting_w)
            less, doubt = (waiting_w * waits / watts)[:, :, None], np.array([doubt_sd])
            values = CurveValues(fall, np.log(watts), self._cards, common_sd, less, doubt)
            return below_cap(values, self._power_prior)

        self.waiting_w = constants.blocking_power_w
        if not self.waiting_w:
            guess_w = BLOCKING_UNKNOWN * float((energy_j[:, 0] / times_s[0]).mean())
            ratio = float(fitted(guess_w, BLOCKING_SD).factors[0])
            self.waiting_w = guess_w * float(np.exp(ratio))
        curves = fitted(self.waiting_w, NOTHING_SD)
        power_w = np.exp(curves.levels()[:, None] + curves.changes(ahead)[0])
        return power_w, curves.flat[self._cards]

    def _excess(self, kept: Sequence[Measurement]) -> float:
        """How much longer iterations became at lower clocks than the graph explains, a ratio."""
        modelled_s = self.paths.jittered_s(self._busy_s, self._spread).mean(axis=0)
        left = np.log([m.time_s for m in kept] / modelled_s)
        stderr = self._stderr
        precision = 1.0 / (stderr[1:] ** 2 + stderr[0] ** 2)
        pull = float((precision * (left[1:] - left[0])).sum())
        return float(max(0.0, pull / (precision.sum() + PATH_SD**-2.0)))

    # -- answers -----------------------------------------------------------------------------

    def jittered_s(self, table_s: Floats, at: Ints) -> float:
        """Mean iteration time under the operations' jitter; `at` are indices by stage."""
        return float(self.iterations_s(table_s, at[:, None])[0])

    def iterations_s(self, table_s: Floats, choice: Ints) -> Floats:
        """The same of several, (stages, K) to (K,)."""
        each = np.take_along_axis(table_s, choice[:, None, :], axis=2)
        return np.asarray(self.paths.jittered_s(each, self._spread).mean(axis=0))

    def energy_j(self, at: Ints, time_s: float) -> float:
        """Joules of one GPU per stage, waiting and host included."""
        return float(self.cost_j[np.arange(self.stages), at].sum() + self.second_j * time_s)
