"""Training samples of a pass, and the prediction errors before the estimators learn from them.

Time is learned per kind of operation from job reports. Power is learned per GPU from its energy
counter, less the waiting power: nothing measures the power of single operations. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from joulecut_controller.observe.iteration_stats import Measured
from joulecut_controller.view import GpuView, JobView, StageLoad
from joulecut_engine.estimate.estimator import (
    CAP_REASONS,
    Estimator,
    Prediction,
    Sample,
    Subject,
)
from joulecut_engine.graph.pipeline import KINDS, Kind
from joulecut_engine.graph.shape import kinds_of

ERROR_WEIGHT = 0.2  # of the newest pass: a mean over some ten passes
POWER_CAP = "sw_power_cap"  # the agents' word for that event reason
# Of a stage and pass. A sample takes a quarter of a millisecond, and a replica changes slowly: of
# 64 each is taken every three minutes.
REPLICAS_TAUGHT = 2
SAMPLE_WEIGHT_MAX = 20.0  # a long pause between passes must not outweigh all before it


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean absolute relative errors of predictions; None before the first comparison."""

    time_ratio: float | None = None
    power_ratio: float | None = None


def teach(
    job: JobView,
    measured: Measured,
    estimator: Estimator,
    *,
    gpus: Mapping[str, GpuView],
    before: Errors,
    now_s: float,
    turn: int = 0,
) -> Errors:
    """Passes the fresh loads to the estimator. Errors are taken before it learns. Of many replicas
    of a stage some are taken, others at the next `turn`.
    """
    pipeline = job.policy.pipeline
    if job.policy.profile is None or pipeline is None or job.complaint:
        return before
    if pipeline.chunks > 1 or kinds_of(pipeline) != KINDS:
        return before  # reports separate neither chunks nor the halves of a backward
    fresh = _in_turn([load for load in measured.fresh if not _mixed(gpus.get(load.uuid))], turn)
    taught = {load.uuid for load in fresh}
    power_w = {load.uuid: load.power_w for load in measured.loads if load.uuid in taught}
    samples: list[Sample] = []
    time_errors: list[float] = []
    power_errors: list[float] = []
    weight = min(float(measured.fresh_iterations), SAMPLE_WEIGHT_MAX)
    for load in fresh:
        known = _predicted(job, load, estimator)
        hot = _power_ratio(job, load, power_w.get(load.uuid), known)
        if hot is not None:
            power_errors.append(abs(1.0 / hot - 1.0))
        for kind, predicted in known.items():
            busy_s = load.busy_s.get(kind)
            if not busy_s:
                continue
            time_errors.append(abs(float(predicted.time_s[0]) - busy_s) / busy_s)
            drawn_w = None if hot is None else hot * float(predicted.power_w[0])
            subject = Subject(job.policy.name, load.uuid, load.stage, kind)
            sample = Sample(subject, load.clock_mhz, busy_s, drawn_w, weight)
            samples.append(_with_metadata(sample, measured, gpus.get(load.uuid), now_s))
    estimator.learn(tuple(samples))
    return Errors(_blend(before.time_ratio, time_errors), _blend(before.power_ratio, power_errors))


def _mixed(gpu: GpuView | None) -> bool:
    """Whether its clock changes within an iteration, so that its times are of no one clock."""
    lease = gpu.snapshot.lease if gpu and gpu.snapshot else None
    return lease is not None and 0 < lease.clock_lowest_mhz < lease.clock_max_mhz


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


def _with_metadata(sample: Sample, measured: Measured, gpu: GpuView | None, now_s: float) -> Sample:
    """The sample with its metadata: asked clock, event reasons, temperature, time, iteration.

    Without a lock there is no asked clock; under the power cap it is the highest one.
    """
    snapshot = gpu.snapshot if gpu else None
    capped = snapshot is not None and POWER_CAP in snapshot.event_reasons
    asked_mhz = measured.locks.get(sample.subject.uuid) or None
    if asked_mhz is None and capped and gpu is not None and gpu.description.clocks_mhz:
        asked_mhz = gpu.description.clocks_mhz[-1]
    return replace(
        sample,
        asked_mhz=asked_mhz,
        event_reasons=CAP_REASONS if capped else 0,
        temperature_c=snapshot.temperature_celsius if snapshot else None,
        at_s=now_s,
        iteration=measured.fresh_last,
    )


def _power_ratio(
    job: JobView, load: StageLoad, power_w: float | None, known: Mapping[Kind, Prediction]
) -> float | None:
    """Measured over predicted power of a GPU while it works, waiting taken off."""
    pipeline, current = job.policy.pipeline, job.current
    assert pipeline is not None
    if power_w is None or current is None:
        return None
    busy_s = working_j = 0.0
    for kind in KINDS:
        if kind not in known or kind not in load.busy_s:
            return None
        busy_s += pipeline.microbatches * load.busy_s[kind]
        working_j += pipeline.microbatches * load.busy_s[kind] * float(known[kind].power_w[0])
    waiting_s = max(0.0, current.time_mean_s - busy_s)
    drawn_j = power_w * current.time_mean_s - job.policy.blocking_power_w * waiting_s
    return drawn_j / working_j if drawn_j > 0 and working_j > 0 else None


def _predicted(job: JobView, load: StageLoad, estimator: Estimator) -> dict[Kind, Prediction]:
    """By kind, at the clock it ran at; without the kinds of which nothing is known."""
    found = {
        kind: estimator.predict(
            Subject(job.policy.name, load.uuid, load.stage, kind), (load.clock_mhz,)
        )
        for kind in KINDS
    }
    return {kind: predicted for kind, predicted in found.items() if predicted is not None}


def _blend(before: float | None, errors: list[float]) -> float | None:
    if not errors:
        return before
    mean = sum(errors) / len(errors)
    return mean if before is None else before + ERROR_WEIGHT * (mean - before)
