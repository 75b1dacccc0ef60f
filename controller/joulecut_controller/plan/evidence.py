"""What is known of a job without a profile, and what may be dared on it.

A clock below the evidence is a promise that nobody can keep by a model alone. So the bounds
here rest on what was measured and on what longest paths cannot break; the model only says
how sure the mean is. Pure.
"""

from dataclasses import dataclass

import numpy as np

from joulecut_controller.plan.search import Floats
from joulecut_controller.policy.policy import Slo
from joulecut_controller.predict.rate import Ground, RateModel, Reading

# One step below the lowest clock measured: 60 MHz on A100, 75 on A40. Power changes by 5-8 %
# and time by up to 4 % within it, which a window of 50 iterations sees.
STEP_RATIO = 0.045
# The upper band of iteration times between measured ones: late in one case of six, by little,
# and put right.
DOUBTS_TIME = 1.0
# Clocks to stay at are entered with more distance, so that the noise of a window, or that of the
# baseline that the deadline is a ratio of, does not hide windows late one after another.
DOUBTS_SETTLE = 1.5
# Longest paths over mean times leave out that the slowest of several jittering stages is slower
# than each: where nothing was measured the band is wider by this share of the spread of
# iterations, up to what that came to at 4 % jitter of operations.
UNSEEN_SHARE, UNSEEN_MAX = 0.25, 0.002
DOUBTS_WORST = 2.0  # of what the worst case of a probe starts from
# A stage may turn out to be the one that all wait for. Even then one window is late by no more
# than this; the mean of the guess must keep the deadline without it.
OVER_RATIO = 0.0045
DOUBTS_HOPE = 2.0  # before giving up, a guess of the time may be so much too gloomy


@dataclass(frozen=True, slots=True)
class Facts:
    """What holds in this pass. `grids` are the clocks allowed by stage, ascending, the last one
    the default; `now_mhz` what runs. `alike` numbers the kinds of GPU by stage: what was
    measured on one speaks for the others of its kind.
    """

    ground: Ground
    grids: tuple[tuple[int, ...], ...]
    now_mhz: tuple[int, ...]
    slo: Slo
    window_iterations: int
    alike: tuple[int, ...]
    host_power_w: float = 0.0  # per GPU


class Evidence:
    """Readings of a job, at least the one at default clocks, and the fit to them."""

    def __init__(self, facts: Facts, readings: tuple[Reading, ...], model: RateModel) -> None:
        """Raises ValueError where nothing was measured at default clocks."""
        self.facts, self.model, self.readings = facts, model, readings
        default = reading_at(readings, facts.ground.default_mhz)
        if default is None:
            raise ValueError("nothing was measured at default clocks")
        self.base_s, self.base_doubt = default.time_s, default.stderr_ratio
        self._unseen = min(UNSEEN_MAX, UNSEEN_SHARE * default.time_sd_s / default.time_s)
        self.deadline_s = facts.slo.deadline_s(default.time_s)
        self.lowest = lowest_of(readings)
        self.grids = tuple(
            self._within_reach(stage, grid) for stage, grid in enumerate(facts.grids)
        )

    def _within_reach(self, stage: int, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Clocks not further below the evidence than one step, or as low as its likes went."""
        facts = self.facts
        step_mhz = STEP_RATIO * facts.ground.clock_max_mhz
        likes = [
            low
            for low, kind in zip(self.lowest, facts.alike, strict=True)
            if kind == facts.alike[stage]
        ]
        floor_mhz = min(self.lowest[stage] - step_mhz, *likes)
        return tuple(mhz for mhz in grid if mhz >= floor_mhz) or grid[-1:]

    def judge(self, clocks: Floats) -> tuple[Floats, Floats]:
        time_s = self.model.time_s(clocks)
        host_w = self.facts.host_power_w * self.facts.ground.pipeline.stages
        return time_s, self.model.energy_j(clocks).sum(axis=1) + host_w * time_s

    def judge_one(self, clocks_mhz: tuple[int, ...]) -> tuple[float, float]:
        time_s, cost_j = self.judge(np.array([clocks_mhz], dtype=np.float64))
        return float(time_s[0]), float(cost_j[0])

    def doubt(self, clocks_mhz: tuple[int, ...]) -> float:
        """Standard deviation of the slowdown, the baseline's included."""
        rows = np.array([clocks_mhz], dtype=np.float64)
        return float(np.hypot(self.model.time_doubt(rows)[0], self.base_doubt))

    def high_s(self, clocks_mhz: tuple[int, ...], doubts: float = DOUBTS_TIME) -> float:
        """Upper band of the iteration time between measured clocks."""
        return self.judge_one(clocks_mhz)[0] * (1.0 + doubts * self.doubt(clocks_mhz))

    def worst_s(self, clocks_mhz: tuple[int, ...]) -> float:
        """The iteration time if the stage lowered most were the one waited for, and all its work
        followed the clock. No work slows more than its clock, and longest paths are monotone
        and homogeneous: so every reading is a bound, whatever the card, and the least counts;
        as is the upper band at the nearest clocks within the evidence.
        """
        inside = tuple(map(max, zip(clocks_mhz, self.lowest, strict=True)))
        worst_s = self.high_s(inside, DOUBTS_WORST) * self._stretch(inside, clocks_mhz)
        for reading in self.readings:
            sure_s = reading.time_s * (1.0 + DOUBTS_WORST * self.apart(reading))
            worst_s = min(worst_s, sure_s * self._stretch(reading.clocks_mhz, clocks_mhz))
        return worst_s

    def _stretch(self, from_mhz: tuple[int, ...], to_mhz: tuple[int, ...]) -> float:
        """How much longer operations take at most after this change; at least 1. Clocks above
        what a power cap leaves are all the same.
        """
        pairs = zip(from_mhz, to_mhz, self.model.default_mhz, strict=True)
        return max(1.0, *(min(was, top) / min(mhz, top) for was, mhz, top in pairs))

    def affordable(self, clocks_mhz: tuple[int, ...]) -> bool:
        """Whether even the worst case is over the budget by no more than one window may be."""
        return self.worst_s(clocks_mhz) <= self.deadline_s * (1.0 + OVER_RATIO)

    def fits(self, clocks_mhz: tuple[int, ...], *, hopeful: bool = False) -> bool:
        """The upper band keeps the deadline; beyond the evidence the band is the worst case, and
        the mean has to keep the deadline, or may do so where one is hopeful.
        """
        if clocks_mhz == self.facts.ground.default_mhz:
            return True
        if not self.affordable(clocks_mhz):
            return False
        if self.known(clocks_mhz):
            seen = reading_at(self.readings, clocks_mhz) is not None
            doubt = float(np.hypot(self.doubt(clocks_mhz), 0.0 if seen else self._unseen))
            high_s = self.judge_one(clocks_mhz)[0] * (1.0 + DOUBTS_SETTLE * doubt)
            return high_s <= self.deadline_s
        rows = np.array([clocks_mhz], dtype=np.float64)
        doubt = DOUBTS_HOPE * float(self.model.time_doubt(rows)[0]) if hopeful else 0.0
        return self.judge_one(clocks_mhz)[0] * (1.0 - doubt) <= self.deadline_s

    def known(self, clocks_mhz: tuple[int, ...]) -> bool:
        return all(mhz >= low for mhz, low in zip(clocks_mhz, self.lowest, strict=True))

    def proven(self) -> tuple[int, ...]:
        """The cheapest clocks that were measured to keep the deadline: a job that is late must
        not be late a second time. Of many that look so by their luck, some are not.
        """
        kept = [
            (self.judge_one(reading.clocks_mhz)[1], reading.clocks_mhz)
            for reading in self.readings
            if max(reading.time_s, self.judge_one(reading.clocks_mhz)[0])
            * (1.0 + DOUBTS_SETTLE * self.apart(reading))
            <= self.deadline_s
            and reading.clocks_mhz != self.facts.now_mhz
        ]
        return min(kept)[1] if kept else self.facts.ground.default_mhz

    def apart(self, reading: Reading) -> float:
        """Standard deviation of a measured slowdown."""
        return float(np.hypot(reading.stderr_ratio, self.base_doubt))

    def gain_doubt(self, clocks_mhz: tuple[int, ...], now_j: float) -> float:
        rows = np.array([clocks_mhz], dtype=np.float64)
        return float(self.model.energy_doubt_j(rows)[0]) / now_j


def reading_at(readings: tuple[Reading, ...], clocks_mhz: tuple[int, ...]) -> Reading | None:
    return next((reading for reading in readings if reading.clocks_mhz == clocks_mhz), None)


def lowest_of(readings: tuple[Reading, ...]) -> tuple[int, ...]:
    """The lowest clock measured, by stage."""
    return tuple(map(min, zip(*(reading.clocks_mhz for reading in readings), strict=True)))
