"""How a model is trained: parallelism, schedule, batch, precision, clock."""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

from joulecut_engine.graph.pipeline import SCHEDULES_ALL, Pipeline, Schedule
from joulecut_engine.graph.shape import V_CHUNKS, V_SHAPED, Misfit
from joulecut_engine.graph.shape import misfit as schedule_misfit
from joulecut_lab.model.architecture import Architecture

Dtype = Literal["fp32", "fp16", "bf16", "fp8", "fp4"]
Recompute = Literal["none", "selective", "pointwise", "experts", "full"]
Offload = Literal["none", "activations", "optimizer"]
Scaling = Literal["delayed", "dynamic"]
# Kernels of fused attention; `system`: the one that the system's number stands for.
Attention = Literal["system", "flash2", "flash3", "cudnn"]
# How a context group exchanges keys and values: `ring` passes them around beside attention
# (Transformer Engine); `gathered` has every head's at hand before it (PyTorch).
Exchange = Literal["ring", "gathered"]


@dataclass(frozen=True, slots=True)
class Run:
    """One training run. Batches count sequences, `sequence` counts tokens.

    gpus = tensor * pipeline * data * context. `1f1b` with several chunks is interleaved.
    `clock_mhz` 0 stands for the highest. `zero` is the stage of ZeRO: 1 shards the optimizer, 2
    gradients too, 3 weights too (FSDP), over `shard` GPUs; 0 stands for all of data * context, and
    fewer for hybrid sharding (HSDP), whose copies of the shards sum gradients.

    Experts are spread over groups of their own, folded over tensor, context and data: `expert` of
    them, and each expert cut in `expert_tensor` parts (Megatron-Core's EP and ETP); 0 stands for 1
    where `expert` is above 1, else for `tensor`. Layers are shared out evenly, with embedding and
    logits in the place of a layer each where that leaves a remainder; `first_layers` and
    `last_layers` above 0 set those of the first and last part.
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
    dtype: Dtype = "bf16"
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    zero: int = 0
    overlap_gradients: bool = False
    flash_attention: bool = False
    attention: Attention = "system"
    context_exchange: Exchange = "ring"
    clock_mhz: float = 0.0
    offload: Offload = "none"
    fused_loss: bool = False  # cross entropy without a 32-bit copy of the logits
    dropout: bool = True  # masks of a byte per number are kept; models with gated blocks have none
    overlap_tensor: bool = False  # collectives of the tensor group beside matrix products
    gradient_bytes: int = 4  # 32-bit sums of 16-bit gradients, as Megatron keeps them
    forward_only: bool = False  # evaluation: neither gradients nor optimizer
    cuda_graphs: bool = False  # the host launches no single kernels
    expert_tensor: int = 0
    shard: int = 0
    first_layers: int = 0
    last_layers: int = 0
    recompute_share: float = 1.0  # of the layers that repeat what `recompute` says
    # Of 8 and 4 bits: by earlier maxima or by tiles, or by the tensor's own maximum, which is read
    # first, of weights for every microbatch; what is kept for backward then has 16 bits.
    scaling: Scaling = "delayed"
    weight_bytes: int = 2  # of a weight as it is kept and gathered: 1 with primary weights of FP8
    reduce_bytes: int = 0  # of a gradient on its way to other GPUs; 0: as it is kept
    moment_bytes: int = 4  # of each of Adam's moments
    master_bytes: int = 4  # of the optimizer's own weights; 0: it has none
    dispatch_once: bool = False  # a token crosses to a node once, for all of its experts there
    overlap_expert: bool = False  # exchange with experts beside the work of another microbatch
    # Share of the weights that is not zero: 0.5 is two of every four (Mishra et al., arXiv
    # 2104.08378), which tensor cores skip in forward and in gradients of the input.
    sparsity: float = 1.0
    mtp_layers: int = 0  # that predict tokens further ahead, after the last layer

    @property
    def microbatches(self) -> int:
        return self.global_batch // (self.data * self.microbatch)

    @property
    def expert_parts(self) -> int:
        """GPUs that share one expert."""
        return self.expert_tensor or (1 if self.expert > 1 else self.tensor)

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


# Words of a run by key.
WORDS: dict[str, tuple[Any, ...]] = {
    field.name: get_args(field.type) for field in fields(Run) if get_origin(field.type) is Literal
} | {"schedule": SCHEDULES_ALL}
NUMBERS: dict[str, tuple[float, ...]] = {
    "zero": (0, 1, 2, 3),
    "weight_bytes": (1, 2, 4),
    "gradient_bytes": (1, 2, 4),
    "reduce_bytes": (0, 1, 2, 4),
    "moment_bytes": (1, 2, 4),
    "master_bytes": (0, 2, 4),
    "sparsity": (1.0, 0.5),
}


def misfit(run: Run, architecture: Architecture) -> Misfit | None:
    """The first key that cannot be; None if the run is possible. Memory is not looked at."""
    checks = (_values, _sizes, _shares, _layers)
    for check in checks:
        found = check(run, architecture)
        if found is not None:
            return found
    return schedule_misfit(run.shape()) if run.pipeline > 1 else None


def _values(run: Run, model: Architecture) -> Misfit | None:
    for key, allowed in (WORDS | NUMBERS).items():
        if (value := getattr(run, key)) not in allowed:
            return Misfit(key, repr(value), " | ".join(map(str, allowed)))
    if run.recompute == "experts" and not model.experts:
        return Misfit("recompute", "experts", "another, without experts")
    if run.mtp_layers > 0 and model.positions:
        no_more = "0: learnt positions have none for tokens further ahead"  # as in Megatron-LM
        return Misfit("mtp_layers", str(run.mtp_layers), no_more)
    if not 0.0 <= run.recompute_share <= 1.0:
        return Misfit("recompute_share", str(run.recompute_share), "0 to 1")
    return None


SIZES = (
    "gpus", "tensor", "pipeline", "data", "context", "expert", "chunks", "microbatch",
    "global_batch", "sequence",
)  # fmt: skip


def _sizes(run: Run, _: Architecture) -> Misfit | None:
    for key in SIZES:
        if getattr(run, key) < 1:
            return Misfit(key, str(getattr(run, key)), "at least 1")
    for key in ("expert_tensor", "shard", "first_layers", "last_layers", "mtp_layers"):
        if getattr(run, key) < 0:
            return Misfit(key, str(getattr(run, key)), "at least 0")
    product = run.tensor * run.pipeline * run.data * run.context
    if product != run.gpus:
        what = f"{run.gpus}, but tensor x pipeline x data x context is {product}"
        return Misfit("gpus", what, str(product))
    return None


def _shares(run: Run, model: Architecture) -> Misfit | None:
    """Whether every share is whole."""
    group = run.data * run.context
    folded = run.tensor * group
    rules = (
        ("tensor", model.heads % run.tensor == 0, f"a divisor of {model.heads} heads"),
        (
            "global_batch",
            run.global_batch % (run.data * run.microbatch) == 0,
            f"a multiple of data x microbatch, {run.data * run.microbatch}",
        ),
        ("sequence", run.sequence % run.context == 0, f"a multiple of context, {run.context}"),
        (
            "expert",
            folded % (run.expert * run.expert_parts) == 0,
            f"expert x {run.expert_parts} (expert_tensor) a divisor of all but pipeline, {folded}",
        ),
        ("shard", group % (run.shard or group) == 0, f"0, or a divisor of data x context, {group}"),
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


def _layers(run: Run, model: Architecture) -> Misfit | None:
    """Whether every part has a layer, or one of the model's ends in its place."""
    parts = run.pipeline * run.parts_per_stage if run.pipeline > 1 else 1
    most = model.layers + 2 if parts > 1 else model.layers
    if parts > most:
        allowed = f"at most {most} layers and ends in {parts} parts"
        return Misfit("pipeline", str(run.pipeline), allowed)
    if not run.first_layers and not run.last_layers and not run.mtp_layers:
        return None
    counts = part_layers(model.layers, run)
    if sum(counts) == model.layers and min(counts) >= 0 and min(counts[1:-1], default=1) >= 1:
        return None
    keys = ("first_layers", "last_layers", "mtp_layers")
    key = next(key for key in keys if getattr(run, key))
    return Misfit(key, str(getattr(run, key)), f"what adds up to {model.layers} in {parts} parts")


def part_layers(layers: int, run: Run) -> list[int]:
    """Layers of every part: those that are set, and the others evenly; of these the last is short
    first, then the first, then from the end. Layers that predict further ahead take the place of
    layers of the last part.
    """
    parts = run.pipeline * run.parts_per_stage if run.pipeline > 1 else 1
    fixed = {part: count for part, count in ((0, run.first_layers), (parts - 1, run.last_layers))
             if count}  # fmt: skip
    order = [part for part in (parts - 1, 0, *range(parts - 2, 0, -1)) if part not in fixed]
    order = order[:parts]  # one part is first and last
    ahead = 0 if run.last_layers else run.mtp_layers
    left = layers + ahead - sum(fixed.values())
    most = -(-left // max(1, len(order)))
    counts = [fixed.get(part, most) for part in range(parts)]
    for part in order[: most * len(order) - left]:
        counts[part] -= 1
    counts[-1] -= ahead
    return counts
