"""Closed form of one iteration: time, memory and energy of many runs at once.

The iteration of a pipeline is the slowest stage's work, the way of the first microbatch through all
other stages (the bubble), transfers that neither hides, then gradients and optimizer. Schedules
differ in the bubble; `graph_level` lays them out one by one.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.cost import Cost
from joulecut_lab.model.estimate import (
    BREAKDOWN,
    COMPONENTS,
    ENERGIES,
    MEMORIES,
    Estimate,
    StageMemory,
)
from joulecut_lab.model.links import BITS, group
from joulecut_lab.model.memory import Memory, memory_of, stage_memory
from joulecut_lab.model.power import power_of
from joulecut_lab.model.run import Run
from joulecut_lab.model.runs import Flags, Floats, Runs
from joulecut_lab.model.stages import BUSY_PROCESSORS, Phases, Stages, stages_of
from joulecut_lab.model.system import System
from joulecut_lab.model.work import HALF, keys_read, model_flops

# Bytes that Adam reads and writes per parameter: gradient 4, weight and moments 12 read and
# written, 16-bit weight 2; clearing and the norm of gradients read and write 4 each.
OPTIMIZER_BYTES = 4.0 + 24.0 + 2.0 + 8.0
OPTIMIZER_KERNELS = 20.0  # multi-tensor kernels, norm and scale of one step (Apex)
# Of what an input gradient exceeds a forward, dualpipe-v waits this share (4 and 8 GPUs laid out).
DUAL_LATE = 0.8
FREE = 0.96  # of the memory: context, fragments and NCCL buffers take the rest


@dataclass(slots=True)
class Estimates:
    """One entry per run in every array; see `Estimate`."""

    runs: Runs
    architecture: Architecture
    system: System
    iteration_time_s: Floats
    breakdown_s: dict[str, Floats]
    mean_breakdown_s: dict[str, Floats]
    component_time_s: dict[str, Floats]
    hidden_s: dict[str, Floats]
    memory: Memory
    energy_breakdown_j: dict[str, Floats]
    energy_phase_j: dict[str, Floats]
    model_flops: Floats
    hardware_flops: Floats
    clock_mhz: Floats

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def energy_j(self) -> Floats:
        """Of all GPUs; hosts come on top."""
        parts = (joules for name, joules in self.energy_breakdown_j.items() if name != "host")
        return np.asarray(sum(parts))

    @property
    def host_j(self) -> Floats:
        return self.energy_breakdown_j["host"]

    @property
    def memory_bytes(self) -> Floats:
        """Of the GPU that needs most."""
        return self.memory.peak

    @property
    def fits(self) -> Flags:
        return np.asarray(self.memory_bytes <= FREE * self.system.hbm_bytes)

    @property
    def tokens_per_s(self) -> Floats:
        return self.runs.global_batch * self.runs.sequence / self.iteration_time_s

    @property
    def mfu(self) -> Floats:
        return self._utilisation(self.model_flops)

    @property
    def hfu(self) -> Floats:
        return self._utilisation(self.hardware_flops)

    def _utilisation(self, flops: Floats) -> Floats:
        """Of the data sheet's peak in the run's number type."""
        peak = np.full(len(self), self.system.bf16_tflops)
        for dtype in ("fp32", "fp8", "fp4"):
            peak = np.where(self.runs.word("dtype", dtype), self.system.tflops(dtype), peak)
        return np.asarray(
            np.asarray(flops) / (self.iteration_time_s * self.runs.gpus * peak * 1e12)
        )

    def estimate(self, i: int) -> Estimate:
        """One run's values, with the memory of every stage."""
        run = self.runs.run(i)
        of_figures = ("model_flops", "hardware_flops", "iteration_time_s", "energy_j",
                      "tokens_per_s", "mfu", "hfu", "clock_mhz")  # fmt: skip
        of_parts = ("breakdown_s", "mean_breakdown_s", "component_time_s", "hidden_s",
                    "energy_breakdown_j", "energy_phase_j")  # fmt: skip
        figures: dict[str, Any] = {name: float(getattr(self, name)[i]) for name in of_figures}
        parts: dict[str, Any] = {
            name: {part: float(column[i]) for part, column in getattr(self, name).items()}
            for name in of_parts
        }
        watts = figures["energy_j"] / figures["iteration_time_s"]
        node_w = (figures["energy_j"] + float(self.host_j[i])) / figures["iteration_time_s"]
        return Estimate(
            parameters=self.architecture.parameters,
            memory=memory_stages(self.architecture, run),
            power_w_per_gpu=watts / run.gpus,
            node_power_w=node_w / (run.gpus / min(run.gpus, self.system.gpus_per_node)),
            fits=bool(self.fits[i]),
            **figures,
            **parts,
        )


def estimate(architecture: Architecture, system: System, run: Run) -> Estimate:
    """One run. It must fit its shape: see `run.misfit`."""
    return evaluate(architecture, system, Runs.of([run])).estimate(0)


def evaluate(
    architecture: Architecture, system: System, runs: Runs, memory: Memory | None = None
) -> Estimates:
    """Every run, at its clock or at the lower one that the power cap leaves; `memory` where it is
    known, since it is the same on every system.
    """
    asked, pipe, held = held_pipe(architecture, system, runs)
    memory = memory or memory_of(architecture, runs)
    return assemble(pipe, asked, held, memory, bubble=bubble_s(pipe), transfers=transfers_s(pipe))


def held_pipe(
    architecture: Architecture, system: System, runs: Runs
) -> tuple[Runs, "Pipe", Floats]:
    """Runs with their clocks filled in, their costs, and the clocks that the cap leaves: of the
    load at the highest clock, so that no clock that is asked for lowers another.
    """
    top = np.full(len(runs), system.clock_max_mhz)
    asked = np.where(runs.clock_mhz > 0.0, runs.clock_mhz, top)
    pipe = pipe_of(stages_of(architecture, system, runs.at_clock(top)))
    held = np.minimum(asked, pipe.total.all.held_clock_mhz(system, top))
    if (held < top).any():
        pipe = pipe_of(stages_of(architecture, system, runs.at_clock(held)))
    return runs.at_clock(asked), pipe, held


def memory_stages(architecture: Architecture, run: Run) -> tuple[StageMemory, ...]:
    """Memory of every stage of one run."""
    stage = np.arange(run.pipeline, dtype=np.float64)
    many = Runs.of([run] * run.pipeline)
    rows = stage_memory(architecture, many, stage)
    kinds = rows[1 : 1 + len(MEMORIES)]
    return tuple(StageMemory(s, *(float(kind[s]) for kind in kinds)) for s in range(len(stage)))


@dataclass(slots=True)
class Pipe:
    """Stages of one microbatch: the slowest, and the sum of all."""

    stages: Stages
    slowest: Phases
    total: Phases
    front: Phases  # the stage with the embedding
    chunks: Floats


def pipe_of(stages: Stages) -> Pipe:
    """The slowest stage is the one that holds the ends, or one between, whichever takes longer."""
    layers, runs = stages.layers, stages.runs
    first = stages.part(layers.first, layers.first_dense) + stages.embedding
    last_dense = layers.last if not stages.model.experts else 0.0 * layers.last
    last = stages.part(layers.last, last_dense) + stages.logits
    spread = np.where(
        layers.between_all > 0, layers.between_dense / np.maximum(layers.between_all, 1.0), 0.0
    )
    between = stages.part(layers.between, layers.between * spread)
    chunks = layers.parts / runs.pipeline
    alone = runs.pipeline <= 1
    folded = runs.folded
    with_both = alone | folded
    more = np.maximum(chunks - 1.0, 0.0)
    front = first + between * np.where(folded, 0.0, more) + last * with_both.astype(float)
    back = last + between * more
    middle = between * chunks
    total = first + last + stages.part(layers.between_all, layers.between_dense)
    slowest = _slower(front, back, ~with_both)
    slowest = _slower(slowest, middle, runs.pipeline > np.where(folded, 1.0, 2.0))
    return Pipe(stages, slowest, total, front, chunks)


def _slower(one: Phases, other: Phases, exists: Flags) -> Phases:
    """The slower of the two, run by run; `other` counts only where it exists."""
    later = (exists & (other.seconds > one.seconds)).astype(float)
    return one * (1.0 - later) + other * later


def bubble_s(pipe: Pipe) -> Floats:
    """Time in which the slowest stage waits for others, without transfers.

    The first microbatch passes every other stage, one chunk at a time. Zero-bubble schedules fill
    that with gradients of weights; they bypass the optimizer's synchronisation (post-validation,
    Qi et al., ICLR 2024), so that stages start and end one after the other and only the span of one
    stage counts. The forms equal the graph's spans for equal stages.
    """
    runs, chunks = pipe.stages.runs, pipe.chunks
    forward = (pipe.total.forward_s - pipe.slowest.forward_s) / chunks
    inputs = (pipe.total.input_s - pipe.slowest.input_s) / chunks
    weight = (pipe.total.weight_s - pipe.slowest.weight_s) / chunks
    filled = forward + inputs - weight
    late = DUAL_LATE * np.maximum(0.0, inputs - forward)
    # With fewer microbatches than fill its way, the first stage waits for its first gradient.
    m = runs.microbatches
    few = np.maximum(0.0, 2.0 * runs.pipeline - 1.0 - m) * pipe.slowest.forward_s / chunks
    choices = (
        ("zb-h1", np.maximum(inputs, filled)),
        ("zb-h2", np.maximum(inputs - forward + few, filled - weight)),
        ("zb-v", few + np.maximum(weight - forward, 2.0 * (np.maximum(forward, inputs) - weight))),
        ("dualpipe-v", np.maximum(forward, filled) + late),
    )
    bubble = forward + inputs + weight
    for name, value in choices:
        bubble = np.where(runs.word("schedule", name), value, bubble)
    return np.where(runs.pipeline > 1, np.maximum(bubble, 0.0), 0.0)


def transfers_s(pipe: Pipe) -> Floats:
    """Transfers that delay the slowest stage.

    Each schedule meets a number of them on the way in and out. A stage also holds only so many
    microbatches: if one takes longer around the pipeline than the stage works on those it holds,
    every further microbatch waits for the difference.
    """
    stages, runs, p = pipe.stages, pipe.stages.runs, pipe.stages.runs.pipeline
    m = runs.microbatches
    passed, held = 2.0 * (p * pipe.chunks - 1.0), np.full(len(runs), np.inf)
    around, first = pipe.total.seconds, pipe.front.seconds
    short = around - pipe.total.weight_s
    plain = runs.word("schedule", "1f1b") & (pipe.chunks <= 1)
    choices = (
        (plain, passed, p, around),
        (runs.word("schedule", "zb-h1"), 4.0 * (p - 1.0), p, short),
        (runs.word("schedule", "zb-h2"), 2.0 * (p - 1.0), 2.0 * p - 1.0, short),
        (runs.word("schedule", "zb-v"), 6.0 * p - 8.0, held, around),
        (runs.word("schedule", "dualpipe-v"), 6.0 * (p - 1.0), held, around),
    )
    for which, hops, room, way in choices:
        passed = np.where(which, hops, passed)
        held = np.where(which, room, held)
        around = np.where(which, way, around)
    circle = (around + 2.0 * (p - 1.0) * stages.send_s) / held
    inner = (around - first + 2.0 * (p - 2.0) * stages.send_s) / np.maximum(held - 1.0, 1.0)
    circle = np.maximum(circle, np.where(p > 2, inner, 0.0))
    wait = (m - 1.0) * np.maximum(0.0, circle - pipe.slowest.seconds)
    return np.where(p > 1, np.maximum(passed, 0.0) * stages.send_s + wait, 0.0)


def assemble(
    pipe: Pipe,
    asked: Runs,
    clock_mhz: Floats,
    memory: Memory,
    *,
    bubble: Floats,
    transfers: Floats,
) -> Estimates:
    """All values from the cost of stages and from what their schedule adds."""
    stages = pipe.stages
    runs, model, system = stages.runs, stages.model, stages.system
    m, slow, train = runs.microbatches, pipe.slowest, 1.0 - runs.forward_only
    data = _gradients(stages, memory, slow) * train
    step = _step(stages, memory) * train
    offload = _offload(stages, memory, slow) * train
    sums = slow.all * m
    breakdown = _parts(slow, m) | {
        "pipeline_comm": transfers,
        "bubble": bubble,
        "data_comm": data.data,
        "optimizer": step.memory + system.step_s,
        "offload": offload,
    }
    breakdown = {name: breakdown[name] for name in BREAKDOWN}
    time_s = np.asarray(sum(breakdown.values()))
    # Of the mean GPU, which waits for what the slowest stage has more.
    mean = {**breakdown, **_parts(pipe.total, m / runs.pipeline)}
    mean["bubble"] = np.maximum(
        0.0, time_s - sum(part for name, part in mean.items() if name != "bubble")
    )
    network = sums.tensor + sums.expert + sums.context + data.data + offload
    component = {
        "compute": sums.compute,
        "memory": sums.memory + step.memory,
        "network": network + breakdown["pipeline_comm"],
        "launch": sums.launch + system.step_s,
        "waiting": breakdown["bubble"],
    }
    energy, phase = _energy(pipe, time_s, data + step, clock_mhz)
    flops = model_flops(model, runs) * np.where(train > 0, 1.0, 1.0 / 3.0)
    return Estimates(
        runs=asked,
        architecture=model,
        system=system,
        iteration_time_s=time_s,
        breakdown_s=breakdown,
        mean_breakdown_s=mean,
        component_time_s={name: component[name] for name in COMPONENTS},
        hidden_s={"data_comm": data.hidden, "tensor_comm": sums.hidden},
        memory=memory,
        energy_breakdown_j=energy,
        energy_phase_j=phase,
        model_flops=flops,
        hardware_flops=flops + train * _repeated_flops(stages),
        clock_mhz=clock_mhz,
    )


def _parts(phases: Phases, times: Floats) -> dict[str, Floats]:
    """Seconds by part of so many microbatches of a stage."""
    ends = phases.ends_forward + phases.ends_input + phases.ends_weight
    named = {
        "forward": phases.forward,
        "backward": phases.input + phases.weight,
        "recompute": phases.repeat,
        "embedding_loss": ends,
    }
    parts = {n: (c.compute + c.memory + c.launch) * times for n, c in named.items()}
    whole = phases.all
    comms = {"tensor_comm": whole.tensor, "expert_comm": whole.expert,
             "context_comm": whole.context}  # fmt: skip
    return parts | {name: seconds * times for name, seconds in comms.items()}


def _repeated_flops(stages: Stages) -> Floats:
    """FLOPs of recomputation, scores in full as model FLOPs count them."""
    model, runs = stages.model, stages.runs
    tokens = runs.global_batch * runs.sequence
    keys = keys_read(model, runs.sequence)
    scores = keys * model.layers * model.heads * (model.query_dim + model.value_head_dim)
    block = model.expert_layers * (model.active_layer_weights(True) - model.attention_weights)
    full = runs.word("recompute", "full")
    core = full | (runs.word("recompute", "selective") & (runs.flash_attention <= 0))
    repeated = np.where(full, model.active_weights, 0.0) + np.where(core, scores, 0.0)
    repeated = repeated + np.where(runs.word("recompute", "experts"), block, 0.0)
    return np.asarray(2.0 * tokens * repeated * runs.recompute_share)


@dataclass(slots=True)
class Copies:
    """Parameters of one GPU that `number` GPUs have, every `stride`-th of them; ZeRO shards them
    over the first `shards`.
    """

    parameters: Floats
    shards: Floats
    number: Floats
    stride: Floats


def _gradients(stages: Stages, memory: Memory, slow: Phases) -> Cost:
    """Data-parallel collectives of one iteration: of the parameters that every rank has, then of
    the experts, whose copies are fewer. What hides them takes longer by the processors that they
    take.
    """
    runs, t = stages.runs, stages.runs.tensor
    near = Copies(memory.near.max(axis=0), runs.shards, runs.data * runs.context, t)
    total = _exchanged(stages, near, slow)
    if stages.model.experts:
        part = runs.expert * runs.expert_parts
        far = Copies(memory.far.max(axis=0), runs.expert_shards, runs.expert_copies, part)
        total = total + _exchanged(stages, far, slow)
    total.data = total.data + BUSY_PROCESSORS * total.hidden
    words = HALF * stages.model.embedding_weights / t
    tied = (runs.pipeline > 1) & bool(stages.model.tied)
    pair = group(stages.system, np.full(len(runs), 2.0), runs.gpus / 2.0)
    total.data = total.data + np.where(tied, pair.all_reduce(2.0 * words), 0.0)
    return total


def _exchanged(stages: Stages, copies: Copies, slow: Phases) -> Cost:
    """The collectives of some parameters.

    With ZeRO gradients are scattered and weights gathered, otherwise gradients are all-reduced;
    copies of the shards all-reduce their part. Overlapped gradients hide behind the last
    microbatch's backward but for the last layer's. From ZeRO-2 on no GPU keeps whole gradients, so
    every microbatch scatters them; ZeRO-3 gathers weights for every microbatch, forward and
    backward, a layer ahead of the work. Stages of a pipeline keep theirs for the iteration (FSDP).
    """
    runs, shards = stages.runs, copies.shards
    ring = group(stages.system, shards, copies.stride)
    outer = group(stages.system, copies.number / shards, copies.stride * shards)
    fully = runs.zero >= 3
    over = fully | (runs.overlap_gradients > 0)
    sent_bytes = np.where(runs.reduce_bytes > 0, runs.reduce_bytes, runs.gradient_bytes)
    gradients = copies.parameters * sent_bytes
    weights = copies.parameters * runs.weight_bytes
    scatter = np.where(runs.zero >= 1, ring.gather(gradients), ring.all_reduce(gradients))
    gather = np.where(runs.zero >= 1, ring.gather(weights), 0.0)
    across = outer.all_reduce(gradients / np.where(runs.zero >= 1, shards, 1.0))
    # Of the first layer's weights and the last one's gradients, with no work beside them.
    alone = 1.0 / np.maximum(1.0, stages.layers.first)
    rounds = np.where((runs.zero >= 2) & (runs.pipeline <= 1), runs.microbatches, 1.0)
    alone = alone / rounds
    again = np.where(fully & (runs.pipeline <= 1), 1.0, 0.0)  # gathered for backward as well
    back = scatter + across + again * gather
    hidden = np.minimum((1.0 - alone) * gather, slow.forward_s)
    hidden = hidden + np.minimum((1.0 - alone) * back, slow.input_s + slow.weight_s)
    hidden = np.where(over, hidden, 0.0)
    times = np.where(runs.zero >= 1, 1.0 + again, 0.0)
    sent = np.where(runs.zero >= 1, 1.0, 2.0) * gradients + times * weights
    cost = Cost.none(len(runs))
    cost.data, cost.hidden = rounds * (gather + back - hidden), rounds * hidden
    cost.send(ring, rounds * sent)
    cost.send(outer, rounds * 2.0 * gradients / shards)
    return cost


def _step(stages: Stages, memory: Memory) -> Cost:
    """The optimizer on the GPU with most parameters."""
    runs, cost = stages.runs, Cost.none(len(stages.runs))
    sharded = runs.zero >= 1
    parameters = memory.near.max(axis=0) / np.where(sharded, runs.shards, 1.0)
    parameters = parameters + memory.far.max(axis=0) / np.where(sharded, runs.expert_shards, 1.0)
    cost.bytes = OPTIMIZER_BYTES * parameters
    launches = OPTIMIZER_KERNELS * (stages.system.kernel_s + stages.system.launch_s)
    cost.memory = cost.bytes / stages.rates.bytes + launches
    return cost


def _offload(stages: Stages, memory: Memory, slow: Phases) -> Floats:
    """Exposed traffic with host memory. Activations travel beside the work, the optimizer's
    gradients and weights after it."""
    runs, system = stages.runs, stages.system
    rate = system.host_gb_s * 1e9
    state = runs.word("offload", "optimizer")
    parameters = memory.gradients.max(axis=0) + memory.weights.max(axis=0)
    kept = memory.activations.max(axis=0) * np.maximum(stages.layers.first - 1.0, 0.0)
    late = np.maximum(0.0, kept / rate - slow.forward_s)
    late = late + np.maximum(0.0, kept / rate - slow.input_s - slow.weight_s)
    moved = np.where(runs.word("offload", "activations"), runs.microbatches * late, 0.0)
    return moved + np.where(state, parameters / rate, 0.0)


def _energy(
    pipe: Pipe, time_s: Floats, more: Cost, clock_mhz: Floats
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Joules by component and by phase, of all GPUs; `more` is what each moves beside its
    microbatches.
    """
    stages, runs, system = pipe.stages, pipe.stages.runs, pipe.stages.system
    m, power = runs.microbatches, power_of(system)
    pipelines = runs.gpus / runs.pipeline
    work = pipe.total.all * (m * pipelines)
    square = power.voltage_square(clock_mhz)
    waiting_w = power.waiting_over_idle_w(clock_mhz)
    sends = 2.0 * (stages.layers.parts - 1.0) * m * pipelines * stages.send_bits
    inside = stages.send_inside
    up = work.up_bits + runs.gpus * more.up_bits + np.where(inside, sends, 0.0)
    out = work.out_bits + runs.gpus * more.out_bits + np.where(inside, 0.0, sends)
    moved = work.bytes + runs.gpus * more.bytes
    nodes = runs.gpus / np.minimum(runs.gpus, system.gpus_per_node)
    energy = {
        "compute": work.flops * power.flop_j * square,
        "memory": BITS * moved * power.hbm_bit_j,
        "scale_up": up * power.up_bit_j,
        "scale_out": out * power.out_bit_j,
        "waiting": waiting_w * np.maximum(0.0, runs.gpus * time_s - work.compute),
        "static": power.idle_w * runs.gpus * time_s,
        "host": system.host_w * nodes * time_s,
    }
    total = np.asarray(sum(joules for name, joules in energy.items() if name != "host"))
    phase: dict[str, Floats] = {}
    named = {
        "forward": pipe.total.forward + pipe.total.ends_forward,
        "backward": pipe.total.input + pipe.total.weight
        + pipe.total.ends_input + pipe.total.ends_weight,
        "recompute": pipe.total.repeat,
    }  # fmt: skip
    for name, cost in named.items():
        phase[name] = cost.energy_j(power, clock_mhz) * m * pipelines
    phase["optimizer_and_waiting"] = total - np.asarray(sum(phase.values()))
    return {name: energy[name] for name in ENERGIES}, phase
