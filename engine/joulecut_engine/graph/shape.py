"""Shapes that each schedule supports, and the placement of the model's parts on GPUs.

A part is one chunk of one stage; parts count from 0 in model order.
"""

from dataclasses import dataclass

from joulecut_engine.graph.pipeline import EVALUATION, SCHEDULES_ALL, Kind, Pipeline, Schedule

# Part s on GPU s, the next round of parts in the same order: SC21, figure 4.
LOOPED: tuple[Schedule, ...] = ("interleaved-1f1b", "zb-h1")
# The first and the last part share a GPU.
V_SHAPED: tuple[Schedule, ...] = ("zb-v", "dualpipe-v")
V_CHUNKS = 2
STAGES_MAX = 256  # the deepest published pipelines have 64
MICROBATCHES_MAX = 4096
CHUNKS_MAX = 64  # the deepest published models have 128 layers

_COMPUTED: dict[Schedule, tuple[Kind, ...]] = {
    EVALUATION: ("forward",),
    "zb-h1": ("forward", "input", "weight"),
    "zb-h2": ("forward", "input", "weight"),
    "zb-v": ("forward", "input", "weight"),
    "dualpipe-v": ("forward", "backward", "input", "weight"),
}


@dataclass(frozen=True, slots=True)
class Misfit:
    """A key of the shape that its schedule does not support."""

    key: str
    what: str
    allowed: str


def misfit(pipeline: Pipeline) -> Misfit | None:
    """The first key of a shape that its schedule does not support; None if it fits."""
    schedule, stages, microbatches = pipeline.schedule, pipeline.stages, pipeline.microbatches
    if schedule not in (*SCHEDULES_ALL, EVALUATION):
        return Misfit("schedule", f"{schedule!r} is not laid out", " | ".join(SCHEDULES_ALL))
    for key, count in (("stages", stages), ("microbatches", microbatches)):
        if count < 1:
            return Misfit(key, f"{stages} stages x {microbatches} microbatches", "each at least 1")
    chunks = pipeline.chunks
    low, high = _chunks_allowed(schedule)
    if not low <= chunks <= high:
        allowed = str(low) if low == high else f"{low} to {high}"
        return Misfit("chunks", f"{chunks} with {schedule}", allowed)
    if schedule in LOOPED and chunks > 1 and microbatches % stages:
        # Megatron-LM's condition: whole rounds of `stages` microbatches through every chunk.
        what = f"{microbatches} microbatches on {stages} stages with {schedule}"
        return Misfit("microbatches", what, f"a multiple of {stages}")
    if schedule == "dualpipe-v" and microbatches < 2 * stages:
        what = f"{microbatches} microbatches on {stages} stages with {schedule}"
        return Misfit("microbatches", what, f"at least {2 * stages}, twice the stages")
    return None


def chunks_of(schedule: Schedule, given: int | None) -> int:
    """How many chunks a GPU holds where the operator gave that number, or gave none."""
    if given is not None:
        return given
    return V_CHUNKS if schedule in V_SHAPED or schedule == "interleaved-1f1b" else 1


def part_of(pipeline: Pipeline, stage: int, chunk: int) -> int:
    """Which part of the model a chunk of a stage is."""
    if pipeline.schedule in V_SHAPED and chunk == 1:
        return 2 * pipeline.stages - 1 - stage
    return chunk * pipeline.stages + stage


def kinds_of(pipeline: Pipeline) -> tuple[Kind, ...]:
    """Every kind of operation that an iteration of this shape is made of."""
    computed = _COMPUTED.get(pipeline.schedule, ("forward", "backward"))
    extra: list[Kind] = []
    if pipeline.tensor_collective:
        extra += ["tensor-forward", "tensor-backward"]
    if pipeline.transfers != "free":
        extra += ["send-forward", "send-backward"]
    if pipeline.data_collective:
        extra.append("collective")
    if pipeline.optimizer:
        extra.append("optimizer")
    return (*computed, *extra)


def _chunks_allowed(schedule: Schedule) -> tuple[int, int]:
    if schedule in V_SHAPED:
        return V_CHUNKS, V_CHUNKS
    if schedule == "interleaved-1f1b":
        return 2, CHUNKS_MAX
    return (1, CHUNKS_MAX) if schedule in LOOPED else (1, 1)
