"""What work does at clocks that it never ran at, predicted from other jobs.

Two shares describe work: of its time, what follows the clock; of its power, what does not. A prior
fitted to public sweeps gives both from counters at default clocks. Jobs of the same cluster that
were measured at lower clocks correct it by a random forest, with the weight that it earns where a
job is left out (0 is allowed). The errors of the same jobs are the band. A prediction sets no
clock. Ridge regression and nearest neighbours did no better where a job is left out.

    model = OtherJobs(known)  # some seconds for hundreds of jobs
    voltages = model.voltages(works.values())
    estimator = FromOtherJobs(works, {kind: model.shares(counters)}, clocks_mhz, voltages)
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.estimate.card import find_card, prior_of
from joulecut_engine.estimate.estimator import NOMINAL_SDS, Prediction, Sample, Subject
from joulecut_engine.estimate.fitting import STATIC_PRIOR_SHARE, voltage_prior
from joulecut_engine.estimate.forest import earned, forest
from joulecut_engine.estimate.physics import Floats, switching
from joulecut_engine.graph.pipeline import Kind

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor

FALL_MIN = 0.05  # of the clock: less does not show what follows it
# Of default clocks: lower ones tell shares by a public voltage curve only where none above does.
# Such a curve bends elsewhere than that of the card, and near default clocks it matters less.
NEAR_RATIO = 0.75
LOWEST_RATIO = 0.6  # of default clocks: lower ones are for budgets above 10 %
DRAWN_MAX = 12  # clocks that are kept of a job
DRAWN_SD = 0.01  # of a power ratio: what windows scatter by, and the form leaves
# Of standard deviations: the public curves that were fitted lie within two.
VOLTAGE_GRID = np.linspace(-3.0, 3.0, 25)
UNKNOWN = -1.0  # in place of a figure that is not reported; trees split it off
GENERAL = (0.7, 0.3)  # shares of GPUs in general: dense arithmetic 0.9, memory-bound work 0.3
FOLDS_MAX = 8  # of leaving out; with more workloads, several are left out together
ROWS_MIN = 4  # jobs of other workloads that a prediction is learnt from
JUDGES_MIN = 8  # workloads whose errors are a band
# Half widths with fewer: nine in ten of 21 public applications (benchmarks/forest.py) stay
# within each.
TIME_HALF, POWER_HALF = 0.4, 0.2
# Of the time's share: what four jobs in five stay below, in standard deviations of a normal error
# where too few were measured.
SURE, SURE_SDS = 0.8, 0.842
# Half width that the two shares do not explain, of the saving: nine in ten of those applications
# by their true shares.
FORM_HALF = 0.036
# Of the limit, what full memory traffic adds: STREAM's static power on an A100 is 94 W, DGEMM's 51.
MEMORY_POWER_SHARE = 0.1
PRIOR, FOREST = "prior", "forest"  # predictors
JUDGED_RATIO = 0.85  # of default clocks: errors are those of time and power at this clock


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
    kind: str = ""  # of operation; empty: of whole iterations

    def physics(self) -> Floats:
        """First value of both shares, (2,).

        The clock moves what is neither idle nor waiting for memory. Static power and that of
        memory traffic are shares of the card's limit, whatever the work draws.
        """
        busy = self.sm_ratio if self.gpu_ratio is None else self.gpu_ratio
        memory = self.dram_ratio if self.memory_ratio is None else self.memory_ratio
        time, power = GENERAL
        if busy is not None and memory is not None:
            time = busy * (1.0 - memory)
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
        kinds = [self.kind == "forward", self.kind == "backward"]
        return np.concatenate([shown, kinds, self.physics(), sheet])


@dataclass(frozen=True, slots=True)
class Prior:
    """Both shares as linear regression on what work shows at default clocks: `at` and `sd` (3,)
    scale it, `mean` (2,) and `slopes` (3, 2) are the shares.
    """

    at: Floats
    sd: Floats
    mean: Floats
    slopes: Floats

    def shares(self, counters: Counters) -> Floats:
        """(2,)"""
        moved = (self.shown(counters) - self.at) / self.sd
        return np.asarray(np.clip(self.mean + moved @ self.slopes, 0.0, 1.0))

    @staticmethod
    def shown(counters: Counters) -> Floats:
        """Power over limit, and the first value of both shares: (3,)."""
        return np.array([counters.power_ratio, *counters.physics()])


# Ridge regression (penalty 3) on 21 applications on an A100 (Ali et al., "Optimal GPU frequency
# selection using DNN models", public data of 2022) from NVML's counters; `benchmarks/forest.py`
# prints the fit. Left out by application it is off by 3.4 % in time and 4.3 % in energy.
PUBLIC = Prior(
    np.array([0.509, 0.595, 0.393]),
    np.array([0.206, 0.328, 0.136]),
    np.array([0.443, 0.331]),
    np.array([[0.066, -0.050], [0.207, -0.055], [-0.011, 0.069]]),
)


@dataclass(frozen=True, slots=True)
class Voltage:
    """Voltage curve of one kind of card; see `physics`. Arrays (curves, 1) for many at once."""

    knee_mhz: float | Floats
    slope_per_ghz: float | Floats

    def dynamic(self, clocks_mhz: Floats, default_mhz: float) -> Floats:
        """Power that follows the clock, over that at default clocks."""
        full = switching(np.array(default_mhz), self.knee_mhz, self.slope_per_ghz)
        return switching(clocks_mhz, self.knee_mhz, self.slope_per_ghz) / full


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job that was measured at lower clocks: `shares` by the card's voltage curve as far as it is
    public, and what it drew. `drawn` has clock (MHz) and power over that at default clocks, which
    come first; empty where the version before stored it. Taught by a profile, `fingerprint` is the
    profile's, and `scale` the part of its slowdowns that came true.
    """

    workload: str
    counters: Counters
    shares: ClockShares
    drawn: tuple[tuple[float, float], ...] = ()
    fingerprint: str = ""
    scale: float = 1.0


class OtherJobs:
    """The prior, and what the known jobs correct it by. `predicts` names the predictor in use.

    `erred` is, by predictor and workload, by how much time and power at JUDGED_RATIO of default
    clocks were off (ratios) where the workload was left out; of the known workloads alone.
    """

    def __init__(
        self, known: Sequence[KnownJob], *, learns: bool = True, prior: Prior = PUBLIC
    ) -> None:
        """With `learns` False the prior alone predicts, and its errors are kept all the same. The
        order of the jobs does not matter.
        """
        known = sorted(known, key=lambda one: (one.workload, one.counters.kind, one.counters.card))
        self._prior, self.predicts, self._weight = prior, PRIOR, np.zeros(2)
        self._forest: RandomForestRegressor | None = None
        self.known = len({one.workload for one in known})
        self._voltages = _voltages(known) if learns else {}
        self.erred: Mapping[str, Mapping[str, tuple[float, float]]] = {}
        half = np.array([TIME_HALF, POWER_HALF])
        self._sure = TIME_HALF * SURE_SDS / NOMINAL_SDS
        self._errors = half * [(a, b) for a in (-1.0, 1.0) for b in (-1.0, 1.0)]
        if not known:
            return
        rows = np.array([one.counters.features() for one in known])
        said = np.array([prior.shares(one.counters) for one in known])
        off = np.array([self._shown(one) for one in known]) - said
        names = sorted({one.workload for one in known})
        fold = np.array([names.index(one.workload) % FOLDS_MAX for one in known])
        corrected = _left_out(rows, off, fold)
        weight = earned(off, corrected)
        left = {PRIOR: off, FOREST: off - weight * corrected}
        workloads = [one.workload for one in known]
        self.erred = {name: _by_workload(workloads, each) for name, each in left.items()}
        if learns and len(names) > ROWS_MIN:
            self.predicts, self._weight = FOREST, weight
            self._forest = forest(rows, off)
        if len(names) >= JUDGES_MIN:
            self._errors = left[self.predicts]
            self._sure = max(0.0, sure_error(workloads, self._errors[:, 0]))

    def voltage(self, card: str, top_mhz: float) -> Voltage:
        """Of a card, by the jobs measured on it, else by public sweeps."""
        return self._voltages.get(card) or public_voltage(card, top_mhz)

    def voltages(self, works: Iterable["DefaultWork"]) -> dict[tuple[str, int], Voltage]:
        """By card and its highest clock; a prediction keeps these and not the forest."""
        cards = {(work.card, work.top_mhz) for work in works}
        return {card: self.voltage(*card) for card in cards}

    def _shown(self, one: KnownJob) -> tuple[float, float]:
        """The shares of a known job, by the voltage curve as it is known now."""
        voltage = self._voltages.get(one.counters.card)
        if voltage is None or not one.drawn:
            return one.shares.time, one.shares.power
        (default_mhz, _), *lower = one.drawn
        clocks, power = np.array(lower).T
        return one.shares.time, float(_still(1.0 - voltage.dynamic(clocks, default_mhz), power))

    def shares(self, counters: Counters) -> ClockShares:
        """The predicted shares of a job."""
        time, power = self.possible(counters)[0]
        return ClockShares(float(time), float(power))

    def sure(self, counters: Counters) -> ClockShares:
        """The same, with a share of time that SURE of all jobs stay below."""
        likely = self.shares(counters)
        return ClockShares(min(1.0, likely.time + self._sure), likely.power)

    def possible(self, counters: Counters) -> Floats:
        """Shares (1 + errors, 2): predicted, and as far off as those of each known job were."""
        mean = self._prior.shares(counters)
        if self._forest is not None:
            mean = mean + self._weight * self._forest.predict(counters.features()[None])[0]
        return np.asarray(np.clip(np.vstack([mean, mean + self._errors]), 0.0, 1.0))


def _left_out(rows: Floats, off: Floats, fold: NDArray[np.int64]) -> Floats:
    """What a forest says of each row, taught by the rows of other folds; 0 by too few."""
    found = np.zeros_like(off)
    for out in sorted(set(fold.tolist())):
        others = fold != out
        if len(set(fold[others].tolist())) >= ROWS_MIN:
            found[~others] = forest(rows[others], off[others]).predict(rows[~others])
    return found


def sure_error(workloads: Sequence[str], errors: Floats) -> float:
    """What the error of the next workload stays below with a chance of SURE: a conformal quantile
    of the mean error of each workload. Of few workloads it is the largest.
    """
    found: dict[str, list[float]] = {}
    for workload, error in zip(workloads, errors.tolist(), strict=True):
        found.setdefault(workload, []).append(error)
    means = sorted(math.fsum(each) / len(each) for each in found.values())
    rank = min(len(means), math.ceil(SURE * (len(means) + 1)))
    return means[rank - 1]


def _by_workload(workloads: Sequence[str], left: Floats) -> dict[str, tuple[float, float]]:
    """Mean absolute errors at JUDGED_RATIO of default clocks."""
    stretch = 1.0 / JUDGED_RATIO - 1.0
    found: dict[str, list[Floats]] = {}
    for workload, each in zip(workloads, np.abs(left), strict=True):
        found.setdefault(workload, []).append(each)
    means = {name: np.mean(each, axis=0) for name, each in found.items()}
    fall = 1.0 - JUDGED_RATIO**2  # of switching power: between clock and clock times voltage^2
    return {name: (float(stretch * one[0]), float(fall * one[1])) for name, one in means.items()}


@dataclass(frozen=True, slots=True)
class DefaultWork:
    """One kind of work of one stage at default clocks: seconds, watts of a GPU while it works, the
    clock it ran at, and the highest of its card.
    """

    card: str
    default_mhz: int
    top_mhz: int
    time_s: float
    power_w: float


class FromOtherJobs:
    """Time and power of a job at any clock from LOWEST_RATIO of default clocks on, by its work at
    default clocks and two shares for each kind. Implements `estimator.Estimator`; it learns from no
    sample.
    """

    def __init__(
        self,
        works: Mapping[tuple[int, Kind], DefaultWork],
        shares: Mapping[Kind, ClockShares],
        clocks_mhz: tuple[int, ...],
        voltages: Mapping[tuple[str, int], Voltage],
    ) -> None:
        """`voltages` as `OtherJobs.voltages`. Estimators of one job share all but `shares`."""
        self._works, self._shares = works, shares
        self._clocks_mhz, self._voltages = clocks_mhz, voltages

    def learn(self, _samples: tuple[Sample, ...]) -> tuple[str, ...]:
        """Nothing: other jobs teach."""
        return ()

    def known_clocks_mhz(self, subject: Subject) -> tuple[int, ...]:
        """Those that are predicted."""
        work = self._works.get((subject.stage, subject.kind))
        least = LOWEST_RATIO * work.default_mhz if work else np.inf
        return tuple(mhz for mhz in self._clocks_mhz if mhz >= least)

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        """At and above default clocks nothing changes. Its band is that of several of these."""
        work = self._works.get((subject.stage, subject.kind))
        if work is None:
            return None
        shares = self._shares[subject.kind]
        clocks = np.minimum(np.array(clocks_mhz, dtype=np.float64), work.default_mhz)
        time_s = work.time_s * (1.0 + shares.time * (work.default_mhz / clocks - 1.0))
        voltage = self._voltages[work.card, work.top_mhz]
        moved = voltage.dynamic(clocks, work.default_mhz)
        power_w = work.power_w * (shares.power + (1.0 - shares.power) * moved)
        return Prediction(clocks_mhz, time_s, power_w)


def measured(
    workload: str,
    counters: Counters,
    clock_ratios: Floats,
    time_ratios: Floats,
    power_ratios: Floats,
    *,
    default_mhz: float,
    top_mhz: float,
) -> KnownJob | None:
    """A known job by what it took and drew at lower clocks; None if no clock was clearly lower.

    Arrays have shape (clocks,) and are ratios to default clocks. `top_mhz` is the highest clock of
    the card.
    """
    stretch = 1.0 / clock_ratios - 1.0
    if stretch.max(initial=0.0) < FALL_MIN:
        return None
    rows = sorted(zip(clock_ratios * default_mhz, power_ratios, strict=True))
    places = np.unique(np.linspace(0, len(rows) - 1, DRAWN_MAX).round().astype(int))
    drawn = [
        (round(float(mhz), 1), round(float(ratio), 4)) for mhz, ratio in (rows[i] for i in places)
    ]
    near = stretch <= 1.0 / NEAR_RATIO - 1.0
    if stretch[near].max(initial=0.0) < FALL_MIN:
        near = np.ones_like(near)
    stretch, clocks_mhz = stretch[near], clock_ratios[near] * default_mhz
    time = float(stretch @ (time_ratios[near] - 1.0) / (stretch @ stretch))
    voltage = public_voltage(counters.card, top_mhz)
    power = float(_still(1.0 - voltage.dynamic(clocks_mhz, default_mhz), power_ratios[near]))
    shares = ClockShares(min(1.0, max(0.0, time)), power)
    return KnownJob(workload, counters, shares, ((default_mhz, 1.0), *drawn))


def _still(fall: Floats, power: Floats) -> Floats:
    """Least squares through default clocks: the share of the power that does not follow the clock.

    `fall` (..., clocks) is what dynamic power loses, `power` (clocks,) a ratio.
    """
    found = 1.0 - (fall * (1.0 - power)).sum(axis=-1) / np.maximum(1e-9, (fall * fall).sum(axis=-1))
    return np.asarray(np.clip(found, 0.0, 1.0))


def public_voltage(card: str, top_mhz: float) -> Voltage:
    """A card's voltage curve by public sweeps; `top_mhz` is its highest clock."""
    mean, _ = voltage_prior(prior_of(find_card(card), 0.0), top_mhz)
    return Voltage(*mean)


def _voltages(known: Sequence[KnownJob]) -> dict[str, Voltage]:
    """By card, the voltage curve that explains best what all jobs drew on it. Each job has a share
    of its own that does not follow the clock; knee and slope are the card's, near public ones.
    """
    of_card: dict[str, list[KnownJob]] = {}
    for one in known:
        if one.drawn:
            of_card.setdefault(one.counters.card, []).append(one)
    return {card: _fitted(card, jobs) for card, jobs in of_card.items()}


def _fitted(card: str, jobs: Sequence[KnownJob]) -> Voltage:
    top_mhz = max(one.drawn[0][0] / one.counters.clock_ratio for one in jobs)
    mean, sd = voltage_prior(prior_of(find_card(card), 0.0), top_mhz)
    pairs = np.stack(np.meshgrid(*[VOLTAGE_GRID] * 2), axis=-1).reshape(-1, 2)
    pairs = np.maximum(0.0, np.array(mean) + pairs * sd)
    grid = Voltage(pairs[:, :1], pairs[:, 1:])
    cost = (((pairs - mean) / sd) ** 2).sum(axis=1)
    for one in jobs:
        (default_mhz, _), *lower = one.drawn
        clocks, power = np.array(lower).T
        fall = 1.0 - grid.dynamic(clocks, default_mhz)
        left = 1.0 - power - (1.0 - _still(fall, power)[:, None]) * fall
        cost += ((left / DRAWN_SD) ** 2).sum(axis=1)
    knee_mhz, slope_per_ghz = pairs[int(cost.argmin())].tolist()
    return Voltage(knee_mhz, slope_per_ghz)
