"""Shadow evaluation: scores recommendations whose clocks run for any reason.

A GPU whose clock stays constant for long enough gives a steady interval, which is scored against
every promise for that clock. Bounded: one promise per changed recommendation, and a few scores per
GPU and hour.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, pairwise

from joulecut_controller.observe.measurement_window import KINDS_MAX, RECENT
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.plan import Plan
from joulecut_controller.plan.planner import Choice
from joulecut_controller.policy.policy import Ranks
from joulecut_controller.ports import Record, Store
from joulecut_controller.verify.shadow import (
    TOPIC,
    Observed,
    Promise,
    Promised,
    Score,
    ShadowState,
    Verdict,
    from_json,
    scored,
    to_json,
    verdict,
)
from joulecut_controller.view import GpuView, StageLoad, View
from joulecut_engine.graph.pipeline import KINDS
from joulecut_engine.graph.shape import kinds_of
from joulecut_wire.errors import JoulecutError

# Iterations in a stay: as many as `JobView.current` is a mean of, whose duration goes with it.
ITERATIONS_MIN = RECENT
SECONDS_MIN = 10.0  # the energy counter moves every 100 ms: 1 % of this at either end
SETTLE_PASSES = 2  # reports of a pass may be of the clocks before
REST_S = 900.0  # then the same GPU is scored at the same clock again
SCORES_KEPT = 512  # a job of 64 GPUs at two clocks, four times
PROMISES_KEPT = 16  # a model that learns changes its mind some times a day
UNSAVED_MAX = 16_384  # while the store cannot; the oldest are lost then
SAVED_PER_PASS = 64  # of 10,000 GPUs there are 55 a pass, at two milliseconds of a thread each
RECORDS_READ = 1_000  # all scores that are kept, and the promises between them

_RANKS: Mapping[Ranks, str] = {
    "hook": "reported by the job",
    "list": "as listed",
    "completion-index": "as counted",
}


@dataclass(slots=True)
class SteadyInterval:
    """One GPU since its clock last moved."""

    clock_mhz: int
    passes: int = 0
    iterations: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)  # sums of means, by iteration
    begun: tuple[float, float] | None = None  # seconds, joules
    ended: tuple[float, float] | None = None

    def observed(self, uuid: str, iteration_s: float) -> Observed | None:
        """None while it is too short."""
        if self.iterations < ITERATIONS_MIN or self.begun is None or self.ended is None:
            return None
        seconds = self.ended[0] - self.begun[0]
        if seconds < SECONDS_MIN:
            return None
        joules = self.ended[1] - self.begun[1]
        return Observed(
            uuid=uuid,
            clock_mhz=self.clock_mhz,
            busy_s={kind: sum_s / self.iterations for kind, sum_s in self.busy_s.items()},
            iteration_s=iteration_s,
            power_w=joules / seconds if joules > 0.0 else None,
        )

    def work(self, load: StageLoad | None, iterations: int, passes: int) -> None:
        """Iterations that the GPU worked at this clock, by the job's reports of `passes`."""
        if load is None or self.passes < SETTLE_PASSES + passes:
            return
        self.iterations += iterations
        for kind, busy_s in load.busy_s.items():
            if kind not in self.busy_s and len(self.busy_s) >= KINDS_MAX:
                continue
            self.busy_s[kind] = self.busy_s.get(kind, 0.0) + busy_s * iterations


def extended(interval: SteadyInterval | None, gpu: GpuView, taken_s: float) -> SteadyInterval:
    """The interval with this sample; a new one where the clock changed or the counter fell."""
    shown = gpu.snapshot
    assert shown is not None
    mhz = shown.clock_sm_mhz or 0
    if interval is None or not alike(interval.clock_mhz, mhz, gpu):
        return SteadyInterval(mhz)
    interval.passes += 1
    if interval.passes <= SETTLE_PASSES or shown.energy_j is None:
        return interval
    if interval.ended is not None and shown.energy_j < interval.ended[1]:
        return SteadyInterval(mhz)
    interval.begun = interval.begun or (taken_s, shown.energy_j)
    interval.ended = (taken_s, shown.energy_j)
    return interval


def alike(one_mhz: int, other_mhz: int, gpu: GpuView) -> bool:
    """Within one step of the GPU's own clock list."""
    return abs(one_mhz - other_mhz) <= _step_mhz(gpu.description.clocks_mhz)


@lru_cache(maxsize=64)  # models of card in one cluster
def _step_mhz(clocks_mhz: tuple[int, ...]) -> int:
    return max((high - low for low, high in pairwise(clocks_mhz)), default=0)


@dataclass(slots=True)
class _JobScores:
    """One job."""

    promises: deque[Promise] = field(default_factory=lambda: deque(maxlen=PROMISES_KEPT))
    scores: deque[Score] = field(default_factory=lambda: deque(maxlen=SCORES_KEPT))
    intervals: dict[str, SteadyInterval] = field(default_factory=dict)
    rested_s: dict[tuple[int, str, int], float] = field(default_factory=dict)
    indexed_as: tuple[object, ...] = ()
    by_gpu: dict[str, list[tuple[Promise, Promised]]] = field(default_factory=dict)

    def promised(self, shape: str) -> Mapping[str, Sequence[tuple[Promise, Promised]]]:
        """By GPU, the promises for its clocks in this shape of the job. Older ones count too: a
        promise made before anything was learned of a clock is the honest test. Default clocks are
        scored against the newest alone. Indexed once: a job may have thousands of GPUs.
        """
        mine = [promise for promise in self.promises if promise.shape == shape]
        indexed_as = (shape, *(promise.generation for promise in mine))
        if self.indexed_as != indexed_as:
            self.indexed_as, self.by_gpu = indexed_as, {}
            for promise in mine:
                for one in (*promise.lowered, *(promise.default if promise is mine[-1] else ())):
                    self.by_gpu.setdefault(one.uuid, []).append((promise, one))
        return self.by_gpu


class ShadowEvaluation:
    """Promises and scores of every job."""

    def __init__(self, store: Store, unix_s: Callable[[], float]) -> None:
        self._store, self._unix_s = store, unix_s
        self._jobs: dict[str, _JobScores] = {}
        # In order: no score has a meaning without the promise before it.
        self._unsaved: deque[Promise | Score] = deque(maxlen=UNSAVED_MAX)

    def keep_only(self, jobs: Iterable[str]) -> None:
        """Forgets jobs that left the policy; their records stay in the store."""
        wanted = set(jobs)
        for job in [job for job in self._jobs if job not in wanted]:
            del self._jobs[job]

    async def recall(self, job: str) -> None:
        """Reads the records of an earlier controller, once, before the job is noted or seen."""
        if job not in self._jobs:
            self._jobs[job] = await asyncio.to_thread(self._recalled, job)

    def note(self, observation: JobObservation, study: tuple[int, Choice] | None) -> None:
        """Records the promise of a new plan, unless its clocks are those of the last promise."""
        made = study and _promise(observation, *study, self._unix_s())
        if not made:
            return
        job_scores = self._jobs[made.job]
        before = job_scores.promises[-1] if job_scores.promises else None
        if before and (before.shape, _clocks(before)) == (made.shape, _clocks(made)):
            return
        job_scores.promises.append(made)
        self._unsaved.append(made)
        known = {promise.generation for promise in job_scores.promises}
        job_scores.rested_s = {
            key: at_s for key, at_s in job_scores.rested_s.items() if key[0] in known
        }

    def see(self, observation: JobObservation, view: View) -> None:
        """Once a pass: scores steady intervals against promises."""
        name = observation.view.policy.name
        job_scores = self._jobs[name]
        measured = observation.measured
        fresh = {load.uuid: load for load in measured.fresh}
        intervals = {}
        for uuid in observation.placement.uuids:
            gpu = view.gpus.get(uuid)
            if gpu is None or gpu.snapshot is None or not gpu.snapshot.clock_sm_mhz:
                continue
            interval = extended(job_scores.intervals.get(uuid), gpu, view.now_s - gpu.age_s)
            interval.work(fresh.get(uuid), measured.fresh_loaded, measured.fresh_passes)
            intervals[uuid] = interval
        # While a straggler is waited for, power is that of waiting.
        job_scores.intervals = {} if measured.straggling else intervals
        current, promised = observation.view.current, job_scores.promised(observation.shape)
        for uuid, interval in intervals.items() if job_scores.intervals else ():
            seen = interval.observed(uuid, current.time_mean_s) if current else None
            if seen is not None:
                self._score(job_scores, promised.get(uuid, ()), seen, view.gpus[uuid], view.now_s)

    def verdict(self, observation: JobObservation, decision: Plan | None) -> Verdict | None:
        """Whether enforcing is advisable. None where the question does not arise: in another mode,
        under a reservation, without a profile (such a job is explored within its target), and
        before the job has been seen.
        """
        job, policy = observation.view, observation.view.policy
        job_scores = self._jobs.get(policy.name)
        if policy.profile is None or policy.mode != "recommend" or job.reservation:
            return None
        if job_scores is None:
            return None
        last = job_scores.promises[-1] if job_scores.promises else None
        fits = last is not None and last.shape == observation.shape
        slack = None
        if decision and decision.forecast and decision.deadline_s:
            slack = 1.0 - decision.forecast.iteration_time_s / decision.deadline_s
            slack = max(0.0, slack) if slack > -1e-9 else slack
        baseline = job.baseline
        state = ShadowState(
            promise=last if fits else None,
            baseline_s=baseline.time_mean_s if baseline else None,
            baseline_j=baseline.energy_j if baseline else None,
            slack=slack,
            doubt=job.complaint or job.hindrance or job.external_lock,
            ranks=_RANKS[policy.ranks],
        )
        return verdict(state, job_scores.scores, self._unix_s())

    def _recalled(self, job: str) -> _JobScores:
        """The records of an earlier controller; empty where the store cannot be read."""
        job_scores = _JobScores()
        with suppress(JoulecutError):
            for record in reversed(self._store.records(TOPIC, job=job, limit=RECORDS_READ)):
                with suppress(ValueError):
                    one = from_json(record.content)
                    if isinstance(one, Promise):
                        job_scores.promises.append(one)
                    else:
                        job_scores.scores.append(one)
        return job_scores

    def _score(
        self,
        job_scores: _JobScores,
        promised: Sequence[tuple[Promise, Promised]],
        seen: Observed,
        gpu: GpuView,
        now_s: float,
    ) -> None:
        """Scores one GPU against every promise for its observed clock."""
        for promise, one in promised:
            if not alike(one.clock_mhz, seen.clock_mhz, gpu):
                continue
            key = (promise.generation, one.uuid, one.clock_mhz)
            if now_s - job_scores.rested_s.get(key, -math.inf) < REST_S:
                continue
            score = scored(promise, one, seen, self._unix_s())
            if score is not None:
                job_scores.rested_s[key] = now_s
                job_scores.scores.append(score)
                self._unsaved.append(score)
                job_scores.intervals[seen.uuid] = SteadyInterval(seen.clock_mhz, SETTLE_PASSES)

    async def save(self) -> None:
        """Stores promises and scores, some at a time, in a thread. A failing store is tried again
        later; a promise too large for a record is kept in memory only.
        """
        due = tuple(islice(self._unsaved, SAVED_PER_PASS))
        saved = await asyncio.to_thread(self._saved, due) if due else 0
        for _ in range(min(saved, len(self._unsaved))):
            self._unsaved.popleft()

    def _saved(self, due: Sequence[Promise | Score]) -> int:
        """How many need not be tried again."""
        for count, one in enumerate(due):
            try:
                self._store.keep_record(Record(self._unix_s(), TOPIC, one.job, to_json(one)))
            except JoulecutError:
                return count
            except ValueError:  # a promise to very many GPUs; what comes after it may fit
                pass
        return len(due)


def _clocks(promise: Promise) -> set[tuple[str, int]]:
    return {(one.uuid, one.clock_mhz) for one in promise.lowered}


def _promise(
    observation: JobObservation, generation: int, choice: Choice, at_unix_s: float
) -> Promise | None:
    """None where no clock is lowered, or reports do not contain the plan's operations."""
    job, costs = observation.view, choice.costs
    pipeline = costs.pipeline
    if pipeline.chunks > 1 or kinds_of(pipeline) != KINDS or job.baseline is None:
        return None
    asked: dict[int, set[int]] = {}
    for operation, mhz in zip(costs.problem.graph.operations, choice.clocks, strict=True):
        asked.setdefault(operation.stage, set()).add(mhz)
    lowered, default = [], []
    for stage, uuids in enumerate(costs.gpus):  # stages of the graph
        default_mhz, clocks = costs.default_mhz[stage], asked.get(stage, set())
        for uuid in uuids:
            default.append(_promised(choice, stage, uuid, default_mhz))
            # A GPU with a clock of its own has no promise: its time is not predicted alone.
            at_own = any(costs.clock_of(uuid, mhz) != mhz for mhz in clocks)
            lower = sorted(mhz for mhz in clocks if mhz < default_mhz and not at_own)
            lowered += [_promised(choice, stage, uuid, mhz) for mhz in lower]
    if not lowered:
        return None
    comparison = choice.comparison
    return Promise(
        job=job.policy.name,
        shape=observation.shape,
        generation=generation,
        made_at_unix_s=at_unix_s,
        iteration_time_s=choice.forecast.iteration_time_s,
        energy_j=choice.forecast.energy_j,
        default_time_s=comparison.default.mean_s,
        default_energy_j=choice.forecast.baseline_energy_j,
        microbatches=pipeline.microbatches,
        blocking_power_w=job.policy.blocking_power_w,
        lowered=tuple(lowered),
        default=tuple(default),
    )


def _promised(choice: Choice, stage: int, uuid: str, clock_mhz: int) -> Promised:
    options = {kind: choice.costs.uniform[stage, kind][clock_mhz] for kind in KINDS}
    return Promised(
        uuid=uuid,
        clock_mhz=clock_mhz,
        time_s={kind: option.time_s for kind, option in options.items()},
        power_w={kind: choice.costs.power_w(stage, one) for kind, one in options.items()},
    )
