"""The estimator that needs no profile: it learns from running work, and says what it cannot.

`learn` is cheap and happens in the loop: judge, keep, move a bias. Fitting is not, and is
pure: `snapshot()` goes to a thread, `pooled.refit` makes curves of it, `adopt` puts them
in force. A GPU's bias carries what happened since.

    reasons = estimator.learn(samples)
    if estimator.due():
        taken = estimator.snapshot()
        fitted = await asyncio.to_thread(refit, taken)      # at the edge
        estimator.adopt(taken, fitted)
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from joulecut_controller.predict.admission import Admission, Refusal
from joulecut_controller.predict.bias import LOG_MAX, Biases, GpuBias
from joulecut_controller.predict.card import Card
from joulecut_controller.predict.drift import Drift, Watch
from joulecut_controller.predict.estimator import (
    Band,
    Prediction,
    Sample,
    Subject,
    widest,
)
from joulecut_controller.predict.evidence import Work, fingerprint
from joulecut_controller.predict.forest import Fitted, stacked
from joulecut_controller.predict.in_force import InForce, Z
from joulecut_controller.predict.memory import NOT_A_STATE, dump_snapshot, load_snapshot
from joulecut_controller.predict.plausible import OTHER_WORK, Plausibility
from joulecut_controller.predict.pooled import Snapshot, refit
from joulecut_controller.predict.told import Told
from joulecut_controller.predict.window import CELLS_MAX, Cell, Reading, Window
from joulecut_controller.workload import Profile

STATE_VERSION = 1
REFIT_EVERY = 25  # accepted samples: the public stream experiment's
# Cards of one kind differ by 8 % on average; one that was never seen may be any of them.
UNSEEN_GPU = 0.08
STEP_MHZ = 15  # of clock tables: what an observed clock may be off the one asked


class OnlineEstimator:
    """Learns online from samples of running work; see `estimator.Estimator`."""

    def __init__(self, *, cells_max: int = CELLS_MAX) -> None:
        self._admission = Admission()
        self._window = Window(cells_max)
        self._biases = Biases()
        self._watch = Watch()
        self._told = Told()
        self._plausibility = Plausibility()
        self._profiles: dict[str, Profile] = {}
        self._refused: Counter[str] = Counter()
        self._separated: Counter[str] = Counter()
        self._number = 0
        self._since_snapshot = 0
        self._new_clock = False
        self._in_force = InForce(cells_max)

    # -- learning ------------------------------------------------------------------------

    def learn(self, samples: tuple[Sample, ...]) -> tuple[str, ...]:
        """See `estimator.Estimator`; reasons are counted in `refused`."""
        return tuple(refusal.text for one in samples if (refusal := self.take(one)))

    def take(self, sample: Sample) -> Refusal | None:
        """Learns from one sample; else why not, which is counted."""
        refusal = self._learn(sample)
        if refusal is not None:
            self._refused[refusal.reason] += 1
        return refusal

    def set_profiles(self, profiles: Mapping[str, Profile]) -> None:
        """Sweeps that count beside what running work shows, by workload.

        Work whose profile is another now, or gone, begins anew.
        """
        for workload in sorted(self._profiles.keys() | profiles.keys()):
            old, new = self._profiles.get(workload), profiles.get(workload)
            if old is not None and new is not None and old.options == new.options:
                continue
            self.forget(workload)
            self._profiles.pop(workload, None)
            if new is not None:
                self._profiles[workload] = new

    @property
    def profiles(self) -> Mapping[str, Profile]:
        return dict(self._profiles)

    def seen(self, subject: Subject, clock_mhz: int) -> bool:
        """Whether this GPU was seen doing this work at this clock lately."""
        return any(
            cell.uuid == subject.uuid and abs(cell.clock_mhz - clock_mhz) < STEP_MHZ
            for cell in self._window.of_work(subject.workload, subject.stage, subject.kind)
        )

    def restarted(self) -> None:
        """Another process, and perhaps another boot: times told before mean nothing now."""
        self._admission.restarted()

    def knows(self, workload: str) -> bool:
        """Whether all work of a profiled workload has a curve fitted here."""
        profile = self._profiles.get(workload)
        return profile is not None and all(
            Work(workload, stage, kind) in self._in_force.fitted.curves
            for (stage, kind), options in profile.options.items()
            if options
        )

    @property
    def refused(self) -> Mapping[str, int]:
        """How many samples were refused so far, by reason (`admission.REASONS`)."""
        return dict(sorted(self._refused.items()))

    @property
    def separated(self) -> Mapping[str, int]:
        """Learnt elsewhere than told: clocks never reached, work that changed its shape."""
        return dict(sorted(self._separated.items()))

    def drifts(self) -> tuple[Drift, ...]:
        """GPUs that no longer do what their model says, one line each; probe them again."""
        return self._watch.drifts()

    def forget(self, workload: str) -> None:
        """The next sample of this workload is the first."""
        self._window.forget(workload)
        self._biases.forget(workload)
        self._watch.forget(workload)
        self._admission.forget(workload)
        self._told.forget(workload)
        self._plausibility.forget(workload)
        self._in_force.forget(workload)
        self._new_clock = True  # curves of other work learnt from this one

    # -- fitting -------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether a new fit would know more: a clock never seen, or enough samples."""
        return self._new_clock or self._since_snapshot >= REFIT_EVERY

    def snapshot(self) -> Snapshot:
        """Everything a fit may know, immutable."""
        self._since_snapshot, self._new_clock = 0, False
        return Snapshot(
            number=self._number,
            cells=tuple(self._window.cells()),
            cards=dict(self._told.cards),
            shapes=dict(self._told.shapes),
            profiles=dict(self._profiles),
        )

    def adopt(self, taken: Snapshot, fitted: Fitted) -> None:
        """Puts a fit in force and takes every bias anew against it."""
        alive = {(c.workload, c.stage, c.kind) for c, _ in self._window.cells()}
        curves = {
            work: curve
            for work, curve in fitted.curves.items()
            if (work.workload, work.stage, work.kind) in alive
            or taken.profiles.get(work.workload) is not None
        }
        for workload in self._outdated(taken):
            curves = {work: curve for work, curve in curves.items() if work.workload != workload}
        self._in_force.put(taken, replace(fitted, curves=curves))
        self._watch.refitted(self._profiles)
        for key, _ in self._biases.items():  # noqa: PERF102 -- its own class, no mapping
            self._replay(*key)

    # -- predicting ----------------------------------------------------------------------

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        """See `estimator.Estimator`. Raises ValueError where a clock is not above 0."""
        return self.predict_many((subject,), clocks_mhz)[0]

    def predict_many(
        self, subjects: Sequence[Subject], clocks_mhz: tuple[int, ...]
    ) -> tuple[Prediction | None, ...]:
        """`predict` for many subjects over one grid of clocks, in one call."""
        if any(clock <= 0 for clock in clocks_mhz):
            raise ValueError("clocks must be above 0 MHz")
        known = [(i, curve) for i, s in enumerate(subjects) if (curve := self._in_force.curve(s))]
        found: list[Prediction | None] = [None] * len(subjects)
        if not known:
            return tuple(found)
        grid = stacked([self._in_force.grid(subjects[i], curve, clocks_mhz) for i, curve in known])
        biases = [self._biases.get(subjects[i].workload, subjects[i].uuid) for i, _ in known]
        scatter = np.array([self._scatter(subjects[i]) for i, _ in known])
        factor = np.exp([bias.time.mean for bias in biases])[:, None]
        power = np.exp([bias.power.mean for bias in biases])[:, None]
        low_s, high_s = grid.band_s(scatter[:, None])
        time_s, power_w = grid.time_s * factor, grid.power_w * power
        low_s, high_s = low_s * factor, high_s * factor
        for row, (i, _) in enumerate(known):
            found[i] = Prediction(clocks_mhz, time_s[row], power_w[row], low_s[row], high_s[row])
        return tuple(found)

    def known_clocks_mhz(self, subject: Subject) -> tuple[int, ...]:
        """Clocks seen on this work; of a GPU that drifts, those it was seen at since."""
        if self._in_force.curve(subject) is None:
            return ()
        cells = self._window.of_work(subject.workload, subject.stage, subject.kind)
        profile = self._profiles.get(subject.workload)
        if profile is not None:
            swept = profile.options.get((subject.stage, subject.kind), ())
            seen = {cell.clock_mhz for cell in cells}
            return tuple(sorted(seen | {option.clock_mhz for option in swept}))
        if self._watch.since(subject.workload, subject.uuid):
            cells = tuple(cell for cell in cells if cell.uuid == subject.uuid)
        return tuple(sorted({cell.clock_mhz for cell in cells}))

    def band(self, subject: Subject) -> Band | None:
        """See `estimator.Estimator`."""
        known = self.known_clocks_mhz(subject)
        predicted = self.predict(subject, known) if known else None
        return None if predicted is None else widest(predicted)

    # -- remembering ---------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything learnt, as JSON-able values."""
        return {
            "version": STATE_VERSION,
            "number": self._number,
            "since_snapshot": self._since_snapshot,
            "new_clock": self._new_clock,
            "admission": self._admission.state(),
            "window": self._window.state(),
            "biases": self._biases.state(),
            "watch": self._watch.state(),
            "strange": self._plausibility.state(),
            "refused": self.refused,
            "separated": self.separated,
            "now": dump_snapshot(Snapshot(0, (), self._told.cards, self._told.shapes)),
            "taken": dump_snapshot(self._in_force.taken),
            "profiles": {name: fingerprint(p) for name, p in self._profiles.items()},
            "outdated": sorted(self._outdated(self._in_force.taken)),
            "curves": sorted([w.workload, w.stage, w.kind] for w in self._in_force.fitted.curves),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes `state` back: all of it or, with ValueError, nothing. Fits once.

        Profiles are not part of it: they are set before. What was learnt beside a profile that
        is no longer the same is left out.
        """
        made = OnlineEstimator(cells_max=self._window.cells_max)
        made._profiles = dict(self._profiles)
        try:
            made._take(state)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise ValueError(f"{NOT_A_STATE}: {error}") from None
        self.__dict__.update(made.__dict__)

    def _take(self, state: Mapping[str, Any]) -> None:
        if state["version"] != STATE_VERSION:
            raise ValueError(f"version {state['version']!r}, not {STATE_VERSION}")
        self._number, self._since_snapshot = int(state["number"]), int(state["since_snapshot"])
        self._new_clock = bool(state["new_clock"])
        self._admission.restore(state["admission"]["newest_s"], state["admission"]["seen"])
        self._window.restore(state["window"])
        self._biases.restore(state["biases"])
        self._watch.restore(state["watch"])
        self._plausibility.restore(state["strange"])
        self._refused.update({str(k): int(v) for k, v in state["refused"].items()})
        self._separated.update({str(k): int(v) for k, v in state["separated"].items()})
        self._told.restore(load_snapshot(state["now"]))
        same = {
            name: profile
            for name, profile in self._profiles.items()
            if state["profiles"].get(name) == fingerprint(profile)
        }
        outdated = {str(name) for name in state["outdated"]}
        taken = replace(
            load_snapshot(state["taken"]),
            profiles={name: p for name, p in same.items() if name not in outdated},
        )
        kept = {(str(w), int(s), str(k)) for w, s, k in state["curves"]}
        fitted = refit(taken)
        curves = {w: c for w, c in fitted.curves.items() if (w.workload, w.stage, w.kind) in kept}
        self._in_force.put(taken, replace(fitted, curves=curves))
        for name in sorted((state["profiles"].keys() | self._profiles.keys()) - same.keys()):
            self.forget(name)

    def _outdated(self, taken: Snapshot) -> set[str]:
        """Workloads whose profile came, went or changed since a snapshot was taken."""
        names = self._profiles.keys() | taken.profiles.keys()
        return {name for name in names if self._profiles.get(name) is not taken.profiles.get(name)}

    # -- inside --------------------------------------------------------------------------

    def _learn(self, sample: Sample) -> Refusal | None:
        subject = sample.subject
        card = self._told.card(sample)
        refusal = self._admission.judge(
            sample,
            None if card is None else card.power_limit_w,
            None if card is None else card.clock_max_mhz,
        )
        if refusal is not None:
            return refusal
        if self._told.changed(sample):
            self.forget(subject.workload)
            self._separated["shape-changed"] += 1
        self._told.note(sample)
        cell = self._cell(sample, card)
        judged = self._plausibility.judge(sample, cell, self._window)
        if isinstance(judged, Refusal):
            return judged
        if judged == OTHER_WORK:
            self.forget(subject.workload)
            self._separated["shape-changed"] += 1
        self._number += 1
        reading = Reading(
            self._number,
            sample.time_s,
            sample.power_w,
            sample.weight,
            sample.temperature_c or 0.0,
            sample.clock_mhz,
        )
        drifted = self._compare(cell, reading)
        self._new_clock |= self._window.add(cell, reading)
        self._since_snapshot += 1
        self._move(cell, reading)
        if drifted:
            since = self._watch.since(subject.workload, subject.uuid)
            self._window.forget_before(subject.workload, subject.uuid, since)
            self._replay(subject.workload, subject.uuid)
            self._new_clock = True
        return None

    def _cell(self, sample: Sample, card: Card | None) -> Cell:
        """A clock held by the cap is the one asked; one not reached is the one observed."""
        clock_mhz, asked_mhz = sample.clock_mhz, sample.asked_mhz
        if sample.capped:
            highest = None if card is None else card.clock_max_mhz
            clock_mhz = asked_mhz or highest or clock_mhz
        elif asked_mhz is not None and abs(asked_mhz - clock_mhz) <= STEP_MHZ:
            clock_mhz = asked_mhz
        elif asked_mhz is not None:
            self._separated["clock-not-reached"] += 1
        subject = sample.subject
        return Cell(
            subject.workload, subject.uuid, subject.stage, subject.kind, clock_mhz, sample.capped
        )

    def _scatter(self, subject: Subject) -> float:
        """Half width that a GPU adds to the band of its work."""
        drift = self._watch.half(subject.workload, subject.uuid)
        bias = self._biases.get(subject.workload, subject.uuid).time
        if not bias.count:
            return UNSEEN_GPU
        return max(drift, Z * math.sqrt(bias.variance / max(1.0, bias.count)))

    def _move(self, cell: Cell, reading: Reading) -> None:
        """Moves the bias of a GPU by one reading; without a curve it stays where it is."""
        expected = self._in_force.expect(cell)
        old = self._biases.get(cell.workload, cell.uuid)
        if expected is None:
            self._biases.put(cell.workload, cell.uuid, old)  # so that a fit finds whom to replay
            return
        off = math.log(reading.time_s) - expected.time
        time = old.time.after(max(-LOG_MAX, min(LOG_MAX, off)), reading.weight)
        power = old.power
        if reading.power_w is not None:
            off = math.log(reading.power_w) - expected.power
            power = power.after(max(-LOG_MAX, min(LOG_MAX, off)), reading.weight)
        self._biases.put(cell.workload, cell.uuid, GpuBias(time, power))

    def _replay(self, workload: str, uuid: str) -> None:
        """Takes a bias anew from the readings at hand, against the curves in force."""
        self._biases.put(workload, uuid, GpuBias())
        for cell, reading in self._window.of_gpu(workload, uuid):
            self._move(cell, reading)

    def _compare(self, cell: Cell, reading: Reading) -> bool:
        """Whether this reading makes it a drift: judged first, learnt afterwards."""
        expected = self._in_force.expect(cell)
        if expected is None:
            return False
        if cell.workload in self._profiles and not self._in_force.fitted_to(cell):
            return False  # a profile that is off there is corrected by the next fit
        error = math.log(reading.time_s) - expected.time
        error -= self._biases.get(cell.workload, cell.uuid).time.mean
        return self._watch.saw(
            cell.workload,
            cell.uuid,
            error=error,
            outside=not expected.low <= error <= expected.high,
            clock_mhz=cell.clock_mhz,
            number=reading.number,
        )
