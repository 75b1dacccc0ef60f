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
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from joulecut_engine.estimate.admission import Refusal
from joulecut_engine.estimate.card import Card
from joulecut_engine.estimate.drift import Drift
from joulecut_engine.estimate.estimator import (
    Band,
    Prediction,
    Sample,
    Subject,
    widest,
)
from joulecut_engine.estimate.evidence import Work
from joulecut_engine.estimate.forest import Fitted, stacked
from joulecut_engine.estimate.in_force import Z
from joulecut_engine.estimate.learnt import Learnt
from joulecut_engine.estimate.plausible import OTHER_WORK
from joulecut_engine.estimate.pooled import Snapshot
from joulecut_engine.estimate.window import CELLS_MAX, Cell, Reading
from joulecut_engine.graph.pipeline import Profile

# Cards of one kind differ by 8 % on average; one that was never seen may be any of them.
UNSEEN_GPU = 0.08
STEP_MHZ = 15  # of clock tables: what an observed clock may be off the one asked


class OnlineEstimator:
    """Learns online from samples of running work; see `estimator.Estimator`."""

    def __init__(self, *, cells_max: int = CELLS_MAX) -> None:
        self._learnt = Learnt(cells_max)

    # -- learning ------------------------------------------------------------------------

    def learn(self, samples: tuple[Sample, ...]) -> tuple[str, ...]:
        """See `estimator.Estimator`; reasons are counted in `refused`."""
        return tuple(refusal.text for one in samples if (refusal := self.take(one)))

    def take(self, sample: Sample) -> Refusal | None:
        """Learns from one sample; else why not, which is counted."""
        refusal = self._learn(sample)
        if refusal is not None:
            self._learnt.refused[refusal.reason] += 1
        return refusal

    def set_profiles(self, profiles: Mapping[str, Profile]) -> None:
        """Sweeps that count beside what running work shows, by workload.

        Work whose profile is another now, or gone, begins anew.
        """
        self._learnt.set_profiles(profiles)

    @property
    def profiles(self) -> Mapping[str, Profile]:
        return dict(self._learnt.profiles)

    def seen(self, subject: Subject, clock_mhz: int) -> bool:
        """Whether this GPU was seen doing this work at this clock lately."""
        return any(
            cell.uuid == subject.uuid and abs(cell.clock_mhz - clock_mhz) < STEP_MHZ
            for cell in self._learnt.window.of_work(subject.workload, subject.stage, subject.kind)
        )

    def restarted(self) -> None:
        """Another process, and perhaps another boot: times told before mean nothing now."""
        self._learnt.admission.restarted()

    def knows(self, workload: str) -> bool:
        """Whether all work of a profiled workload has a curve fitted here."""
        profile = self._learnt.profiles.get(workload)
        return profile is not None and all(
            Work(workload, stage, kind) in self._learnt.in_force.fitted.curves
            for (stage, kind), options in profile.options.items()
            if options
        )

    @property
    def refused(self) -> Mapping[str, int]:
        """How many samples were refused so far, by reason (`admission.REASONS`)."""
        return dict(sorted(self._learnt.refused.items()))

    @property
    def separated(self) -> Mapping[str, int]:
        """Learnt elsewhere than told: clocks never reached, work that changed its shape."""
        return dict(sorted(self._learnt.separated.items()))

    def drifts(self) -> tuple[Drift, ...]:
        """GPUs that no longer do what their model says, one line each; probe them again."""
        return self._learnt.watch.drifts()

    def forget(self, workload: str) -> None:
        """The next sample of this workload is the first."""
        self._learnt.forget(workload)

    # -- fitting -------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether a new fit would know more: a clock never seen, or enough samples."""
        return self._learnt.due()

    def snapshot(self) -> Snapshot:
        """Everything a fit may know, immutable."""
        return self._learnt.snapshot()

    def adopt(self, taken: Snapshot, fitted: Fitted) -> None:
        """Puts a fit in force and takes every bias anew against it."""
        self._learnt.adopt(taken, fitted)

    # -- predicting ----------------------------------------------------------------------

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        """See `estimator.Estimator`. Raises ValueError where a clock is not above 0."""
        return self.predict_many((subject,), clocks_mhz)[0]

    def predict_many(
        self, subjects: Sequence[Subject], clocks_mhz: tuple[int, ...]
    ) -> tuple[Prediction | None, ...]:
        """`predict` for many subjects over one grid of clocks, in one call."""
        learnt = self._learnt
        if any(clock <= 0 for clock in clocks_mhz):
            raise ValueError("clocks must be above 0 MHz")
        known = [(i, curve) for i, s in enumerate(subjects) if (curve := learnt.in_force.curve(s))]
        found: list[Prediction | None] = [None] * len(subjects)
        if not known:
            return tuple(found)
        grid = stacked([learnt.in_force.grid(subjects[i], curve, clocks_mhz) for i, curve in known])
        biases = [learnt.biases.get(subjects[i].workload, subjects[i].uuid) for i, _ in known]
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
        learnt = self._learnt
        if learnt.in_force.curve(subject) is None:
            return ()
        cells = learnt.window.of_work(subject.workload, subject.stage, subject.kind)
        profile = learnt.profiles.get(subject.workload)
        if profile is not None:
            swept = profile.options.get((subject.stage, subject.kind), ())
            seen = {cell.clock_mhz for cell in cells}
            return tuple(sorted(seen | {option.clock_mhz for option in swept}))
        if learnt.watch.since(subject.workload, subject.uuid):
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
        return self._learnt.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes `state` back: all of it or, with ValueError, nothing. Fits once.

        Profiles are not part of it: they are set before. What was learnt beside a profile that
        is no longer the same is left out.
        """
        held = self._learnt
        self._learnt = Learnt.restored(state, held.profiles, held.window.cells_max)

    # -- inside --------------------------------------------------------------------------

    def _learn(self, sample: Sample) -> Refusal | None:
        learnt, workload = self._learnt, sample.subject.workload
        card = learnt.told.card(sample)
        refusal = learnt.admission.judge(
            sample,
            None if card is None else card.power_limit_w,
            None if card is None else card.clock_max_mhz,
        )
        if refusal is not None:
            return refusal
        if learnt.told.changed(sample):
            learnt.forget(workload)
            learnt.separated["shape-changed"] += 1
        learnt.told.note(sample)
        cell = self._cell(sample, card)
        judged = learnt.plausibility.judge(sample, cell, learnt.window)
        if isinstance(judged, Refusal):
            return judged
        if judged == OTHER_WORK:
            learnt.forget(workload)
            learnt.separated["shape-changed"] += 1
        reading = Reading(
            learnt.number(),
            sample.time_s,
            sample.power_w,
            sample.weight,
            sample.temperature_c or 0.0,
            sample.clock_mhz,
        )
        learnt.add(cell, reading)
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
            self._learnt.separated["clock-not-reached"] += 1
        subject = sample.subject
        return Cell(
            subject.workload, subject.uuid, subject.stage, subject.kind, clock_mhz, sample.capped
        )

    def _scatter(self, subject: Subject) -> float:
        """Half width that a GPU adds to the band of its work."""
        drift = self._learnt.watch.half(subject.workload, subject.uuid)
        bias = self._learnt.biases.get(subject.workload, subject.uuid).time
        if not bias.count:
            return UNSEEN_GPU
        return max(drift, Z * math.sqrt(bias.variance / max(1.0, bias.count)))
