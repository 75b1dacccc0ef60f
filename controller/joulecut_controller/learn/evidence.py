"""What is known of a job without a profile, and which clocks may be tried on it.

A model alone cannot promise iteration times below the measured clocks. Which clocks may be tried
rests on measurements and on proven bounds (`time_bounds`); the model adds how certain the mean is.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.learn.clock_search import Candidate, cheapest
from joulecut_controller.learn.measurement_log import JobConstants, Measurement
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.regression import Floats
from joulecut_controller.learn.time_bounds import TimeBounds
from joulecut_controller.policy.policy import Slo

# One step below the lowest measured clock: 60 MHz on A100, 75 on A40. Power changes by 5-8 % and
# time by up to 4 % within it, which a window of 50 iterations resolves.
STEP_RATIO = 0.045
# Standard deviations of the upper band between measured clocks: late in one case of six, by little,
# and corrected.
DOUBTS_TIME = 1.0
# More for clocks to stay at, so that noise of a window or of the baseline hides no late windows.
DOUBTS_SETTLE = 1.5
# Clocks are left at the first window that is more likely late than not.
DOUBTS_LATE = 0.5
DOUBTS_SURE = 1.5  # of a worst case that rests on windows
# A lowered stage may turn out critical. Even then one window is late by no more than this; the mean
# must keep the deadline without it.
OVER_RATIO = 0.0045
# A budget of fewer clock steps is narrow: once half is used, one clock or none is left.
CLOCKS_FEW = 4
# Fits that agree may all be wrong by a part of the budget, so a window that only makes room for
# another leaves this part.
EARLY_PART = 0.15
# Standard error (a ratio) up to which a window is taken at its word. Noisier windows are judged by
# the fit to all of them.
NOISE_FLOOR = 0.001
# Best error (a ratio) of the fit's prediction of a new window.
FIT_NOISE = 0.003


@dataclass(frozen=True, slots=True)
class ExplorerInput:
    """State of the job in this pass.

    `grids` are the allowed clocks by stage, ascending, ending with the default; `now_mhz` are the
    clocks in use. `alike` numbers the kind of GPU by stage: a measurement counts for its kind.
    """

    constants: JobConstants
    grids: tuple[tuple[int, ...], ...]
    now_mhz: tuple[int, ...]
    slo: Slo
    window_iterations: int
    alike: tuple[int, ...]
    host_power_w: float = 0.0  # per GPU


class Evidence:
    """Measurements of a job, the one at default clocks among them, and the fit to them."""

    def __init__(
        self, facts: ExplorerInput, measurements: tuple[Measurement, ...], model: RateModel
    ) -> None:
        """Raises ValueError without a measurement at default clocks."""
        self.facts, self.model, self.measurements = facts, model, measurements
        default = measurement_at(measurements, facts.constants.default_mhz)
        if default is None:
            raise ValueError("nothing was measured at default clocks")
        one = default.time_sd_s / default.time_s / facts.window_iterations**0.5
        self.noisy = bool(one > NOISE_FLOOR)  # one window alone decides nothing
        self.base_s, self.base_doubt = default.time_s, default.stderr_ratio
        if self.noisy:  # all windows improve the baseline
            at_default = np.array([facts.constants.default_mhz], dtype=np.float64)
            self.base_s = float(model.time_s(at_default)[0])
            self.base_doubt = min(self.base_doubt, float(model.time_doubt(at_default)[0]))
        # Settings, or windows if one setting takes several.
        windows = sum(m.iterations for m in measurements) // facts.window_iterations
        self.tried = windows if self.noisy else len(measurements)
        one = max(min(one, NOISE_FLOOR), one / np.hypot(1.0, one / FIT_NOISE))
        self.window_doubt = float(np.hypot(one, self.base_doubt))  # after one more window
        self.deadline_s = facts.slo.deadline_s(self.base_s)
        self.lowest = lowest_of(measurements)
        measured = np.array([m.clocks_mhz for m in measurements], dtype=np.float64)
        measured_s = np.array([m.time_s for m in measurements])
        apart = np.array([self.stderr_of(measurement) for measurement in measurements])
        noisy = np.array([excess_noise(measurement) for measurement in measurements])
        apart = np.where(noisy > 0.0, np.minimum(apart, model.ratio_doubt(measured)), apart)
        # The luckiest of many noisy windows would bound all others; the fit averages its noise.
        likely_s = np.maximum(measured_s * (1.0 - noisy), model.time_s(measured))
        sure_s = likely_s * (1.0 + DOUBTS_SURE * apart)
        self._bounds = TimeBounds(
            model.from_windows(), measured, measured_s, sure_s, self.base_doubt
        )
        self._proven = likely_s * (1.0 + DOUBTS_SETTLE * apart) <= self.deadline_s
        self.grids = tuple(
            self._within_reach(stage, grid) for stage, grid in enumerate(facts.grids)
        )

    def _within_reach(self, stage: int, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Clocks at most one step below the measured ones, or as low as GPUs of the kind went."""
        facts = self.facts
        step_mhz = STEP_RATIO * facts.constants.clock_max_mhz
        likes = [
            low
            for low, kind in zip(self.lowest, facts.alike, strict=True)
            if kind == facts.alike[stage]
        ]
        floor_mhz = min(self.lowest[stage] - step_mhz, *likes)
        return tuple(mhz for mhz in grid if mhz >= floor_mhz) or grid[-1:]

    def judge(self, clocks: Floats) -> tuple[Floats, Floats]:
        time_s = self.model.time_s(clocks)
        host_w = self.facts.host_power_w * self.facts.constants.pipeline.stages
        return time_s, self.model.energy_j(clocks, time_s).sum(axis=1) + host_w * time_s

    def judge_one(self, clocks_mhz: tuple[int, ...]) -> tuple[float, float]:
        time_s, cost_j = self.judge(np.array([clocks_mhz], dtype=np.float64))
        return float(time_s[0]), float(cost_j[0])

    def cheapest(
        self, grids: tuple[tuple[int, ...], ...], start_mhz: tuple[int, ...], limit_s: float
    ) -> Candidate | None:
        """The cheapest clocks of these grids within a time, by the fit.

        Clocks above the power cap count as one, that of `start_mhz` if it is among them: a descent
        finds no way off a plateau.
        """
        own = [
            (*(mhz for mhz in grid if mhz < edge), mhz if mhz >= edge else grid[-1])
            for grid, mhz, edge in zip(grids, start_mhz, self.model.default_mhz, strict=True)
        ]
        return cheapest(tuple(own), start_mhz, self.judge, limit_s)

    def doubt(self, clocks_mhz: tuple[int, ...]) -> float:
        """Standard deviation of the slowdown, the baseline's included."""
        return float(self.model.ratio_doubt(np.array([clocks_mhz], dtype=np.float64))[0])

    def high_s(self, clocks_mhz: tuple[int, ...], doubts: float = DOUBTS_TIME) -> float:
        """Upper band of the iteration time between measured clocks."""
        rows = np.array([clocks_mhz], dtype=np.float64)
        likely_s = float(self._bounds.raised_s(self.model, rows)[0])
        return likely_s * (1.0 + doubts * self.doubt(clocks_mhz))

    def worst_s(self, rows: Floats, enough_s: float = 0.0) -> Floats:
        """See `TimeBounds.worst_s`."""
        return self._bounds.worst_s(rows, enough_s)

    def proven_s(self, rows: Floats) -> Floats:
        """See `TimeBounds.proven_s`."""
        return self._bounds.proven_s(rows)

    def affordable(self, rows: Floats, over: float = OVER_RATIO) -> NDArray[np.bool_]:
        """Whether the worst case exceeds the deadline by at most `over` (a ratio)."""
        if not len(rows):
            return np.zeros(0, dtype=np.bool_)
        limit_s = self.deadline_s * (1.0 + over)
        return np.asarray(self.worst_s(rows, limit_s) <= limit_s)

    def acceptable(
        self, rows: Floats, over: float = OVER_RATIO, doubts: float = DOUBTS_TIME
    ) -> NDArray[np.bool_]:
        """Which rows of clocks may be tried.

        The worst case exceeds the deadline by at most `over`, and the upper band (`doubts` standard
        deviations) keeps it; with `over` below 0 both must be that much earlier, unless windows
        alone prove the deadline. With a narrow budget and a proven worst case, the mean of the
        ensemble may keep the deadline instead of the upper band.
        """
        if not len(rows):
            return np.zeros(0, dtype=np.bool_)
        doubt = self.model.ratio_doubt(rows)
        proven_s = self.proven_s(rows)
        high_s = self._bounds.raised_s(self.model, rows) * (1.0 + doubts * doubt)
        high_s = np.minimum(high_s, proven_s)
        kept = high_s <= self.deadline_s * (1.0 + min(0.0, over))
        if over > 0.0 and self.narrow:
            # The worst case must be proven by windows: if fits are wrong, so is their mean.
            sure = ~kept & (proven_s <= self.deadline_s * (1.0 + over))
            kept[sure] = self.mean_s(rows[sure]) <= self.deadline_s
        kept[kept] = self.affordable(rows[kept], over)
        if over < 0.0:  # the margin guards against wrong fits only
            kept |= proven_s <= self.deadline_s
        return np.asarray(kept)

    @property
    def narrow(self) -> bool:
        """Whether one clock step is a large part of the budget, without noisy windows."""
        if self.noisy:
            return False
        clock = max((grid[-1] / grid[-2] for grid in self.facts.grids if grid[1:]), default=1.0)
        return bool(self.deadline_s / self.base_s - 1.0 < CLOCKS_FEW * (clock - 1.0))

    def mean_s(self, rows: Floats) -> Floats:
        """Mean iteration times over the ensemble (m,); the most probable fit is often too late."""
        return self._bounds.mean_s(rows)

    def expected_s(self, clocks_mhz: tuple[int, ...], *, trial: bool) -> float:
        """Expected iteration time by the fit; for a `trial`, by the ensemble if that is less."""
        time_s = self.judge_one(clocks_mhz)[0]
        if not (trial and self.narrow):
            return time_s
        return min(time_s, float(self.mean_s(np.array([clocks_mhz], dtype=np.float64))[0]))

    @property
    def early(self) -> float:
        """Margin (a ratio below 0) for a window that only makes room for another."""
        return -EARLY_PART * (1.0 - self.base_s / self.deadline_s)

    def likely_s(self, clocks_mhz: tuple[int, ...]) -> float:
        """Iteration time by which the job is judged late: as measured, less its noise."""
        time_s = self.judge_one(clocks_mhz)[0]
        held = measurement_at(self.measurements, clocks_mhz)
        if held is not None:
            time_s = max(time_s, held.time_s * (1.0 - excess_noise(held)))
        if clocks_mhz != self.facts.constants.default_mhz:
            time_s *= 1.0 + DOUBTS_LATE * self.doubt(clocks_mhz)
        return time_s

    def fits(self, clocks_mhz: tuple[int, ...]) -> bool:
        """Whether measured clocks keep the deadline by the upper band and would be kept."""
        if clocks_mhz == self.facts.constants.default_mhz:
            return True
        if self.likely_s(clocks_mhz) > self.deadline_s:
            return False
        in_time = self.high_s(clocks_mhz, DOUBTS_SETTLE) <= self.deadline_s
        over = 0.0 if self.noisy else OVER_RATIO  # one window would not show it as late
        return in_time and bool(self.affordable(np.array([clocks_mhz], dtype=np.float64), over)[0])

    def unsure(self, clocks_mhz: tuple[int, ...]) -> bool:
        """Whether these clocks were measured, but so far with too much noise."""
        held = measurement_at(self.measurements, clocks_mhz)
        return held is not None and excess_noise(held) > 0.0

    def known(self, clocks_mhz: Iterable[float]) -> bool:
        """Whether no stage is below its lowest measured clock."""
        return all(mhz >= low for mhz, low in zip(clocks_mhz, self.lowest, strict=True))

    def proven(self) -> tuple[int, ...]:
        """The cheapest clocks measured to keep the deadline; default clocks without any."""
        kept = [
            (self.judge_one(measurement.clocks_mhz)[1], measurement.clocks_mhz)
            for measurement, proven in zip(self.measurements, self._proven, strict=True)
            if proven and measurement.clocks_mhz != self.facts.now_mhz
        ]
        return min(kept)[1] if kept else self.facts.constants.default_mhz

    def stderr_of(self, measurement: Measurement) -> float:
        """Standard error of a measured slowdown, as a ratio."""
        return float(np.hypot(measurement.stderr_ratio, self.base_doubt))

    def gain_doubt(self, clocks_mhz: tuple[int, ...], now_j: float) -> float:
        rows = np.array([clocks_mhz], dtype=np.float64)
        return float(self.model.energy_doubt_j(rows)[0]) / now_j


def measurement_at(
    measurements: tuple[Measurement, ...], clocks_mhz: tuple[int, ...]
) -> Measurement | None:
    return next(
        (measurement for measurement in measurements if measurement.clocks_mhz == clocks_mhz), None
    )


def excess_noise(measurement: Measurement) -> float:
    """Standard error of a window (a ratio) beyond NOISE_FLOOR."""
    return float(np.sqrt(max(0.0, measurement.stderr_ratio**2 - NOISE_FLOOR**2)))


def lowest_of(measurements: tuple[Measurement, ...]) -> tuple[int, ...]:
    """Lowest measured clock by stage."""
    return tuple(map(min, zip(*(m.clocks_mhz for m in measurements), strict=True)))
