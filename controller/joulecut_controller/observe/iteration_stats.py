"""Time and energy of each job's iterations, separated by the clocks they ran under.

A measurement that mixes two sets of clocks is invalid. An iteration counts only when it began
after the present clocks were observed on every GPU of the job, and ended before they were last
observed. Pure and bounded: reports, snapshots and `now_s` in, windows out.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from joulecut_controller.chunk import DEFAULT, READY, Chunk, Judged, Setting, Timed, Usual
from joulecut_controller.observe.baseline import Baseline, Recalled
from joulecut_controller.observe.external_clock_lock import ExternalClockLocks
from joulecut_controller.observe.gpu_paces import GpuPaces
from joulecut_controller.observe.measurement_window import (
    ITERATIONS_KEPT,
    RECENT,
    Iteration,
    MeasurementWindow,
)
from joulecut_controller.observe.own_pace import Groups, Stages, time_ratios
from joulecut_controller.observe.phases import PHASES_MAX, InferredWork, Phases
from joulecut_controller.observe.sequence_filter import SequenceFilter
from joulecut_controller.ports import ArrivedReport
from joulecut_controller.reference.reference import Answer, Figure, Reference, walked_sd
from joulecut_controller.trust.breaker import EndedIteration
from joulecut_controller.view import (
    DEFAULT_CLOCK_STEP,
    GpuShift,
    GpuView,
    Measured,
    Phase,
    StageLoad,
)
from joulecut_wire.messages import TimedStep

# By GPU: changes of its clock within an iteration, or a fixed power limit in watts.
Schedule = tuple[tuple[str, tuple[TimedStep, ...] | float], ...]

OPEN_MAX = 16  # iterations still missing reports; older ones count with what came
PENDING_MAX = 1024  # closed iterations whose clocks no snapshot has confirmed yet
DONE_KEPT = 64  # late duplicates of a closed iteration are not a new one
SHORTEST_S = 0.001  # of an iteration; a wrong one must not divide by zero
PEERS_KEPT = 8  # a straggler's time is a mean over as many iterations
PEER_JUMP_RATIO = 0.05  # a straggler that got this much faster or slower is another one
SETTLED_PASSES = 3  # several looks must find a clock: it is observed up to a tick after it changed


@dataclass(frozen=True, slots=True)
class Fresh:
    """What a look added. `chunk` ran under the clocks in force. `loads` are those of `loaded`
    iterations since they were computed last.
    """

    chunk: Chunk | None = None
    loads: tuple[StageLoad, ...] = ()
    loaded: int = 0
    reported: tuple[EndedIteration, ...] = ()  # whatever clocks they ran under
    gpu_shift: GpuShift | None = None


@dataclass(slots=True)
class _Referred:
    """The reference of one phase, and what makes chunks for it."""

    reference: Reference = field(default_factory=Reference)
    work: InferredWork = field(default_factory=InferredWork)
    usual: Usual[Iteration] = field(default_factory=Usual)
    since_s: float = math.nan  # when the window in which they are judged began
    moved: float = 0.0  # jumps of the reference that were reported

    def judge(self, since_s: float, one: Iteration) -> Judged[Iteration]:
        """Which iterations of the window that began then count."""
        if self.since_s != since_s:
            self.since_s = since_s
            self.usual.settle()
        one.work = self.work.factor(one.operations)
        return self.usual.take(math.log(one.duration_s), one)

    def jump(self) -> float:
        """Log of the job's pace over that of the last call, where it jumped; else 0."""
        before, self.moved = self.moved, self.reference.moved
        return self.moved - before

    def answer(self, setting: Setting) -> Answer | None:
        """None until the first iterations were measured."""
        return self.reference.answer(setting) if self.reference.ready else None


@dataclass(slots=True)
class _Track:
    """State of one job on one placement."""

    stage_of: Mapping[str, int]
    shape: str
    window: MeasurementWindow
    phase: Phase
    baselines: dict[str, Baseline] = field(default_factory=dict)  # by phase
    references: dict[str, _Referred] = field(default_factory=dict)  # by phase
    default_paces: GpuPaces = field(default_factory=GpuPaces)  # of all windows at default clocks
    locks: dict[str, int] = field(default_factory=dict)
    schedule: Schedule = ()  # of clocks within an iteration, as we asked for it
    external_locks: ExternalClockLocks = field(default_factory=ExternalClockLocks)
    sequence: SequenceFilter = field(default_factory=SequenceFilter)
    runs: int = 0
    seen_s: float = -math.inf  # of the newest readings of all GPUs
    straggling: bool = False
    time_ratios: Mapping[str, float] = field(default_factory=dict)
    lowest_mhz: dict[str, int] = field(default_factory=dict)
    first_mhz: dict[str, int] = field(default_factory=dict)  # default clocks, as first observed
    default_clock_ratio: float = 1.0
    default_clock_mhz: float = 0.0
    loads_compared: tuple[StageLoad, ...] = ()
    open: dict[int, Iteration] = field(default_factory=dict)
    pending: deque[Iteration] = field(default_factory=lambda: deque(maxlen=PENDING_MAX))
    done: deque[int] = field(default_factory=lambda: deque(maxlen=DONE_KEPT))
    reported: deque[Iteration] = field(default_factory=lambda: deque(maxlen=PENDING_MAX))
    operations_reported: bool | None = None
    peers_s: deque[float] = field(default_factory=lambda: deque(maxlen=PEERS_KEPT))

    @property
    def baseline(self) -> Baseline:
        """Of the present phase."""
        return self.baselines[self.phase.shape]

    @property
    def referred(self) -> _Referred:
        """Of the present phase."""
        return self.references[self.phase.shape]

    @property
    def setting(self) -> Setting:
        """The clocks in force, with their schedule."""
        locks = tuple(sorted((uuid, mhz) for uuid, mhz in self.locks.items() if mhz))
        return (locks, self.schedule) if locks or self.schedule else DEFAULT

    def shift(self, jump: float, gpu_shift: GpuShift | None, now_s: float) -> None:
        """The job's pace has jumped (a logarithm), or GPUs have shifted."""
        self.baseline.shift(math.exp(jump), gpu_shift)
        if gpu_shift is not None:
            self.default_paces = GpuPaces(self.first_mhz)
            if gpu_shift.recovered:
                self.lowest_mhz = {}
            for referred in self.references.values():
                referred.reference.forget_effects()
        self.begin(now_s, shifted=gpu_shift is not None)

    def begin(self, now_s: float, *, shifted: bool = False) -> None:
        """A new window, under the clocks in force; `shifted` where GPUs were found to have."""
        paces = self.default_paces
        if self.setting != DEFAULT:
            clocks_mhz: dict[str, int] = {}
            if not self.schedule:
                first = self.first_mhz  # of a GPU whose clock is not lowered
                clocks_mhz = {u: mhz or first.get(u, 0) for u, mhz in self.locks.items()}
            paces = GpuPaces(clocks_mhz, None if shifted else self.window.paces.latest)
        self.window = MeasurementWindow(now_s, self.stage_of, paces)

    def ended(self, one: Iteration) -> EndedIteration:
        """An iteration as it guards promises: as reported, with nothing inferred."""
        phase = (self.shape, (one.phase or self.phase).shape)
        peer_s = max(one.peers_s.values(), default=None)
        return EndedIteration(one.began_s, one.duration_s, peer_s, phase)


class IterationStats:
    """Folds reports and snapshots of one job into windows. `lag_s` is the longest time between the
    end of an iteration and the arrival of its report; `recall` gives the baseline that was measured
    in a shape before. `rate_alone`: it reports no operations.
    """

    def __init__(
        self, *, lag_s: float, recall: Callable[[str], Recalled | None] = lambda _shape: None
    ) -> None:
        self._lag_s, self._recall = lag_s, recall
        self._track: _Track | None = None
        self._phases = Phases()
        self.rate_alone = False

    @property
    def phase(self) -> Phase:
        """As of the last pass."""
        return self._phases.now

    def changed(
        self,
        locks: Mapping[str, int],
        now_s: float,
        *,
        schedule: Schedule = (),
        slowdown: Figure | None = None,
        operations: float | None = None,
    ) -> None:
        """Our own command changed clocks, or their `schedule` (changes within an iteration, fixed
        power limits): a new window begins. `slowdown` is what is predicted of them, `operations`
        the log slowdown of their operations.
        """
        track = self._track
        if track is None:
            return
        new = {uuid: locks.get(uuid, 0) for uuid in track.locks}
        if (new, schedule) != (track.locks, track.schedule):
            track.locks, track.schedule = new, schedule
            track.begin(now_s)
        if slowdown is not None:
            reference = track.referred.reference
            reference.predict(track.setting, slowdown.mean, slowdown.sd, operations)

    def fold(
        self,
        stages: tuple[tuple[str, ...], ...],
        reports: Iterable[ArrivedReport],
        gpus: Mapping[str, GpuView],
        now_s: float,
        *,
        groups: Groups = (),
        shape: str = "",
        loads: bool = True,
    ) -> tuple[Measured, Fresh]:
        """Adds the reports and snapshots since the last pass. Call it once a pass.

        A job in a new `shape` starts over. Without `loads` those of single GPUs, half of the work,
        stay as they are until a later pass.
        """
        stage_of = {uuid: stage for stage, uuids in enumerate(stages) for uuid in uuids}
        track, phases = self._track, self._phases
        if track is None or track.stage_of != stage_of or track.shape != shape:
            window = MeasurementWindow(now_s, stage_of, GpuPaces())
            track = _Track(stage_of, shape, window, phases.now)
            self._enter(track, phases.now, now_s)
            self._track = track
        seen_s = self._see_locks(track, gpus, now_s)
        self._see_external_locks(track, gpus, now_s)
        self._collect(track, track.sequence.taken(reports, track.stage_of), phases)
        if phases.now != track.phase:
            self._enter(track, phases.now, now_s)
        self._see_straggler(track, now_s)
        confirmed: list[Iteration] = []
        fresh: list[Iteration] = []
        for one in self._confirmed(track, seen_s):
            if one.phase is None:
                track.window.leave_out(one)
                continue
            confirmed.append(one)
            fresh += track.window.take(track.referred.judge(track.window.since_s, one))
        self._see_gpus(track, gpus, now_s)
        chunk = _chunk(track, confirmed, fresh)
        known = not (track.straggling or track.external_locks.text(gpus))
        if track.external_locks.moving:  # the clock of these iterations is unknown
            fresh, chunk = [], None
            track.window.fresh_loads()
        if chunk is not None and chunk.iterations and known:
            track.referred.reference.take(chunk)
        shifted = track.window.gpu_shift if track.baseline.window is not None else None
        jump = track.referred.jump()
        if (jump or shifted) and not track.straggling:
            track.shift(jump, shifted, now_s)
            fresh, chunk = [], None  # some of them ran before it
        if seen_s > track.seen_s:
            track.window.passes += 1
            track.seen_s = seen_s
        external_lock = track.external_locks.text(gpus)
        held = any(track.locks.values()) or track.schedule
        at_default = not held and not external_lock
        if at_default and not track.external_locks.doubt and not track.straggling:
            self._see_baseline(track, stages, groups, now_s)
        if track.window.iterations >= READY and held and track.baseline.drift.gpu_shift is None:
            self._see_lowest(track, gpus)
        if track.operations_reported is not None:
            self.rate_alone = not track.operations_reported
        fresh_loads, loaded = track.window.fresh_loads() if loads else ((), 0)
        fresh_now = Fresh(
            chunk=chunk,
            loads=fresh_loads,
            loaded=loaded,
            reported=tuple(track.ended(one) for one in track.reported),
            gpu_shift=shifted,
        )
        measured = Measured(
            baseline=track.baseline.window,
            current=track.window.summary(RECENT),
            current_iterations=track.window.iterations,
            peer_iteration_time_s=statistics.fmean(track.peers_s) if track.peers_s else None,
            loads=track.window.loads(newest=loads),
            locks=dict(track.locks),
            at_default=at_default,
            settled=track.window.passes > SETTLED_PASSES,
            since_s=track.window.since_s,
            external_lock=external_lock,
            refused=tuple(sorted(track.sequence.refused.items())),
            operations_reported=track.operations_reported,
            lowest_mhz=track.lowest_mhz,
            default_clock_ratio=track.default_clock_ratio,
            default_clock_mhz=track.default_clock_mhz,
            time_ratios=track.time_ratios,
            drift=track.baseline.drift,
            reference=track.referred.answer(track.setting),
            phase=track.phase,
            phases_s=phases.spent_s,
        )
        return measured, fresh_now

    def _enter(self, track: _Track, phase: Phase, now_s: float) -> None:
        """Another phase has windows and a baseline of its own."""
        new = phase.shape not in track.baselines
        # Where the store fails nothing has changed, and the next pass enters it.
        recalled = self._recall(shape_in(track.shape, phase)) if new else None
        track.phase, track.default_paces = phase, GpuPaces(track.first_mhz)
        track.begin(now_s)
        if new:
            while len(track.baselines) >= PHASES_MAX:
                del track.references[next(iter(track.baselines))]
                del track.baselines[next(iter(track.baselines))]
            track.baselines[phase.shape] = Baseline(recalled, now_s)
            track.references[phase.shape] = referred = _Referred()
            if recalled is not None and math.isfinite(recalled.age_s):
                referred.reference.recall(
                    math.log(recalled.window.time_mean_s),
                    math.hypot(recalled.window.stderr_ratio, walked_sd(recalled.age_s)),
                )

    def _see_locks(self, track: _Track, gpus: Mapping[str, GpuView], now_s: float) -> float:
        """Compares the leases shown with those of the last pass; a change starts a new window.

        Returns the time up to which the present clocks are known to have been in force.
        """
        new, seen_s = dict(track.locks), now_s
        for uuid in track.stage_of:
            gpu = gpus.get(uuid)
            taken_s = now_s - gpu.age_s if gpu else -math.inf
            seen_s = min(seen_s, taken_s)
            if gpu and gpu.snapshot and not gpu.behind:
                lease = gpu.snapshot.lease
                new[uuid] = lease.clock_max_mhz if lease else 0
            else:
                new.setdefault(uuid, 0)
        if new != track.locks:
            track.locks = new
            track.begin(now_s)
        return seen_s

    def _see_external_locks(self, track: _Track, gpus: Mapping[str, GpuView], now_s: float) -> None:
        """Another writer's lock that appeared or went starts a new window. One that had been taken
        for a GPU's default clock invalidates the baseline.
        """
        if not track.external_locks.update(gpus, track.locks, now_s):
            return
        track.default_paces = GpuPaces(track.first_mhz)
        track.begin(now_s)
        if track.external_locks.rose:
            track.baseline.forget()

    def _see_baseline(self, track: _Track, stages: Stages, groups: Groups, now_s: float) -> None:
        """The baseline of this window, or the known one updated by it."""
        seen = track.window.summary(ITERATIONS_KEPT)
        if seen is None or track.window.passes <= SETTLED_PASSES:
            return
        self._see_default_clocks(track)
        since_s, known = track.window.since_s, track.referred.answer(DEFAULT)
        if track.baseline.measure(seen, known, since_s=since_s, now_s=now_s):
            loads = track.window.loads()
            if loads is not track.loads_compared:  # nothing new otherwise
                track.loads_compared = loads
                track.time_ratios = time_ratios(loads, stages, groups)

    def _see_default_clocks(self, track: _Track) -> None:
        """How far default clocks have moved. A single GPU that did is throttled, or recovers."""
        seen_mhz = track.window.clocks_mhz()
        if len(seen_mhz) < len(track.stage_of):
            return
        if not track.first_mhz:
            track.first_mhz.update(seen_mhz)
        track.default_clock_mhz = statistics.median(seen_mhz.values())
        moved = statistics.median(seen_mhz[u] / mhz for u, mhz in track.first_mhz.items())
        near = 1.0 - DEFAULT_CLOCK_STEP <= moved <= 1.0 + DEFAULT_CLOCK_STEP
        track.default_clock_ratio = 1.0 if near else moved

    def _see_lowest(self, track: _Track, gpus: Mapping[str, GpuView]) -> None:
        """Clocks that enough iterations ran at, and those within them."""
        changes = {uuid: steps for uuid, steps in track.schedule if isinstance(steps, tuple)}
        lowest = dict(track.lowest_mhz)
        for uuid, lock_mhz in track.locks.items():
            highest = max(gpus[uuid].description.clocks_mhz, default=0) if uuid in gpus else 0
            ran_mhz = [step.clock_max_mhz for step in changes.get(uuid, ())]
            ran_mhz.append(lock_mhz or highest)
            if min(ran_mhz):
                lowest[uuid] = min(*ran_mhz, lowest.get(uuid, ran_mhz[-1]))
        if lowest != track.lowest_mhz:
            track.lowest_mhz = lowest

    def _see_gpus(self, track: _Track, gpus: Mapping[str, GpuView], now_s: float) -> None:
        """Adds observed clocks and energy counters of this pass."""
        seen = (
            (uuid, gpu.snapshot, now_s - gpu.age_s)
            for uuid in track.stage_of
            if (gpu := gpus.get(uuid)) and gpu.snapshot
        )
        if not track.window.see(seen):
            track.begin(now_s)

    def _collect(self, track: _Track, reports: Iterable[ArrivedReport], phases: Phases) -> None:
        """Joins the reports of one iteration; complete ones, and old ones, are closed."""
        track.reported.clear()
        for arrived in reports:
            report = arrived.report
            if track.sequence.runs != track.runs:  # its numbers mean other iterations now
                track.runs = track.sequence.runs
                track.open.clear()
                track.done.clear()
            track.operations_reported = bool(track.operations_reported or report.operations)
            one = track.open.get(report.iteration)
            if one is None:
                if report.iteration in track.done:
                    continue
                one = Iteration(report.iteration, len(track.stage_of), arrived.ended_s)
                track.open[report.iteration] = one
            one.arrived_s = min(one.arrived_s, arrived.ended_s)
            one.durations_s[report.uuid] = report.duration_s
            one.span_s = max(one.span_s, arrived.span_s)
            one.operations[report.uuid] = {
                op.kind: (op.busy_s, float(op.count)) for op in report.operations
            }
            if report.peer_iteration_time_s is not None:
                one.peers_s[report.uuid] = report.peer_iteration_time_s
            if one.complete:
                self._close(track, one, phases)
            # Ranks whose sources send in batches are as many iterations apart.
            apart = int(2.0 * report.age_s / max(report.duration_s, SHORTEST_S))
            while len(track.open) > min(OPEN_MAX + apart, PENDING_MAX):
                self._close(track, track.open[min(track.open)], phases)

    def _close(self, track: _Track, one: Iteration, phases: Phases) -> None:
        del track.open[one.number]
        track.done.append(one.number)
        if not one.complete and track.sequence.apart(one.number, one.durations_s):
            return
        one.phase = phases.now if phases.take(one.operations, one.duration_s) else None
        track.reported.append(one)
        track.pending.append(one)
        if not one.peers_s:
            track.peers_s.clear()
            return
        peer_s = max(one.peers_s.values())  # several pipelines: the slowest is waited for
        mean_s = statistics.fmean(track.peers_s) if track.peers_s else peer_s
        if abs(peer_s - mean_s) > PEER_JUMP_RATIO * mean_s:
            track.peers_s.clear()
        track.peers_s.append(peer_s)

    def _see_straggler(self, track: _Track, now_s: float) -> None:
        straggling = bool(track.peers_s)
        if straggling != track.straggling:
            track.straggling = straggling
            track.begin(now_s)

    def _confirmed(self, track: _Track, seen_s: float) -> list[Iteration]:
        """Closed ones of this phase, or of none, that ran wholly under the clocks in force."""
        confirmed = []
        while track.pending and track.pending[0].arrived_s <= seen_s:
            one = track.pending.popleft()
            began_s = one.began_s - self._lag_s
            same = one.phase in (track.phase, None) and bool(one.peers_s) == track.straggling
            if began_s >= track.window.since_s and same:
                confirmed.append(one)
        return confirmed


def _chunk(
    track: _Track, confirmed: Sequence[Iteration], counted: Sequence[Iteration]
) -> Chunk | None:
    """What a look confirmed; None without an iteration."""
    if not confirmed:
        return None
    left_out, energy_j, energy_s = track.window.spent()
    return Chunk(
        at_s=confirmed[-1].arrived_s,
        setting=track.setting,
        iterations=tuple(map(_timed, counted)),
        begun_s=confirmed[0].began_s,
        ran=len(confirmed),
        left_out=left_out,
        energy_j=energy_j,
        energy_s=energy_s,
    )


def _timed(one: Iteration) -> Timed:
    return Timed(math.log(one.duration_s), math.log(one.work) if one.work else None)


def shape_in(shape: str, phase: Phase) -> str:
    """Names what a baseline is of. Training's shape has its microbatches in it."""
    return shape if phase.kind == "train" else f"{shape} {phase.shape}"
