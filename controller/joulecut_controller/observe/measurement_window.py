"""One job under one set of clocks: its iterations, its energy, its loads.

`iteration_stats` decides which iterations belong in it. Pure and bounded.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from joulecut_controller.chunk import Judged, deviation
from joulecut_controller.observe.gpu_paces import GpuPaces
from joulecut_controller.view import GpuShift, Phase, StageLoad, Window
from joulecut_wire.messages import GpuSnapshot

ITERATIONS_KEPT = 512  # enough for 0.2 % of standard error at 5 % of noise
RECENT = 64  # what `current` means: a slow job must show within tens of iterations
# The counter moves every 100 ms, so both ends are off by up to that: 5 s keeps it near 1 %.
ENERGY_SPAN_S_MIN = 5.0
ENERGY_ITERATIONS_MIN = 4  # a cut iteration at either end is off by a percent then
# What older spans of training weigh fades beyond so long, or so many iterations.
ENERGY_REACH_S, ENERGY_REACH_ITERATIONS = 64.0, 32.0
SAMPLES_KEPT = 64  # of a counter, since training was measured last; of long iterations thinned
CLOCKS_KEPT = 32
REPORT_LAG_S = 1.5  # the longest way of a report: a watch interval of a second, and two queues
BESIDE_PART = 0.5  # of an iteration: a job may leave data loading out of what it reports
KINDS_MAX = 64  # of operations: as many as one report holds; the names are a job's own words
LOAD_SAMPLES_MAX = 4096.0  # beyond it old samples fade, so that slow changes still show

DEVIATIONS_MIN = 16  # of all GPUs: a standard deviation is then known to a sixth
ITERATIONS_MIN = 4  # of a GPU whose deviations count

Busy = dict[str, tuple[float, float]]  # kind of operation -> (busy seconds, operations)


@dataclass(slots=True)
class Iteration:
    """One iteration as its GPUs reported it. `expected` is the number of GPUs."""

    number: int
    expected: int
    arrived_s: float  # of the first report
    durations_s: dict[str, float] = field(default_factory=dict)
    operations: dict[str, Busy] = field(default_factory=dict)
    peers_s: dict[str, float] = field(default_factory=dict)  # by GPU: one may report twice
    span_s: float = 0.0  # of a mean over many iterations
    phase: Phase | None = None  # None where it is no usual iteration of any phase
    work: float | None = None  # inferred, over that of the phase's first; None without operations

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


class _TrainingTime:
    """Spans of time that were training according to reports: without checkpoints, evaluations
    and pauses. Reports are late, so a span ends before the newest does.
    """

    def __init__(self, since_s: float) -> None:
        self._until_s = since_s  # the end of the newest iteration
        self._from_s = math.inf  # of the open span; infinite where none is
        self._number = 0  # of the newest iteration
        self._spans: list[tuple[float, float]] = []
        self.left_out = 0

    def leave_out(self, one: Iteration) -> None:
        self._cut()
        self._from_s = math.inf
        self._until_s, self._number = max(self._until_s, one.arrived_s), one.number

    def reach(self, one: Iteration) -> None:
        """Up to the end of an iteration. A gap before it that its lag and the iterations whose
        reports are missing do not fill is a pause of the job: a restart, or data that is late.
        """
        missing = max(0, one.number - self._number - 1)
        longest_s = REPORT_LAG_S + (missing + BESIDE_PART) * one.duration_s
        paused = one.began_s - self._until_s > longest_s
        if paused and self._number:
            self._cut()
        self._until_s, self._number = max(self._until_s, one.arrived_s), one.number
        if paused or math.isinf(self._from_s):
            self._from_s = self._until_s

    def _cut(self) -> None:
        self._end_span()
        self.left_out += 1

    def _end_span(self) -> None:
        to_s = self._until_s - REPORT_LAG_S
        if to_s > self._from_s:
            self._spans.append((self._from_s, to_s))

    def taken(self) -> tuple[list[tuple[float, float]], int]:
        """Spans that ended or go on, and how many iterations and pauses were left out, since the
        last call.
        """
        self._end_span()
        made = self._spans, self.left_out
        self._spans, self.left_out = [], 0
        return made


@dataclass(slots=True)
class OperationVariance:
    """Running means, variances and covariance of the mean operation of two kinds (Welford).

    Reports have sums by kind. Variation from operation to operation moves two sums independently; a
    GPU that is slower for a whole iteration moves both together.
    """

    iterations: int = 0
    first_s: float = 0.0
    second_s: float = 0.0
    first_var: float = 0.0  # sums of squared deviations
    second_var: float = 0.0
    both_var: float = 0.0
    count: float = 0.0  # operations of each kind per iteration, harmonic over the two

    def add(self, first: tuple[float, float], second: tuple[float, float]) -> None:
        """(busy seconds, operations) of one iteration, by kind."""
        if first[1] <= 0 or second[1] <= 0:
            return
        self.iterations += 1
        one, two = first[0] / first[1], second[0] / second[1]
        ahead, behind = one - self.first_s, two - self.second_s
        self.first_s += ahead / self.iterations
        self.second_s += behind / self.iterations
        self.first_var += ahead * (one - self.first_s)
        self.second_var += behind * (two - self.second_s)
        self.both_var += ahead * (two - self.second_s)
        self.count = 2.0 / (1.0 / first[1] + 1.0 / second[1])

    @property
    def known(self) -> bool:
        return self.iterations >= ITERATIONS_MIN and self.first_s > 0 and self.second_s > 0


def ratios(scatters: Iterable[OperationVariance]) -> tuple[float, float] | None:
    """Relative standard deviations of an operation, and of a GPU for a whole iteration, over
    all the GPUs given; None while too little was seen."""
    known = [one for one in scatters if one.known]
    if sum(one.iterations - 1 for one in known) < DEVIATIONS_MIN:
        return None
    operation = gpu = 0.0
    for one in known:
        spare = one.iterations - 1
        together = one.both_var / (spare * one.first_s * one.second_s)
        each = one.first_var / one.first_s**2 + one.second_var / one.second_s**2
        operation += one.count * (each / (2 * spare) - together)
        gpu += together
    return math.sqrt(max(0.0, operation / len(known))), math.sqrt(max(0.0, gpu / len(known)))


@dataclass(slots=True)
class _Gpu:
    """One GPU: busy time, observed clocks, energy counter by time."""

    busy: Busy = field(default_factory=dict)
    fresh: Busy = field(default_factory=dict)  # since the last call of `fresh_loads`
    clocks_mhz: deque[int] = field(default_factory=lambda: deque(maxlen=CLOCKS_KEPT))
    samples: list[tuple[float, float]] = field(default_factory=list)
    measured: tuple[float, float] = (0.0, 0.0)  # joules, and seconds of training that they took
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
        _add(self.fresh, busy)

    def see(self, taken_s: float, counter_j: float) -> bool:
        """A sample of the energy counter; False where it fell."""
        samples = self.samples
        if samples and counter_j < samples[-1][1]:
            return False
        if not samples or taken_s > samples[-1][0]:
            samples.append((taken_s, counter_j))
        if len(samples) > SAMPLES_KEPT:
            del samples[1::2]
        return True

    def take(self, from_s: float, to_s: float, reach_s: float) -> tuple[float, float]:
        """Joules of a span of training, and seconds of it that they took: from sample to sample,
        since a checkpoint may begin between two. Beyond `reach_s` older spans fade.
        """
        within = [sample for sample in self.samples if from_s <= sample[0] <= to_s]
        if not within:
            return 0.0, 0.0
        seconds, joules = within[-1][0] - within[0][0], within[-1][1] - within[0][1]
        self.samples = [sample for sample in self.samples if sample[0] >= within[-1][0]]
        fade = 0.5 if self.measured[1] > reach_s else 1.0
        self.measured = fade * self.measured[0] + joules, fade * self.measured[1] + seconds
        return joules, seconds

    def power_w(self, mean_s: float) -> float | None:
        """Mean power over many iterations of such a time."""
        joules, seconds = self.measured
        enough = seconds >= max(ENERGY_SPAN_S_MIN, ENERGY_ITERATIONS_MIN * mean_s)
        return joules / seconds if enough else None

    def load(self, uuid: str, stage: int, busy: Busy, mean_s: float | None) -> StageLoad | None:
        counted = {kind: (busy_s, n) for kind, (busy_s, n) in sorted(busy.items()) if n > 0}
        power_w = None if mean_s is None else self.power_w(mean_s)
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
    """Everything counted since `since_s` of GPUs by stage (`stage_of`), whose `paces` may be known
    from earlier windows under these clocks.
    """

    def __init__(self, since_s: float, stage_of: Mapping[str, int], paces: GpuPaces) -> None:
        self.since_s = since_s
        self.passes = 0
        self.begun = False  # an iteration has ended since then
        self._fresh = 0  # iterations in `fresh` of the GPUs
        self._durations_s: deque[float] = deque(maxlen=ITERATIONS_KEPT)
        self._works: deque[float] = deque(maxlen=ITERATIONS_KEPT)  # of those with operations
        self.gpu_shift: GpuShift | None = None  # the first since then
        self.paces = paces
        self._training = _TrainingTime(since_s)
        self._reach_s = ENERGY_REACH_S
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

    def leave_out(self, one: Iteration) -> None:
        """An iteration of another phase."""
        self._training.leave_out(one)

    def take(self, judged: Judged[Iteration]) -> tuple[Iteration, ...]:
        """Adds the iterations that count, and returns them."""
        self.begun = True
        self._forget_figures()
        for one in judged.odd:
            self.leave_out(one)
        if judged.again:
            self._durations_s.clear()
            self._works.clear()
            self._gpus = {uuid: _Gpu() for uuid in self._stage_of}
            self._loads, self._fresh = None, 0
        for one in judged.counted:
            self._add(one)
        return judged.counted

    def _add(self, one: Iteration) -> None:
        self._fresh += 1
        self._durations_s.append(one.duration_s)
        if one.work is not None:
            self._works.append(one.work)
        if self.gpu_shift is None:
            self.gpu_shift = self.paces.take(one.operations)
        self._training.reach(one)
        self._reach_s = max(self._reach_s, ENERGY_REACH_ITERATIONS * one.duration_s)
        for uuid, busy in one.operations.items():
            self._gpus[uuid].add(busy, one.work or 1.0)

    def see(self, snapshots: Iterable[tuple[str, GpuSnapshot, float]]) -> bool:
        """Adds observed clocks and energy counters, each with its time; False where a new window
        has to begin: a counter fell (a reloaded driver).
        """
        return all(
            self._see(uuid, snapshot, taken_s)
            for uuid, snapshot, taken_s in snapshots
            if taken_s >= self.since_s
        )

    def _see(self, uuid: str, snapshot: GpuSnapshot, taken_s: float) -> bool:
        gpu = self._gpus[uuid]
        if snapshot.clock_sm_mhz and self.begun:
            if not gpu.clocks_mhz or gpu.clocks_mhz[-1] != snapshot.clock_sm_mhz:
                self._loads = None
            gpu.clocks_mhz.append(snapshot.clock_sm_mhz)
        counter_j = snapshot.energy_j
        if counter_j is None:  # only the module's energy is counted
            counter_j = snapshot.energy_integrated_j
        return counter_j is None or gpu.see(taken_s, counter_j)

    def spent(self) -> tuple[int, float, float]:
        """Since the last call: iterations and pauses left out, joules of all GPUs, and the seconds
        of training that took them.
        """
        spans, left_out = self._training.taken()
        gpus, joules, seconds = self._gpus.values(), 0.0, 0.0
        for from_s, to_s in spans:
            each = [gpu.take(from_s, to_s, self._reach_s) for gpu in gpus]
            joules += math.fsum(one[0] for one in each)
            seconds += math.fsum(one[1] for one in each) / len(each)
        known = all(gpu.samples for gpu in gpus)  # a part is no sum
        return left_out, joules if known else 0.0, seconds if known else 0.0

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
        powers = [gpu.power_w(mean_s) for gpu in self._gpus.values()]
        known = [power for power in powers if power is not None]
        power_w = sum(known) if len(known) == len(powers) else None  # a part is no sum
        operation, gpu = ratios(one.variance for one in self._gpus.values()) or (None, None)
        works = list(self._works)[-newest:]
        return Window(
            iterations=len(times_s),
            time_mean_s=mean_s,
            time_sd_s=deviation(times_s),
            energy_j=None if power_w is None else power_w * mean_s,
            power_w=power_w,
            operation_sd_ratio=operation,
            gpu_sd_ratio=gpu,
            work_sd_ratio=deviation(works) / statistics.fmean(works) if len(works) > 1 else 0.0,
        )

    def clocks_mhz(self) -> dict[str, int]:
        """The usual clock of each GPU, where one was observed."""
        return {uuid: gpu.clock_mhz for uuid, gpu in self._gpus.items() if gpu.clocks_mhz}

    def loads(self, *, newest: bool = True) -> tuple[StageLoad, ...]:
        """Mean busy time per operation and power of every GPU, over the whole window. Where the
        `newest` iterations do not matter, as computed last under the same clocks.
        """
        if self._loads is None or (newest and self._loads_old):
            self._loads_old = False
            mean_s = statistics.fmean(self._durations_s) if self._durations_s else 0.0
            made = (
                gpu.load(uuid, self._stage_of[uuid], gpu.busy, mean_s)
                for uuid, gpu in self._gpus.items()
            )
            found = sorted(filter(None, made), key=lambda load: (load.stage, load.uuid))
            self._loads = tuple(found)
        return self._loads

    def fresh_loads(self) -> tuple[tuple[StageLoad, ...], int]:
        """The same of the iterations since the last call, where the clock they ran at was seen, and
        how many they are.
        """
        made = [
            gpu.load(uuid, self._stage_of[uuid], gpu.fresh, None)
            for uuid, gpu in sorted(self._gpus.items())
            if gpu.clocks_mhz
        ]
        for gpu in self._gpus.values():
            gpu.fresh = {}
        count, self._fresh = self._fresh, 0
        return tuple(filter(None, made)), count
