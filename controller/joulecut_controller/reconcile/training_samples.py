"""Training samples of a pass, and the prediction errors before the estimators learn from them.

Time is learned per kind of operation from job reports. Power is learned per GPU from its energy
counter, less the waiting power: nothing measures the power of single operations. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from joulecut_controller.observe.iteration_stats import Measured
from joulecut_controller.view import GpuView, JobView, StageLoad
from joulecut_engine.estimate.estimator import CAP_REASONS, Estimator, Sample, Subject
from joulecut_engine.graph.pipeline import KINDS, Kind
from joulecut_engine.graph.shape import kinds_of

ERROR_WEIGHT = 0.2  # of the newest pass: a mean over some ten passes
POWER_CAP = "sw_power_cap"  # the agents' word for that event reason
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
) -> Errors:
    """Passes the fresh loads to the estimator. Errors are taken before it learns."""
    pipeline = job.policy.pipeline
    if job.policy.profile is None or pipeline is None or job.complaint:
        return before
    if pipeline.chunks > 1 or kinds_of(pipeline) != KINDS:
        return before  # reports separate neither chunks nor the halves of a backward
    power_w = {load.uuid: load.power_w for load in measured.loads}
    samples: list[Sample] = []
    time_errors: list[float] = []
    power_errors: list[float] = []
    for load in measured.fresh:
        hot = _power_ratio(job, load, power_w.get(load.uuid), estimator)
        if hot is not None:
            power_errors.append(abs(1.0 / hot - 1.0))
        for kind in KINDS:
            busy_s = load.busy_s.get(kind)
            if not busy_s:
                continue
            subject = Subject(job.policy.name, load.uuid, load.stage, kind)
            predicted = estimator.predict(subject, (load.clock_mhz,))
            if predicted is None:
                continue
            time_errors.append(abs(float(predicted.time_s[0]) - busy_s) / busy_s)
            drawn_w = None if hot is None else hot * float(predicted.power_w[0])
            weight = min(float(measured.fresh_iterations), SAMPLE_WEIGHT_MAX)
            sample = Sample(subject, load.clock_mhz, busy_s, drawn_w, weight)
            samples.append(_with_metadata(sample, measured, gpus.get(load.uuid), now_s))
    estimator.learn(tuple(samples))
    return Errors(_blend(before.time_ratio, time_errors), _blend(before.power_ratio, power_errors))


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
    job: JobView, load: StageLoad, power_w: float | None, estimator: Estimator
) -> float | None:
    """Measured over predicted power of a GPU while it works, waiting taken off."""
    pipeline, current = job.policy.pipeline, job.current
    assert pipeline is not None
    if power_w is None or current is None:
        return None
    busy_s = working_j = 0.0
    for kind in KINDS:
        predicted = _predicted(job, load, kind, estimator)
        if predicted is None or kind not in load.busy_s:
            return None
        busy_s += pipeline.microbatches * load.busy_s[kind]
        working_j += pipeline.microbatches * load.busy_s[kind] * predicted
    waiting_s = max(0.0, current.time_mean_s - busy_s)
    drawn_j = power_w * current.time_mean_s - job.policy.blocking_power_w * waiting_s
    return drawn_j / working_j if drawn_j > 0 and working_j > 0 else None


def _predicted(job: JobView, load: StageLoad, kind: Kind, estimator: Estimator) -> float | None:
    subject = Subject(job.policy.name, load.uuid, load.stage, kind)
    predicted = estimator.predict(subject, (load.clock_mhz,))
    return None if predicted is None else float(predicted.power_w[0])


def _blend(before: float | None, errors: list[float]) -> float | None:
    if not errors:
        return before
    mean = sum(errors) / len(errors)
    return mean if before is None else before + ERROR_WEIGHT * (mean - before)
