"""Prefill and decode of a model that serves: time, memory and energy, at formula level.

A step of decoding is one token of every sequence in the batch: it reads all weights that these
tokens meet and their whole cache of keys and values, and multiplies thin matrices. Prefill computes
the whole prompt at once, as training's forward does, but the logits of the last token alone.
Tensor parallelism divides weights, heads and cache and sums activations twice a layer; pipeline
parallelism divides layers: a token passes all stages, while other batches fill them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.cost import Rates, rates
from joulecut_lab.model.links import BITS, group, neighbour
from joulecut_lab.model.power import Load, held_clock_mhz, power_of
from joulecut_lab.model.run import Run
from joulecut_lab.model.runs import Runs
from joulecut_lab.model.system import System
from joulecut_lab.model.work import HALF, layer_work, vocabulary_share

# Of the data sheet's bandwidth, that long reads of weights and caches reach. Assumed: between the
# 0.75 to 0.85 that decoding kernels are published with.
STREAMED = 0.8
# Of the time of these reads that follows the SM clock. Assumed: less than that of training's short
# elementwise kernels (0.5); long copies follow it not at all.
READ_CLOCK_SHARE = 0.2
# The host's share of a step: batches are put together and tokens sampled while the GPU waits.
# Assumed: engines in Python with CUDA graphs and a scheduler that works ahead.
STEP_S = 1e-3
FREE = 0.92  # of the memory: the rest is context, graphs, fragments and activations
BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5625}  # fp4: a scale of 16
KERNELS, KERNELS_EXPERTS = 9.0, 6.0  # of a layer: fused norms, rotary, cache and activation
Phase = Literal["decode", "prefill"]
PHASES: tuple[Phase, ...] = ("decode", "prefill")
TIE = 1e-9  # relative: the limit is often the time of a clock itself
PAD = 64.0  # rows that the smallest tile of a product has
# Of an all-reduce of few bytes in one step between all GPUs of a node. Assumed.
ONE_SHOT_S = 4e-6


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served. `cache_bytes` is of a number of the cache; a batch counts sequences,
    `prompt` and `output` tokens of each. `clock_mhz` 0 stands for the highest.
    """

    tensor: int = 1
    pipeline: int = 1
    batch: int = 1
    prompt: int = 1024
    output: int = 1024
    dtype: str = "bf16"
    cache_bytes: float = 2.0
    clock_mhz: float = 0.0

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline

    @property
    def tokens(self) -> int:
        """Of one sequence when it ends."""
        return self.prompt + self.output


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of a batch: `clock_mhz` is what the power limit leaves; joules are of all GPUs,
    `host_j` comes on top. `compute_s` and `memory_s` are parts of `time_s`.
    """

    time_s: float
    energy_j: float
    host_j: float
    clock_mhz: float
    compute_s: float
    memory_s: float
    network_s: float


@dataclass(frozen=True, slots=True)
class Served:
    """A batch from prompt to last token. Decoding is that of the mean context."""

    serving: Serving
    prefill: Step
    decode: Step
    weights_bytes: float  # of the fullest GPU
    cache_bytes: float
    fits: bool

    @property
    def token_s(self) -> float:
        """Between two tokens of one sequence."""
        return self.decode.time_s

    @property
    def request_s(self) -> float:
        return self.prefill.time_s + self.serving.output * self.token_s

    @property
    def output_tokens_per_s(self) -> float:
        """Of all sequences while each gets its prompt computed and its tokens decoded; stages of
        a pipeline work on as many batches.
        """
        one = self.serving
        return one.pipeline * one.batch * one.output / self.request_s

    @property
    def prefill_j_per_token(self) -> float:
        one, step = self.serving, self.prefill
        return (step.energy_j + step.host_j) / (one.batch * one.prompt)

    @property
    def decode_j_per_token(self) -> float:
        return (self.decode.energy_j + self.decode.host_j) / self.serving.batch


def weights_bytes(model: Architecture, serving: Serving) -> float:
    """Of the fullest GPU: its layers, and the embedding or the logits in 16 bits."""
    ends = HALF * model.embedding_weights * (1 if model.tied else 2)
    layers = model.parameters - model.ends_parameters
    if by_sequence(model, serving):
        layers += (serving.tensor - 1) * model.layers * model.attention_weights
    per_stage = np.ceil(model.layers / serving.pipeline) / model.layers
    ends = ends if serving.pipeline == 1 else ends / (1 if model.tied else 2)
    return float((BYTES[serving.dtype] * layers * per_stage + ends) / serving.tensor)


def cache_bytes_per_token(model: Architecture, serving: Serving) -> float:
    """Of one token on one GPU, on the mean."""
    layers = float(np.ceil(model.layers / serving.pipeline))
    one = model.kv_heads * (model.query_dim + model.value_head_dim)
    if model.kv_rank:
        one = model.kv_rank + model.rope_dim
    return layers * one * serving.cache_bytes / serving.tensor


def by_sequence(model: Architecture, serving: Serving) -> bool:
    """Whether GPUs share out sequences of attention, with all of its weights, for want of heads of
    the cache; latent attention has one.
    """
    return (1 if model.kv_rank else model.kv_heads) < serving.tensor


def largest_batch(model: Architecture, system: System, serving: Serving) -> int:
    """Sequences whose whole caches fit beside the weights; 0 where these do not."""
    left = FREE * system.hbm_bytes - weights_bytes(model, serving)
    held = cache_bytes_per_token(model, serving) * min(serving.tokens, model.window or np.inf)
    return max(0, int(left / (serving.pipeline * held)))


def serve(model: Architecture, system: System, serving: Serving) -> Served:
    """Raises ValueError where heads cannot be shared out."""
    if model.heads % serving.tensor:
        raise ValueError(f"tensor: {serving.tensor}; allowed: a divisor of {model.heads} heads")
    if serving.pipeline > model.layers:
        raise ValueError(f"pipeline: {serving.pipeline}; allowed: at most {model.layers} layers")
    system = replace(
        system, hbm_efficiency=STREAMED, memory_clock_share=READ_CLOCK_SHARE,
        scale_up_latency_s=ONE_SHOT_S,
    )  # fmt: skip
    context = serving.prompt + serving.output / 2.0
    prefill = _step(model, system, serving, tokens=float(serving.prompt), context=0.0)
    decode = _step(model, system, serving, tokens=1.0, context=context)
    weights = weights_bytes(model, serving)
    held = min(serving.tokens, model.window or serving.tokens)
    cache = serving.batch * serving.pipeline * held * cache_bytes_per_token(model, serving)
    fits = weights + cache <= FREE * system.hbm_bytes
    return Served(serving, prefill, decode, weights, cache, fits)


def over_clocks(
    model: Architecture, system: System, serving: Serving, clocks_mhz: Sequence[float]
) -> tuple[Served, ...]:
    return tuple(serve(model, system, replace(serving, clock_mhz=mhz)) for mhz in clocks_mhz)


@dataclass(frozen=True, slots=True)
class Choice:
    """The cheapest clock of a phase within a limit on its time, beside the highest clock."""

    limit_s: float
    best: Served
    time_s: float
    j_per_token: float
    saved_ratio: float


def best_clock(swept: Sequence[Served], phase: Phase, limit_s: float) -> Choice | None:
    """Of one setting over clocks, ascending; None where even the fastest takes longer. The limit
    of decoding is on the time between two tokens, that of prefill on its whole time.
    """

    def joules(one: Served) -> float:
        return one.prefill_j_per_token if phase == "prefill" else one.decode_j_per_token

    kept = [one for one in swept if getattr(one, phase).time_s <= limit_s * (1.0 + TIE)]
    if not kept:
        return None
    best = min(kept, key=joules)
    saved = 1.0 - joules(best) / joules(swept[-1])
    return Choice(limit_s, best, getattr(best, phase).time_s, joules(best), saved)


def _step(
    model: Architecture, system: System, serving: Serving, *, tokens: float, context: float
) -> Step:
    """`tokens` new ones of every sequence; `context` is what decoding reads, 0 in prefill."""
    asked = serving.clock_mhz or system.clock_max_mhz
    cost = _at(model, system, serving, tokens=tokens, context=context, mhz=asked)
    parts = asked, cost.compute_s, cost.launch_s, cost.memory_s, cost.network_s
    load = Load(*(np.array([one]) for one in (*parts, cost.flops, BITS * cost.bytes)))
    held = float(held_clock_mhz(system, load)[0])
    if held < asked:
        cost = _at(model, system, serving, tokens=tokens, context=context, mhz=held)
    power, clock = power_of(system), np.array([held])
    watts = power.idle_w * cost.seconds + float(power.waiting_over_idle_w(clock)[0]) * (
        cost.seconds - cost.compute_s
    )
    joules = serving.gpus * (
        cost.flops * power.flop_j * float(power.voltage_square(clock)[0])
        + BITS * cost.bytes * power.hbm_bit_j + cost.bits[0] * power.up_bit_j
        + cost.bits[1] * power.out_bit_j + watts
    )  # fmt: skip
    # As many batches as stages are in flight: a token passes all of them, and each stage's time
    # is its own batch's. A node's power is that of the share of its GPUs.
    host_w = system.host_w * serving.gpus / system.gpus_per_node
    return Step(
        cost.seconds * serving.pipeline, joules, host_w * cost.seconds, held, cost.compute_s,
        cost.memory_s, cost.network_s,
    )  # fmt: skip


@dataclass(slots=True)
class _Cost:
    """Of one GPU: seconds of units, memory, kernels' starts and collectives; what they move."""

    compute_s: float = 0.0
    memory_s: float = 0.0
    launch_s: float = 0.0
    network_s: float = 0.0
    flops: float = 0.0  # in those of 16 bits
    bytes: float = 0.0
    bits: tuple[float, float] = (0.0, 0.0)  # over fast and over slow links

    @property
    def seconds(self) -> float:
        return self.compute_s + self.memory_s + self.launch_s + self.network_s

    def roofline(self, compute_s: float, memory_s: float, times: float) -> None:
        """Whichever holds the operation."""
        if compute_s >= memory_s:
            self.compute_s += times * compute_s
        else:
            self.memory_s += times * memory_s


def _at(
    model: Architecture,
    system: System,
    serving: Serving,
    *,
    tokens: float,
    context: float,
    mhz: float,
) -> _Cost:
    """Cost of the slowest stage on one of its GPUs."""
    shared = bool(model.experts) and model.experts % serving.tensor == 0
    run = Run(
        gpus=serving.gpus, tensor=serving.tensor, pipeline=serving.pipeline,
        microbatch=serving.batch, global_batch=serving.batch, sequence=int(tokens),
        expert=serving.tensor if shared else 1, dtype=serving.dtype, flash_attention=True,
        cuda_graphs=True, forward_only=True,
    )  # fmt: skip
    runs = Runs.of([run]).at_clock(np.array([mhz]))
    each, found = rates(system, runs), _Cost()
    layers = float(np.ceil(model.layers / serving.pipeline))
    dense = min(layers, float(model.dense_layers)) if model.experts else layers
    for experts, count in ((False, dense), (True, layers - dense)):
        if count > 0.0:
            _layer(
                found,
                model,
                serving,
                runs=runs,
                each=each,
                count=count,
                experts=experts,
                context=context,
            )
    if layers * serving.pipeline == model.layers:  # the last stage has no layer less
        words = float(vocabulary_share(model, runs)[0])
        _product(
            found, each, (serving.batch, model.hidden, words), count=1.0, width=HALF, eight=False
        )
    moved = HALF * serving.batch * tokens * model.hidden
    tensor = group(system, runs.tensor, np.ones(1))
    found.network_s = float(layers * 2.0 * tensor.all_reduce(np.array([moved]))[0])
    if serving.pipeline > 1:
        hop = neighbour(system, runs.tensor, runs.tensor * serving.pipeline)
        found.network_s += float(hop.pass_on(np.array([moved / serving.tensor]))[0])
    up, out = tensor.bits(np.array([layers * 4.0 * moved]))
    found.bits = float(up[0]), float(out[0])
    found.launch_s += STEP_S / serving.pipeline
    return found


def _product(
    found: _Cost,
    each: Rates,
    shape: tuple[float, float, float],
    *,
    count: float,
    width: float,
    eight: bool,
) -> None:
    """`count` products of rows x inner by inner x columns, weights of `width` bytes a number."""
    rows, inner, columns = shape
    filled = PAD * np.ceil(rows / PAD)
    rate = each.matrix if eight else each.half
    weight = float(each.eight[0]) if eight else max(float(each.eight[0]), 1.0)
    moved = rows * (inner * min(width, HALF) + HALF * columns) + width * inner * columns
    found.roofline(2.0 * filled * inner * columns / float(rate[0]),
                   moved / float(each.bytes[0]), count)  # fmt: skip
    found.flops += 2.0 * rows * inner * columns * count * weight
    found.bytes += moved * count


def _layer(
    found: _Cost,
    model: Architecture,
    serving: Serving,
    *,
    runs: Runs,
    each: Rates,
    count: float,
    experts: bool,
    context: float,
) -> None:
    """Adds forward of `count` layers: prefill as in training, decoding with its cache."""
    work = layer_work(model, runs, experts).forward
    tokens = serving.batch * float(runs.sequence[0])
    own, width = (4 if model.kv_rank else 2), BYTES[serving.dtype]
    linear = [product for product in work.products if product.eight_bit]
    for place, product in enumerate(linear):
        rows, times = float(product.m[0]), float(product.count[0])
        inner, columns = float(product.k[0]), float(product.n[0])
        if product.grouped:  # few tokens meet few experts
            met = 1.0 - (1.0 - model.experts_active / model.experts) ** tokens
            rows, times = rows / met, times * met
        elif place < own and by_sequence(model, serving):  # every GPU has these weights whole
            rows, columns = rows / serving.tensor, columns * serving.tensor
        _product(found, each, (rows, inner, columns), count=times * count, width=width, eight=True)
    moved = float(np.asarray(work.bytes).ravel()[0])
    found.memory_s += moved / float(each.bytes[0]) * count
    found.bytes += moved * count
    found.launch_s += (KERNELS + KERNELS_EXPERTS * experts) * float(each.kernel_s[0]) * count
    heads = model.heads / serving.tensor
    if not context:
        flops = float(np.asarray(work.attention_flops).ravel()[0])
        found.compute_s += flops / float(each.attention[0]) * count
        found.flops += flops * count
        return
    seen = min(context, model.window or context)
    cache = cache_bytes_per_token(model, serving) / np.ceil(model.layers / serving.pipeline)
    # With latent attention all heads meet the latent vector itself.
    wide = 2 * model.kv_rank + model.rope_dim if model.kv_rank else (
        model.query_dim + model.value_head_dim
    )  # fmt: skip
    flops, read = 2.0 * serving.batch * seen * heads * wide, serving.batch * seen * cache
    found.roofline(flops / float(each.attention[0]), read / float(each.bytes[0]), count)
    found.flops += flops * count
    found.bytes += read * count
