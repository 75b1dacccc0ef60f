"""What each job's iterations took and drew, kept apart by the clocks they ran under.

A plan is judged by measurement, and a measurement that mixes two sets of clocks judges
neither. So an iteration counts only when it began after the clocks in force were seen on
every GPU of the job and had ended before they were last seen. Pure and bounded: reports,
snapshots and `now_s` go in, windows come out.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from joulecut_controller.ports import ArrivedReport
from joulecut_controller.view import GpuView, StageLoad, Window

ITERATIONS_KEPT = 512  # enough for 0.2 % of standard error at 5 % of noise
RECENT = 64  # what `current` means: a slow job must show within tens of iterations
BASELINE_ITERATIONS_MIN = 30  # below that the standard deviation itself is a guess
BASELINE_STDERR_RATIO_MAX = 0.0025  # a tenth of a usual slowdown budget of 2-3 %
BASELINE_PASSES_MIN = 3  # several looks must have found the default clocks
SETTLE_ITERATIONS = 1  # the first whole one after a change still refills the pipeline's caches
OUTLIER_RATIO = 1.5  # a checkpoint or an evaluation, not a clock: no clock we set costs half
OUTLIERS_IN_ROW = 5  # five such in a row are the job's new pace
OPEN_MAX = 16  # iterations still missing reports; older ones count with what came
PENDING_MAX = 1024  # closed iterations whose clocks no snapshot has confirmed yet
DONE_KEPT = 64  # late duplicates of a closed iteration are not a new one
PEERS_KEPT = 8  # a straggler's time is a mean over as many iterations
PEER_JUMP_RATIO = 0.05  # a straggler that got this much faster or slower is another one
# The counter moves every 100 ms, so both ends are off by up to that: 5 s keeps it near 1 %.
ENERGY_SPAN_S_MIN = 5.0
ENERGY_ITERATIONS_MIN = 10  # a cut iteration at either end then weighs little
ANCHORS_KEPT = 64
CLOCKS_KEPT = 32
SETTLED_PASSES = 3  # a clock is observed up to a sampling tick after it changed
LOAD_SAMPLES_MAX = 4096.0  # beyond it old samples fade, so that slow changes still show


@dataclass(frozen=True, slots=True)
class Measured:
    """One job's figures as of a pass. `fresh` holds only what this pass added, for learning.

    `locks` maps every GPU of the job to the clock its lease allows, 0 for default clocks.
    """

    baseline: Window | None
    current: Window | None
    current_iterations: int
    straggling: bool
    peer_iteration_time_s: float | None
    loads: tuple[StageLoad, ...]
    fresh: tuple[StageLoad, ...]
    fresh_iterations: int
    locks: Mapping[str, int]
    at_default: bool
    settled: bool  # the clocks in force have been so for several passes


@dataclass(slots=True)
class _Open:
    """An iteration whose reports are still coming in."""

    iteration: int
    expected: int
    arrived_s: float
    durations_s: dict[str, float] = field(default_factory=dict)
    operations: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)
    peers_s: list[float] = field(default_factory=list)

    @property
    def duration_s(self) -> float:
        return statistics.fmean(self.durations_s.values())


@dataclass(slots=True)
class _Span:
    """Iterations under one set of clocks, with or without a straggler."""

    since_s: float
    settling: int = SETTLE_ITERATIONS
    passes: int = 0
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=ITERATIONS_KEPT))
    outliers_s: list[float] = field(default_factory=list)
    busy: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    clocks_mhz: dict[str, deque[int]] = field(default_factory=dict)
    anchors: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)
    latest: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Track:
    """Everything remembered of one job in one layout."""

    stage_of: Mapping[str, int]
    shape: str = ""
    locks: dict[str, int] = field(default_factory=dict)
    marked_s: float = -math.inf
    straggling: bool = False
    span: _Span = field(default_factory=lambda: _Span(-math.inf))
    baseline: Window | None = None
    open: dict[int, _Open] = field(default_factory=dict)
    pending: deque[_Open] = field(default_factory=lambda: deque(maxlen=PENDING_MAX))
    done: deque[int] = field(default_factory=lambda: deque(maxlen=DONE_KEPT))
    peers_s: deque[float] = field(default_factory=lambda: deque(maxlen=PEERS_KEPT))


class Ledger:
    """Folds reports and snapshots into windows, per job. `lag_s` is the longest time
    between the end of an iteration and the arrival of its report.
    """

    def __init__(self, *, lag_s: float) -> None:
        self._lag_s = lag_s
        self._tracks: dict[str, _Track] = {}

    def keep_only(self, jobs: Iterable[str]) -> None:
        """Forgets jobs that left the policy."""
        wanted = set(jobs)
        for job in [job for job in self._tracks if job not in wanted]:
            del self._tracks[job]

    def changed(self, job: str, locks: Mapping[str, int], now_s: float, shown_s: float) -> None:
        """Clocks were just changed by our own hand: what ran before counts no longer.

        Snapshots taken before `shown_s` may still show what was before.
        """
        track = self._tracks.get(job)
        if track is None:
            return
        new = {uuid: locks.get(uuid, 0) for uuid in track.locks}
        track.marked_s = shown_s
        if new != track.locks:
            track.locks = new
            track.span = _Span(now_s)

    def fold(
        self,
        job: str,
        stages: tuple[tuple[str, ...], ...],
        reports: Iterable[ArrivedReport],
        gpus: Mapping[str, GpuView],
        now_s: float,
        *,
        shape: str = "",
        recall: Callable[[], Window | None] = lambda: None,
    ) -> Measured:
        """Takes in what came since the last pass. Call it once a pass.

        A job in a new `shape` starts anew, from the baseline that `recall` remembers of it.
        """
        stage_of = {uuid: stage for stage, uuids in enumerate(stages) for uuid in uuids}
        track = self._tracks.get(job)
        if track is None or track.stage_of != stage_of or track.shape != shape:
            track = _Track(stage_of=stage_of, shape=shape, baseline=recall())
            self._tracks[job] = track
        seen_s = self._see_locks(track, gpus, now_s)
        self._collect(track, reports)
        self._see_straggler(track, now_s)
        fresh = [one for one in self._confirmed(track, seen_s) if _take(track.span, one)]
        _see_gpus(track, gpus, now_s)
        track.span.passes += 1
        at_default = not any(track.locks.values())
        if at_default and not track.straggling:
            candidate = _window(track.span, ITERATIONS_KEPT, len(stage_of))
            if candidate and mature(candidate) and track.span.passes > BASELINE_PASSES_MIN:
                track.baseline = candidate
        return Measured(
            baseline=track.baseline,
            current=_window(track.span, RECENT, len(stage_of)),
            current_iterations=len(track.span.durations_s),
            straggling=track.straggling,
            peer_iteration_time_s=statistics.fmean(track.peers_s) if track.peers_s else None,
            loads=_loads(track),
            fresh=_fresh(track, fresh),
            fresh_iterations=len(fresh),
            locks=dict(track.locks),
            at_default=at_default,
            settled=track.span.passes > SETTLED_PASSES,
        )

    def _see_locks(self, track: _Track, gpus: Mapping[str, GpuView], now_s: float) -> float:
        """Compares the leases shown with those of the last pass; a change starts a new span.

        Answers up to when the clocks in force are known to have been in force.
        """
        new, seen_s = dict(track.locks), now_s
        for uuid in track.stage_of:
            gpu = gpus.get(uuid)
            taken_s = now_s - gpu.age_s if gpu else -math.inf
            seen_s = min(seen_s, taken_s)
            if gpu and gpu.snapshot and taken_s >= track.marked_s:
                lease = gpu.snapshot.lease
                new[uuid] = lease.clock_max_mhz if lease else 0
            else:
                new.setdefault(uuid, 0)
        if new != track.locks:
            track.locks = new
            track.span = _Span(now_s)
        return seen_s

    def _collect(self, track: _Track, reports: Iterable[ArrivedReport]) -> None:
        """Joins the reports of one iteration; complete ones, and old ones, are closed."""
        for arrived in reports:
            report = arrived.report
            if report.uuid not in track.stage_of or report.iteration in track.done:
                continue
            one = track.open.setdefault(
                report.iteration,
                _Open(report.iteration, len(track.stage_of), arrived.arrived_s),
            )
            one.arrived_s = min(one.arrived_s, arrived.arrived_s)
            one.durations_s[report.uuid] = report.duration_s
            one.operations[report.uuid] = {
                op.kind: (op.busy_s, op.count) for op in report.operations
            }
            if report.peer_iteration_time_s is not None:
                one.peers_s.append(report.peer_iteration_time_s)
            if len(one.durations_s) == one.expected:
                self._close(track, one)
            while len(track.open) > OPEN_MAX:
                self._close(track, track.open[min(track.open)])

    def _close(self, track: _Track, one: _Open) -> None:
        del track.open[one.iteration]
        track.done.append(one.iteration)
        track.pending.append(one)
        if not one.peers_s:
            track.peers_s.clear()
            return
        peer_s = max(one.peers_s)  # several pipelines: the slowest is waited for
        mean_s = statistics.fmean(track.peers_s) if track.peers_s else peer_s
        if abs(peer_s - mean_s) > PEER_JUMP_RATIO * mean_s:
            track.peers_s.clear()
        track.peers_s.append(peer_s)

    def _see_straggler(self, track: _Track, now_s: float) -> None:
        straggling = bool(track.peers_s)
        if straggling != track.straggling:
            track.straggling = straggling
            track.span = _Span(now_s)

    def _confirmed(self, track: _Track, seen_s: float) -> list[_Open]:
        """Closed iterations that ran wholly under the clocks in force."""
        confirmed = []
        while track.pending and track.pending[0].arrived_s <= seen_s:
            one = track.pending.popleft()
            began_s = one.arrived_s - self._lag_s - max(one.durations_s.values())
            if began_s >= track.span.since_s and bool(one.peers_s) == track.straggling:
                confirmed.append(one)
        return confirmed


def mature(window: Window) -> bool:
    """Enough of a baseline to plan on."""
    if window.iterations < BASELINE_ITERATIONS_MIN:
        return False
    return (
        stderr_s(window) <= BASELINE_STDERR_RATIO_MAX * window.time_mean_s
        or window.iterations >= ITERATIONS_KEPT  # a noisier job will not get any better
    )


def stderr_s(window: Window) -> float:
    """Standard error of the mean iteration time, in seconds."""
    return window.time_sd_s / math.sqrt(window.iterations)


def _take(span: _Span, one: _Open) -> bool:
    """Adds an iteration to the span; False for settling ones and outliers."""
    if span.settling > 0:
        span.settling -= 1
        return False
    if len(span.durations_s) >= OUTLIERS_IN_ROW:
        usual_s = statistics.median(list(span.durations_s)[-RECENT:])
        if not usual_s / OUTLIER_RATIO <= one.duration_s <= usual_s * OUTLIER_RATIO:
            span.outliers_s.append(one.duration_s)
            if len(span.outliers_s) < OUTLIERS_IN_ROW:
                return False
            span.durations_s = deque(span.outliers_s[:-1], maxlen=ITERATIONS_KEPT)
            span.busy.clear()
            span.anchors.clear()
    span.outliers_s.clear()
    span.durations_s.append(one.duration_s)
    for uuid, kinds in one.operations.items():
        for kind, (busy_s, count) in kinds.items():
            sum_s, operations = span.busy.get((uuid, kind), (0.0, 0.0))
            fade = 0.5 if operations > LOAD_SAMPLES_MAX else 1.0
            span.busy[uuid, kind] = (sum_s * fade + busy_s, operations * fade + count)
    return True


def _see_gpus(track: _Track, gpus: Mapping[str, GpuView], now_s: float) -> None:
    """Notes observed clocks and energy counters of this pass."""
    span = track.span
    spacing_s = statistics.median(span.durations_s) / 2 if span.durations_s else 0.0
    for uuid in track.stage_of:
        gpu = gpus.get(uuid)
        if gpu is None or gpu.snapshot is None:
            continue
        taken_s = now_s - gpu.age_s
        if taken_s < span.since_s or span.settling > 0:
            continue
        snapshot = gpu.snapshot
        if snapshot.clock_sm_mhz:
            clocks = span.clocks_mhz.setdefault(uuid, deque(maxlen=CLOCKS_KEPT))
            clocks.append(snapshot.clock_sm_mhz)
        if snapshot.energy_j is None:
            continue
        before = span.latest.get(uuid)
        if before and snapshot.energy_j < before[1]:  # the driver was reloaded
            track.span = _Span(now_s)
            return
        point = span.latest[uuid] = (taken_s, snapshot.energy_j)
        anchors = span.anchors.setdefault(uuid, deque(maxlen=ANCHORS_KEPT))
        if not anchors or taken_s - anchors[-1][0] >= spacing_s:
            anchors.append(point)


def _power_w(span: _Span, uuid: str, mean_s: float) -> float | None:
    """Mean power of one GPU over many iterations, from its energy counter."""
    anchors, latest = span.anchors.get(uuid), span.latest.get(uuid)
    if not anchors or latest is None:
        return None
    (begin_s, begin_j), (end_s, end_j) = anchors[0], latest
    if end_s - begin_s < max(ENERGY_SPAN_S_MIN, ENERGY_ITERATIONS_MIN * mean_s):
        return None
    return (end_j - begin_j) / (end_s - begin_s)


def _window(span: _Span, newest: int, gpus: int) -> Window | None:
    times_s = list(span.durations_s)[-newest:]
    if len(times_s) < 2:
        return None
    mean_s = statistics.fmean(times_s)
    powers = [_power_w(span, uuid, mean_s) for uuid in span.anchors]
    known = [power for power in powers if power is not None]
    power_w = sum(known) if len(known) == gpus else None  # a part is no sum
    return Window(
        iterations=len(times_s),
        time_mean_s=mean_s,
        time_sd_s=statistics.stdev(times_s),
        energy_j=None if power_w is None else power_w * mean_s,
        power_w=power_w,
    )


def _clock_mhz(span: _Span, uuid: str) -> int:
    clocks = span.clocks_mhz.get(uuid)
    return int(statistics.median_high(clocks)) if clocks else 0


def _loads(track: _Track) -> tuple[StageLoad, ...]:
    span = track.span
    mean_s = statistics.fmean(span.durations_s) if span.durations_s else 0.0
    loads = []
    for uuid, stage in sorted(track.stage_of.items(), key=lambda item: (item[1], item[0])):
        kinds = {kind: sums for (gpu, kind), sums in span.busy.items() if gpu == uuid}
        counted = {kind: (busy_s, n) for kind, (busy_s, n) in kinds.items() if n > 0}
        if not counted:
            continue
        loads.append(
            StageLoad(
                uuid=uuid,
                stage=stage,
                clock_mhz=_clock_mhz(span, uuid),
                busy_s={kind: busy_s / n for kind, (busy_s, n) in sorted(counted.items())},
                samples=int(sum(n for _, n in counted.values())),
                power_w=_power_w(span, uuid, mean_s),
            )
        )
    return tuple(loads)


def _fresh(track: _Track, iterations: list[_Open]) -> tuple[StageLoad, ...]:
    """Loads of only these iterations, where the clock they ran at was seen."""
    sums: dict[str, dict[str, tuple[float, int]]] = {}
    for one in iterations:
        for uuid, kinds in one.operations.items():
            mine = sums.setdefault(uuid, {})
            for kind, (busy_s, count) in kinds.items():
                if count > 0:
                    before_s, before = mine.get(kind, (0.0, 0))
                    mine[kind] = (before_s + busy_s, before + count)
    return tuple(
        StageLoad(
            uuid=uuid,
            stage=track.stage_of[uuid],
            clock_mhz=_clock_mhz(track.span, uuid),
            busy_s={kind: busy_s / n for kind, (busy_s, n) in sorted(kinds.items())},
            samples=sum(n for _, n in kinds.values()),
            power_w=None,
        )
        for uuid, kinds in sorted(sums.items())
        if kinds and _clock_mhz(track.span, uuid)
    )
