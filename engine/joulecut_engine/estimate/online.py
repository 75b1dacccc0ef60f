"""DOC online"""

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from joulecut_engine.estimate.admission import OTHER_WORK, Admission, Plausibility, Refusal
from joulecut_engine.estimate.card import Card, named
from joulecut_engine.estimate.drift import LOG_MAX, Biases, Drift, GpuBias, Watch
from joulecut_engine.estimate.estimator import (
    Band,
    Prediction,
    Sample,
    Subject,
    WorkShape,
    widest,
)
from joulecut_engine.estimate.evidence import Work, fingerprint
from joulecut_engine.estimate.refit import (
    NOT_A_STATE,
    Snapshot,
    dump_snapshot,
    load_snapshot,
    refit,
)
from joulecut_engine.estimate.sample_window import CELLS_MAX, Cell, Reading, Window
from joulecut_engine.estimate.work_fit import Fitted, ForestCurve, Grid, stacked
from joulecut_engine.graph.pipeline import Kind, Profile

CARDS_MAX = 16_384
WORKLOADS_MAX = 1024


class Told:
    """`cards` names the card of a GPU, `shapes` what a workload computes."""

    def __init__(self) -> None:
        self.cards: OrderedDict[str, str] = OrderedDict()
        self.shapes: OrderedDict[str, WorkShape] = OrderedDict()

    def card(self, sample: Sample) -> Card | None:
        """The card this sample comes from, by its own word or an earlier one."""
        uuid = sample.subject.uuid
        if sample.card:
            self.cards[uuid] = sample.card
            self.cards.move_to_end(uuid)
            while len(self.cards) > CARDS_MAX:
                self.cards.popitem(last=False)
        return named(self.cards.get(uuid, ""))

    def changed(self, sample: Sample) -> bool:
        """Whether the job now says it computes something else than before."""
        known = self.shapes.get(sample.subject.workload)
        return sample.shape is not None and known is not None and known != sample.shape

    def note(self, sample: Sample) -> None:
        if sample.shape is None:
            return
        self.shapes[sample.subject.workload] = sample.shape
        self.shapes.move_to_end(sample.subject.workload)
        while len(self.shapes) > WORKLOADS_MAX:
            self.shapes.popitem(last=False)

    def forget(self, workload: str) -> None:
        """What it computes; its GPUs keep their cards."""
        self.shapes.pop(workload, None)

    def restore(self, held: Snapshot) -> None:
        self.cards.update(held.cards)
        self.shapes.update(held.shapes)


GRIDS_MAX = 512  # curves kept at the clocks last asked for
Z = 1.645  # two-sided 90 % of a normal distribution


@dataclass(frozen=True, slots=True)
class Expected:
    """Logarithms: time and power of a cell, and how far one reading may lie off."""

    time: float
    power: float
    low: float
    high: float


class InForce:
    """A fit, the snapshot it was made of, and answers kept. `expected_max` bounds the cells."""

    def __init__(self, expected_max: int) -> None:
        self.taken = Snapshot()
        self.fitted = Fitted()
        self._fitted_to: frozenset[Cell] = frozenset()
        self._expected_max = expected_max
        self._expected: dict[tuple[str, int, str, int], Expected] = {}
        self._grids: OrderedDict[tuple[Work, tuple[int, ...]], Grid] = OrderedDict()

    def put(self, taken: Snapshot, fitted: Fitted) -> None:
        self.taken, self.fitted = taken, fitted
        self._fitted_to = frozenset(cell for cell, _ in taken.cells)
        self._clear()

    def forget(self, workload: str) -> None:
        """Its curves are gone; `fitted_to` tells what was used, and stays."""
        curves = {w: c for w, c in self.fitted.curves.items() if w.workload != workload}
        cells = tuple(pair for pair in self.taken.cells if pair[0].workload != workload)
        self.taken = replace(self.taken, cells=cells)
        self.fitted = replace(self.fitted, curves=curves)
        self._clear()

    def fitted_to(self, cell: Cell) -> bool:
        """Whether the fit has seen readings of this cell."""
        return cell in self._fitted_to

    def curve(self, subject: Subject) -> ForestCurve | None:
        return self.fitted.curve(Work(subject.workload, subject.stage, subject.kind))

    def grid(self, subject: Subject, curve: ForestCurve, clocks_mhz: tuple[int, ...]) -> Grid:
        key = (Work(subject.workload, subject.stage, subject.kind), clocks_mhz)
        grid = self._grids.get(key)
        if grid is None:
            grid = self._grids[key] = curve.grid(np.asarray(clocks_mhz, dtype=np.float64))
            while len(self._grids) > GRIDS_MAX:
                self._grids.popitem(last=False)
        return grid

    def expect(self, cell: Cell) -> Expected | None:
        """What the curve says of a cell; None without one."""
        key = (cell.workload, cell.stage, cell.kind, cell.clock_mhz)
        found = self._expected.get(key)
        if found is not None:
            return found
        work = Work(cell.workload, cell.stage, cast("Kind", cell.kind))
        curve = self.fitted.curve(work)
        if curve is None:
            return None
        grid = curve.grid(np.array([cell.clock_mhz], dtype=np.float64))
        low_s, high_s = grid.band_s(Z * self.fitted.scatter)
        middle_s = float(grid.time_s[0])
        if len(self._expected) >= self._expected_max:
            self._expected.clear()
        self._expected[key] = found = Expected(
            time=math.log(middle_s),
            power=math.log(float(grid.power_w[0])),
            low=math.log(float(low_s[0]) / middle_s),
            high=math.log(float(high_s[0]) / middle_s),
        )
        return found

    def _clear(self) -> None:
        self._grids.clear()
        self._expected.clear()


STATE_VERSION = 2
REFIT_EVERY = 25  # accepted samples: the public stream experiment's


class Learnt:
    """`cells_max` bounds the evidence; every other part has a bound of its own."""

    def __init__(self, cells_max: int) -> None:
        self.admission = Admission()
        self.window = Window(cells_max)
        self.biases = Biases()
        self.watch = Watch()
        self.told = Told()
        self.plausibility = Plausibility()
        self.in_force = InForce(cells_max)
        self.profiles: dict[str, Profile] = {}
        self.refused: Counter[str] = Counter()
        self.separated: Counter[str] = Counter()
        self._number = 0
        self._since_snapshot = 0
        self._new_clock = False

    # -- one reading ---------------------------------------------------------------------

    def number(self) -> int:
        """Of the reading that is learnt next."""
        self._number += 1
        return self._number

    def add(self, cell: Cell, reading: Reading) -> None:
        """Holds a reading against what was expected, and only then learns from it."""
        drifted = self._compare(cell, reading)
        self._new_clock |= self.window.add(cell, reading)
        self._since_snapshot += 1
        self._move(cell, reading)
        if drifted:
            since = self.watch.since(cell.workload, cell.uuid)
            self.window.forget_before(cell.workload, cell.uuid, since)
            self._replay(cell.workload, cell.uuid)
            self._new_clock = True

    # -- one workload --------------------------------------------------------------------

    def set_profiles(self, profiles: Mapping[str, Profile]) -> None:
        """Sweeps that count beside what running work shows, by workload.

        Work whose profile is another now, or gone, begins anew.
        """
        for workload in sorted(self.profiles.keys() | profiles.keys()):
            old, new = self.profiles.get(workload), profiles.get(workload)
            if old is not None and new is not None and old.options == new.options:
                continue
            self.forget(workload)
            self.profiles.pop(workload, None)
            if new is not None:
                self.profiles[workload] = new

    def forget(self, workload: str) -> None:
        """The next sample of this workload is the first."""
        self.window.forget(workload)
        self.biases.forget(workload)
        self.watch.forget(workload)
        self.admission.forget(workload)
        self.told.forget(workload)
        self.plausibility.forget(workload)
        self.in_force.forget(workload)
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
            cells=tuple(self.window.cells()),
            cards=dict(self.told.cards),
            shapes=dict(self.told.shapes),
            profiles=dict(self.profiles),
        )

    def adopt(self, taken: Snapshot, fitted: Fitted) -> None:
        """Puts a fit in force and takes every bias anew against it."""
        alive = {(c.workload, c.stage, c.kind) for c, _ in self.window.cells()}
        curves = {
            work: curve
            for work, curve in fitted.curves.items()
            if (work.workload, work.stage, work.kind) in alive
            or taken.profiles.get(work.workload) is not None
        }
        for workload in self._outdated(taken):
            curves = {work: curve for work, curve in curves.items() if work.workload != workload}
        self.in_force.put(taken, replace(fitted, curves=curves))
        self.watch.refitted(self.profiles)
        for key, _ in self.biases.items():  # noqa: PERF102 -- its own class, no mapping
            self._replay(*key)

    # -- remembering ---------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything learnt, as JSON-able values."""
        return {
            "version": STATE_VERSION,
            "number": self._number,
            "since_snapshot": self._since_snapshot,
            "new_clock": self._new_clock,
            "admission": self.admission.state(),
            "window": self.window.state(),
            "biases": self.biases.state(),
            "watch": self.watch.state(),
            "strange": self.plausibility.state(),
            "refused": dict(sorted(self.refused.items())),
            "separated": dict(sorted(self.separated.items())),
            "now": dump_snapshot(Snapshot(0, (), self.told.cards, self.told.shapes)),
            "taken": dump_snapshot(self.in_force.taken),
            "profiles": {name: fingerprint(p) for name, p in self.profiles.items()},
            "outdated": sorted(self._outdated(self.in_force.taken)),
            "curves": sorted([w.workload, w.stage, w.kind] for w in self.in_force.fitted.curves),
        }

    @classmethod
    def restored(
        cls, state: Mapping[str, Any], profiles: Mapping[str, Profile], cells_max: int
    ) -> "Learnt":
        """What `state` wrote down, and one fit. Raises ValueError where it is no state.

        Profiles are not part of it: what was learnt beside a profile that is no longer the
        same is left out.
        """
        made = cls(cells_max)
        made.profiles = dict(profiles)
        try:
            made._take(state)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise ValueError(f"{NOT_A_STATE}: {error}") from None
        return made

    def _take(self, state: Mapping[str, Any]) -> None:
        if state["version"] != STATE_VERSION:
            raise ValueError(f"version {state['version']!r}, not {STATE_VERSION}")
        self._number, self._since_snapshot = int(state["number"]), int(state["since_snapshot"])
        self._new_clock = bool(state["new_clock"])
        self.admission.restore(state["admission"]["newest"], state["admission"]["seen"])
        self.window.restore(state["window"])
        self.biases.restore(state["biases"])
        self.watch.restore(state["watch"])
        self.plausibility.restore(state["strange"])
        self.refused.update({str(k): int(v) for k, v in state["refused"].items()})
        self.separated.update({str(k): int(v) for k, v in state["separated"].items()})
        self.told.restore(load_snapshot(state["now"]))
        same = {
            name: profile
            for name, profile in self.profiles.items()
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
        self.in_force.put(taken, replace(fitted, curves=curves))
        for name in sorted((state["profiles"].keys() | self.profiles.keys()) - same.keys()):
            self.forget(name)

    def _outdated(self, taken: Snapshot) -> set[str]:
        """Workloads whose profile came, went or changed since a snapshot was taken."""
        names = self.profiles.keys() | taken.profiles.keys()
        return {name for name in names if self.profiles.get(name) is not taken.profiles.get(name)}

    # -- inside --------------------------------------------------------------------------

    def _compare(self, cell: Cell, reading: Reading) -> bool:
        """Whether this reading is the one that makes it a drift."""
        expected = self.in_force.expect(cell)
        if expected is None:
            return False
        if cell.workload in self.profiles and not self.in_force.fitted_to(cell):
            return False  # a profile that is off there is corrected by the next fit
        error = math.log(reading.time_s) - expected.time
        error -= self.biases.get(cell.workload, cell.uuid).time.mean
        return self.watch.saw(
            cell.workload,
            cell.uuid,
            error=error,
            outside=not expected.low <= error <= expected.high,
            clock_mhz=cell.clock_mhz,
            number=reading.number,
        )

    def _move(self, cell: Cell, reading: Reading) -> None:
        """Moves the bias of a GPU by one reading; without a curve it stays where it is."""
        expected = self.in_force.expect(cell)
        old = self.biases.get(cell.workload, cell.uuid)
        if expected is None:
            self.biases.put(cell.workload, cell.uuid, old)  # so that a fit finds whom to replay
            return
        off = math.log(reading.time_s) - expected.time
        time = old.time.after(max(-LOG_MAX, min(LOG_MAX, off)), reading.weight)
        power = old.power
        if reading.power_w is not None:
            off = math.log(reading.power_w) - expected.power
            power = power.after(max(-LOG_MAX, min(LOG_MAX, off)), reading.weight)
        self.biases.put(cell.workload, cell.uuid, GpuBias(time, power))

    def _replay(self, workload: str, uuid: str) -> None:
        """Takes a bias anew from the readings at hand, against the curves in force."""
        self.biases.put(workload, uuid, GpuBias())
        for cell, reading in self.window.of_gpu(workload, uuid):
            self._move(cell, reading)


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
