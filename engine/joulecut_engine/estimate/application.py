"""What an application costs at every clock that was only ever seen at the highest one.

A job that has just begun runs at default clocks and shows two things: what its counters say
it is busy with, and what it draws. From other applications that were swept on the same kind
of card, that is enough to guess the curve before the first probe. A guess it remains: how
much of the run time the host spends is in no counter of the GPU (docs/predictors-evaluation.md).

Time is physics with a forest for its shares,

    t(f) / t(f_max) = (1 - c - m) + c * f_max / f + m * max(1, f_s / f) / max(1, f_s / f_max)

c of arithmetic and m of memory, whose bandwidth is whole above f_s; neither can exceed the
share in which the engine is active. Power is static power plus switching power, which the
one power probe scales, times a forest on what is left over.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

from joulecut_engine.estimate.estimator import Floats
from joulecut_engine.estimate.fitting import fit as fit_physics
from joulecut_engine.estimate.physics import Physics, Sweep

# STREAM on an A100 keeps its bandwidth down to about 1000 of 1410 MHz.
SATURATED_RATIO = 1000.0 / 1410.0
ENGINE_MIN = 1e-3  # below it nothing runs: shares relative to it mean nothing
SHARE_MAX = 1.2  # of the engine's time: counters and times are of different windows
TREES_TIME, TREES_POWER = 200, 100  # a score of applications against a score times clocks
# Absolute error and leaves of two: among twenty applications one that spends four fifths of
# its time on the host must not pull its neighbours.
LEAF_TIME, LEAF_POWER = 2, 3
CLOCKS_PER_SWEEP = 16  # enough of a smooth curve; all of them cost time and add nothing
SEED = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """Profiling counters at the highest clock, each a share of the time in [0, 1].

    `pipes_active` is the sum over arithmetic pipes (tensor, fp64, fp32) as DCGM names them.
    """

    engine_active: float
    sm_active: float
    memory_active: float
    pipes_active: float

    def __post_init__(self) -> None:
        values = np.array(self.row)
        if not (np.isfinite(values).all() and (values >= 0.0).all()):
            raise ValueError(f"every counter of {self} must be finite and at least 0")

    @property
    def row(self) -> tuple[float, ...]:
        return (self.engine_active, self.sm_active, self.memory_active, self.pipes_active)


@dataclass(frozen=True, slots=True)
class Swept:
    """An application measured at many clocks; the highest is the card's."""

    counters: Counters
    sweep: Sweep


@dataclass(frozen=True, slots=True)
class ApplicationModel:
    """Fitted on swept applications of one kind of card."""

    clock_max_mhz: float
    voltage: Physics  # of which only the shape of the switching power counts
    power_static_w: float
    shares: RandomForestRegressor  # c and m relative to the engine's share
    power_left: ExtraTreesRegressor  # log(power / physics)

    def time_ratio(self, counters: Counters, clocks_mhz: Floats) -> Floats:
        """Time at each clock over that at the highest; shape (len(clocks_mhz),)."""
        engine = max(counters.engine_active, ENGINE_MIN)
        shares = self.shares.predict([counters.row])[0] * engine
        shares = shares / max(1.0, shares.sum())
        parts = _parts(clocks_mhz, self.clock_max_mhz)
        return np.asarray(parts @ np.array([1.0 - shares.sum(), *shares]))

    def power_w(self, counters: Counters, probe_w: float, clocks_mhz: Floats) -> Floats:
        """Watts at each clock; `probe_w` is what it draws at the highest. Same shape."""
        seen = _seen(counters, probe_w, clocks_mhz / self.clock_max_mhz)
        left = self.power_left.predict(seen)
        return np.asarray(self.physics_w(probe_w, clocks_mhz) * np.exp(left))

    def physics_w(self, probe_w: float, clocks_mhz: Floats) -> Floats:
        """Watts without the forest, and so without counters; same shape."""
        switching = _switching(self.voltage, self.clock_max_mhz, clocks_mhz)
        return _power(self.power_static_w, probe_w, switching)


def fit(applications: Sequence[Swept]) -> ApplicationModel:
    """Fits on applications swept on one kind of card.

    Raises ValueError with fewer than two: there is nothing to learn between them.
    """
    if len(applications) < 2:
        raise ValueError(f"{len(applications)} applications: at least two must be swept")
    voltage = fit_physics([one.sweep for one in applications])[0]
    top_mhz = voltage.clock_max_mhz
    rows = np.array([one.counters.row for one in applications])
    shares = RandomForestRegressor(
        n_estimators=TREES_TIME,
        criterion="absolute_error",
        min_samples_leaf=LEAF_TIME,
        random_state=SEED,
    )
    shares.fit(rows, np.array([_shares(one, top_mhz) for one in applications]))
    static_w = float(np.median([_static_w(one.sweep, voltage, top_mhz) for one in applications]))
    seen, left = zip(*(_left(one, voltage, static_w) for one in applications), strict=True)
    forest = ExtraTreesRegressor(
        n_estimators=TREES_POWER, min_samples_leaf=LEAF_POWER, random_state=SEED
    )
    forest.fit(np.concatenate(seen), np.concatenate(left))
    return ApplicationModel(top_mhz, voltage, static_w, shares, forest)


def _parts(clocks_mhz: Floats, clock_max_mhz: float) -> Floats:
    """What host, arithmetic and memory take at each clock over the highest; (n, 3)."""
    saturated_mhz = SATURATED_RATIO * clock_max_mhz
    return np.stack(
        [
            np.ones_like(clocks_mhz),
            clock_max_mhz / clocks_mhz,
            np.maximum(1.0, saturated_mhz / clocks_mhz),
        ],
        axis=1,
    )


def _shares(one: Swept, clock_max_mhz: float) -> Floats:
    """Arithmetic and memory of the time at the highest clock, relative to the engine's share."""
    parts = _parts(one.sweep.clocks_mhz, clock_max_mhz)
    found, _ = nnls(parts / one.sweep.time_s[:, None], np.ones_like(one.sweep.time_s))
    relative = found[1:] / found.sum() / max(one.counters.engine_active, ENGINE_MIN)
    return np.asarray(np.clip(relative, 0.0, SHARE_MAX))


def _switching(voltage: Physics, clock_max_mhz: float, clocks_mhz: Floats) -> Floats:
    pure = replace(voltage, power_static_w=0.0, power_w_per_ghz=1.0, clock_cap_mhz=float("inf"))
    return np.asarray(pure.power_w(clocks_mhz) / pure.power_w(np.array([clock_max_mhz])))


def _power(static_w: float, probe_w: float, switching: Floats) -> Floats:
    """An application that draws less than the others' static power has less of it."""
    static_w = min(static_w, probe_w)
    return static_w + (probe_w - static_w) * switching


def _static_w(sweep: Sweep, voltage: Physics, clock_max_mhz: float) -> float:
    shape = _switching(voltage, clock_max_mhz, sweep.clocks_mhz)
    parts = np.stack([np.ones_like(shape), shape], axis=1)
    found, _ = nnls(parts / sweep.power_w[:, None], np.ones_like(shape))
    return float(found[0] / found.sum()) * _top(sweep)[1]


def _top(sweep: Sweep) -> tuple[float, float]:
    """Time and power at the highest clock swept."""
    place = int(sweep.clocks_mhz.argmax())
    return float(sweep.time_s[place]), float(sweep.power_w[place])


def _left(one: Swept, voltage: Physics, static_w: float) -> tuple[Floats, Floats]:
    """What the power forest sees of one application, and what physics leave over."""
    count = one.sweep.clocks_mhz.size
    some = np.unique(np.linspace(0, count - 1, min(count, CLOCKS_PER_SWEEP)).astype(int))
    clocks_mhz, power_w = one.sweep.clocks_mhz[some], one.sweep.power_w[some]
    probe_w = _top(one.sweep)[1]
    switching = _switching(voltage, voltage.clock_max_mhz, clocks_mhz)
    seen = _seen(one.counters, probe_w, clocks_mhz / voltage.clock_max_mhz)
    return seen, np.log(power_w / _power(static_w, probe_w, switching))


def _seen(counters: Counters, probe_w: float, clock_ratio: Floats) -> Floats:
    """Features of the power forest, of shape (len(clock_ratio), 6)."""
    row = (*counters.row, float(np.log(probe_w)))
    return np.column_stack([np.tile(row, (clock_ratio.size, 1)), clock_ratio])
