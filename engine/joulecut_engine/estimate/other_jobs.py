"""Energy that lower clocks would save of a job, predicted from its counters at default clocks.

Two shares describe a job: of its time, what follows the clock; of its power, what does not.
Physics gives a first value of both. A random forest, trained on the jobs that were probed, corrects
it by the weight that it earns when jobs are left out (0 is allowed), and the errors of the same
jobs are the band. A prediction is a recommendation: no clock is set and no limit is judged by it.

    model = Sensitivity(known)          # some seconds for hundreds of jobs
    found = first_saving(model.possible(counters), card, default_mhz, clocks_mhz, budget=0.02)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_engine.estimate.bands import Errors, earned
from joulecut_engine.estimate.card import find_card
from joulecut_engine.estimate.estimator import NOMINAL
from joulecut_engine.estimate.fitting import (
    KNEE_PRIOR_RATIO,
    SLOPE_PRIOR_PER_GHZ,
    STATIC_PRIOR_SHARE,
)
from joulecut_engine.estimate.forest import ROWS_MIN, Forest
from joulecut_engine.estimate.physics import Floats, switching

FALL_MIN = 0.05  # of the clock: less does not show what follows it
LOWEST_RATIO = 0.6  # of default clocks: lower ones are for budgets above 10 %
UNKNOWN = -1.0  # in place of a figure that is not reported; trees split it off
GENERAL = (0.7, 0.3)  # shares of GPUs in general: dense arithmetic 0.9, memory-bound work 0.3
FOLDS_MAX = 24  # of leaving out; with more workloads, several are left out together
JUDGES_MIN = 8  # workloads whose errors are a band
# Half widths with fewer: nine in ten of 21 public applications (benchmarks/sensitivity.py) stay
# within each.
TIME_HALF, POWER_HALF = 0.4, 0.2
# Half width that the two shares do not explain, of the saving: nine in ten of those applications
# by their true shares.
FORM_HALF = 0.035
# Of the limit, what full memory traffic adds: STREAM's static power on an A100 is 94 W, DGEMM's 51.
MEMORY_POWER_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class ClockShares:
    """Of the time, what follows the clock; of the power of whole iterations, what does not."""

    time: float
    power: float


@dataclass(frozen=True, slots=True)
class Counters:
    """Means over a job's GPUs at default clocks, as ratios; None where not reported.

    NVML gives the first five: `clock_ratio` is of the card's highest clock, `power_ratio` of its
    power limit, `gpu_ratio` and `memory_ratio` are the driver's utilisations (time with a kernel,
    time with memory traffic). DCGM's profiling fields give the others: cycles with a warp on the
    SMs, with work in the tensor pipes, and with data on the memory bus.
    """

    card: str  # the driver's model name
    clock_ratio: float
    power_ratio: float
    gpu_ratio: float | None = None
    memory_ratio: float | None = None
    sm_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None

    def physics(self) -> Floats:
        """First value of both shares, (2,).

        The clock moves what is neither idle nor waiting for memory. Static power and that of
        memory traffic are shares of the card's limit, whatever the work draws.
        """
        busy = self.sm_ratio if self.gpu_ratio is None else self.gpu_ratio
        memory = self.dram_ratio if self.memory_ratio is None else self.memory_ratio
        time, power = GENERAL
        if busy is not None:
            time = busy * (1.0 - (memory or 0.0))
        if self.power_ratio > 0.0:
            still = STATIC_PRIOR_SHARE + MEMORY_POWER_SHARE * (memory or 0.0)
            power = still / self.power_ratio
        return np.asarray(np.clip(np.array([time, power]), 0.0, 1.0))

    def features(self) -> Floats:
        """The card counts as ratios of its data sheet, never by name."""
        figures = (
            self.clock_ratio,
            self.power_ratio,
            self.gpu_ratio,
            self.memory_ratio,
            self.sm_ratio,
            self.tensor_ratio,
            self.dram_ratio,
        )
        card = find_card(self.card)
        sheet = np.zeros(5) if card is None else card.ratios()
        shown = [UNKNOWN if one is None else one for one in figures]
        return np.concatenate([shown, self.physics(), sheet])


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job whose shares were measured by probing."""

    workload: str
    counters: Counters
    shares: ClockShares


class Sensitivity:
    """Physics of counters, and the forest on what they leave of the known jobs."""

    def __init__(self, known: Sequence[KnownJob]) -> None:
        self._forest: Forest | None = None
        self._weight = np.zeros(2)
        half = np.array([TIME_HALF, POWER_HALF])
        self._errors = half * [(a, b) for a in (-1.0, 1.0) for b in (-1.0, 1.0)]
        if not known:
            return
        rows = np.array([one.counters.features() for one in known])
        physics = np.array([one.counters.physics() for one in known])
        left = np.array([(one.shares.time, one.shares.power) for one in known]) - physics
        names = sorted({one.workload for one in known})
        fold = np.array([names.index(one.workload) % FOLDS_MAX for one in known])
        forest = np.zeros_like(left)
        for out in sorted(set(fold.tolist())):
            others = fold != out
            if others.sum() >= ROWS_MIN:
                forest[~others] = _grown(rows[others], left[others]).predict(rows[~others])
        self._weight = earned([Errors(left, forest, np.ones(len(known)))])
        if len(known) >= ROWS_MIN:
            self._forest = _grown(rows, left)
        if len(names) >= JUDGES_MIN:
            self._errors = left - self._weight * forest

    def shares(self, counters: Counters) -> ClockShares:
        """The predicted shares of a job."""
        time, power = self.possible(counters)[0]
        return ClockShares(float(time), float(power))

    def possible(self, counters: Counters) -> Floats:
        """Shares (1 + errors, 2): predicted, and as far off as those of each known job were."""
        mean = counters.physics()
        if self._forest is not None:
            mean = mean + self._weight * self._forest.predict(counters.features()[None])[0]
        return np.asarray(np.clip(np.vstack([mean, mean + self._errors]), 0.0, 1.0))


def _grown(rows: Floats, targets: Floats) -> Forest:
    return Forest(rows, targets, np.ones(len(rows)))


@dataclass(frozen=True, slots=True)
class Predicted:
    """A ratio with the band that NOMINAL of the known jobs kept."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True)
class FirstSaving:
    """What one clock for the whole job would do, against default clocks. Predicted."""

    clock_mhz: int
    saved: Predicted  # of the energy
    slowdown: Predicted


def first_saving(
    possible: Floats, card: str, default_mhz: float, clocks_mhz: Sequence[int], budget: float
) -> FirstSaving | None:
    """The clock of least predicted energy whose predicted slowdown keeps `budget` (a ratio).

    `possible` are shares as `Sensitivity.possible` gives them; `clocks_mhz`, ascending, are the
    card's, the highest last. None without one below `default_mhz` that saves.
    """
    lower = [mhz for mhz in clocks_mhz if LOWEST_RATIO * default_mhz <= mhz < default_mhz]
    if not lower:
        return None
    clocks = np.array(lower, dtype=np.float64)
    time = 1.0 + possible[:, :1] * (default_mhz / clocks - 1.0)
    moved = _switching_ratio(card, clocks, default_mhz, clocks_mhz[-1])
    energy = time * (possible[:, 1:] + (1.0 - possible[:, 1:]) * moved)
    best = int(np.where(time[0] <= 1.0 + budget, energy[0], np.inf).argmin())
    if time[0, best] > 1.0 + budget or energy[0, best] >= 1.0:
        return None
    return FirstSaving(
        lower[best], _band(1.0 - energy[:, best], FORM_HALF), _band(time[:, best] - 1.0, 0.0)
    )


def _band(values: Floats, half: float) -> Predicted:
    """Of a prediction (first) and what else is possible, `half` of it unseen by the shares."""
    outside = (1.0 - NOMINAL) / 2.0
    mean = float(values[0])
    values = np.concatenate([values - half, values, values + half])
    low, high = np.quantile(values, [outside, 1.0 - outside])
    return Predicted(min(mean, float(low)), mean, max(mean, float(high)))


def measured_shares(
    clock_ratios: Floats, time_ratios: Floats, power_ratios: Floats, card: str, top_mhz: float
) -> ClockShares | None:
    """Least squares through default clocks; None if no clock was clearly lower.

    `clock_ratios` (windows, stages) are of default clocks, times and powers (windows,) of those
    there. Stages count alike.
    """
    stretch = (1.0 / clock_ratios - 1.0).mean(axis=1)
    if stretch.max(initial=0.0) < FALL_MIN:
        return None
    fall = 1.0 - _switching_ratio(card, clock_ratios * top_mhz, top_mhz, top_mhz).mean(axis=1)
    time = float(stretch @ (time_ratios - 1.0) / (stretch @ stretch))
    power = 1.0 - float(fall @ (1.0 - power_ratios) / (fall @ fall))
    return ClockShares(min(1.0, max(0.0, time)), min(1.0, max(0.0, power)))


def _switching_ratio(card: str, clocks_mhz: Floats, default_mhz: float, top_mhz: float) -> Floats:
    """Dynamic power at each clock over that at default clocks, by the card's voltage curve."""
    known = find_card(card)
    knee_mhz, slope_per_ghz = KNEE_PRIOR_RATIO * top_mhz, SLOPE_PRIOR_PER_GHZ
    if known is not None and known.knee_mhz is not None and known.slope_per_ghz is not None:
        knee_mhz, slope_per_ghz = known.knee_mhz, known.slope_per_ghz
    full = switching(np.array(default_mhz), knee_mhz, slope_per_ghz)
    return switching(clocks_mhz, knee_mhz, slope_per_ghz) / full
