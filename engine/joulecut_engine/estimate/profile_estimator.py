"""DOC profile_estimator"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from joulecut_engine.estimate.admission import Refusal, who
from joulecut_engine.estimate.drift import (
    BIASES_MAX,
    RATIO_MAX,
    SAMPLE_WEIGHT_MAX,
    Biases,
    GpuBias,
    read,
)
from joulecut_engine.estimate.estimator import Band, Prediction, Sample, Subject, widest
from joulecut_engine.estimate.evidence import fingerprint, of_profile, sweep_of
from joulecut_engine.estimate.fitting import fit
from joulecut_engine.estimate.physics import Floats, Physics, Sweep
from joulecut_engine.estimate.work_fit import fit_work
from joulecut_engine.graph.pipeline import Kind, Profile

# A lone measurement keeps 1/(1 + 0.5) = two thirds of its distance from the physics; in a
# sweep at every 15 MHz a single one keeps a quarter, its neighbours decide the rest. Both
# found by leaving out each clock of the public A100 and A40 sweeps in turn.
SHRINKAGE = 0.5
REACH_MHZ_MIN = 22.5  # standard deviation: one and a half steps of a clock table
REACH_PER_SPACING = 0.5  # in sparser sweeps, of the usual distance between clocks

BAND_SHARE = 90.0  # percent of left-out measurements that lie within the band
BAND_MIN = 0.003  # neighbouring clocks scatter by 0.2 %: no band is narrower than that
BAND_MIN_FEW, CLOCKS_FEW = 0.006, 12  # between clocks that stand far apart more
# Free numbers of the time curve (t_fmax, k, f_cap); fewer measurements tell nothing of
# the error. From 2 or 3 clocks the public sweeps are missed by 1-3 %, from 1 by 10-20 %.
FREE_NUMBERS = 3
BAND_FEW = 0.05
BAND_ONE = 0.2


class Priced(Protocol):
    """A fitted curve, whatever it was fitted with: what estimators predict from."""

    @property
    def clocks_mhz(self) -> Floats:
        """The clocks it was fitted to, ascending."""
        ...

    def time_s(self, clocks_mhz: Floats) -> Floats: ...

    def power_w(self, clocks_mhz: Floats) -> Floats: ...

    def band_s(self, clocks_mhz: Floats, scatter: float) -> tuple[Floats, Floats]:
        """Low and high time; `scatter` as `Curve.band_s` has it."""
        ...


@dataclass(frozen=True, slots=True)
class Curve:
    """One (stage, kind) of a profile. Residuals are logarithms, of shape (n,)."""

    physics: Physics
    clocks_mhz: Floats
    time_residual: Floats
    power_residual: Floats
    reach_mhz: float  # how far a residual speaks for its neighbours
    band: float  # half width of the band, as a logarithm

    @property
    def clock_min_mhz(self) -> float:
        return float(self.clocks_mhz.min())

    @property
    def clock_max_mhz(self) -> float:
        return float(self.clocks_mhz.max())

    def time_s(self, clocks_mhz: Floats) -> Floats:
        nearby = self._nearby(self.time_residual, clocks_mhz)
        return np.asarray(self.physics.time_s(clocks_mhz) * np.exp(nearby))

    def power_w(self, clocks_mhz: Floats) -> Floats:
        nearby = self._nearby(self.power_residual, clocks_mhz)
        return np.asarray(self.physics.power_w(clocks_mhz) * np.exp(nearby))

    def straightened(self) -> "Curve":
        """The physics alone; the band is as wide as the physics miss the measurements."""
        missed = float(np.percentile(np.abs(self.time_residual), BAND_SHARE))
        none = np.zeros_like(self.time_residual)
        return replace(self, time_residual=none, power_residual=none, band=max(self.band, missed))

    def _nearby(self, residual: Floats, at_mhz: Floats) -> Floats:
        return _mean(_weights(self.clocks_mhz, at_mhz, self.reach_mhz), residual)

    def band_s(self, clocks_mhz: Floats, scatter: float) -> tuple[Floats, Floats]:
        """Low and high time at each clock, before any bias.

        `scatter` (a logarithm, half width) is what the GPU itself showed around its bias;
        it adds in quadrature. Beyond the measured clocks nobody knows how much of the work
        follows the clock, so the band opens to all or nothing of it.
        """
        half = float(np.hypot(self.band, scatter))
        time_s = self.time_s(clocks_mhz)
        low_s, high_s = time_s * np.exp(-half), time_s * np.exp(half)
        edges = np.clip(clocks_mhz, self.clock_min_mhz, self.clock_max_mhz)
        outside = edges != clocks_mhz
        edge_s, stretch = self.time_s(edges), edges / clocks_mhz
        low_out = np.minimum(low_s, edge_s * np.exp(-half) * np.minimum(1.0, stretch))
        high_out = np.maximum(high_s, edge_s * np.exp(half) * np.maximum(1.0, stretch))
        return np.where(outside, low_out, low_s), np.where(outside, high_out, high_s)


def bend(physics: Physics, sweep: Sweep) -> Curve:
    """The curve of a sweep whose physics are fitted."""
    time_residual = np.log(sweep.time_s / physics.time_s(sweep.clocks_mhz))
    distinct = np.unique(sweep.clocks_mhz)
    spacing_mhz = float(np.median(np.diff(distinct))) if distinct.size > 1 else 0.0
    reach_mhz = max(REACH_MHZ_MIN, REACH_PER_SPACING * spacing_mhz)
    return Curve(
        physics=physics,
        clocks_mhz=sweep.clocks_mhz,
        time_residual=time_residual,
        power_residual=np.log(sweep.power_w / physics.power_w(sweep.clocks_mhz)),
        reach_mhz=reach_mhz,
        band=_band(sweep.clocks_mhz, time_residual, reach_mhz),
    )


def _weights(clocks_mhz: Floats, at_mhz: Floats, reach_mhz: float) -> Floats:
    """How much each measurement says about each clock asked: shape (asked, measured)."""
    return np.asarray(np.exp(-0.5 * ((at_mhz[:, None] - clocks_mhz) / reach_mhz) ** 2))


def _mean(weight: Floats, residual: Floats) -> Floats:
    return np.asarray((weight @ residual) / (weight.sum(axis=1) + SHRINKAGE))


def _band(clocks_mhz: Floats, residual: Floats, reach_mhz: float) -> float:
    """How far measurements lie from what their neighbours and the physics say of them.

    Widened for the numbers that the fit took from the same measurements.
    """
    n = residual.size
    if n <= FREE_NUMBERS:
        return BAND_FEW if n > 1 else BAND_ONE
    weight = _weights(clocks_mhz, clocks_mhz, reach_mhz)
    np.fill_diagonal(weight, 0.0)
    left_out = np.abs(residual - _mean(weight, residual))
    widened = float(np.percentile(left_out, BAND_SHARE)) * float(np.sqrt(n / (n - FREE_NUMBERS)))
    return max(BAND_MIN_FEW if n < CLOCKS_FEW else BAND_MIN, widened)


STATE_VERSION = 1
SCATTER_Z = 1.645  # two-sided 90 % of a normal distribution, as the curve's own band


@dataclass(frozen=True, slots=True)
class _Workload:
    fingerprint: str  # of the profile: a bias against another one means nothing
    curves: "Curves"


Curves = Mapping[tuple[int, Kind], Priced]


class ProfileEstimator:
    """Physics and smoothed residuals of each workload's profile, times a bias per GPU.

    The band holds about 90 % of what is seen: the spread of the profile around its own
    curve, and the scatter of the GPU's samples around its bias. It does not know how far
    an unseen GPU may be from the one that was profiled.
    """

    def __init__(self, profiles: Mapping[str, Profile], *, biases_max: int = BIASES_MAX) -> None:
        """`profiles` by workload. Raises ValueError where one holds no usable number."""
        self._workloads: dict[str, _Workload] = {}
        self._biases = Biases(biases_max)
        self.set_profiles(profiles)

    def set_profiles(self, profiles: Mapping[str, Profile]) -> None:
        """Takes new evidence. A workload whose profile changed starts without bias."""
        fitted = {}
        marks = {workload: fingerprint(profile) for workload, profile in profiles.items()}
        if marks == {name: known.fingerprint for name, known in self._workloads.items()}:
            return
        curves = self._curves(profiles)
        for workload, mark in marks.items():
            known = self._workloads.get(workload)
            fitted[workload] = _Workload(mark, curves[workload])
            if known and known.fingerprint != mark:
                self._biases.forget(workload)
        for gone in self._workloads.keys() - fitted.keys():
            self._biases.forget(gone)
        self._workloads = fitted

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Names the profiles in force, by workload."""
        return {name: known.fingerprint for name, known in self._workloads.items()}

    def anew(self) -> "ProfileEstimator":
        """One with the same profiles that has learnt nothing."""
        made = type(self)({})
        made._workloads = self._workloads
        return made

    def learn(self, samples: tuple[Sample, ...]) -> tuple[str, ...]:
        """Moves the bias of each sample's GPU; see `estimator.Estimator`."""
        return tuple(reason for sample in samples if (reason := self._learn(sample)))

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        """See `estimator.Estimator`. Raises ValueError where a clock is not above 0."""
        curve = self._curve(subject)
        if curve is None:
            return None
        if any(clock <= 0 for clock in clocks_mhz):
            raise ValueError("clocks must be above 0 MHz")
        clocks = np.asarray(clocks_mhz, dtype=np.float64)
        bias = self._biases.get(subject.workload, subject.uuid)
        factor = math.exp(bias.time.mean)
        low_s, high_s = curve.band_s(clocks, SCATTER_Z * math.sqrt(bias.time.variance))
        return Prediction(
            clocks_mhz=tuple(clocks_mhz),
            time_s=curve.time_s(clocks) * factor,
            power_w=curve.power_w(clocks) * math.exp(bias.power.mean),
            time_low_s=low_s * factor,
            time_high_s=high_s * factor,
        )

    def known_clocks_mhz(self, subject: Subject) -> tuple[int, ...]:
        """The clocks of the profile, ascending; empty without one."""
        curve = self._curve(subject)
        return () if curve is None else tuple(int(c) for c in np.unique(curve.clocks_mhz))

    def state(self) -> dict[str, Any]:
        """What was learnt, as JSON-able values, least recently learnt first."""
        return {
            "version": STATE_VERSION,
            "profiles": {name: known.fingerprint for name, known in self._workloads.items()},
            "biases": [
                {
                    "workload": workload,
                    "uuid": uuid,
                    "time": [bias.time.mean, bias.time.variance, bias.time.count],
                    "power": [bias.power.mean, bias.power.variance, bias.power.count],
                }
                for (workload, uuid), bias in self._biases.items()
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes `state` back: all of it or, with ValueError, nothing.

        What was learnt against a profile that is no longer the same is left out.
        """
        try:
            if state["version"] != STATE_VERSION:
                raise ValueError(f"version {state['version']!r}, not {STATE_VERSION}")
            same = {
                name
                for name, fingerprint in state["profiles"].items()
                if name in self._workloads and self._workloads[name].fingerprint == fingerprint
            }
            rows = [
                (str(row["workload"]), str(row["uuid"]), read(row["time"]), read(row["power"]))
                for row in state["biases"]
            ]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not the state of an estimator: {error}") from None
        for workload, uuid, time, power in rows:
            if workload in same:
                self._biases.put(workload, uuid, GpuBias(time, power))

    def band(self, subject: Subject) -> Band | None:
        """See `estimator.Estimator`."""
        predicted = self.predict(subject, self.known_clocks_mhz(subject))
        return None if predicted is None else widest(predicted)

    def _curves(self, profiles: Mapping[str, Profile]) -> Mapping[str, Curves]:
        """Every workload by itself: profiles come from whatever card somebody had."""
        return {workload: _bent(profile) for workload, profile in profiles.items()}

    def _curve(self, subject: Subject) -> Priced | None:
        known = self._workloads.get(subject.workload)
        return known.curves.get((subject.stage, subject.kind)) if known else None

    def judge(self, sample: Sample) -> Refusal | Mapping[str, float]:
        """Why a sample cannot be of the profile, or what it measured over what that says."""
        subject, name = sample.subject, who(sample.subject)
        if not (0.0 < sample.weight <= SAMPLE_WEIGHT_MAX):
            what = f"weight {sample.weight:g} is not in (0, {SAMPLE_WEIGHT_MAX:g}]"
            return Refusal("weight", f"{name}: {what}")
        measured = (sample.time_s,) if sample.power_w is None else (sample.time_s, sample.power_w)
        if not all(math.isfinite(value) and value > 0.0 for value in measured):
            what = f"time {sample.time_s} s and power {sample.power_w} W must be above 0"
            return Refusal("not-above-zero", f"{name}: {what}")
        curve = self._curve(subject)
        if curve is None:
            return Refusal("no-profile", f"{name}: no profile for it")
        lowest, highest = float(curve.clocks_mhz.min()), float(curve.clocks_mhz.max())
        if not lowest <= sample.clock_mhz <= highest:
            what = f"is outside the profiled {lowest:.0f}-{highest:.0f} MHz"
            return Refusal("clock", f"{name}: {sample.clock_mhz} MHz {what}")
        clock = np.array([sample.clock_mhz], dtype=np.float64)
        ratios = {"time": sample.time_s / float(curve.time_s(clock)[0])}
        if sample.power_w is not None:
            ratios["power"] = sample.power_w / float(curve.power_w(clock)[0])
        for quantity, ratio in ratios.items():
            if not 1.0 / RATIO_MAX <= ratio <= RATIO_MAX:
                what = f"{quantity} is {ratio:.3g} times the profile's; beyond {RATIO_MAX:g} times"
                return Refusal("other-work", f"{name}: {what} it is other work, no bias")
        return ratios

    def _learn(self, sample: Sample) -> str:
        """Empty where the sample was taken, else why not."""
        ratios = self.judge(sample)
        if isinstance(ratios, Refusal):
            return ratios.text
        subject = sample.subject
        old = self._biases.get(subject.workload, subject.uuid)
        seen = {
            name: getattr(old, name).after(math.log(ratio), sample.weight)
            for name, ratio in ratios.items()
        }
        self._biases.put(subject.workload, subject.uuid, replace(old, **seen))
        return ""


class ForestEstimator(ProfileEstimator):
    """As its parent, with the forest of `forest.fit_work`: profiles teach each other."""

    def _curves(self, profiles: Mapping[str, Profile]) -> Mapping[str, Curves]:
        fitted = fit_work(
            one for workload, profile in profiles.items() for one in of_profile(workload, profile)
        )
        found: dict[str, dict[tuple[int, Kind], Priced]] = {workload: {} for workload in profiles}
        for work, curve in fitted.curves.items():
            found[work.workload][work.stage, work.kind] = curve
        return found


class PhysicsEstimator(ProfileEstimator):
    """The form alone, fitted to each profile: what the others are measured against."""

    def _curves(self, profiles: Mapping[str, Profile]) -> Mapping[str, Curves]:
        return {workload: _bent(profile, straight=True) for workload, profile in profiles.items()}


def _bent(profile: Profile, *, straight: bool = False) -> Curves:
    """Stages with the same measurements share one fit; all share the GPU's voltage curve.

    `straight` leaves the curves as the physics say; the band still knows the residuals.
    """
    distinct = list(dict.fromkeys(options for options in profile.options.values() if options))
    sweeps = [sweep_of(options) for options in distinct]
    bent = [bend(physics, sweep) for physics, sweep in zip(fit(sweeps), sweeps, strict=True)]
    if straight:
        bent = [curve.straightened() for curve in bent]
    by_options = dict(zip(distinct, bent, strict=True))
    return {key: by_options[options] for key, options in profile.options.items() if options}
