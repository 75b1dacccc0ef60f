"""Jitter of a running job, from its baseline.

Clocks that use up all slack run later than mean times predict; default clocks hardly do. A plan
made without jitter is late at first and backs off, so plans use the job's own variances.
"""

import math

from joulecut_controller.view import JobState, Window
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_engine.optimize.jitter import Noise

# Less makes a plan late by less than 0.02 %, and costs as much to compute as more does.
OPERATION_MIN = 0.0005
# A job with more has something else than jitter, and its graph would not explain it.
OPERATION_MAX = 0.2
# Where operations are not reported: with more, whole iterations vary instead (sequence lengths).
OPERATION_UNKNOWN_MAX = 0.05
GPU_MIN = 0.0005
# Variances are held while new ones are within this: from 30 iterations a standard deviation is
# known to an eighth, and every change means another solve.
HELD_RATIO = 0.25


STILL = Noise()


def jitter_of(job: JobState, held: Noise | None) -> Noise:
    """Jitter measured at default clocks; `held` where the two differ by less than the error."""
    pipeline, baseline = job.policy.pipeline, job.measured.baseline
    if pipeline is None or baseline is None:
        return STILL
    operation, gpu = _operation(baseline, pipeline), baseline.gpu_sd_ratio or 0.0
    seen = Noise(
        operation=operation if operation >= OPERATION_MIN else 0.0,
        gpu=min(gpu, _iteration(baseline)) if gpu >= GPU_MIN else 0.0,
        siblings=pipeline.replicas,
    )
    return held if held is not None and _near(held, seen) else seen


def _iteration(window: Window) -> float:
    return window.time_sd_s / window.time_mean_s


def _operation(window: Window, pipeline: Pipeline) -> float:
    """Relative standard deviation of one operation.

    Along the longest path deviations of some 2 (M + S - 1) operations average out (M of each
    chunk); an iteration varies for other reasons too, so this is the most it can be, and all there
    is where the job reports no operations.
    """
    along = 2.0 * (pipeline.microbatches * pipeline.chunks + pipeline.stages - 1)
    known = window.operation_sd_ratio
    if known is None:
        return min(OPERATION_UNKNOWN_MAX, _iteration(window) * math.sqrt(along))
    return min(known, OPERATION_MAX)


def _near(held: Noise, seen: Noise) -> bool:
    if held.siblings != seen.siblings:
        return False
    pairs = (
        (held.operation, seen.operation, OPERATION_MIN),
        (held.gpu, seen.gpu, GPU_MIN),
    )
    return all(abs(a - b) <= max(HELD_RATIO * a, least) for a, b, least in pairs)
