"""Cost of the operations of a pipeline: each part of the model, per microbatch and phase.

A part is one chunk of one stage. Only three kinds differ: the first (embedding), the last (logits
and loss), and those between. Layers are shared out evenly; if that leaves some parts one layer
short, the last is short first, then the first, because they do more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.cost import Cost, Rates, cost_of, rates
from joulecut_lab.model.links import Group, group, neighbour
from joulecut_lab.model.run import Run, part_layers
from joulecut_lab.model.runs import Flags, Floats, Runs
from joulecut_lab.model.system import System
from joulecut_lab.model.work import HALF, LayerWork, Products, Work, ends_work, layer_work

# Processors that communication takes while it runs beside work: 20 of the 132 of an H800
# (DeepSeek-V3 report, section 3.2.2; 24 for DeepEP's kernels).
BUSY_PROCESSORS = 0.15


@dataclass(slots=True)
class Phases:
    """Cost per microbatch. `repeat` is recomputation; `ends` is part of the phases it adds to."""

    forward: Cost
    input: Cost
    weight: Cost
    repeat: Cost
    ends_forward: Cost
    ends_input: Cost
    ends_weight: Cost

    @property
    def forward_s(self) -> Floats:
        return self.forward.seconds + self.ends_forward.seconds

    @property
    def input_s(self) -> Floats:
        """Until the stage before may go on: with recomputation."""
        return self.input.seconds + self.repeat.seconds + self.ends_input.seconds

    @property
    def weight_s(self) -> Floats:
        return self.weight.seconds + self.ends_weight.seconds

    @property
    def seconds(self) -> Floats:
        return self.forward_s + self.input_s + self.weight_s

    def trained(self, train: Floats) -> "Phases":
        """Without gradients where `train` is 0."""
        kept = ("forward", "ends_forward")
        return Phases(*(getattr(self, n) * (1.0 if n in kept else train) for n in self.__slots__))

    def __add__(self, other: "Phases") -> "Phases":
        pairs = ((getattr(self, n), getattr(other, n)) for n in self.__slots__)
        return Phases(*(a + b for a, b in pairs))

    def __mul__(self, factor: Floats | float) -> "Phases":
        return Phases(*(getattr(self, n) * factor for n in self.__slots__))


@dataclass(slots=True)
class Layers:
    """How many layers each kind of part has, and how many of them have experts."""

    parts: Floats
    first: Floats
    between: Floats  # largest of the parts between
    last: Floats
    between_all: Floats  # of all parts between
    first_dense: Floats
    between_dense: Floats  # of all parts between


def layers_of(model: Architecture, runs: Runs) -> Layers:
    v_shaped = runs.word("schedule", "zb-v") | runs.word("schedule", "dualpipe-v")
    parts = np.where(runs.pipeline > 1, runs.pipeline * np.where(v_shaped, 2.0, runs.chunks), 1.0)
    begins, ends = runs.first_layers > 0, runs.last_layers > 0
    ahead = np.where(ends, 0.0, runs.mtp_layers)
    left = model.layers + ahead - runs.first_layers - runs.last_layers
    others = np.maximum(parts - begins - ends, 1.0)
    most = np.ceil(left / others)
    short = most * others - left
    last = np.where(parts > 1, np.where(ends, runs.last_layers, most - ahead - (short >= 1)), 0.0)
    second = short >= np.where(ends, 1.0, 2.0)
    first = np.where(begins, runs.first_layers, most - (second & (parts > 1)))
    first = first - np.where(parts > 1, 0.0, ahead)
    rest = model.layers - first - last
    between = np.where(parts > 2, np.ceil(rest / np.maximum(parts - 2.0, 1.0)), 0.0)
    plain = float(model.dense_layers if model.experts else model.layers)
    first_dense = np.minimum(first, plain)
    between_dense = np.minimum(rest, plain - first_dense)
    return Layers(parts, first, between, last, rest, first_dense, between_dense)


@dataclass(slots=True)
class Stages:
    """Phases of one layer and of the ends, and the groups they communicate in."""

    model: Architecture
    system: System
    runs: Runs
    rates: Rates
    layers: Layers
    dense: Phases
    experts: Phases
    embedding: Phases
    logits: Phases
    tensor: Group
    send_s: Floats  # one microbatch to the next stage
    send_bits: Floats
    send_inside: Flags

    def part(self, layers: Floats | float, dense: Floats | float) -> Phases:
        """Phases of `layers` layers, `dense` of them without experts."""
        if not self.model.experts:
            return self.dense * layers
        return self.dense * dense + self.experts * (layers - dense)

    def every_part(self, run: Run) -> Iterator[Phases]:
        """Of one layout, in the order of the model; parts that are alike share theirs."""
        counts = part_layers(self.model.layers, run)
        plain = self.model.dense_layers if self.model.experts else self.model.layers
        known: dict[tuple[int, int, bool, bool], Phases] = {}
        for place, count in enumerate(counts):
            dense = min(count, plain)
            plain -= dense
            first, last = place == 0, place == len(counts) - 1
            if (key := (count, dense, first, last)) not in known:
                phases = self.part(float(count), float(dense))
                phases = phases + self.embedding if first else phases
                known[key] = phases + self.logits if last else phases
            yield known[key]


def stages_of(model: Architecture, system: System, runs: Runs) -> Stages:
    found = rates(system, runs)
    t, tc = runs.tensor, runs.tensor * runs.context
    tensor = group(system, t, np.ones_like(t))
    dense = _layer(model, system, runs, found, False)
    experts = _layer(model, system, runs, found, True) if model.experts else dense
    embedding, logits = _ends(model, system, runs, found, tensor)
    logits = logits + _ahead(model, system, runs, found, experts + logits)
    tokens = runs.microbatch * runs.sequence / runs.context
    distance = tc * runs.data
    pair = neighbour(system, distance, distance * runs.pipeline)
    # Each rank of a tensor group sends its share (scatter and gather, Megatron-LM).
    volume = HALF * tokens * model.hidden / t
    alone, train = runs.pipeline <= 1, 1.0 - runs.forward_only
    return Stages(
        model=model,
        system=system,
        runs=runs,
        rates=found,
        layers=layers_of(model, runs),
        dense=dense.trained(train),
        experts=experts.trained(train),
        embedding=embedding.trained(train),
        logits=logits.trained(train),
        tensor=tensor,
        send_s=np.where(alone, 0.0, volume / pair.bytes_s + pair.latency_s),
        send_bits=np.where(alone, 0.0, 8.0 * volume),
        send_inside=pair.inside,
    )


def _layer(model: Architecture, system: System, runs: Runs, found: Rates, experts: bool) -> Phases:
    """Phases of one layer with its collectives."""
    work = layer_work(model, runs, experts)
    forward, inputs, weights = (
        cost_of(system, found, one, runs) for one in (work.forward, work.input, work.weight)
    )
    blocks = 1.0 if experts and not model.experts_shared else 2.0
    _tensor_collectives(
        model, system, runs, blocks, forward=forward, inputs=inputs, weights=weights
    )
    _context_ring(model, system, runs, found, work=work, forward=forward, inputs=inputs)
    before = forward.up_bits, forward.out_bits
    if experts:
        _expert_exchange(model, system, runs, forward=forward, inputs=inputs, weights=weights)
    repeat = forward * runs.word("recompute", "full").astype(float)
    parts = (("selective", work.core), ("pointwise", work.pointwise), ("experts", work.block))
    for word, part in parts:
        which = runs.word("recompute", word)
        if which.any():
            again = cost_of(system, found, part, runs)
            if word == "experts":
                again.expert = forward.expert
                again.up_bits = forward.up_bits - before[0]
                again.out_bits = forward.out_bits - before[1]
            repeat = repeat + again * which.astype(float)
    repeat = repeat * runs.recompute_share
    none = Cost.none(len(runs))
    forward, repeat = forward.bound_by_host(), repeat.bound_by_host()
    # The host launches both gradients of a layer in one go.
    late = np.maximum(0.0, inputs.host + weights.host - inputs.seconds - weights.seconds)
    inputs.launch = inputs.launch + 0.5 * late
    weights.launch = weights.launch + 0.5 * late
    return Phases(forward, inputs, weights, repeat, none, none, none)


def _ahead(model: Architecture, system: System, runs: Runs, found: Rates, layer: Phases) -> Phases:
    """Layers that predict tokens further ahead, each with a product before it and logits after it
    (DeepSeek-V3, section 2.2). They are work of the last part.
    """
    if not (runs.mtp_layers > 0).any():
        return Phases(*(Cost.none(len(runs)) for _ in Phases.__slots__))
    tokens = runs.microbatch * runs.sequence / runs.context
    one = np.ones_like(tokens)
    wide, narrow = 2.0 * model.hidden * one, model.hidden / runs.tensor
    shapes = ((tokens, wide, narrow), (tokens, narrow, wide), (wide, tokens, narrow))
    products = [Work([Products(m, k, n, one)], kernels=3.0 * one) for m, k, n in shapes]
    forward, inputs, weights = (cost_of(system, found, one, runs) for one in products)
    none = Cost.none(len(runs))
    return (layer + Phases(forward, inputs, weights, none, none, none, none)) * runs.mtp_layers


def _tensor_collectives(
    model: Architecture,
    system: System,
    runs: Runs,
    blocks: float,
    *,
    forward: Cost,
    inputs: Cost,
    weights: Cost,
) -> None:
    """One all-reduce per block and direction; with sequence parallelism gathers and scatters.

    Backward, what follows a gradient of the input runs beside the gradient of the weights
    (Megatron-LM); with sequence parallelism half of it cannot, because the work waits for it.
    """
    one = np.ones_like(runs.tensor)
    ring = group(system, runs.tensor, one)
    volume = HALF * runs.microbatch * runs.sequence / runs.context * model.hidden
    split = runs.sequence_parallel > 0
    each = np.where(split, 2.0 * ring.gather(volume), ring.all_reduce(volume))
    # With overlapped collectives only the first of `tensor` pieces stays exposed.
    share = np.where(runs.overlap_tensor > 0, 1.0 / runs.tensor, 1.0)
    forward.tensor = forward.tensor + blocks * each * share
    forward.hidden = forward.hidden + blocks * each * (1.0 - share)
    beside = blocks * np.where(split, 0.5 * each, each)
    waited = blocks * np.where(split, 0.5 * each, 0.0) * share
    room = system.tensor_overlap * np.minimum(beside, weights.compute + weights.memory)
    over = beside - room
    inputs.tensor = inputs.tensor + waited + over
    extra = np.where(split, blocks * ring.gather(volume), 0.0)  # inputs gathered once more
    inputs.hidden = inputs.hidden + blocks * each - waited - over + extra
    sent = blocks * 2.0 * volume
    again = np.where(split, blocks * volume, 0.0)
    for cost, bytes_sent in ((forward, sent), (inputs, sent + again)):
        up, out = ring.bits(bytes_sent)
        cost.up_bits = cost.up_bits + up
        cost.out_bits = cost.out_bits + out
        calls = np.where(runs.tensor > 1, 2.0, 0.0)
        cost.host = cost.host + np.where(runs.cuda_graphs > 0, 0.0, calls * system.launch_s)


def _context_ring(
    model: Architecture,
    system: System,
    runs: Runs,
    found: Rates,
    *,
    work: LayerWork,
    forward: Cost,
    inputs: Cost,
) -> None:
    """Keys and values pass around the context ring beside the attention they are for.

    PyTorch gathers them, repeated for every head, in forward and in backward, and passes their
    gradients around with 32 bits, `context` times. Its traced collectives wait at once
    (torch.distributed._functional_collectives), so that compiled steps hide none of it.
    """
    if (runs.context <= 1).all():
        return
    ring = group(system, runs.context, runs.tensor)
    tokens = runs.microbatch * runs.sequence / runs.context
    gathered = runs.word("context_exchange", "gathered")
    heads = np.where(gathered, model.heads, model.kv_heads)
    volume = HALF * tokens * heads * (model.query_dim + model.value_head_dim) / runs.tensor
    around = np.where(gathered, 1.0 + 2.0 * runs.context / np.maximum(runs.context - 1.0, 1.0), 2.0)
    sides = (
        (forward, work.core.attention_flops, np.ones_like(around)),
        (inputs, work.input.attention_flops, around),
    )
    for cost, flops, times in sides:
        spent = ring.pass_on(times * volume)
        beside = flops / found.attention * (1.0 - 1.0 / runs.context)
        exposed = np.where(gathered, spent, np.maximum(0.0, spent - beside))
        cost.context = cost.context + exposed
        cost.hidden = cost.hidden + spent - exposed
        up, out = ring.bits(times * volume * runs.context)
        cost.up_bits = cost.up_bits + up
        cost.out_bits = cost.out_bits + out


def _expert_exchange(
    model: Architecture, system: System, runs: Runs, *, forward: Cost, inputs: Cost, weights: Cost
) -> None:
    """Tokens go to their experts and back, in both directions of the pass.

    GPUs that share an expert gather its tokens and scatter their results. Beside another
    microbatch, an exchange takes processors from the work that hides it.
    """
    parts = runs.expert_parts
    ring, shared = group(system, runs.expert, parts), group(system, parts, np.ones_like(parts))
    once = (runs.sequence_parallel > 0) | (parts < runs.tensor)
    tokens = runs.microbatch * runs.sequence / runs.context / np.where(once, runs.tensor, 1.0)
    volume = HALF * tokens * model.experts_active * model.hidden
    crossing = np.where(runs.dispatch_once > 0, _crossing(model, ring), 1.0)
    gathered = volume * np.where(once, parts, 1.0)
    spent = 2.0 * ring.exchange(volume, crossing)
    spent = spent + np.where(once, 2.0 * shared.gather(gathered), shared.all_reduce(gathered))
    beside = (runs.overlap_expert > 0) | runs.word("schedule", "dualpipe-v")
    room = (forward.seconds, inputs.seconds + weights.seconds)
    for cost, work_s in zip((forward, inputs), room, strict=True):
        hidden = np.where(beside, np.minimum(spent, work_s), 0.0)
        cost.expert = cost.expert + spent - hidden * (1.0 - BUSY_PROCESSORS)
        cost.hidden = cost.hidden + hidden
        up, out = ring.bits(2.0 * volume)
        more, _ = shared.bits(2.0 * gathered)
        cost.up_bits = cost.up_bits + up + more
        cost.out_bits = cost.out_bits + out * crossing


def _crossing(model: Architecture, ring: Group) -> Floats:
    """Nodes away that a token goes to, over the experts it has there, for experts in random nodes
    of which a router may allow a few alone (DeepSeek-V3, section 2.1.2).
    """
    nodes = np.maximum(ring.size / ring.local, 1.0)
    active = float(max(1, model.experts_active))
    visited = nodes * (1.0 - (1.0 - 1.0 / nodes) ** active)
    visited = np.minimum(visited, model.expert_nodes or np.inf)
    return np.asarray(visited / active)


def _ends(
    model: Architecture, system: System, runs: Runs, found: Rates, tensor: Group
) -> tuple[Phases, Phases]:
    """Embedding, and logits with loss; each summed over the tensor group."""
    work = ends_work(model, runs)
    none = Cost.none(len(runs))
    embedding = cost_of(system, found, work.embedding, runs)
    forward = cost_of(system, found, work.logits_forward, runs)
    inputs = cost_of(system, found, work.logits_input, runs)
    weights = cost_of(system, found, work.logits_weight, runs)
    tokens = runs.microbatch * runs.sequence / runs.context
    volume = HALF * tokens * model.hidden
    split = runs.sequence_parallel > 0
    # Embedding forward, logits backward; with sequence parallelism one half of each.
    once = np.where(split, tensor.gather(volume), tensor.all_reduce(volume))
    embedding.tensor = embedding.tensor + once
    inputs.tensor = inputs.tensor + once
    forward.tensor = forward.tensor + np.where(split, tensor.gather(volume), 0.0)
    for cost in (embedding, inputs):
        up, out = tensor.bits(2.0 * volume)
        cost.up_bits = cost.up_bits + up
        cost.out_bits = cost.out_bits + out
    costs = [one.bound_by_host() for one in (embedding, forward, inputs, weights)]
    return (
        Phases(none, none, none, none, costs[0], none, none),
        Phases(none, none, none, none, costs[1], costs[2], costs[3]),
    )
