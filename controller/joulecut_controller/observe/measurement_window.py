"""One job under one set of clocks: its iterations, its energy, its loads.

`iteration_stats` decides which iterations belong in it. Pure and bounded.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from joulecut_controller.observe.gpu_paces import GpuPaces
from joulecut_controller.observe.operation_traces import Timed
from joulecut_controller.observe.variance import OperationVariance, inflation, ratios
from joulecut_controller.observe.work import InferredWork
from joulecut_controller.reference.chunk import Judged
from joulecut_controller.view import GpuShift, Phase, StageLoad, Window, WindowWork
from joulecut_wire.messages import GpuSnapshot

ITERATIONS_KEPT = 512  # enough for 0.2 % of standard error at 5 % of noise
RECENT = 64  # what `current` means: a slow job must show within tens of iterations
OUTLIER_RATIO = 1.5  # a checkpoint or an evaluation, not a clock: no clock we set costs half
# The counter moves every 100 ms, so both ends are off by up to that: 5 s keeps it near 1 %.
ENERGY_SPAN_S_MIN = 5.0
ENERGY_ITERATIONS_MIN = 4  # a cut iteration at either end is off by a percent then
ANCHORS_KEPT = 64
CLOCKS_KEPT = 32
HOLES_KEPT = 64  # as many as anchors: an older one lies before all of them
REPORT_LAG_S = 1.5  # the longest way of a report: a watch interval of a second, and two queues
KINDS_MAX = 64  # of operations: as many as one report holds; the names are a job's own words
WORK_ITERATIONS = (
    64  # whose mean work times are adjusted to: the clocks' effect shows next to a change
)
LOAD_SAMPLES_MAX = 4096.0  # beyond it old samples fade, so that slow changes still show

Busy = dict[str, tuple[float, float]]  # kind of operation -> (busy seconds, operations)


@dataclass(slots=True)
class Iteration:
    """One iteration as its GPUs reported it. `expected` is the number of GPUs."""

    number: int
    expected: int
    arrived_s: float  # of the first report
    durations_s: dict[str, float] = field(default_factory=dict)
    operations: dict[str, Busy] = field(default_factory=dict)
    timed: dict[str, Timed] = field(default_factory=dict)
    peers_s: dict[str, float] = field(default_factory=dict)  # by GPU: one may report twice
    span_s: float = 0.0  # of a mean over many iterations
    phase: Phase | None = None  # None where it is no usual iteration of any phase

    @property
    def began_s(self) -> float:
        """When the iteration, or the first of those it is the mean of, began at the earliest."""
        return self.arrived_s - max(self.span_s, *self.durations_s.values())

    @property
    def complete(self) -> bool:
        return len(self.durations_s) == self.expected

    @property
    def duration_s(self) -> float:
        """The mean over the GPUs, whose clocks of the host differ by a little."""
        return statistics.fmean(self.durations_s.values())


@dataclass(slots=True)
class TrainingTime:
    """The time that was training according to reports: up to the newest iteration, except for
    `holes`, in which a checkpoint or an evaluation ran, or nothing.
    """

    until_s: float  # at first when the window began
    number: int = 0  # of the newest iteration
    holes: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=HOLES_KEPT))

    def leave_out(self, one: Iteration) -> None:
        self.holes.append((one.began_s - REPORT_LAG_S, one.arrived_s))

    def reach(self, one: Iteration) -> None:
        """Up to the end of an iteration. A gap before it that its lag and the iterations whose
        reports are missing do not fill is a pause of the job: a restart, or data that is late.
        """
        missing = max(0, one.number - self.number - 1)
        longest_s = REPORT_LAG_S + (missing + 1) * one.duration_s
        if one.began_s - self.until_s > longest_s:
            self.holes.append((self.until_s, one.began_s))
        self.until_s, self.number = max(self.until_s, one.arrived_s), one.number


@dataclass(slots=True)
class _Gpu:
    """One GPU: busy time, observed clocks, energy counter by time."""

    busy: Busy = field(default_factory=dict)
    first: Busy = field(default_factory=dict)  # of the first WORK_ITERATIONS alone
    clocks_mhz: deque[int] = field(default_factory=lambda: deque(maxlen=CLOCKS_KEPT))
    anchors: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=ANCHORS_KEPT))
    latest: tuple[float, float] | None = None
    variance: OperationVariance = field(default_factory=OperationVariance)

    @property
    def clock_mhz(self) -> int:
        return int(statistics.median_high(self.clocks_mhz)) if self.clocks_mhz else 0

    def add(self, busy: Busy, work: float) -> None:
        """`work` is what the iteration's work is over that of the others."""
        alike = {kind: (busy_s / work, count) for kind, (busy_s, count) in busy.items()}
        if len(busy) == 2:  # backwards and forwards, or what stands for them
            first, second = sorted(busy)
            self.variance.add(alike[first], alike[second])
        elif "forward" in busy and "input" in busy:
            self.variance.add(alike["forward"], alike["input"])
        _add(self.busy, busy)

    def power_w(self, mean_s: float, reported: TrainingTime) -> float | None:
        """Mean power over many iterations, from the energy counter, over `reported` time."""
        if not self.anchors or self.latest is None:
            return None
        last: tuple[float, float] | None = self.latest
        if self.latest[0] > reported.until_s:
            backwards = reversed(self.anchors)
            last = next((sample for sample in backwards if sample[0] <= reported.until_s), None)
        if last is None:
            return None
        (begin_s, begin_j), (end_s, end_j) = self.anchors[0], last
        holes = [hole for hole in reported.holes if hole[1] > begin_s and hole[0] < end_s]
        for (from_s, from_j), (to_s, to_j) in pairwise((*self.anchors, last)) if holes else ():
            within = from_s < to_s <= end_s
            if within and any(hole[0] < to_s and hole[1] > from_s for hole in holes):
                begin_s += to_s - from_s
                begin_j += to_j - from_j
        if end_s - begin_s < max(ENERGY_SPAN_S_MIN, ENERGY_ITERATIONS_MIN * mean_s):
            return None
        return (end_j - begin_j) / (end_s - begin_s)

    def load(
        self,
        uuid: str,
        stage: int,
        busy: Busy,
        mean_s: float | None,
        reported: TrainingTime | None = None,
    ) -> StageLoad | None:
        counted = {kind: (busy_s, n) for kind, (busy_s, n) in sorted(busy.items()) if n > 0}
        power_w = None if mean_s is None or reported is None else self.power_w(mean_s, reported)
        if not counted and power_w is None:
            return None  # a job that reports only its rate still has energy counters
        return StageLoad(
            uuid=uuid,
            stage=stage,
            clock_mhz=self.clock_mhz,
            busy_s={kind: busy_s / n for kind, (busy_s, n) in counted.items()},
            samples=int(sum(n for _, n in counted.values())),
            power_w=power_w,
        )


def _add(sums: Busy, busy: Busy) -> None:
    for kind, (busy_s, count) in busy.items():
        if kind not in sums and len(sums) >= KINDS_MAX:
            continue
        sum_s, operations = sums.get(kind, (0.0, 0.0))
        fade = 0.5 if operations > LOAD_SAMPLES_MAX else 1.0
        sums[kind] = (sum_s * fade + busy_s, operations * fade + count)


class MeasurementWindow:
    """Everything counted since `since_s` of GPUs by stage (`stage_of`)."""

    def __init__(self, since_s: float, stage_of: Mapping[str, int]) -> None:
        self.since_s = since_s
        self.passes = 0
        self.begun = False  # an iteration has ended since then
        self._durations_s: deque[float] = deque(maxlen=ITERATIONS_KEPT)
        self._works: deque[float] = deque(maxlen=ITERATIONS_KEPT)  # of the same iterations
        self._work = InferredWork()
        self._first_works: list[float] = []
        self.gpu_shift: GpuShift | None = None  # the first since then
        self._gpu_paces = GpuPaces()
        self._reported = TrainingTime(since_s)
        self._stage_of = stage_of
        self._gpus = {uuid: _Gpu() for uuid in stage_of}
        self._loads: tuple[StageLoad, ...] | None = None  # None: a clock changed, or none yet
        self._forget_figures()

    def _forget_figures(self) -> None:
        """Iterations are new: figures of the window are computed again."""
        self._summaries: dict[int, Window | None] = {}
        self._loads_old = True

    @property
    def iterations(self) -> int:
        return len(self._durations_s)

    def take(self, judged: Judged[Iteration]) -> tuple[Iteration, ...]:
        """Adds the iterations that count, and returns them."""
        self.begun = True
        self._forget_figures()
        for one in judged.odd:
            self._reported.leave_out(one)
        if judged.again:
            self._durations_s.clear()
            self._works.clear()
            self._gpus = {uuid: _Gpu() for uuid in self._stage_of}
            self._first_works, self._loads = [], None
            self._reported.holes.clear()
        for one in judged.counted:
            self._add(one)
        return judged.counted

    def _add(self, one: Iteration) -> None:
        factor = self._work.factor(one.operations)
        work = factor if factor is not None else self._usual_work()
        self._durations_s.append(one.duration_s)
        self._works.append(work)
        if self.gpu_shift is None:
            self.gpu_shift = self._gpu_paces.take(one.operations)
        self._reported.reach(one)
        first = len(self._first_works) < WORK_ITERATIONS
        if first:
            self._first_works.append(work)
        for uuid, busy in one.operations.items():
            self._gpus[uuid].add(busy, work)
            if first:
                _add(self._gpus[uuid].first, busy)

    def _usual_work(self) -> float:
        """Of iterations whose operations are not known: the mean of the others."""
        return statistics.fmean(self._works) if self._works else 1.0

    def _adjusted_s(self) -> list[float]:
        """Iteration times at a work of 1."""
        return [s / work for s, work in zip(self._durations_s, self._works, strict=True)]

    def see(self, snapshots: Iterable[tuple[str, GpuSnapshot, float]]) -> bool:
        """Adds observed clocks and energy counters, each with its time; False where a new window
        has to begin: a counter fell (a reloaded driver).
        """
        if not self.begun:
            return True
        # Half an iteration apart, so that the anchors kept reach over many iterations.
        spacing_s = statistics.median(self._durations_s) / 2 if self._durations_s else 0.0
        return all(
            self._see(uuid, snapshot, taken_s, spacing_s)
            for uuid, snapshot, taken_s in snapshots
            if taken_s >= self.since_s
        )

    def _see(self, uuid: str, snapshot: GpuSnapshot, taken_s: float, spacing_s: float) -> bool:
        gpu = self._gpus[uuid]
        if snapshot.clock_sm_mhz:
            if not gpu.clocks_mhz or gpu.clocks_mhz[-1] != snapshot.clock_sm_mhz:
                self._loads = None
            gpu.clocks_mhz.append(snapshot.clock_sm_mhz)
        counter_j = snapshot.energy_j
        if counter_j is None:  # only the module's energy is counted
            counter_j = snapshot.energy_integrated_j
        if counter_j is None:
            return True
        if gpu.latest and counter_j < gpu.latest[1]:
            return False
        gpu.latest = (taken_s, counter_j)
        if not gpu.anchors or taken_s - gpu.anchors[-1][0] >= spacing_s:
            gpu.anchors.append(gpu.latest)
        return True

    def summary(self, newest: int) -> Window | None:
        """Mean and spread of the newest iterations; None for fewer than two."""
        if newest not in self._summaries:
            self._summaries[newest] = self._summary(newest)
        return self._summaries[newest]

    def _summary(self, newest: int) -> Window | None:
        times_s = list(self._durations_s)[-newest:]
        if len(times_s) < 2:
            return None
        mean_s = statistics.fmean(times_s)
        powers = [gpu.power_w(mean_s, self._reported) for gpu in self._gpus.values()]
        known = [power for power in powers if power is not None]
        power_w = sum(known) if len(known) == len(powers) else None  # a part is no sum
        operation, gpu = ratios(one.variance for one in self._gpus.values()) or (None, None)
        return Window(
            iterations=len(times_s),
            time_mean_s=mean_s,
            time_sd_s=statistics.stdev(times_s),
            inflation=inflation(times_s),
            energy_j=None if power_w is None else power_w * mean_s,
            power_w=power_w,
            operation_sd_ratio=operation,
            gpu_sd_ratio=gpu,
            work=self._work_of(newest),
        )

    def _work_of(self, newest: int) -> WindowWork | None:
        """None where no operations are reported."""
        operations_s = {
            uuid: {kind: busy_s / count for kind, (busy_s, count) in one.first.items() if count}
            for uuid, one in self._gpus.items()
            if one.first
        }
        if not operations_s:
            return None
        works, first_work = list(self._works)[-newest:], statistics.fmean(self._first_works)
        adjusted_s = [first_work * s for s in self._adjusted_s()[-newest:]]
        return WindowWork(
            mean_s=statistics.fmean(adjusted_s),
            sd_s=statistics.stdev(adjusted_s),
            sd_ratio=statistics.stdev(works) / statistics.fmean(works),
            operations_s=operations_s,
        )

    def loads(self, *, newest: bool = True) -> tuple[StageLoad, ...]:
        """Mean busy time per operation and power of every GPU, over the whole window. Where the
        `newest` iterations do not matter, as computed last under the same clocks.
        """
        if self._loads is None or (newest and self._loads_old):
            self._loads_old = False
            mean_s = statistics.fmean(self._durations_s) if self._durations_s else 0.0
            made = (
                gpu.load(uuid, self._stage_of[uuid], gpu.busy, mean_s, self._reported)
                for uuid, gpu in self._gpus.items()
            )
            found = sorted(filter(None, made), key=lambda load: (load.stage, load.uuid))
            self._loads = tuple(found)
        return self._loads

    def loads_of(self, iterations: Iterable[Iteration]) -> tuple[StageLoad, ...]:
        """The same of only these iterations, where the clock they ran at was seen."""
        sums: dict[str, Busy] = {}
        for one in iterations:
            for uuid, busy in one.operations.items():
                _add(sums.setdefault(uuid, {}), busy)
        made = (
            self._gpus[uuid].load(uuid, self._stage_of[uuid], busy, None)
            for uuid, busy in sorted(sums.items())
            if self._gpus[uuid].clocks_mhz
        )
        return tuple(filter(None, made))
