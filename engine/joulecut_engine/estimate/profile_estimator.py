"""The estimator whose evidence is the operator's profile, corrected by what each GPU does.

A profile says what the work costs at the clocks somebody measured; samples say how the
card at hand differs. Nothing else is believed: without a profile there is no prediction,
and a sample that cannot belong to it is refused with a reason. Forests on top of the same
physics answer to the same protocol (`estimator`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joulecut_engine.estimate.admission import Refusal, who
from joulecut_engine.estimate.bias import (
    BIASES_MAX,
    RATIO_MAX,
    SAMPLE_WEIGHT_MAX,
    Biases,
    GpuBias,
    read,
)
from joulecut_engine.estimate.curve import Priced, bend
from joulecut_engine.estimate.estimator import Band, Prediction, Sample, Subject, widest
from joulecut_engine.estimate.evidence import fingerprint, of_profile, sweep_of
from joulecut_engine.estimate.fitting import fit
from joulecut_engine.estimate.forest import fit_work
from joulecut_engine.graph.pipeline import Kind, Profile

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
