"""Pipeline of a job whose policy entry gives none, from what its own processes report.

Every GPU's source may show the shape, or parts of it. It counts once all GPUs that report agree and
schedule and microbatches are known; a job without pipeline stages is one stage. Pure, and bounded
by the GPUs that agents describe.
"""

from collections.abc import Sequence

from joulecut_engine.graph.pipeline import Pipeline
from joulecut_wire.messages import PipelineShape

# Schedules with one part of the model per GPU; of others the reports do not show the cut.
UNCHUNKED = ("gpipe", "1f1b")


def pipeline_of(shapes: Sequence[PipelineShape]) -> Pipeline | None:
    """The pipeline that these GPUs report; None where it is not known, or they disagree."""
    stages = {shape.stages for shape in shapes}
    tensor = {shape.tensor_parallel for shape in shapes}
    schedules = {shape.schedule for shape in shapes} - {""}
    microbatches = {shape.microbatches for shape in shapes} - {0}
    if len(stages) != 1 or len(tensor) != 1:
        return None
    if stages == {1}:
        schedules, microbatches = {"1f1b"}, {1}
    if len(schedules) != 1 or len(microbatches) != 1:
        return None
    schedule, count, width = schedules.pop(), stages.pop(), tensor.pop()
    if schedule not in UNCHUNKED:
        return None
    replicas = -(-len(shapes) // (count * width))
    return Pipeline(
        schedule="gpipe" if schedule == "gpipe" else "1f1b",
        stages=count,
        microbatches=microbatches.pop(),
        tensor_parallel=width,
        data_parallel=max(1, replicas),
    )


def missing(shapes: Sequence[PipelineShape]) -> str:
    """Why reported shapes are no pipeline yet; empty where nothing is reported."""
    if not shapes or pipeline_of(shapes) is not None:
        return ""
    stages = sorted({shape.stages for shape in shapes})
    names = sorted({shape.schedule for shape in shapes} - {""})
    counts = sorted({shape.microbatches for shape in shapes} - {0})
    return (
        "the job's processes do not show its whole pipeline: "
        f"stages {_listed(stages)}, schedule {_listed(names)}, microbatches {_listed(counts)}; "
        "name it: pipeline: {schedule: ..., stages: ..., microbatches: ...}"
    )


def _listed(values: list[str] | list[int]) -> str:
    return " and ".join(map(str, values)) or "unknown"
