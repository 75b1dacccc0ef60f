"""Training samples of a pass, and the error of predicted power before the estimators learn from it.

Time is learned per kind of operation from job reports. Power is learned per GPU from its energy
counter, less the waiting power: nothing measures the power of single operations. Pure.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from joulecut_controller.observe.iteration_stats import Fresh
from joulecut_controller.plan.predicted import covered
from joulecut_controller.view import GpuView, JobState, StageLoad, Window
from joulecut_engine.estimate.estimator import Estimator, Prediction, Sample, Subject
from joulecut_engine.graph.pipeline import Kind, Pipeline
from joulecut_engine.graph.schedules import programs
from joulecut_engine.graph.shape import part_of

ERROR_WEIGHT = 0.2  # of the newest pass: a mean over some ten passes
POWER_CAP = "sw_power_cap"  # the agents' word for that event reason
# Of a stage and pass. A sample takes a quarter of a millisecond, and a replica changes slowly: of
# 64 each is taken every three minutes.
REPLICAS_TAUGHT = 2
SAMPLE_WEIGHT_MAX = 20.0  # a long pause between passes must not outweigh all before it
# From this standard deviation of iterations on, work varies (clocks and heat make 0.1 to 0.5 %). A
# change that all operations share is then no effect of a clock, and the profile stands.
WORK_VARIES_RATIO = 0.01
WORK_STDERRS = 4.0  # below it: how far the mean work of some iterations may be off by chance
VARIATION_ITERATIONS_MIN = 16  # a standard deviation is then known to a sixth

Work = Mapping[tuple[int, Kind], int]


def teach(
    job: JobState,
    new: Fresh,
    estimator: Estimator,
    *,
    gpus: Mapping[str, GpuView],
    before: float | None,
    turn: int = 0,
) -> float | None:
    """Passes the fresh loads to the estimator. Returns the mean absolute relative error of power
    before it learns, None until one is known; `before` is that so far. Of many replicas of a stage
    some are taken, others at the next `turn`.

    Nothing is taken from a pace that moved until default clocks show whose it is.
    """
    pipeline, profile = job.policy.pipeline, job.policy.profile
    moves = job.measured.drift.shift_ratio != 1.0
    if profile is None or pipeline is None or job.placement.complaint or moves:
        return before
    if profile.predicted and _varies(job.measured.current):
        return before  # what iterations have in common is not known well enough
    work_of = _work(pipeline, by_part=profile.stages > pipeline.stages)
    fresh = _in_turn([load for load in new.loads if _of_one_clock(gpus.get(load.uuid), load)], turn)
    taught = {load.uuid for load in fresh}
    whole = {load.uuid: load for load in job.measured.loads if load.uuid in taught}
    samples: list[Sample] = []
    power_errors: list[float] = []
    weight = min(float(new.loaded), SAMPLE_WEIGHT_MAX)
    known_of = {load.uuid: _predicted(job, load, work_of[load.stage], estimator) for load in fresh}
    ratios_of = {
        load.uuid: _time_ratios(load, work_of[load.stage], known_of[load.uuid], pipeline)
        for load in fresh
    }
    common = _common_work(
        job.measured.current,
        new.loaded,
        [ratio for ratios in ratios_of.values() for ratio in ratios.values()],
        [
            work_of[load.stage][key] * float(known_of[load.uuid][key].time_s[0])
            for load in fresh
            for key in ratios_of[load.uuid]
        ],
    )
    for load in fresh:
        work, known = work_of[load.stage], known_of[load.uuid]
        slower = {key: ratio / common for key, ratio in ratios_of[load.uuid].items()}
        held = whole.get(load.uuid, load)
        usual = _time_ratios(held, work, known, pipeline)
        hot = _power_ratio(job, work, held.power_w, known, usual)
        if hot is not None:
            power_errors.append(abs(1.0 / hot - 1.0))
        # A predicted profile takes times as they are: its level is not known to the estimator.
        reported = ratios_of[load.uuid] if profile.predicted else slower
        for (row, kind), ratio in reported.items():
            predicted = known[row, kind]
            drawn_w = None if hot is None else hot * float(predicted.power_w[0])
            subject = Subject(job.workload, load.uuid, row, kind)
            time_s = ratio * float(predicted.time_s[0])
            asked = _held(load.uuid, job, gpus.get(load.uuid))
            samples.append(Sample(subject, load.clock_mhz, time_s, drawn_w, weight, *asked))
    estimator.learn(tuple(samples))
    return _blend(before, power_errors)


def _varies(current: Window | None) -> bool:
    """Whether the work of iterations varies, as far as that is known."""
    if current is None or current.iterations < VARIATION_ITERATIONS_MIN:
        return True
    return current.work_sd_ratio > WORK_VARIES_RATIO


def _common_work(
    current: Window | None, loaded: int, ratios: Sequence[float], predicted_s: Sequence[float]
) -> float:
    """What all operations of these iterations have in common, as far as their work varies: their
    mean work is that of other iterations, and no GPU's own.

    `ratios` are measured over predicted times by GPU and operation. Where work varies they are
    weighted by `predicted_s`: of any other mean the rest would add up, pass after pass, to an error
    of the clock's effect.
    """
    if not ratios:
        return 1.0
    common = statistics.median(ratios)
    if current is None or current.iterations < VARIATION_ITERATIONS_MIN:
        return common  # it is not known by how much it varies
    if current.work_sd_ratio > WORK_VARIES_RATIO:
        weighted = zip(ratios, predicted_s, strict=True)
        return math.fsum(ratio * weight for ratio, weight in weighted) / math.fsum(predicted_s)
    most = WORK_STDERRS * current.work_sd_ratio / math.sqrt(max(1, loaded))
    return math.exp(min(most, max(-most, math.log(common))))


@lru_cache(maxsize=64)  # shapes of jobs; some tens of milliseconds each
def _work(pipeline: Pipeline, *, by_part: bool) -> tuple[Work, ...]:
    """By stage: how often an iteration has each row and kind of the profile."""
    counts: list[Counter[tuple[int, Kind]]] = [Counter() for _ in range(pipeline.stages)]
    for program in programs(pipeline):
        for one in program:
            row = part_of(pipeline, one.stage, one.chunk) if by_part else one.stage
            counts[one.stage][row, one.kind] += 1
    return tuple(counts)


def _time_ratios(
    load: StageLoad,
    work: Work,
    known: Mapping[tuple[int, Kind], Prediction],
    pipeline: Pipeline,
) -> dict[tuple[int, Kind], float]:
    """Measured over predicted time by row and kind. Reports do not tell the parts of the model on
    one GPU apart: one ratio holds for all that a reported kind stands for.
    """
    ratios: dict[tuple[int, Kind], float] = {}
    for kind, busy_s in load.busy_s.items():
        stands_for = covered(kind, load.busy_s.keys())
        keys = [key for key in work if key[1] in stands_for]
        if not keys or not busy_s or any(key not in known for key in keys):
            continue
        count = sum(work[key] for key in keys)
        if len(stands_for) > 1:
            count = pipeline.microbatches * pipeline.chunks  # a backward each, whole or in halves
        predicted_s = sum(work[key] * float(known[key].time_s[0]) for key in keys) / count
        ratios |= dict.fromkeys(keys, busy_s / predicted_s)
    return ratios


def _of_one_clock(gpu: GpuView | None, load: StageLoad) -> bool:
    """Whether its times are of one clock: it changes within an iteration by a plan, and where a
    power limit below the card's own leaves each operation another one.
    """
    lease = gpu.snapshot.lease if gpu and gpu.snapshot else None
    if gpu is None:
        return True
    asked_mhz = lease.clock_max_mhz if lease else 0
    if gpu.power_limited and load.clock_mhz < (
        asked_mhz or max(gpu.description.clocks_mhz, default=0)
    ):
        return False
    return lease is None or not 0 < lease.clock_lowest_mhz < lease.clock_max_mhz


def _in_turn(loads: Sequence[StageLoad], turn: int) -> list[StageLoad]:
    """REPLICAS_TAUGHT loads of each stage, the next ones each turn, until all had theirs."""
    by_stage: dict[int, list[StageLoad]] = {}
    for load in loads:
        by_stage.setdefault(load.stage, []).append(load)
    return [
        load
        for replicas in by_stage.values()
        for turns in (math.ceil(len(replicas) / REPLICAS_TAUGHT),)
        for load in replicas[turn % turns :: turns]
    ]


def _held(uuid: str, job: JobState, gpu: GpuView | None) -> tuple[int | None, bool]:
    """The clock that was asked of a GPU, and whether its power cap held it lower.

    Without a lock there is no asked clock; under the power cap it is the highest one. A predicted
    profile ends at the clock that was observed, under the cap or not.
    """
    snapshot = gpu.snapshot if gpu else None
    capped = snapshot is not None and POWER_CAP in snapshot.event_reasons
    asked_mhz = job.measured.locks.get(uuid) or None
    if asked_mhz is None and job.policy.profile is not None and job.policy.profile.predicted:
        return None, False
    if asked_mhz is None and capped and gpu is not None and gpu.description.clocks_mhz:
        asked_mhz = gpu.description.clocks_mhz[-1]
    return asked_mhz, capped


def _power_ratio(
    job: JobState,
    work: Work,
    power_w: float | None,
    known: Mapping[tuple[int, Kind], Prediction],
    slower: Mapping[tuple[int, Kind], float],
) -> float | None:
    """Measured over predicted power of a GPU while it works, waiting taken off. `slower` are the
    ratios of operation times over the whole window.
    """
    current = job.measured.current
    if power_w is None or current is None or slower.keys() != work.keys():
        return None
    busy_s = working_j = 0.0
    for key, ratio in slower.items():
        worked_s = work[key] * ratio * float(known[key].time_s[0])
        busy_s += worked_s
        working_j += worked_s * float(known[key].power_w[0])
    waiting_s = max(0.0, current.time_mean_s - busy_s)
    drawn_j = power_w * current.time_mean_s - job.policy.blocking_power_w * waiting_s
    return drawn_j / working_j if drawn_j > 0 and working_j > 0 else None


def _predicted(
    job: JobState, load: StageLoad, work: Work, estimator: Estimator
) -> dict[tuple[int, Kind], Prediction]:
    """By row and kind, at the clock it ran at; without those of which nothing is known."""
    found = {
        (row, kind): estimator.predict(
            Subject(job.workload, load.uuid, row, kind), (load.clock_mhz,)
        )
        for row, kind in work
    }
    return {key: predicted for key, predicted in found.items() if predicted is not None}


def _blend(before: float | None, errors: list[float]) -> float | None:
    if not errors:
        return before
    mean = sum(errors) / len(errors)
    return mean if before is None else before + ERROR_WEIGHT * (mean - before)
