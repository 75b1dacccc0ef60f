"""Estimator for jobs with a profile: its sweep, times a bias per GPU.

A profile holds time and power at the clocks that were swept; samples show how the GPU at hand
differs. Without a profile there is no prediction, and a sample that cannot belong to the profile
is refused with a reason.

A curve is physics times exp(smoothed residual): the mean of nearby residuals, Gaussian in clock,
with SHRINKAGE measurements' worth of zero. A sweep taken at its word makes the planner pick the
luckiest measurement; physics alone misses what the form cannot express, such as another kernel
above some clock.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joulecut_engine.estimate.admission import Refusal, refusal, values_refused
from joulecut_engine.estimate.drift import BIASES_MAX, RATIO_MAX, Biases, GpuBias, read
from joulecut_engine.estimate.estimator import NOMINAL_SDS, Prediction, Sample, Subject
from joulecut_engine.estimate.evidence import fingerprint, sweep_of
from joulecut_engine.estimate.fitting import fit
from joulecut_engine.estimate.grid import Grid, Grids
from joulecut_engine.estimate.physics import Floats, Physics, Sweep
from joulecut_engine.graph.pipeline import Kind, Profile

# A lone measurement keeps 1/(1 + 0.5) = two thirds of its residual; in a sweep at every 15 MHz
# a quarter. Chosen by leaving out each clock of the public A100 and A40 sweeps in turn.
SHRINKAGE = 0.5
REACH_MHZ_MIN = 22.5  # standard deviation: one and a half steps of a clock table
REACH_PER_SPACING = 0.5  # in sparser sweeps, of the median distance between clocks

BAND_SHARE = 90.0  # percent of left-out measurements that lie within the band
BAND_MIN = 0.003  # neighbouring clocks scatter by 0.2 %
BAND_MIN_FEW, CLOCKS_FEW = 0.006, 12  # more between clocks far apart
# Free numbers of the time curve: t_fmax, k, f_cap. Fewer measurements leave no error to estimate;
# from 2 or 3 clocks the public sweeps are missed by 1-3 %, from 1 by 10-20 %.
FREE_NUMBERS = 3
BAND_FEW = 0.05
BAND_ONE = 0.2


@dataclass(frozen=True, slots=True)
class Curve:
    """Curve of one (stage, kind) of a profile. Residuals are logarithms, of shape (n,)."""

    physics: Physics
    clocks_mhz: Floats
    time_residual: Floats
    power_residual: Floats
    reach_mhz: float  # standard deviation of the smoothing kernel
    band: float  # half width of the band, as a logarithm

    def time_s(self, clocks_mhz: Floats) -> Floats:
        nearby = self._nearby(self.time_residual, clocks_mhz)
        return np.asarray(self.physics.time_s(clocks_mhz) * np.exp(nearby))

    def power_w(self, clocks_mhz: Floats) -> Floats:
        nearby = self._nearby(self.power_residual, clocks_mhz)
        return np.asarray(self.physics.power_w(clocks_mhz) * np.exp(nearby))

    def _nearby(self, residual: Floats, at_mhz: Floats) -> Floats:
        return _mean(_weights(self.clocks_mhz, at_mhz, self.reach_mhz), residual)

    def grid(self, clocks_mhz: Floats) -> Grid:
        """Time, power and band at each clock (n,), which is above 0."""
        edges = np.clip(clocks_mhz, self.clocks_mhz.min(), self.clocks_mhz.max())
        return Grid(
            time_s=self.time_s(clocks_mhz),
            power_w=self.power_w(clocks_mhz),
            half=np.full_like(clocks_mhz, self.band),
            edge_s=self.time_s(edges),
            stretch=edges / clocks_mhz,
        )


def curve_of(physics: Physics, sweep: Sweep) -> Curve:
    """Curve of a sweep with fitted physics."""
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
    """Kernel weight of each measurement at each asked clock: (asked, measured)."""
    return np.asarray(np.exp(-0.5 * ((at_mhz[:, None] - clocks_mhz) / reach_mhz) ** 2))


def _mean(weight: Floats, residual: Floats) -> Floats:
    return np.asarray((weight @ residual) / (weight.sum(axis=1) + SHRINKAGE))


def _band(clocks_mhz: Floats, residual: Floats, reach_mhz: float) -> float:
    """BAND_SHARE percentile of leave-one-out errors, widened for the fitted numbers."""
    n = residual.size
    if n <= FREE_NUMBERS:
        return BAND_FEW if n > 1 else BAND_ONE
    weight = _weights(clocks_mhz, clocks_mhz, reach_mhz)
    np.fill_diagonal(weight, 0.0)
    left_out = np.abs(residual - _mean(weight, residual))
    widened = float(np.percentile(left_out, BAND_SHARE)) * float(np.sqrt(n / (n - FREE_NUMBERS)))
    return max(BAND_MIN_FEW if n < CLOCKS_FEW else BAND_MIN, widened)


STATE_VERSION = 1


Curves = Mapping[tuple[int, Kind], Curve]


@dataclass(frozen=True, slots=True)
class _Workload:
    fingerprint: str  # of the profile that biases refer to
    curves: Curves
    clocks_mhz: Mapping[tuple[int, Kind], tuple[int, ...]]  # swept, ascending


class ProfileEstimator:
    """Curves of each workload's profile, times a bias per GPU.

    The band holds about 90 % of samples: the spread of the profile around its curve and of the
    GPU's samples around its bias. How far an unseen GPU differs is not part of it.
    """

    def __init__(self, profiles: Mapping[str, Profile], *, biases_max: int = BIASES_MAX) -> None:
        """`profiles` by workload. Raises ValueError if one has unusable numbers."""
        self._workloads: dict[str, _Workload] = {}
        self._biases = Biases(biases_max)
        self._grids = Grids()
        self.set_profiles(profiles)

    def set_profiles(self, profiles: Mapping[str, Profile]) -> None:
        """Replace all profiles. A workload whose profile changed loses its biases."""
        fitted = {}
        prints = {workload: fingerprint(profile) for workload, profile in profiles.items()}
        if prints == {name: known.fingerprint for name, known in self._workloads.items()}:
            return
        for workload, name in prints.items():
            known = self._workloads.get(workload)
            if known and known.fingerprint == name:
                fitted[workload] = known
                continue
            curves = _curves(profiles[workload])
            swept = {key: tuple(map(int, np.unique(c.clocks_mhz))) for key, c in curves.items()}
            fitted[workload] = _Workload(name, curves, swept)
            if known and known.fingerprint != name:
                self._biases.forget(workload)
        for gone in self._workloads.keys() - fitted.keys():
            self._biases.forget(gone)
        self._workloads = fitted
        self._grids.clear()

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Fingerprint of each profile, by workload."""
        return {name: known.fingerprint for name, known in self._workloads.items()}

    def without_biases(self) -> "ProfileEstimator":
        """The same profiles without any bias."""
        made = type(self)({})
        made._workloads = self._workloads
        return made

    def learn(self, samples: tuple[Sample, ...]) -> tuple[str, ...]:
        """Move the bias of each sample's GPU; see `estimator.Estimator`."""
        return tuple(reason for sample in samples if (reason := self._learn(sample)))

    def forget_gpu(self, workload: str, uuid: str) -> None:
        """Drop the bias of one GPU, which works at another pace from now on."""
        self._biases.put(workload, uuid, GpuBias())

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        """See `estimator.Estimator`. Raises ValueError if a clock is not above 0."""
        grid = self._grid(subject, clocks_mhz)
        if grid is None:
            return None
        bias = self._biases.get(subject.workload, subject.uuid)
        return grid.predicted(clocks_mhz, bias, NOMINAL_SDS * math.sqrt(bias.time.variance))

    def known_clocks_mhz(self, subject: Subject) -> tuple[int, ...]:
        """Clocks of the profile, ascending; empty without one."""
        known = self._workloads.get(subject.workload)
        return known.clocks_mhz.get((subject.stage, subject.kind), ()) if known else ()

    def state(self) -> dict[str, Any]:
        """Biases as JSON-able values, least recently moved first."""
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

    def restore(self, state: Mapping[str, Any], changed: set[str]) -> None:
        """Read `state` without the workloads whose profiles `changed`.

        Raises an error if malformed, and is of no use then.
        """
        if state["version"] != STATE_VERSION:
            raise ValueError(f"version {state['version']!r}, not {STATE_VERSION}")
        for row in state["biases"]:
            if row["workload"] not in changed:
                bias = GpuBias(read(row["time"]), read(row["power"]))
                self._biases.put(str(row["workload"]), str(row["uuid"]), bias)

    def _grid(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Grid | None:
        """The subject's curve at these clocks; None without one."""
        known = self._workloads.get(subject.workload)
        curve = known.curves.get((subject.stage, subject.kind)) if known else None
        if curve is None:
            return None
        return self._grids.of((subject.workload, subject.stage, subject.kind), curve, clocks_mhz)

    def judge(self, sample: Sample) -> Refusal | Mapping[str, float]:
        """Why a sample cannot belong to the profile, else measured over predicted, by quantity."""
        subject = sample.subject
        refused = values_refused(sample)
        if refused is not None:
            return refused
        known_mhz = self.known_clocks_mhz(subject)
        if not known_mhz:
            return refusal("no-profile", subject, "no profile for it")
        if not known_mhz[0] <= sample.clock_mhz <= known_mhz[-1]:
            what = f"is outside the profiled {known_mhz[0]}-{known_mhz[-1]} MHz"
            return refusal("clock", subject, f"{sample.clock_mhz} MHz {what}")
        grid = self._grid(subject, (sample.clock_mhz,))
        assert grid is not None
        ratios = {"time": sample.time_s / float(grid.time_s[0])}
        if sample.power_w is not None:
            ratios["power"] = sample.power_w / float(grid.power_w[0])
        for quantity, ratio in ratios.items():
            if not 1.0 / RATIO_MAX <= ratio <= RATIO_MAX:
                what = f"{quantity} is {ratio:.3g} times the profile's; beyond {RATIO_MAX:g} times"
                return refusal("other-work", subject, f"{what} it is other work, no bias")
        return ratios

    def _learn(self, sample: Sample) -> str:
        """Empty if the sample was learnt, else why not."""
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


def _curves(profile: Profile) -> Curves:
    """Fit one profile. Stages with equal rows share a fit; all share the GPU's voltage curve."""
    distinct = list(dict.fromkeys(options for options in profile.options.values() if options))
    sweeps = [sweep_of(options) for options in distinct]
    curves = [curve_of(physics, sweep) for physics, sweep in zip(fit(sweeps), sweeps, strict=True)]
    by_options = dict(zip(distinct, curves, strict=True))
    return {key: by_options[options] for key, options in profile.options.items() if options}
