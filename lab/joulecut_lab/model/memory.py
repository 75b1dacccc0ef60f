"""Memory of one GPU of each stage: weights, gradients, optimizer, activations, temporary peak.

Activations follow Korthikanti et al. (arXiv 2205.05198), byte by byte, with grouped attention,
gated blocks and experts counted the same way. The temporary peak is the larger of two moments: the
gradient of one feed-forward block, or that of the logits, beside the empty gradients that fused
accumulation returns for each matrix (Transformer Engine).
"""

from dataclasses import dataclass

import numpy as np

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.runs import Flags, Floats, Runs
from joulecut_lab.model.stages import Layers, layers_of
from joulecut_lab.model.work import HALF, dropped, keys_read, narrow, projected_weights

WORKSPACE_BYTES = 96 * 2.0**20  # cuBLAS keeps 32 MiB per stream on Hopper and Blackwell; 3 streams
SINGLE = 4.0


@dataclass(slots=True)
class Memory:
    """Bytes of one GPU; arrays (stages, runs). Stage 0, a stage between, the last stage."""

    stage: Floats  # number of each row's stage
    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    temporary: Floats
    near: Floats  # parameters of one GPU that every data rank has, and those of its experts
    far: Floats

    @property
    def total(self) -> Floats:
        parts = (self.weights, self.gradients, self.optimizer, self.activations, self.temporary)
        return np.asarray(sum(parts))

    @property
    def peak(self) -> Floats:
        return np.asarray(self.total.max(axis=0))


def memory_of(model: Architecture, runs: Runs) -> Memory:
    """Memory of the first stage, the second and the last; of one stage three times the same.

    Parameters are whole, as they are without ZeRO.
    """
    p = runs.pipeline
    rows = [stage_memory(model, runs, s) for s in (0 * p, np.minimum(1.0, p - 1.0), p - 1.0)]
    return Memory(*(np.stack(kind) for kind in zip(*rows, strict=True)))


def stage_memory(model: Architecture, runs: Runs, stage: Floats) -> tuple[Floats, ...]:
    """One stage: its number, bytes by kind and parameters, in the order of `Memory`."""
    layers = layers_of(model, runs)
    first = stage == 0.0
    last = np.where(runs.folded, first, stage == runs.pipeline - 1.0)
    own = layers.parts / runs.pipeline - first - last
    held = first * layers.first + last * layers.last + own * layers.between
    dense = np.where(first, np.minimum(layers.first_dense, held), 0.0)
    held = held + last * runs.mtp_layers
    one = _Stage(model, runs, stage, first, last, held, dense if model.experts else held)
    near, far = one.parameters()
    shards, apart = runs.shards, runs.expert_shards
    whole, part = near + far, near / shards + far / apart
    single = runs.word("dtype", "fp32")
    width = np.where(single, SINGLE, runs.weight_bytes)
    state = 2.0 * runs.moment_bytes + np.where(single, 0.0, runs.master_bytes)
    optimizer = np.where(runs.zero >= 1, part, whole) * state
    saved = one.saved(layers)
    saved = np.where(runs.word("offload", "activations"), saved / np.maximum(held, 1.0), saved)
    # Dropout masks of the embedding, one per microbatch in flight.
    masks = runs.tokens * model.hidden * runs.pipeline / runs.apart
    fetched = near * (1.0 - 1.0 / shards) + far * (1.0 - 1.0 / apart)
    return (
        stage, np.where(runs.zero >= 3, part, whole) * width,
        np.where(runs.zero >= 2, part, whole) * runs.gradient_bytes,
        np.where(runs.word("offload", "optimizer"), 0.0, optimizer),
        saved + np.where(first & dropped(model, runs), masks, 0.0), one.temporary(fetched),
        near, far,
    )  # fmt: skip


@dataclass(slots=True)
class _Stage:
    """One stage of every run: whether it holds the embedding, whether it holds the logits, its
    layers, and those of them without experts.
    """

    model: Architecture
    runs: Runs
    stage: Floats
    first: Flags
    last: Flags
    held: Floats
    dense: Floats

    def _waiting(self, layers: Layers) -> Floats:
        """Microbatches that wait for their backward at once.

        Of an interleaved schedule a microbatch counts by the share of the stage's layers it has
        passed.
        """
        runs, p, m = self.runs, self.runs.pipeline, self.runs.microbatches
        chunks = layers.parts / p
        later = p - 1.0 - self.stage
        waiting = np.minimum(m, later + 1.0)
        looped = (runs.chunks > 1) & (runs.word("schedule", "1f1b"))
        looped = looped | runs.word("schedule", "interleaved-1f1b")
        deep = np.minimum(m * chunks, (chunks - 1.0) * p + 2.0 * later + 1.0) / chunks
        choices = (
            (runs.word("schedule", "gpipe"), m),
            (looped & (p > 1), deep),
            (runs.word("schedule", "zb-h2"), np.minimum(m, 2.0 * later + 1.0)),
            (runs.word("schedule", "zb-h1"), np.minimum(m, waiting + (chunks - 1.0) * p / chunks)),
            (runs.word("schedule", "zb-v"), np.minimum(m, p)),
            (runs.word("schedule", "dualpipe-v"), np.minimum(m, p + 0.5)),
        )
        for which, count in choices:
            waiting = np.where(which & (p > 1), count, waiting)
        return waiting

    def parameters(self) -> tuple[Floats, Floats]:
        """On one GPU: those of every data rank, and those of its experts."""
        model, runs, t = self.model, self.runs, self.runs.tensor
        small = model.small_weights
        near = self.held * (model.attention_weights / t + small + model.extra / model.layers)
        inner = model.ffn * (2 if model.gated else 1)
        biases = inner / t + model.hidden if model.bias else 0.0
        near = near + self.dense * (model.dense_ffn_weights / t + biases)
        routed = self.held - self.dense
        shared = model.experts_shared * model.expert_weights / t + model.hidden * model.experts
        near = near + routed * shared
        words = model.embedding_weights / t
        once = words + model.positions * model.hidden
        alone = self.first & self.last & model.tied
        near = near + np.where(self.first, once, 0.0) + np.where(self.last & ~alone, words, 0.0)
        far = routed * model.experts * model.expert_weights / (runs.expert_parts * runs.expert)
        return near + self.last * runs.mtp_layers * projected_weights(model) / t, far

    def saved(self, layers: Layers) -> Floats:
        """Activations kept for backward, of layers that repeat and of the others."""
        model, runs, tokens = self.model, self.runs, self.runs.tokens
        kept = [np.zeros(len(runs))] * 3
        for experts, count in ((False, self.dense), (True, self.held - self.dense)):
            if not experts or model.experts:
                each = layer_bytes(model, runs, tokens, experts)
                kept = [total + count * one for total, one in zip(kept, each, strict=True)]
        full, share = runs.word("recompute", "full"), runs.recompute_share
        inputs = self.held * HALF * tokens * model.hidden / runs.apart
        one = np.where(self.held > 0, kept[0] / np.maximum(self.held, 1.0), 0.0)
        less = np.where(runs.word("recompute", "pointwise"), kept[1], kept[0])
        less = np.where(runs.word("recompute", "experts"), kept[2], less)
        less = np.where(full, inputs, less)
        saved = (less * share + kept[0] * (1.0 - share)) * self._waiting(layers)
        return saved + np.where(full, one, 0.0)

    def temporary(self, fetched: Floats) -> Floats:
        """Peak of what lives for one operation only; `fetched` parameters come from other GPUs."""
        model, runs, t, tokens = self.model, self.runs, self.runs.tensor, self.runs.tokens
        matrices = model.dense_ffn_weights / t
        if model.experts:
            routed = model.experts / (runs.expert * runs.expert_parts)
            matrices = (routed + model.experts_shared / t) * model.expert_weights
        empty = HALF * (model.attention_weights / t + matrices)
        gate = 2.0 if model.gated else 1.0
        active = model.expert_width * (model.experts_active + model.experts_shared)
        width = (active if model.experts else model.ffn) / t
        block = HALF * tokens * (gate * width + model.hidden)
        words = model.vocab / t
        # Logits: their gradient, or with an unfused loss a 32-bit copy and its softmax.
        wide = np.where(runs.fused_loss > 0, HALF, HALF + SINGLE)
        logits = tokens * words * wide + HALF * model.embedding_weights / t
        logits = logits + 2.0 * HALF * tokens * model.hidden / runs.apart
        # Whole sequences gathered for a matrix, and the gradient before it is scattered.
        gathered = np.where((runs.sequence_parallel > 0) & (t > 1), 2.0, 1.0)
        gathered = gathered * HALF * tokens * model.hidden
        peak = np.maximum(block, np.where(self.last, logits + gathered, 0.0))
        # Weights of the layer at work and of the next.
        two = np.minimum(2.0 / np.maximum(self.held, 1.0), 1.0)
        units = np.where(runs.zero >= 3, runs.weight_bytes * two * fetched, 0.0)
        return empty + peak + units + WORKSPACE_BYTES


def layer_bytes(
    model: Architecture, runs: Runs, tokens: Floats, experts: bool
) -> tuple[Floats, Floats, Floats]:
    """Activations of one layer and one microbatch: without full recomputation; where norms and
    activations are repeated, which leaves the inputs of norms, activations and attention alone; and
    where experts are repeated as well.
    """
    t = runs.tensor
    apart = runs.apart
    mask = np.where(dropped(model, runs), 1.0, 0.0)
    # Inputs of products: in 8 bits, but for maxima of a whole tensor.
    product = np.where(narrow(runs) & runs.word("scaling", "delayed"), 1.0, HALF)
    # Inputs of both norms and of both blocks; masks of both dropouts.
    norms = model.hidden * (2.0 * HALF + 2.0 * mask) / apart
    inputs = model.hidden * 2.0 * product / apart
    queries = model.heads * model.query_dim
    keys = model.kv_heads * (model.query_dim + model.value_head_dim)
    latent = np.zeros_like(t)
    if model.kv_rank:
        keys = model.heads * (model.query_dim + model.value_head_dim)
        latent = HALF * (model.kv_rank + model.query_rank) / t
    # A context ring keeps the output of attention once more.
    outputs = model.heads * model.value_head_dim * np.where(runs.context > 1, 2.0, 1.0)
    values = HALF * outputs / t + latent
    projected = HALF * (queries + keys) / t
    width = float(model.ffn)
    routed = np.zeros_like(t)
    if experts:
        width = model.expert_width * float(model.experts_active + model.experts_shared)
        rows = np.where(runs.expert_parts < t, t, apart)
        routed = model.hidden * model.experts_active / rows
    halves = (2.0 if model.gated else 1.0) * HALF * width / t
    scores = model.heads * keys_read(model, runs.sequence) * (2.0 * HALF + mask) / t
    drop = (runs.flash_attention > 0) | runs.word("recompute", "selective")
    shared = norms + values + halves + product * routed
    whole = shared + inputs + projected + product * width / t + HALF * routed
    pointwise = shared + (0.0 if model.kv_rank else projected)
    block = pointwise - (halves + product * routed if experts else 0.0)
    return tokens * (whole + np.where(drop, 0.0, scores)), tokens * pointwise, tokens * block
