"""Estimator that learns from running work and needs no profile.

`learn` is cheap and runs in the control loop: judge a sample, file it, move the GPU's bias. A fit
is expensive and pure, so the caller runs it in a thread:

    reasons = estimator.learn(samples)
    if estimator.due():
        snapshot = estimator.snapshot()
        fitted = await asyncio.to_thread(refit, snapshot)
        estimator.adopt(snapshot, fitted)

Between fits the bias of each GPU carries what changed.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from joulecut_engine.estimate.admission import OTHER_WORK, Admission, Plausibility, Refusal
from joulecut_engine.estimate.card import Card, find_card
from joulecut_engine.estimate.drift import LOG_MAX, Biases, Drift, DriftDetector, GpuBias
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
    WORKS_MAX,
    Snapshot,
    dump_snapshot,
    load_snapshot,
    refit,
)
from joulecut_engine.estimate.sample_window import CELLS_MAX, Cell, Reading, Window
from joulecut_engine.estimate.work_fit import Fitted, Grid, WorkCurve, stacked
from joulecut_engine.graph.pipeline import Kind, Profile

STATE_VERSION = 2
REFIT_EVERY = 25  # accepted samples; as in the public stream experiment
UNSEEN_GPU = 0.08  # half width for a GPU without samples: cards of one kind differ by 8 %
STEP_MHZ = 15  # of clock tables: tolerance between asked and observed clock
CARDS_MAX = 16_384
WORKLOADS_MAX = 1024
GRIDS_MAX = 512  # curves cached at the clocks last asked for
Z = 1.645  # two-sided 90 % of a normal distribution


class OnlineEstimator:
    """Curves from running work, times a bias per GPU; see `estimator.Estimator`.

    Samples are filed in cells by (GPU, work, clock). A drifting GPU loses its old cells, and its
    band widens until the curves describe it again. All memory is bounded.
    """

    def __init__(self, *, cells_max: int = CELLS_MAX) -> None:
        self._admission = Admission()
        self._window = Window(cells_max)
        self._biases = Biases()
        self._detector = DriftDetector()
        self._metadata = Metadata()
        self._plausibility = Plausibility()
        self._current = CurrentFit(cells_max)
        self._profiles: dict[str, Profile] = {}
        self._fingerprints: dict[str, str] = {}  # of the profiles
        self._refused: Counter[str] = Counter()
        self._separated: Counter[str] = Counter()
        self._number = 0
        self._since_snapshot = 0
        self._new_clock = False

    # -- learning ------------------------------------------------------------------------

    def learn(self, samples: tuple[Sample, ...]) -> tuple[str, ...]:
        """See `estimator.Estimator`; reasons are counted in `refused`."""
        return tuple(refusal.text for one in samples if (refusal := self.take(one)))

    def take(self, sample: Sample) -> Refusal | None:
        """Learn from one sample, or return why not and count it."""
        refusal = self._learn(sample)
        if refusal is not None:
            self._refused[refusal.reason] += 1
        return refusal

    @property
    def refused(self) -> Mapping[str, int]:
        """Number of refused samples by reason (`admission.REASONS`)."""
        return dict(sorted(self._refused.items()))

    @property
    def separated(self) -> Mapping[str, int]:
        """Samples filed elsewhere: at the clock reached, or after the work changed its shape."""
        return dict(sorted(self._separated.items()))

    def seen(self, subject: Subject, clock_mhz: int) -> bool:
        """Whether the window holds readings of this GPU and work at this clock."""
        return any(
            cell.uuid == subject.uuid and abs(cell.clock_mhz - clock_mhz) < STEP_MHZ
            for cell in self._window.of_work(subject.workload, subject.stage, subject.kind)
        )

    def drifts(self, workload: str | None = None) -> tuple[Drift, ...]:
        """GPUs that no longer follow their curves, of one workload or all."""
        return self._detector.drifts(workload)

    def restarted(self) -> None:
        """Forget monotonic times: they are of another process, perhaps of another boot."""
        self._admission.restarted()

    def _learn(self, sample: Sample) -> Refusal | None:
        workload = sample.subject.workload
        card = self._metadata.card(sample)
        refusal = self._admission.judge(
            sample,
            None if card is None else card.power_limit_w,
            None if card is None else card.clock_max_mhz,
        )
        if refusal is not None:
            return refusal
        if self._metadata.changed(sample):
            self.forget(workload)
            self._separated["shape-changed"] += 1
        self._metadata.note(sample)
        cell = self._cell(sample, card)
        judged = self._plausibility.judge(sample, cell, self._window)
        if isinstance(judged, Refusal):
            return judged
        if judged == OTHER_WORK:
            self.forget(workload)
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
        self._add(cell, reading)
        return None

    def _cell(self, sample: Sample, card: Card | None) -> Cell:
        """File a capped sample under the asked clock, one that missed it under the observed."""
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

    def _add(self, cell: Cell, reading: Reading) -> None:
        """Compare a reading with the curve first, then learn from it."""
        drifted = self._compare(cell, reading)
        self._new_clock |= self._window.add(cell, reading)
        self._since_snapshot += 1
        self._move_bias(cell, reading)
        if drifted:
            since = self._detector.since(cell.workload, cell.uuid)
            self._window.forget_before(cell.workload, cell.uuid, since)
            self._replay(cell.workload, cell.uuid)
            self._new_clock = True

    def _compare(self, cell: Cell, reading: Reading) -> bool:
        """Whether this reading makes the GPU's departure from its curve a drift."""
        expected = self._current.expect(cell)
        if expected is None:
            return False
        if cell.workload in self._profiles and not self._current.fitted_to(cell):
            return False  # the next fit corrects a profile that is off at this clock
        error = math.log(reading.time_s) - expected.time
        error -= self._biases.get(cell.workload, cell.uuid).time.mean
        return self._detector.observe(
            cell.workload,
            cell.uuid,
            error=error,
            outside=not expected.low <= error <= expected.high,
            clock_mhz=cell.clock_mhz,
            number=reading.number,
        )

    def _move_bias(self, cell: Cell, reading: Reading) -> None:
        """Move the GPU's bias by one reading; without a curve it stays."""
        expected = self._current.expect(cell)
        old = self._biases.get(cell.workload, cell.uuid)
        if expected is None:
            self._biases.put(cell.workload, cell.uuid, old)  # `adopt` replays every known GPU
            return
        off = math.log(reading.time_s) - expected.time
        time = old.time.after(max(-LOG_MAX, min(LOG_MAX, off)), reading.weight)
        power = old.power
        if reading.power_w is not None:
            off = math.log(reading.power_w) - expected.power
            power = power.after(max(-LOG_MAX, min(LOG_MAX, off)), reading.weight)
        self._biases.put(cell.workload, cell.uuid, GpuBias(time, power))

    def _replay(self, workload: str, uuid: str) -> None:
        """Compute a bias from the readings in the window, against the current curves."""
        self._biases.put(workload, uuid, GpuBias())
        for cell, reading in self._window.of_gpu(workload, uuid):
            self._move_bias(cell, reading)

    # -- workloads -----------------------------------------------------------------------

    def set_profiles(self, profiles: Mapping[str, Profile]) -> None:
        """Set the sweeps that are fitted together with running work, by workload.

        A workload whose profile changes or disappears is forgotten.
        """
        for workload in sorted(self._profiles.keys() | profiles.keys()):
            old, new = self._profiles.get(workload), profiles.get(workload)
            if old is not None and new is not None and old.options == new.options:
                continue
            self.forget(workload)
            self._profiles.pop(workload, None)
            self._fingerprints.pop(workload, None)
            if new is not None:
                self._profiles[workload] = new
                self._fingerprints[workload] = fingerprint(new)

    @property
    def profiles(self) -> Mapping[str, Profile]:
        return dict(self._profiles)

    def knows(self, workload: str) -> bool:
        """Whether all work of a profiled workload has a curve."""
        profile = self._profiles.get(workload)
        return profile is not None and all(
            Work(workload, stage, kind) in self._current.fitted.curves
            for (stage, kind), options in profile.options.items()
            if options
        )

    def forget(self, workload: str) -> None:
        """Drop everything learnt of a workload."""
        self._window.forget(workload)
        self._biases.forget(workload)
        self._detector.forget(workload)
        self._admission.forget(workload)
        self._metadata.forget(workload)
        self._plausibility.forget(workload)
        self._current.forget(workload)
        self._new_clock = True  # curves of other work were fitted together with it

    def forget_gpu(self, workload: str, uuid: str) -> None:
        """Drop what was learnt of one GPU, which works at another pace from now on."""
        self._window.forget_before(workload, uuid, self._number + 1)
        self._biases.put(workload, uuid, GpuBias())
        self._detector.forget_gpu(workload, uuid)
        self._new_clock = True

    # -- fitting -------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether a new fit would know more: a new clock, or REFIT_EVERY samples."""
        return self._new_clock or self._since_snapshot >= REFIT_EVERY

    def snapshot(self) -> Snapshot:
        """Everything the next fit uses, immutable: of WORKS_MAX kinds of work at most, by turns."""
        self._since_snapshot, self._new_clock = 0, False
        turn = self._turn()
        cells = tuple(pair for pair in self._window.cells() if pair[0].workload in turn)
        uuids = {cell.uuid for cell, _ in cells}
        return Snapshot(
            number=self._number,
            cells=cells,
            cards={uuid: card for uuid, card in self._metadata.cards.items() if uuid in uuids},
            shapes={name: one for name, one in self._metadata.shapes.items() if name in turn},
            profiles={name: one for name, one in self._profiles.items() if name in turn},
        )

    def _turn(self) -> set[str]:
        """The workloads of the next fit: those with new readings, the one fitted longest ago
        first, as many as WORKS_MAX allows and one at least.
        """
        seen = self._window.works()
        counts, newest = Counter[str](), Counter[str]()
        for name in seen.keys() | self._profiles.keys():
            swept = self._profiles[name].options if name in self._profiles else {}
            works = {(name, *key) for key, options in swept.items() if options}
            counts[name] = len(works | seen.get(name, {}).keys())
            newest[name] = max(seen.get(name, {}).values(), default=0)
        fitted = {name: at for name, at in self._current.fitted_at.items() if name in counts}
        self._current.fitted_at = fitted

        def wait(name: str) -> tuple[bool, int, int, str]:
            return newest[name] <= fitted.get(name, 0), fitted.get(name, 0), -newest[name], name

        turn: set[str] = set()
        room = WORKS_MAX
        for name in sorted(counts, key=wait):
            if not turn or counts[name] <= room:
                turn.add(name)
                room -= counts[name]
        return turn

    def adopt(self, snapshot: Snapshot, fitted: Fitted) -> None:
        """Use the curves of a fit from now on, and recompute the biases against them. Workloads out
        of their turn keep their curves.

        Work that was forgotten since the snapshot stays forgotten.
        """
        alive = {work for works in self._window.works().values() for work in works}
        curves = {
            work: curve
            for work, curve in fitted.curves.items()
            if (work.workload, work.stage, work.kind) in alive
            or snapshot.profiles.get(work.workload) is not None
        }
        for workload in self._outdated(snapshot):
            curves = {work: curve for work, curve in curves.items() if work.workload != workload}
        before = {
            work: curve
            for work, curve in self._current.fitted.curves.items()
            if work.workload not in snapshot.workloads
            and ((work.workload, work.stage, work.kind) in alive or work.workload in self._profiles)
        }
        self._current.put(snapshot, replace(fitted, curves={**before, **curves}))
        self._detector.refitted(self._profiles)
        fitted_now = {work.workload for work in curves}
        kept = {work.workload for work in before}
        for (workload, uuid), _ in self._biases.items():  # noqa: PERF102 -- not a dictionary
            if workload in fitted_now:
                self._replay(workload, uuid)
            elif workload not in kept:
                self._biases.put(workload, uuid, GpuBias())

    def _outdated(self, snapshot: Snapshot) -> set[str]:
        """Workloads whose profile came, went or changed since the snapshot."""
        return {
            name
            for name in snapshot.workloads
            if self._profiles.get(name) is not snapshot.profiles.get(name)
        }

    # -- predicting ----------------------------------------------------------------------

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        """See `estimator.Estimator`. Raises ValueError if a clock is not above 0."""
        return self.predict_many((subject,), clocks_mhz)[0]

    def predict_many(
        self, subjects: Sequence[Subject], clocks_mhz: tuple[int, ...]
    ) -> tuple[Prediction | None, ...]:
        """`predict` for many subjects over one grid of clocks."""
        if any(clock <= 0 for clock in clocks_mhz):
            raise ValueError("clocks must be above 0 MHz")
        known = [(i, curve) for i, s in enumerate(subjects) if (curve := self._current.curve(s))]
        found: list[Prediction | None] = [None] * len(subjects)
        if not known:
            return tuple(found)
        grid = stacked([self._current.grid(subjects[i], curve, clocks_mhz) for i, curve in known])
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
        """Clocks of the profile and of readings; of a drifting GPU only its own since then."""
        if self._current.curve(subject) is None:
            return ()
        cells = self._window.of_work(subject.workload, subject.stage, subject.kind)
        profile = self._profiles.get(subject.workload)
        if profile is not None:
            swept = profile.options.get((subject.stage, subject.kind), ())
            seen = {cell.clock_mhz for cell in cells}
            return tuple(sorted(seen | {option.clock_mhz for option in swept}))
        if self._detector.since(subject.workload, subject.uuid):
            cells = tuple(cell for cell in cells if cell.uuid == subject.uuid)
        return tuple(sorted({cell.clock_mhz for cell in cells}))

    def band(self, subject: Subject) -> Band | None:
        """See `estimator.Estimator`."""
        known = self.known_clocks_mhz(subject)
        predicted = self.predict(subject, known) if known else None
        return None if predicted is None else widest(predicted)

    def _scatter(self, subject: Subject) -> float:
        """Half width (a logarithm) that a GPU adds to the band of its work."""
        drift = self._detector.half(subject.workload, subject.uuid)
        bias = self._biases.get(subject.workload, subject.uuid).time
        if not bias.count:
            return UNSEEN_GPU
        return max(drift, Z * math.sqrt(bias.variance / max(1.0, bias.count)))

    # -- persistence ---------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything learnt, as JSON-able values."""
        now = Snapshot(0, (), self._metadata.cards, self._metadata.shapes)
        return {
            "version": STATE_VERSION,
            "number": self._number,
            "since_snapshot": self._since_snapshot,
            "new_clock": self._new_clock,
            "admission": self._admission.state(),
            "window": self._window.state(),
            "biases": self._biases.state(),
            "watch": self._detector.state(),
            "strange": self._plausibility.state(),
            "refused": dict(sorted(self._refused.items())),
            "separated": dict(sorted(self._separated.items())),
            "now": dump_snapshot(now),
            "taken": dump_snapshot(self._current.snapshot),
            "profiles": dict(self._fingerprints),
            "fitted_profiles": sorted(self._current.snapshot.profiles),
            "outdated": sorted(self._outdated(self._current.snapshot)),
            "curves": sorted([w.workload, w.stage, w.kind] for w in self._current.fitted.curves),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Read `state` back completely and fit once, or raise ValueError and change nothing.

        Set profiles before: a workload whose profile is not the one in `state` is left out.
        """
        made = OnlineEstimator(cells_max=self._window.cells_max)
        made._profiles, made._fingerprints = dict(self._profiles), dict(self._fingerprints)
        try:
            made._read(state)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise ValueError(f"{NOT_A_STATE}: {error}") from None
        self.__dict__.update(made.__dict__)

    def _read(self, state: Mapping[str, Any]) -> None:
        if state["version"] != STATE_VERSION:
            raise ValueError(f"version {state['version']!r}, not {STATE_VERSION}")
        self._number, self._since_snapshot = int(state["number"]), int(state["since_snapshot"])
        self._new_clock = bool(state["new_clock"])
        self._admission.restore(state["admission"]["newest"], state["admission"]["seen"])
        self._window.restore(state["window"])
        self._biases.restore(state["biases"])
        self._detector.restore(state["watch"])
        self._plausibility.restore(state["strange"])
        self._refused.update({str(k): int(v) for k, v in state["refused"].items()})
        self._separated.update({str(k): int(v) for k, v in state["separated"].items()})
        self._metadata.restore(load_snapshot(state["now"]))
        same = {
            name: profile
            for name, profile in self._profiles.items()
            if state["profiles"].get(name) == self._fingerprints[name]
        }
        outdated = {str(name) for name in state["outdated"]}
        fitted_to = {str(name) for name in state.get("fitted_profiles", same)}
        snapshot = replace(
            load_snapshot(state["taken"]),
            profiles={name: same[name] for name in sorted(same) if name in fitted_to - outdated},
        )
        kept = {(str(w), int(s), str(k)) for w, s, k in state["curves"]}
        fitted = refit(snapshot)
        curves = {w: c for w, c in fitted.curves.items() if (w.workload, w.stage, w.kind) in kept}
        self._current.put(snapshot, replace(fitted, curves=curves))
        for name in sorted((state["profiles"].keys() | self._profiles.keys()) - same.keys()):
            self.forget(name)


class Metadata:
    """What samples say of cards and work shapes; the newest sample counts. Bounded."""

    def __init__(self) -> None:
        self.cards: OrderedDict[str, str] = OrderedDict()  # model name by GPU
        self.shapes: OrderedDict[str, WorkShape] = OrderedDict()  # by workload

    def card(self, sample: Sample) -> Card | None:
        """The card of a sample: from the sample itself, or from an earlier one of the GPU."""
        uuid = sample.subject.uuid
        if sample.card:
            self.cards[uuid] = sample.card
            self.cards.move_to_end(uuid)
            while len(self.cards) > CARDS_MAX:
                self.cards.popitem(last=False)
        return find_card(self.cards.get(uuid, ""))

    def changed(self, sample: Sample) -> bool:
        """Whether the sample's shape contradicts the workload's known one."""
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
        """Drop a workload's shape; its GPUs keep their cards."""
        self.shapes.pop(workload, None)

    def restore(self, snapshot: Snapshot) -> None:
        self.cards.update(snapshot.cards)
        self.shapes.update(snapshot.shapes)


@dataclass(frozen=True, slots=True)
class Expected:
    """A curve at one cell, in logarithms: time, power, and the band of one reading's error."""

    time: float
    power: float
    low: float
    high: float


class CurrentFit:
    """Curves in use, the snapshot they were fitted to, and cached evaluations.

    A curve takes milliseconds to evaluate, and the same few clocks are asked in every pass.
    `expected_max` bounds the cache of cells.
    """

    def __init__(self, expected_max: int) -> None:
        self.snapshot = Snapshot()
        self.fitted = Fitted()
        self.fitted_at: dict[str, int] = {}  # by workload, the number of its newest snapshot
        self._fitted_to: frozenset[Cell] = frozenset()
        self._expected_max = expected_max
        self._expected: dict[tuple[str, int, str, int], Expected] = {}
        self._grids: OrderedDict[tuple[Work, tuple[int, ...]], Grid] = OrderedDict()

    def put(self, snapshot: Snapshot, fitted: Fitted) -> None:
        self.snapshot, self.fitted = snapshot, fitted
        workloads = snapshot.workloads
        before = (cell for cell in self._fitted_to if cell.workload not in workloads)
        curves = {work.workload for work in fitted.curves}
        self.fitted_at |= dict.fromkeys(workloads, snapshot.number)
        self._fitted_to = frozenset(
            (
                *(cell for cell in before if cell.workload in curves),
                *(cell for cell, _ in snapshot.cells),
            )
        )
        self._clear()

    def forget(self, workload: str) -> None:
        """Drop its curves and cells; `fitted_to` still says what the fit has used."""
        curves = {w: c for w, c in self.fitted.curves.items() if w.workload != workload}
        cells = tuple(pair for pair in self.snapshot.cells if pair[0].workload != workload)
        self.snapshot = replace(self.snapshot, cells=cells)
        self.fitted_at.pop(workload, None)
        self.fitted = replace(self.fitted, curves=curves)
        self._clear()

    def fitted_to(self, cell: Cell) -> bool:
        """Whether the fit has used readings of this cell."""
        return cell in self._fitted_to

    def curve(self, subject: Subject) -> WorkCurve | None:
        return self.fitted.curve(Work(subject.workload, subject.stage, subject.kind))

    def grid(self, subject: Subject, curve: WorkCurve, clocks_mhz: tuple[int, ...]) -> Grid:
        key = (Work(subject.workload, subject.stage, subject.kind), clocks_mhz)
        grid = self._grids.get(key)
        if grid is None:
            grid = self._grids[key] = curve.grid(np.asarray(clocks_mhz, dtype=np.float64))
            while len(self._grids) > GRIDS_MAX:
                self._grids.popitem(last=False)
        return grid

    def expect(self, cell: Cell) -> Expected | None:
        """The curve at a cell; None without a curve."""
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
