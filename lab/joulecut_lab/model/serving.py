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
from joulecut_lab.model.cost import Cost, Rates, rates
from joulecut_lab.model.links import group, neighbour
from joulecut_lab.model.power import power_of
from joulecut_lab.model.run import Dtype, Run
from joulecut_lab.model.runs import Floats, Runs
from joulecut_lab.model.system import System
from joulecut_lab.model.work import HALF, Work, layer_work, vocabulary_share

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
BYTES: dict[Dtype, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp4": 0.5625,
}  # fp4: a scale of 16
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
    dtype: Dtype = "bf16"
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
    prefill = _Pass(model, system, serving, float(serving.prompt), 0.0).step()
    decode = _Pass(model, system, serving, 1.0, context).step()
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


@dataclass(frozen=True, slots=True)
class _Pass:
    """A pass of a batch through the slowest stage, on one of its GPUs: `tokens` new ones of every
    sequence; `context` is what decoding reads, 0 in prefill.
    """

    model: Architecture
    system: System
    serving: Serving
    tokens: float
    context: float

    def step(self) -> Step:
        system, serving = self.system, self.serving
        asked = np.array([serving.clock_mhz or system.clock_max_mhz])
        cost = self._cost(asked)
        held = cost.held_clock_mhz(system, asked)
        if held[0] < asked[0]:
            cost = self._cost(held)
        seconds, joules = float(cost.seconds[0]), float(cost.energy_j(power_of(system), held)[0])
        # As many batches as stages are in flight: a token passes all of them, and each stage's time
        # is its own batch's. A node's power is that of the share of its GPUs.
        host_w = system.host_w * serving.gpus / system.gpus_per_node
        return Step(
            seconds * serving.pipeline, serving.gpus * joules, host_w * seconds, float(held[0]),
            float(cost.compute[0]), float(cost.memory[0]), float(cost.tensor[0]),
        )  # fmt: skip

    def _cost(self, clock_mhz: Floats) -> Cost:
        model, system, serving, cost = self.model, self.system, self.serving, Cost.none(1)
        shared = bool(model.experts) and model.experts % serving.tensor == 0
        run = Run(
            gpus=serving.gpus, tensor=serving.tensor, pipeline=serving.pipeline,
            microbatch=serving.batch, global_batch=serving.batch, sequence=int(self.tokens),
            expert=serving.tensor if shared else 1, dtype=serving.dtype, flash_attention=True,
            cuda_graphs=True, forward_only=True,
        )  # fmt: skip
        runs = Runs.of([run]).at_clock(clock_mhz)
        each = rates(system, runs)
        layers = float(np.ceil(model.layers / serving.pipeline))
        dense = min(layers, float(model.dense_layers)) if model.experts else layers
        for experts, count in ((False, dense), (True, layers - dense)):
            if count > 0.0:
                work = layer_work(model, runs, experts).forward
                self._products(cost, each, work, count)
                cost.memory += work.bytes / each.bytes * count
                cost.bytes += work.bytes * count
                cost.launch += (KERNELS + KERNELS_EXPERTS * experts) * each.kernel_s * count
                self._attention(cost, each, work, count)
        if layers * serving.pipeline == model.layers:  # the last stage has no layer less
            words = float(vocabulary_share(model, runs)[0])
            _product(cost, each, (serving.batch, model.hidden, words), width=HALF, eight=False)
        moved = np.array([HALF * serving.batch * self.tokens * model.hidden])
        tensor = group(system, runs.tensor, np.ones(1))
        cost.tensor = layers * 2.0 * tensor.all_reduce(moved)
        if serving.pipeline > 1:
            hop = neighbour(system, runs.tensor, runs.tensor * serving.pipeline)
            cost.tensor = cost.tensor + hop.pass_on(moved / serving.tensor)
        cost.send(tensor, layers * 4.0 * moved)
        cost.launch += STEP_S / serving.pipeline
        return cost

    def _products(self, cost: Cost, each: Rates, work: Work, count: float) -> None:
        """Those of the linear layers of `count` layers."""
        model, serving = self.model, self.serving
        tokens, own = serving.batch * self.tokens, 4 if model.kv_rank else 2
        linear = [product for product in work.products if product.eight_bit]
        for place, product in enumerate(linear):
            rows, times = float(product.m[0]), float(product.count[0])
            inner, columns = float(product.k[0]), float(product.n[0])
            if product.grouped:  # few tokens meet few experts
                met = 1.0 - (1.0 - model.experts_active / model.experts) ** tokens
                rows, times = rows / met, times * met
            elif place < own and by_sequence(model, serving):  # every GPU has these weights whole
                rows, columns = rows / serving.tensor, columns * serving.tensor
            width = BYTES[serving.dtype]
            _product(cost, each, (rows, inner, columns), count=times * count, width=width)

    def _attention(self, cost: Cost, each: Rates, work: Work, count: float) -> None:
        """Of prefill as in training; decoding reads its cache."""
        model, serving = self.model, self.serving
        if not self.context:
            cost.compute += work.attention_flops / each.attention * count
            cost.flops += work.attention_flops * count
            return
        seen = serving.batch * min(self.context, model.window or self.context)
        cache = cache_bytes_per_token(model, serving) / np.ceil(model.layers / serving.pipeline)
        # With latent attention all heads meet the latent vector itself.
        wide = model.query_dim + model.value_head_dim
        if model.kv_rank:
            wide = 2 * model.kv_rank + model.rope_dim
        flops = 2.0 * seen * model.heads / serving.tensor * wide
        _roofline(cost, flops / each.attention, seen * cache / each.bytes, count)
        cost.flops += flops * count
        cost.bytes += seen * cache * count


def _roofline(cost: Cost, compute_s: Floats, memory_s: Floats, times: float) -> None:
    """Adds the longer of the two: it bounds the operation."""
    cost.compute += times * np.where(compute_s >= memory_s, compute_s, 0.0)
    cost.memory += times * np.where(compute_s >= memory_s, 0.0, memory_s)


def _product(
    cost: Cost,
    each: Rates,
    shape: tuple[float, float, float],
    *,
    width: float,
    count: float = 1.0,
    eight: bool = True,
) -> None:
    """`count` products of rows x inner by inner x columns, weights of `width` bytes a number."""
    rows, inner, columns = shape
    filled = PAD * np.ceil(rows / PAD)
    rate = each.matrix if eight else each.half
    weight = each.eight if eight else np.maximum(each.eight, 1.0)
    moved = rows * (inner * min(width, HALF) + HALF * columns) + width * inner * columns
    _roofline(cost, 2.0 * filled * inner * columns / rate, moved / each.bytes, count)
    cost.flops += 2.0 * rows * inner * columns * count * weight
    cost.bytes += moved * count
