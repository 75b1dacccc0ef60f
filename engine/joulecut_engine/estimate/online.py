"""Model of jobs with a profile that learns from running work.

`take` is cheap and runs in the control loop: judge a sample, file it, move the GPU's bias. A fit
is expensive and pure, so the caller runs it elsewhere:

    if model.due():
        snapshot = model.snapshot()
        fitted = await asyncio.to_thread(refit, snapshot)
        model.adopt(snapshot, fitted)

Between fits the bias of each GPU carries what changed.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

from joulecut_engine.estimate.admission import Plausibility, Refusal, Separation
from joulecut_engine.estimate.drift import LOG_MAX, Biases, Drift, DriftDetector, GpuBias
from joulecut_engine.estimate.estimator import NOMINAL_SDS, Prediction, Sample, Subject
from joulecut_engine.estimate.evidence import Work
from joulecut_engine.estimate.grid import Grid, Grids
from joulecut_engine.estimate.refit import WORKS_MAX, Snapshot, refit
from joulecut_engine.estimate.sample_window import Cell, Reading, Window
from joulecut_engine.estimate.work_fit import Fitted, WorkCurve
from joulecut_engine.graph.pipeline import Kind, Profile

STATE_VERSION = 2
REFIT_EVERY = 25  # accepted samples; as in the public stream experiment
UNSEEN_GPU = 0.08  # half width for a GPU without samples: cards of one kind differ by 8 %
STEP_MHZ = 15  # of clock tables: tolerance between asked and observed clock


class OnlineModel:
    """Curves from profiles and running work, times a bias per GPU.

    Samples are filed in cells by (GPU, work, clock). A drifting GPU loses its old cells, and its
    band widens until the curves describe it again. All memory is bounded.
    """

    def __init__(self) -> None:
        self._profiles: dict[str, Profile] = {}
        self._window = Window()
        self._biases = Biases()
        self._detector = DriftDetector()
        self._plausibility = Plausibility()
        self._current = CurrentFit()
        self._number = 0
        self._since_snapshot = 0
        self._new_clock = False

    # -- learning ------------------------------------------------------------------------

    def take(self, sample: Sample) -> Refusal | Separation | None:
        """Learn from a sample of a workload with a profile.

        None if it was learnt as reported; how it was filed elsewhere; or why it was refused.
        """
        cell, separated = _filed(sample)
        judged = self._plausibility.judge(sample, cell, self._window)
        if isinstance(judged, Refusal):
            return judged
        if judged == "shape-changed":
            self.forget(cell.workload)
        self._number += 1
        reading = Reading(
            self._number, sample.time_s, sample.power_w, sample.weight, sample.clock_mhz
        )
        drifted = self._compare(cell, reading)
        self._new_clock |= self._window.add(cell, reading)
        self._since_snapshot += 1
        self._move_bias(cell, reading)
        if drifted:
            since = self._detector.since(cell.workload, cell.uuid)
            self._window.forget_before(cell.workload, cell.uuid, since)
            self._replay(cell.workload, cell.uuid)
            self._new_clock = True
        return judged or separated

    def seen(self, subject: Subject, clock_mhz: int) -> bool:
        """Whether the window holds readings of this GPU and work at this clock."""
        return any(
            cell.uuid == subject.uuid and abs(cell.clock_mhz - clock_mhz) < STEP_MHZ
            for cell in self._window.of_work(subject.workload, subject.stage, subject.kind)
        )

    def drifts(self, workload: str) -> tuple[Drift, ...]:
        """GPUs that no longer follow their curves."""
        return self._detector.drifts(workload)

    def _compare(self, cell: Cell, reading: Reading) -> bool:
        """Whether this reading makes the GPU's departure from its curve a drift."""
        grid = self._current.at(cell)
        if grid is None or not self._current.fitted_to(cell):
            return False  # the next fit corrects a profile that is off at this clock
        low_s, high_s = grid.band_s(NOMINAL_SDS * self._current.scatter)
        factor = math.exp(self._biases.get(cell.workload, cell.uuid).time.mean)
        return self._detector.observe(
            cell.workload,
            cell.uuid,
            error=math.log(reading.time_s / factor / grid.time_s[0]),
            outside=not low_s[0] <= reading.time_s / factor <= high_s[0],
            number=reading.number,
        )

    def _move_bias(self, cell: Cell, reading: Reading) -> None:
        """Move the GPU's bias by one reading; without a curve it stays."""
        grid = self._current.at(cell)
        if grid is None:
            return
        old = self._biases.get(cell.workload, cell.uuid)
        time = old.time.after(_log(reading.time_s / grid.time_s[0]), reading.weight)
        power = old.power
        if reading.power_w is not None:
            power = power.after(_log(reading.power_w / grid.power_w[0]), reading.weight)
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
            if new is not None:
                self._profiles[workload] = new

    @property
    def profiles(self) -> Mapping[str, Profile]:
        return dict(self._profiles)

    def knows(self, workload: str) -> bool:
        """Whether all work of a workload's profile has a curve."""
        profile = self._profiles.get(workload)
        return profile is not None and all(
            Work(workload, stage, kind) in self._current.curves
            for (stage, kind), options in profile.options.items()
            if options
        )

    def forget(self, workload: str) -> None:
        """Drop everything learnt of a workload."""
        self._window.forget(workload)
        self._biases.forget(workload)
        self._detector.forget(workload)
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
        """Whether a fit would know more: a new clock, or enough new samples."""
        return self._new_clock or self._since_snapshot >= REFIT_EVERY

    def snapshot(self) -> Snapshot:
        """Everything the next fit uses, immutable: of WORKS_MAX kinds of work at most, by turns."""
        self._since_snapshot, self._new_clock = 0, False
        turn = self._turn()
        return Snapshot(
            number=self._number,
            cells=tuple(pair for pair in self._window.cells() if pair[0].workload in turn),
            profiles={name: self._profiles[name] for name in sorted(turn)},
        )

    def _turn(self) -> set[str]:
        """The workloads of the next fit: those with new readings, the one fitted longest ago
        first, as many as WORKS_MAX allows and one at least.
        """
        counts = {
            name: sum(1 for options in profile.options.values() if options)
            for name, profile in self._profiles.items()
        }
        newest, fitted = self._window.newest(), self._current.fitted_at

        def wait(name: str) -> tuple[bool, int, int, str]:
            at, last = fitted.get(name, 0), newest.get(name, 0)
            return last <= at, at, -last, name

        turn: set[str] = set()
        room = WORKS_MAX
        for name in sorted(counts, key=wait):
            if not turn or counts[name] <= room:
                turn.add(name)
                room -= counts[name]
        return turn

    def adopt(self, snapshot: Snapshot, fitted: Fitted) -> None:
        """Use the curves of a fit from now on, and recompute the biases against them.

        Workloads out of their turn keep their curves; those whose profile came, went or changed
        since the snapshot have none until the next fit.
        """
        same = {name for name, one in snapshot.profiles.items() if self._profiles.get(name) is one}
        self._current.put(snapshot, fitted, same)
        self._detector.refitted()
        for workload in snapshot.profiles:
            self._biases.forget(workload)
        for workload, uuid in self._window.gpus():
            if workload in same:
                self._replay(workload, uuid)

    # -- predicting ----------------------------------------------------------------------

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        """See `estimator.Estimator`. Raises ValueError if a clock is not above 0."""
        work = Work(subject.workload, subject.stage, subject.kind)
        grid = self._current.grid(work, clocks_mhz)
        if grid is None:
            return None
        bias = self._biases.get(subject.workload, subject.uuid)
        return grid.predicted(clocks_mhz, bias, self._scatter(subject, bias))

    def _scatter(self, subject: Subject, bias: GpuBias) -> float:
        """Half width (a logarithm) that a GPU adds to the band of its work."""
        if not bias.time.count:
            return UNSEEN_GPU
        drift = self._detector.half(subject.workload, subject.uuid)
        spread = math.sqrt(bias.time.variance / max(1.0, bias.time.count))
        return max(drift, NOMINAL_SDS * spread)

    # -- persistence ---------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Readings and drifts as JSON-able values; curves and biases follow from them."""
        return {
            "version": STATE_VERSION,
            "number": self._number,
            "window": self._window.state(),
            "watch": self._detector.state(),
        }

    def restore(self, state: Mapping[str, Any], changed: set[str]) -> None:
        """Read `state` and fit once, without the workloads whose profiles `changed`.

        Set profiles before. Raises an error if malformed, and is of no use then.
        """
        if state["version"] != STATE_VERSION:
            raise ValueError(f"version {state['version']!r}, not {STATE_VERSION}")
        self._number = int(state["number"])
        self._window.restore(state["window"])
        self._detector.restore(state["watch"])
        for workload in sorted(changed):
            self.forget(workload)
        snapshot = self.snapshot()
        self.adopt(snapshot, refit(snapshot))


class CurrentFit:
    """Curves in use, and which readings they were fitted to."""

    def __init__(self) -> None:
        self.curves: dict[Work, WorkCurve] = {}
        self.scatter = 0.0  # relative standard deviation of one reading
        self.fitted_at: dict[str, int] = {}  # by workload, the number of its newest snapshot
        self._cells: set[Cell] = set()
        self._grids = Grids()

    def put(self, snapshot: Snapshot, fitted: Fitted, workloads: set[str]) -> None:
        """Take the curves of `workloads`; the others in the snapshot lose theirs."""
        for name in snapshot.profiles:
            self.forget(name)
        self.curves |= {w: curve for w, curve in fitted.curves.items() if w.workload in workloads}
        self.scatter = fitted.scatter
        self.fitted_at |= dict.fromkeys(workloads, snapshot.number)
        self._cells |= {cell for cell, _ in snapshot.cells}

    def forget(self, workload: str) -> None:
        self.curves = {w: c for w, c in self.curves.items() if w.workload != workload}
        self._cells = {cell for cell in self._cells if cell.workload != workload}
        self.fitted_at.pop(workload, None)
        self._grids.clear()

    def fitted_to(self, cell: Cell) -> bool:
        """Whether the fit has used readings of this cell."""
        return cell in self._cells

    def at(self, cell: Cell) -> Grid | None:
        """The curve at a cell; None without a curve."""
        work = Work(cell.workload, cell.stage, cast("Kind", cell.kind))
        return self.grid(work, (cell.clock_mhz,))

    def grid(self, work: Work, clocks_mhz: tuple[int, ...]) -> Grid | None:
        curve = self.curves.get(work)
        return None if curve is None else self._grids.of(work, curve, clocks_mhz)


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
