"""How a model is trained: parallelism, schedule, batch, precision, clock."""

from dataclasses import dataclass
from typing import Literal

from joulecut_engine.graph.pipeline import Pipeline, Schedule
from joulecut_engine.graph.shape import V_CHUNKS, V_SHAPED, Misfit
from joulecut_engine.graph.shape import misfit as schedule_misfit
from joulecut_engine.model.architecture import Architecture

Recompute = Literal["none", "selective", "full"]
Offload = Literal["none", "activations", "optimizer"]
DTYPES = ("fp32", "fp16", "bf16", "fp8", "fp4")
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
OFFLOADS: tuple[Offload, ...] = ("none", "activations", "optimizer")
SCHEDULES: tuple[Schedule, ...] = (
    "gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v",
)  # fmt: skip
ZERO_MAX = 3


@dataclass(frozen=True, slots=True)
class Run:
    """One training run. Batches count sequences, `sequence` counts tokens.

    gpus = tensor * pipeline * data * context; `expert` divides data * context. `1f1b` with several
    chunks is interleaved. `clock_mhz` 0 stands for the highest. `zero` is the stage of ZeRO: 1
    shards the optimizer, 2 gradients too, 3 weights too (FSDP).
    """

    gpus: int
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    schedule: Schedule = "1f1b"
    chunks: int = 1
    microbatch: int = 1
    global_batch: int = 1
    sequence: int = 2048
    dtype: str = "bf16"
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    zero: int = 0
    overlap_gradients: bool = False
    flash_attention: bool = False
    clock_mhz: float = 0.0
    offload: Offload = "none"
    fused_loss: bool = False  # cross entropy without a 32-bit copy of the logits
    dropout: bool = True  # masks of a byte per number are kept; models with gated blocks have none
    overlap_tensor: bool = False  # collectives of the tensor group beside matrix products
    gradient_bytes: int = 4  # 32-bit sums of 16-bit gradients, as Megatron keeps them
    forward_only: bool = False  # evaluation: neither gradients nor optimizer
    cuda_graphs: bool = False  # the host launches no single kernels

    @property
    def microbatches(self) -> int:
        return self.global_batch // (self.data * self.microbatch)

    @property
    def order(self) -> Schedule:
        """The schedule with its chunks taken into account."""
        return "interleaved-1f1b" if self.schedule == "1f1b" and self.chunks > 1 else self.schedule

    @property
    def parts_per_stage(self) -> int:
        """Parts of the model on one stage; V-shaped schedules have two."""
        return V_CHUNKS if self.schedule in V_SHAPED else self.chunks

    def shape(self) -> Pipeline:
        """The run as the graph package knows it."""
        return Pipeline(
            schedule=self.order,
            stages=self.pipeline,
            microbatches=self.microbatches,
            tensor_parallel=self.tensor,
            data_parallel=self.data,
            chunks=self.parts_per_stage,
            transfers="overlapped" if self.pipeline > 1 else "free",
            data_collective=self.data * self.context > 1,
            optimizer=True,
        )


def misfit(run: Run, architecture: Architecture) -> Misfit | None:
    """The first key that cannot be; None if the run is possible. Memory is not looked at."""
    checks = (_values, _sizes, _shares)
    for check in checks:
        found = check(run, architecture)
        if found is not None:
            return found
    return schedule_misfit(run.shape()) if run.pipeline > 1 else None


def _values(run: Run, _: Architecture) -> Misfit | None:
    choices = (
        ("schedule", run.schedule, SCHEDULES),
        ("dtype", run.dtype, DTYPES),
        ("recompute", run.recompute, RECOMPUTES),
        ("offload", run.offload, OFFLOADS),
        ("zero", run.zero, tuple(range(ZERO_MAX + 1))),
    )
    for key, value, allowed in choices:
        if value not in allowed:
            return Misfit(key, repr(value), " | ".join(map(str, allowed)))
    return None


def _sizes(run: Run, _: Architecture) -> Misfit | None:
    keys = (
        "gpus", "tensor", "pipeline", "data", "context", "expert", "chunks", "microbatch",
        "global_batch", "sequence",
    )  # fmt: skip
    for key in keys:
        if getattr(run, key) < 1:
            return Misfit(key, str(getattr(run, key)), "at least 1")
    product = run.tensor * run.pipeline * run.data * run.context
    if product != run.gpus:
        what = f"{run.gpus}, but tensor x pipeline x data x context is {product}"
        return Misfit("gpus", what, str(product))
    return None


def _shares(run: Run, model: Architecture) -> Misfit | None:
    """Whether every share is whole."""
    group = run.data * run.context
    parts = run.pipeline * run.parts_per_stage if run.pipeline > 1 else 1
    rules = (
        ("tensor", model.heads % run.tensor == 0, f"a divisor of {model.heads} heads"),
        ("pipeline", parts <= model.layers, f"at most {model.layers} layers in {parts} parts"),
        (
            "global_batch",
            run.global_batch % (run.data * run.microbatch) == 0,
            f"a multiple of data x microbatch, {run.data * run.microbatch}",
        ),
        ("sequence", run.sequence % run.context == 0, f"a multiple of context, {run.context}"),
        ("expert", group % run.expert == 0, f"a divisor of data x context, {group}"),
        (
            "expert",
            run.expert == 1 or (model.experts > 0 and model.experts % run.expert == 0),
            f"a divisor of {model.experts} experts" if model.experts else "1, without experts",
        ),
    )
    for key, holds, allowed in rules:
        if not holds:
            return Misfit(key, str(getattr(run, key)), allowed)
    return None
