"""What is known of a job without a profile, and what may be dared on it.

A clock below the evidence is a promise that nobody can keep by a model alone. So what is dared
rests on what was measured and on what longest paths cannot break (`plan.bounds`); the model
only says how sure the mean is. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.learn.iteration_bounds import Bounds
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.rate_window import Ground, Reading
from joulecut_controller.learn.search import Floats, Found, cheapest
from joulecut_controller.policy.policy import Slo

# One step below the lowest clock measured: 60 MHz on A100, 75 on A40. Power changes by 5-8 %
# and time by up to 4 % within it, which a window of 50 iterations sees.
STEP_RATIO = 0.045
# The upper band of iteration times between measured ones: late in one case of six, by little,
# and put right.
DOUBTS_TIME = 1.0
# Clocks to stay at are entered with more distance, so that the noise of a window, or that of the
# baseline that the deadline is a ratio of, does not hide windows late one after another.
DOUBTS_SETTLE = 1.5
# Clocks are entered with distance to the deadline; they are left at the first window that is
# likelier late than not.
DOUBTS_LATE = 0.5
DOUBTS_SURE = 1.5  # of one that rests on windows, and on a job that is the worst there can be
# A stage may turn out to be the one that all wait for. Even then one window is late by no more
# than this; the mean of the guess must keep the deadline without it.
OVER_RATIO = 0.0045
# A budget of fewer clocks is narrow: half of it is used up before it is full, and what is then left
# is one clock or none. In wider ones steps of several clocks leave room as it is.
CLOCKS_FEW = 4
# Fits that agree may all be wrong by some of the room between default and deadline, so a window
# that only shows where there is room leaves a part of it.
EARLY_PART = 0.15
# A window is believed to so much of its time. What it strays more, where whole iterations stray, is
# its luck: then windows are judged by the fit to all of them, and by what is left of its doubt.
BELIEVED = 0.001
# What the fit would have said of a window before it was seen, at the best.
FORESEEN = 0.003


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
        one = default.time_sd_s / default.time_s / facts.window_iterations**0.5
        self.strays = bool(one > BELIEVED)  # so much that a window alone decides nothing
        self.base_s, self.base_doubt = default.time_s, default.stderr_ratio
        if self.strays:  # the promise is a ratio: all windows tell of what it is a ratio of
            at_default = np.array([facts.ground.default_mhz], dtype=np.float64)
            self.base_s = float(model.time_s(at_default)[0])
            self.base_doubt = min(self.base_doubt, float(model.time_doubt(at_default)[0]))
        # Settings, or all windows where it takes several of one to learn anything.
        windows = sum(reading.iterations for reading in readings) // facts.window_iterations
        self.tried = windows if self.strays else len(readings)
        one = max(min(one, BELIEVED), one / np.hypot(1.0, one / FORESEEN))
        self.window_doubt = float(np.hypot(one, self.base_doubt))  # of what is known after one
        self.deadline_s = facts.slo.deadline_s(self.base_s)
        self.lowest = lowest_of(readings)
        measured = np.array([reading.clocks_mhz for reading in readings], dtype=np.float64)
        told_s = np.array([reading.time_s for reading in readings])
        apart = np.array([self.apart(reading) for reading in readings])
        strays = np.array([lucky(reading) for reading in readings])
        apart = np.where(strays > 0.0, np.minimum(apart, model.ratio_doubt(measured)), apart)
        # Of many windows the luckiest would bound all others: the fit knows how much of it is luck.
        likely_s = np.maximum(told_s * (1.0 - strays), model.time_s(measured))
        sure_s = likely_s * (1.0 + DOUBTS_SURE * apart)
        self._bounds = Bounds(model, measured, told_s, sure_s, self.base_doubt)
        self._proven = likely_s * (1.0 + DOUBTS_SETTLE * apart) <= self.deadline_s
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
        return time_s, self.model.energy_j(clocks, time_s).sum(axis=1) + host_w * time_s

    def judge_one(self, clocks_mhz: tuple[int, ...]) -> tuple[float, float]:
        time_s, cost_j = self.judge(np.array([clocks_mhz], dtype=np.float64))
        return float(time_s[0]), float(cost_j[0])

    def cheapest(
        self, grids: tuple[tuple[int, ...], ...], start_mhz: tuple[int, ...], limit_s: float
    ) -> Found | None:
        """The cheapest clocks of these grids within a time, by the fit. Clocks that a power cap
        hides are one clock, that of `start_mhz` where it is among them: a search that walks sees
        no way down from the middle of a plain.
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
        """Iteration times of rows of clocks (m, stages) that no job exceeds (`Bounds.worst_s`)."""
        return self._bounds.worst_s(rows, enough_s)

    def proven_s(self, rows: Floats) -> Floats:
        """The same by measured iteration times alone, whatever the job is made of."""
        return self._bounds.proven_s(rows)

    def affordable(self, rows: Floats, over: float = OVER_RATIO) -> NDArray[np.bool_]:
        """Whether even the worst case is over the budget by no more than one window may be."""
        if not len(rows):
            return np.zeros(0, dtype=np.bool_)
        limit_s = self.deadline_s * (1.0 + over)
        return np.asarray(self.worst_s(rows, limit_s) <= limit_s)

    def bearable(
        self, rows: Floats, over: float = OVER_RATIO, doubts: float = DOUBTS_TIME
    ) -> NDArray[np.bool_]:
        """Which rows of clocks may be tried: the worst case is over the budget by no more than that
        ratio, and the upper band (so many doubts) keeps the deadline; both by that much earlier
        where it is below 0, unless measured times alone show that the deadline is kept. Where the
        budget is narrow and they show the worst case, the mean of all jobs that readings do not
        deny may keep it instead.
        """
        if not len(rows):
            return np.zeros(0, dtype=np.bool_)
        doubt = self.model.ratio_doubt(rows)
        proven_s = self.proven_s(rows)
        high_s = self._bounds.raised_s(self.model, rows) * (1.0 + doubts * doubt)
        high_s = np.minimum(high_s, proven_s)
        kept = high_s <= self.deadline_s * (1.0 + min(0.0, over))
        if over > 0.0 and self.narrow:
            # By windows alone: where fits are wrong, so are the likeliest and their mean alike.
            sure = ~kept & (proven_s <= self.deadline_s * (1.0 + over))
            kept[sure] = self.mean_s(rows[sure]) <= self.deadline_s
        kept[kept] = self.affordable(rows[kept], over)
        if over < 0.0:  # that is for the case that fits are wrong
            kept |= proven_s <= self.deadline_s
        return np.asarray(kept)

    @property
    def narrow(self) -> bool:
        """Whether one clock of the table is much of the budget, so that what may be dared
        decides how far it gets: at the rate alone, and where windows tell more than their luck.
        """
        if self.model.detailed or self.strays:
            return False
        clock = max((grid[-1] / grid[-2] for grid in self.facts.grids if grid[1:]), default=1.0)
        return bool(self.deadline_s / self.base_s - 1.0 < CLOCKS_FEW * (clock - 1.0))

    def mean_s(self, rows: Floats) -> Floats:
        """Iteration times on the mean of all jobs that readings do not deny (m,). The likeliest of
        them is often the one in which each stage just lowered is about to be waited for by all:
        at the next clock its mean is the worst case.
        """
        return self._bounds.mean_s(rows)

    def expected_s(self, clocks_mhz: tuple[int, ...], *, trial: bool) -> float:
        """What an iteration is expected to take: by the fit, and of a window that is run to learn
        by what it was chosen by, where that is less.
        """
        time_s = self.judge_one(clocks_mhz)[0]
        if not (trial and self.narrow):
            return time_s
        return min(time_s, float(self.mean_s(np.array([clocks_mhz], dtype=np.float64))[0]))

    @property
    def early(self) -> float:
        """How much earlier than the deadline, as a ratio of it and below 0, a window has to be that
        is run to learn and saves nothing by itself.
        """
        return -EARLY_PART * (1.0 - self.base_s / self.deadline_s)

    def likely_s(self, clocks_mhz: tuple[int, ...]) -> float:
        """What an iteration is taken to last when it is asked whether the job is late: what was
        measured is not smoothed away, but for what a window's luck may be.
        """
        time_s = self.judge_one(clocks_mhz)[0]
        held = reading_at(self.readings, clocks_mhz)
        if held is not None:
            time_s = max(time_s, held.time_s * (1.0 - lucky(held)))
        if clocks_mhz != self.facts.ground.default_mhz:
            time_s *= 1.0 + DOUBTS_LATE * self.doubt(clocks_mhz)
        return time_s

    def fits(self, clocks_mhz: tuple[int, ...]) -> bool:
        """Whether clocks within the evidence keep the deadline by the upper band. Those that would
        be left again at once do not, or the job would go to and fro for ever.
        """
        if clocks_mhz == self.facts.ground.default_mhz:
            return True
        if self.likely_s(clocks_mhz) > self.deadline_s:
            return False
        in_time = self.high_s(clocks_mhz, DOUBTS_SETTLE) <= self.deadline_s
        over = 0.0 if self.strays else OVER_RATIO  # a window will not tell that it was too late
        return in_time and bool(self.affordable(np.array([clocks_mhz], dtype=np.float64), over)[0])

    def unsure(self, clocks_mhz: tuple[int, ...]) -> bool:
        """Whether these clocks were measured, so far by windows whose luck hides what matters."""
        held = reading_at(self.readings, clocks_mhz)
        return held is not None and lucky(held) > 0.0

    def known(self, clocks_mhz: Iterable[float]) -> bool:
        """Whether no stage is below its evidence."""
        return all(mhz >= low for mhz, low in zip(clocks_mhz, self.lowest, strict=True))

    def proven(self) -> tuple[int, ...]:
        """The cheapest clocks that were measured to keep the deadline: a job that is late must
        not be late a second time. Of many that look so by their luck, some are not.
        """
        kept = [
            (self.judge_one(reading.clocks_mhz)[1], reading.clocks_mhz)
            for reading, proven in zip(self.readings, self._proven, strict=True)
            if proven and reading.clocks_mhz != self.facts.now_mhz
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


def lucky(reading: Reading) -> float:
    """By which ratio the mean of a window may be its luck, beyond what is believed of it."""
    return float(np.sqrt(max(0.0, reading.stderr_ratio**2 - BELIEVED**2)))


def lowest_of(readings: tuple[Reading, ...]) -> tuple[int, ...]:
    """The lowest clock measured, by stage."""
    return tuple(map(min, zip(*(reading.clocks_mhz for reading in readings), strict=True)))
