"""The controller's estimator: curves of every profile, corrected by the running work.

A profile gives curves at once; samples of running work move a bias per GPU, and once there are
enough of them `fit` corrects the curves of a workload.

Without a profile there is no prediction, and a sample that cannot belong to the profile is refused
with a reason.
"""

import math
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from joulecut_engine.estimate.admission import (
    Plausibility,
    Refusal,
    Separation,
    refusal,
    values_refused,
)
from joulecut_engine.estimate.bias import LOG_MAX, RATIO_MAX, Biases, GpuBias
from joulecut_engine.estimate.correction import (
    READINGS_MIN,
    Corrected,
    corrected,
    fit_profile,
    scatter_of,
)
from joulecut_engine.estimate.estimator import Prediction, Sample, Subject
from joulecut_engine.estimate.evidence import Work, fingerprint
from joulecut_engine.estimate.sample_window import Cell, Reading, Window
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile

PREDICTED_MAX = 1_024  # profiles; with their curves some ten kilobytes each
REFIT_EVERY = 25  # accepted samples of a kind of work; as in the public stream experiment
LOWER_MIN = 0.02  # of the clock: default clocks vary by a step or two
STEP_MHZ = 15  # of clock tables: tolerance between asked and observed clock
ERROR_WEIGHT = 0.05  # of the newest error in the mean; about forty count


@dataclass(frozen=True, slots=True)
class LearningStats:
    """Learning so far of one workload.

    `error` is the mean absolute relative error of time, before each sample was learnt.
    """

    taken: int = 0  # samples learnt from
    error: float | None = None
    refused: tuple[tuple[str, int], ...] = ()  # by reason; with samples filed elsewhere


class OnlineEstimator:
    """Curves from profiles and running work, times a bias per GPU; see `estimator.Estimator`.

    Samples are filed in cells by (GPU, work, clock). All memory is bounded.
    """

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        """`profiles` by workload. Raises ValueError if one has unusable numbers."""
        self._fingerprints: dict[str, str] = {}
        self._predicted: dict[str, Profile] = {}  # the newest last
        self._window = Window()
        self._biases = Biases()
        self._plausibility = Plausibility()
        self._curves: dict[str, dict[Work, Corrected]] = {}
        self._number = 0
        self._since_fit: Counter[str] = Counter()
        self._waiting: dict[str, None] = {}  # for a fit, in this order
        self._taken: Counter[str] = Counter()
        self._errors: dict[str, float] = {}
        self._refused: dict[str, Counter[str]] = {}
        self.set_profiles(profiles)

    # -- learning ------------------------------------------------------------------------

    def learn(self, samples: tuple[Sample, ...]) -> tuple[str, ...]:
        """See `estimator.Estimator`; refusals are counted by workload and reason. Samples of one
        call are of one time.
        """
        given = self._level(samples)
        return tuple(found.text for one in given if (found := self._learn(one)))

    def _level(self, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """Those of predicted workloads at the level of their profile: what all operations have in
        common at one time is work, heat, or an error that the job's slowdown shows.
        """
        ratios: dict[str, list[float]] = {}
        for one in samples:
            workload = one.subject.workload
            if workload in self._predicted and values_refused(one) is None:
                curve = self._curve(one.subject)
                if curve is not None:
                    swept_s = float(curve.swept.time_s(np.array([float(one.clock_mhz)]))[0])
                    ratios.setdefault(workload, []).append(_log(one.time_s / swept_s))
        common = {name: math.exp(math.fsum(logs) / len(logs)) for name, logs in ratios.items()}
        return tuple(
            replace(one, time_s=one.time_s / common.get(one.subject.workload, 1.0))
            for one in samples
        )

    def learning_stats(self, workload: str) -> LearningStats:
        """Counts and errors of one workload."""
        return LearningStats(
            taken=self._taken[workload],
            error=self._errors.get(workload),
            refused=tuple(sorted(self._refused.get(workload, Counter()).items())),
        )

    def _learn(self, sample: Sample) -> Refusal | None:
        workload = sample.subject.workload
        cell, separated = _filed(sample)
        judged = self._refusal(sample) or self._plausibility.judge(sample, cell, self._window)
        if isinstance(judged, Refusal):
            if workload in self._curves:  # bounded: only known workloads are counted
                self._count(workload, judged.reason)
            return judged
        if judged == "shape-changed":
            self._start_over(workload)
        filed = judged or separated
        if filed is not None:
            self._count(workload, filed)
        self._number += 1
        self._taken[workload] += 1
        reading = Reading(self._number, sample.time_s, sample.power_w, sample.weight)
        self._compare(cell, reading)
        self._since_fit[workload] += 1
        self._window.add(cell, reading)
        enough = self._since_fit[workload] >= REFIT_EVERY * len(self._curves[workload])
        if enough or len(self._window.last(cell)) == READINGS_MIN:
            self._waiting.setdefault(workload)
        self._move_bias(cell, reading)
        return None

    def _count(self, workload: str, reason: str) -> None:
        self._refused.setdefault(workload, Counter())[reason] += 1

    def _refusal(self, sample: Sample) -> Refusal | None:
        """Why a sample cannot belong to the profile; None if it can."""
        subject, clock_mhz = sample.subject, sample.clock_mhz
        refused = values_refused(sample)
        if refused is not None:
            return refused
        known_mhz = self.known_clocks_mhz(subject)
        if not known_mhz:
            return refusal("no-profile", subject, "no profile for it")
        if not known_mhz[0] <= clock_mhz <= known_mhz[-1]:
            what = f"is outside the profiled {known_mhz[0]}-{known_mhz[-1]} MHz"
            return refusal("clock", subject, f"{clock_mhz} MHz {what}")
        grid = self._curves[subject.workload][_work_of(subject)].at((clock_mhz,))
        ratios = {"time": sample.time_s / float(grid.time_s[0])}
        if sample.power_w is not None:
            ratios["power"] = sample.power_w / float(grid.power_w[0])
        for quantity, ratio in ratios.items():
            if not 1.0 / RATIO_MAX <= ratio <= RATIO_MAX:
                what = f"{quantity} is {ratio:.3g} times the profile's; beyond {RATIO_MAX:g} times"
                return refusal("other-work", subject, f"{what} it is other work, no bias")
        return None

    def _compare(self, cell: Cell, reading: Reading) -> None:
        """Adds the reading's error to the mean one of its workload."""
        predicted_s = self._at(cell).time_s[0]
        predicted_s *= math.exp(self._biases.get(cell.workload, cell.uuid).time.mean)
        before = self._errors.get(cell.workload)
        off = abs(predicted_s / reading.time_s - 1.0)
        mean = off if before is None else before + ERROR_WEIGHT * (off - before)
        self._errors[cell.workload] = mean

    def _move_bias(self, cell: Cell, reading: Reading) -> None:
        """Move the GPU's bias by one reading."""
        grid = self._at(cell)
        old = self._biases.get(cell.workload, cell.uuid)
        time = old.time.after(_log(reading.time_s / grid.time_s[0]), reading.weight)
        power = old.power
        if reading.power_w is not None:
            power = power.after(_log(reading.power_w / grid.power_w[0]), reading.weight)
        self._biases.put(cell.workload, cell.uuid, GpuBias(time, power))

    def _at(self, cell: Cell) -> Prediction:
        """The curve at a cell, whose work has a profile."""
        return self._curves[cell.workload][_work_of(cell)].at((cell.clock_mhz,))

    # -- workloads -----------------------------------------------------------------------

    def set_profiles(self, profiles: Mapping[str, Profile]) -> None:
        """Replace all profiles but predicted ones. A workload whose profile changed or disappears
        is forgotten.
        """
        for name in self._predicted.keys() & profiles.keys():
            del self._predicted[name]
        profiles = {**self._predicted, **profiles}
        prints = {workload: fingerprint(profile) for workload, profile in profiles.items()}
        made = {
            workload: fit_profile(workload, profiles[workload])
            for workload in sorted(prints)
            if self._fingerprints.get(workload) != prints[workload]
        }
        for workload in made.keys() | (self._fingerprints.keys() - prints.keys()):
            self._forget(workload)
        self._curves |= made
        self._fingerprints = prints

    def add_predicted(
        self, workload: str, profile: Profile, fitted: Mapping[Work, Corrected]
    ) -> None:
        """The profile that is predicted of a workload, with its `fit_profile`; beyond PREDICTED_MAX
        the oldest goes.
        """
        if not self.drop_predicted(workload):
            self._forget(workload)
        self._predicted[workload] = profile
        self._fingerprints[workload] = fingerprint(profile)
        self._curves[workload] = dict(fitted)
        while len(self._predicted) > PREDICTED_MAX:
            self.drop_predicted(next(iter(self._predicted)))

    def drop_predicted(self, workload: str) -> bool:
        """Forgets the profile that was predicted of a workload, with what corrected it; whether
        there was one.
        """
        if self._predicted.pop(workload, None) is None:
            return False
        self._forget(workload)
        del self._fingerprints[workload]
        return True

    def predicted(self, workload: str) -> Profile | None:
        """The profile that was predicted of a workload."""
        return self._predicted.get(workload)

    def ran_lower(self, workload: str) -> bool:
        """Whether readings of lower clocks are kept, which another prediction would forget."""
        curves = self._curves.get(workload, {})
        return any(
            cell.clock_mhz < (1.0 - LOWER_MIN) * curves[_work_of(cell)].swept.clock_max_mhz
            for cell, _ in self._window.cells()
            if cell.workload == workload
        )

    def measured(self, workload: str) -> Profile | None:
        """Time and energy of a workload at each clock it ran at; None before it has a curve."""
        curves = self._curves.get(workload)
        if curves is None:
            return None
        ran: dict[Work, set[int]] = {work: set() for work in curves}
        for cell, _ in self._window.cells():
            if cell.workload == workload:
                ran[_work_of(cell)].add(cell.clock_mhz)
        options: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
        for work, clocks_mhz in ran.items():
            clocks = tuple(sorted(clocks_mhz))
            if clocks:
                grid = curves[work].at(clocks)
                rows = zip(clocks, grid.time_s.tolist(), grid.power_w.tolist(), strict=True)
                options[work.stage, work.kind] = tuple(ClockOption(m, s, s * w) for m, s, w in rows)
        return Profile(options, "measured")

    def _forget(self, workload: str) -> None:
        """Drop everything about a workload."""
        self._start_over(workload)
        self._curves.pop(workload, None)
        self._errors.pop(workload, None)
        self._refused.pop(workload, None)

    def _start_over(self, workload: str) -> None:
        """Drop what was learnt of a workload beside its profile."""
        self._window.forget(workload)
        self._biases.forget(workload)
        self._plausibility.forget(workload)
        for work, curve in self._curves.get(workload, {}).items():
            self._curves[workload][work] = Corrected(curve.swept)
        for counts in (self._waiting, self._since_fit, self._taken):
            counts.pop(workload, None)

    def forget_gpu(self, workload: str, uuid: str) -> None:
        """Drop what was learnt of one GPU, which works at another pace from now on."""
        self._window.forget_gpu(workload, uuid)
        self._fit(workload)  # at once: the next plan rests on it

    # -- fitting -------------------------------------------------------------------------

    def fit(self, resting: Container[str] = ()) -> str:
        """Correct the curves of the workload that waits longest for it by its readings, but for
        those `resting`; returns its name, empty if none waits.
        """
        workload = next((one for one in self._waiting if one not in resting), "")
        if workload:
            self._fit(workload)
        return workload

    def _fit(self, workload: str) -> None:
        self._waiting.pop(workload, None)
        self._since_fit.pop(workload, None)
        curves = self._curves.get(workload, {})
        cells: dict[Work, dict[Cell, tuple[Reading, ...]]] = {work: {} for work in curves}
        for cell, readings in self._window.cells():
            if cell.workload == workload:
                cells[_work_of(cell)][cell] = readings
        scatter = scatter_of(rows for own in cells.values() for rows in own.values())
        for work, own in cells.items():
            curves[work] = corrected(curves[work].swept, own, scatter)
        self._biases.forget(workload)
        for name, uuid in self._window.gpus():
            if name == workload:
                for cell, reading in self._window.of_gpu(workload, uuid):
                    self._move_bias(cell, reading)

    # -- predicting ----------------------------------------------------------------------

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        """See `estimator.Estimator`. Raises ValueError if a clock is not above 0."""
        curve = self._curve(subject)
        if curve is None:
            return None
        shared, bias = curve.at(clocks_mhz), self._biases.get(subject.workload, subject.uuid)
        return Prediction(
            clocks_mhz,
            shared.time_s * math.exp(bias.time.mean),
            shared.power_w * math.exp(bias.power.mean),
        )

    def known_clocks_mhz(self, subject: Subject) -> tuple[int, ...]:
        """Clocks of the profile, ascending; empty without one."""
        curve = self._curve(subject)
        return () if curve is None else tuple(map(int, curve.swept.clocks_mhz))

    def _curve(self, subject: Subject) -> Corrected | None:
        return self._curves.get(subject.workload, {}).get(_work_of(subject))


def _work_of(one: Subject | Cell) -> Work:
    return Work(one.workload, one.stage, cast("Kind", one.kind))


def _filed(sample: Sample) -> tuple[Cell, Separation | None]:
    """File a capped sample under the asked clock, one that missed it under the observed."""
    clock_mhz, asked_mhz = sample.clock_mhz, sample.asked_mhz
    separated: Separation | None = None
    if asked_mhz is not None:
        if sample.capped or abs(asked_mhz - clock_mhz) <= STEP_MHZ:
            clock_mhz = asked_mhz
        else:
            separated = "clock-not-reached"
    one = sample.subject
    return Cell(one.workload, one.uuid, one.stage, one.kind, clock_mhz, sample.capped), separated


def _log(ratio: float) -> float:
    return max(-LOG_MAX, min(LOG_MAX, math.log(ratio)))
