"""What one microbatch asks of one GPU: FLOPs, bytes and kernels of each operation.

Counts are per layer, for forward, gradients of the input, and gradients of the weights. Elementwise
work is fused where training frameworks fuse it: a norm reads and writes once, an activation with
its bias once. All arrays have one entry per run.
"""

from dataclasses import dataclass, field

import numpy as np

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.runs import Flags, Floats, Runs

HALF = 2.0  # bytes of a 16-bit number
# Bytes per number that a kernel of forward and backward reads and writes.
NORM = (4.0, 6.0)  # read, write; read input and gradient, write
ADD = (6.0, 6.0)  # residual: read two, write one; the gradient's sum likewise
MASK = (1.0, 1.0)  # dropout's mask
GATED = (6.0, 10.0)  # read two, write one; read three, write two; per number of `ffn`
PLAIN = (4.0, 6.0)  # GELU
ROTARY = (4.0, 4.0)
SOFTMAX = (4.0, 6.0)  # of unfused attention, per score
SCORE_DROPOUT = (5.0, 5.0)
CAST = 4.0  # to 8 bits: read 16, write 8 bits, and once more transposed
MAXIMUM = 2.0  # read once more for the tensor's own maximum
LOSS, LOSS_FUSED = 24.0, 12.0  # per logit, forward and backward; 32-bit softmax
# Kernels of one layer's forward; a backward has twice as many. Counted in Megatron-LM.
KERNELS, KERNELS_FLASH = 18.0, 12.0
KERNELS_END = 24.0  # embedding, or logits with loss: masks, casts, maxima, sums
# Of a layer with experts, counted in Megatron-Core: router and its loss 16, counts and splits of
# the dispatcher 12, permutation, exchange and back 8. Each expert's two products are launched on
# their own (a loop over cuBLAS in Transformer Engine's grouped products).
KERNELS_EXPERTS = 36.0
PADDED = 128.0
# Of a context ring, per number of attention's output and further member: partial results of 16 bits
# are joined to a sum of 32, gradients of queries, keys and values likewise.
MERGE = (10.0, 24.0)
FLASH_BACKWARD = 2.5  # five products where the forward has two


@dataclass(slots=True)
class Products:
    """Matrix products of one operation: `count` of m x k by k x n. `attention` ones are apart."""

    m: Floats
    k: Floats
    n: Floats
    count: Floats
    eight_bit: bool = True  # in runs of 8 bits; attention and logits stay at 16
    grouped: bool = False  # of experts, one after the other: see `cost_of`
    written: Floats | float = HALF  # bytes per number of the result; sums are read as well
    kept: Floats | float = 1.0  # share of the weights that is not zero

    @property
    def flops(self) -> Floats:
        return 2.0 * self.m * self.k * self.n * self.count * self.kept


@dataclass(slots=True)
class Work:
    """One phase of one layer, or of the ends of the model."""

    products: list[Products] = field(default_factory=list)
    attention_flops: Floats | float = 0.0  # of fused attention
    bytes: Floats | float = 0.0  # of elementwise kernels
    kernels: Floats | float = 0.0
    gradients: bool = False  # of attention: its kernels are slower than the forward's

    @property
    def flops(self) -> Floats:
        total = np.asarray(self.attention_flops, dtype=np.float64)
        for product in self.products:
            total = total + product.flops
        return total


def dropped(model: Architecture, runs: Runs) -> Flags:
    """Which runs have dropout: GPT and its contemporaries; models with gated blocks go without."""
    return np.asarray((runs.dropout > 0) & (not model.gated))


def narrow(runs: Runs) -> Flags:
    """Which runs multiply numbers of 8 or 4 bits."""
    return np.asarray(runs.word("dtype", "fp8") | runs.word("dtype", "fp4"))


@dataclass(slots=True)
class LayerWork:
    forward: Work
    input: Work  # gradients of the input
    weight: Work  # gradients of the weights
    core: Work  # forward of scores and values alone: what selective recomputation repeats
    pointwise: Work  # forward of norms, activations and casts
    block: Work  # and of the products of experts


def layer_work(model: Architecture, runs: Runs, experts: bool) -> LayerWork:
    """Work of one layer on one GPU for one microbatch."""
    tokens = runs.tokens
    t = runs.tensor
    apart = runs.apart
    forward, inputs, weights = Work(), Work(gradients=True), Work()
    sums = 2.0 * runs.gradient_bytes  # read and written
    for m, k, n, count, grouped in _linear(model, runs, tokens, experts):
        forward.products.append(Products(m, k, n, count, grouped=grouped, kept=runs.sparsity))
        inputs.products.append(Products(m, n, k, count, grouped=grouped, kept=runs.sparsity))
        written = sums if grouped else HALF
        weights.products.append(Products(k, m, n, count, grouped=grouped, written=written))
    core, core_back = _attention(model, runs, tokens)
    heads = model.heads * model.query_dim + model.kv_heads * model.query_dim
    width = model.expert_width * model.experts_active if experts else model.ffn
    if experts:
        width += model.experts_shared * model.expert_width
    act = GATED if model.gated else PLAIN
    rotary = ROTARY if not model.positions else (0.0, 0.0)
    back_bytes = []
    eight, dynamic = narrow(runs), runs.word("scaling", "dynamic")
    each_cast = CAST + np.where(dynamic, MAXIMUM, 0.0)
    block = np.asarray(model.dense_ffn_weights / t)
    if experts:
        block = model.experts * model.expert_weights / (runs.expert * runs.expert_parts)
    of_weights = np.where(eight & dynamic, each_cast * (model.attention_weights / t + block), 0.0)
    for side in (0, 1):
        mask = np.where(dropped(model, runs), 2.0 * MASK[side], 0.0)
        plain = model.hidden * (model.norms * NORM[side] + 2.0 * ADD[side] + mask) / apart
        split = (width * act[side] + heads * rotary[side]) / t
        cast = np.where(eight, each_cast * (2.0 * model.hidden / apart + (width + heads) / t), 0.0)
        routed = 4.0 * HALF * model.hidden * (model.experts_active if experts else 0)
        spread = np.where(runs.expert_parts < t, t, apart)
        back_bytes.append(tokens * (plain + split + cast + routed / spread) + of_weights)
    forward.bytes = back_bytes[0] + core.bytes
    inputs.bytes = back_bytes[1] + core_back.bytes
    forward.products += core.products
    inputs.products += core_back.products
    forward.attention_flops = core.attention_flops
    inputs.attention_flops = core_back.attention_flops
    kernels = np.where(runs.flash_attention > 0, KERNELS_FLASH, KERNELS)
    if experts:
        kernels = kernels + KERNELS_EXPERTS + 2.0 * model.experts / runs.expert
    forward.kernels, inputs.kernels, weights.kernels = kernels, 1.5 * kernels, 0.5 * kernels
    core.kernels = np.where(runs.flash_attention > 0, 1.0, 6.0)
    pointwise = Work(bytes=back_bytes[0], kernels=0.5 * kernels)
    own = 4 if model.kv_rank else 2  # of attention, listed first
    routed_work = Work(bytes=back_bytes[0], kernels=kernels - KERNELS_FLASH / 2.0)
    if experts:
        routed_work.products = [one for one in forward.products if one.eight_bit][own:]
    return LayerWork(forward, inputs, weights, core, pointwise, routed_work)


def _linear(
    model: Architecture, runs: Runs, tokens: Floats, experts: bool
) -> list[tuple[Floats, Floats, Floats, Floats, bool]]:
    """Matrix products of the linear layers: (m, k, n, count, of experts)."""
    t, one = runs.tensor, np.ones_like(tokens)
    hidden = model.hidden * one
    out = model.heads * model.value_head_dim / t
    found = []
    if model.kv_rank:
        queries = model.heads * model.query_dim / t
        keys = model.heads * (model.query_dim - model.rope_dim + model.value_head_dim) / t
        found.append((tokens, hidden, (model.query_rank + model.kv_rank + model.rope_dim) * one))
        found.append((tokens, (model.query_rank or model.hidden) * one, queries))
        found.append((tokens, model.kv_rank * one, keys))
    else:
        qkv = model.heads * model.query_dim
        qkv += model.kv_heads * (model.query_dim + model.value_head_dim)
        found.append((tokens, hidden, qkv / t))
    found.append((tokens, out, hidden))
    answer = [(m, k, n, one, False) for m, k, n in found]
    gate = 2.0 if model.gated else 1.0
    if not experts:
        wide = model.ffn / t
        return [
            *answer, (tokens, hidden, gate * wide, one, False), (tokens, wide, hidden, one, False)
        ]  # fmt: skip
    parts = runs.expert_parts
    wide = model.expert_width / parts
    local = model.experts / runs.expert
    # Of the tokens of the expert group, which holds each of them once.
    each = tokens * parts / t * model.experts_active * runs.expert / model.experts
    answer += [(each, hidden, gate * wide, local, True), (each, wide, hidden, local, True)]
    if model.experts_shared:
        shared = model.experts_shared * model.expert_width / t
        answer += [(tokens, hidden, gate * shared, one, False)]
        answer += [(tokens, shared, hidden, one, False)]
    return [*answer, (tokens, hidden, model.experts * one, one, False)]


def keys_per_query(model: Architecture, sequence: Floats, causal: Flags) -> Floats:
    """Mean number of keys that a query meets; all where the kernel computes masked ones too."""
    window, share = np.minimum(model.window or np.inf, sequence), model.window_share
    seen = share * window * (1.0 - 0.5 * window / sequence) + (1.0 - share) * 0.5 * sequence
    return np.where(causal, seen, sequence)


def keys_read(model: Architecture, sequence: Floats) -> Floats:
    """Keys that a query may meet, mean of the layers with attention."""
    share = model.window_share
    return share * np.minimum(model.window or np.inf, sequence) + (1.0 - share) * sequence


def _attention(model: Architecture, runs: Runs, tokens: Floats) -> tuple[Work, Work]:
    """Scores and values, forward and backward; fused or as two batched products each."""
    flash = runs.flash_attention > 0
    heads = model.heads / runs.tensor
    keys = keys_per_query(model, runs.sequence, flash)
    flops = 2.0 * tokens * keys * heads * (model.query_dim + model.value_head_dim)
    forward, backward = Work(), Work()
    forward.attention_flops = np.where(flash, flops, 0.0)
    backward.attention_flops = np.where(flash, FLASH_BACKWARD * flops, 0.0)
    merged = tokens * heads * model.value_head_dim * (runs.context - 1.0)
    for side, work in enumerate((forward, backward)):
        work.bytes = MERGE[side] * merged
    if flash.all():
        return forward, backward
    rows = runs.sequence / runs.context
    batch = np.where(flash, 0.0, heads * runs.microbatch)
    query, value = model.query_dim + 0.0 * rows, model.value_head_dim + 0.0 * rows
    forward.products = [
        Products(rows, query, runs.sequence, batch, False),
        Products(rows, runs.sequence, value, batch, False),
    ]
    backward.products = [
        Products(rows, value, runs.sequence, batch, False),
        Products(runs.sequence, rows, value, batch, False),
        Products(rows, runs.sequence, query, batch, False),
        Products(runs.sequence, rows, query, batch, False),
    ]
    scores = batch * rows * runs.sequence
    for side, work in enumerate((forward, backward)):
        masks = np.where(dropped(model, runs), SCORE_DROPOUT[side], 0.0)
        work.bytes = work.bytes + scores * (SOFTMAX[side] + masks)
    return forward, backward


def vocabulary_share(model: Architecture, runs: Runs) -> Floats:
    """Words on one GPU; groups pad their share to a multiple of 128 (Megatron-LM)."""
    share = np.ceil(model.vocab / runs.tensor / PADDED) * PADDED
    return np.where(runs.tensor > 1, share, float(model.vocab))


def ends_work(model: Architecture, runs: Runs) -> tuple[Work, Work, Work, Work]:
    """Embedding on the first stage, both directions; last norm, logits and loss on the last:
    forward, gradients of the input, and of the weights.
    """
    tokens, one = runs.tokens, np.ones_like(runs.tokens)
    words = vocabulary_share(model, runs)
    width = model.hidden * one
    loss = np.where(runs.fused_loss > 0, LOSS_FUSED, LOSS) * tokens * words
    norm, kernels = tokens * model.hidden, KERNELS_END * one
    shapes = (tokens, width, words), (tokens, words, width), (width, tokens, words)
    forward, inputs, weights = ([Products(*mkn, one, False)] for mkn in shapes)
    return (
        Work(bytes=tokens * model.hidden * (4.0 + 8.0), kernels=kernels),
        Work(forward, 0.0, 0.5 * loss + 4.0 * norm, kernels),
        Work(inputs, 0.0, 0.5 * loss + 6.0 * norm, kernels),
        Work(weights, 0.0, 0.0, 1.0 * one),
    )


def projected_weights(model: Architecture) -> int:
    """Of the product before a layer that predicts further ahead: state and next token to one."""
    return 2 * model.hidden**2


def model_flops(model: Architecture, runs: Runs) -> Floats:
    """FLOPs of forward and backward of one iteration, nothing repeated, by SC21 equation 3.

    Scores count in full, masked ones too, as Megatron-LM and the publications count them.
    """
    sequence, batch = runs.sequence, runs.global_batch
    seen = keys_per_query(model, sequence, np.full(len(runs), True))
    # Windows as they mask, whole sequences in full.
    keys = seen + (1.0 - model.window_share) * 0.5 * sequence
    further = model.active_layer_weights(bool(model.experts)) + projected_weights(model)
    further += model.embedding_weights
    every = model.active_weights + model.embedding_weights + runs.mtp_layers * further
    scores = (
        keys
        * (model.layers + runs.mtp_layers)
        * model.heads
        * (model.query_dim + model.value_head_dim)
    )
    return np.asarray(6.0 * batch * sequence * (every + scores))
