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
FORWARD = [0, 4]  # of `Phases`: those that a run without gradients has


class _Phase:
    """The cost of a phase, by name."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, phases: "Phases", _: object) -> Cost:
        return Cost(phases.figures[self._place])


@dataclass(slots=True)
class Phases:
    """Cost per microbatch. `repeat` is recomputation; `ends` is part of the phases it adds to."""

    figures: Floats  # (phases, figures of a cost, runs)

    forward, input, weight, repeat, ends_forward, ends_input, ends_weight = map(_Phase, range(7))

    @staticmethod
    def of(*costs: Cost) -> "Phases":
        return Phases(np.stack([one.figures for one in costs]))

    @property
    def all(self) -> Cost:
        return Cost(self.figures.sum(axis=0))

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
        found = Phases(self.figures * train)
        found.figures[FORWARD] = self.figures[FORWARD]
        return found

    def __add__(self, other: "Phases") -> "Phases":
        return Phases(self.figures + other.figures)

    def __mul__(self, factor: Floats | float) -> "Phases":
        return Phases(self.figures * factor)


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
    chunks = np.where(runs.folded, 2.0, runs.chunks)
    parts = np.where(runs.pipeline > 1, runs.pipeline * chunks, 1.0)
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
    priced = _Priced(model, system, runs, found, runs.tokens)
    dense = priced.layer(experts=False)
    experts = priced.layer(experts=True) if model.experts else dense
    embedding, logits = priced.ends()
    logits = logits + priced.ahead(experts + logits)
    distance = runs.tensor * runs.context * runs.data
    pair = neighbour(system, distance, distance * runs.pipeline)
    # Each rank of a tensor group sends its share (scatter and gather, Megatron-LM).
    volume = HALF * runs.tokens * model.hidden / runs.tensor
    alone, train = runs.pipeline <= 1, 1.0 - runs.forward_only
    return Stages(
        model, system, runs, found, layers_of(model, runs), dense.trained(train),
        experts.trained(train), embedding.trained(train), logits.trained(train),
        send_s=np.where(alone, 0.0, volume / pair.bytes_s + pair.latency_s),
        send_bits=np.where(alone, 0.0, 8.0 * volume),
        send_inside=pair.inside,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Priced:
    """Layers and ends of a model with their collectives, for one microbatch of `tokens` a GPU."""

    model: Architecture
    system: System
    runs: Runs
    rates: Rates
    tokens: Floats

    def _costs(self, *works: Work) -> list[Cost]:
        return [cost_of(self.system, self.rates, work, self.runs) for work in works]

    @property
    def _hidden_bytes(self) -> Floats:
        return HALF * self.tokens * self.model.hidden

    @property
    def _tensor(self) -> Group:
        return group(self.system, self.runs.tensor, np.ones_like(self.tokens))

    def layer(self, *, experts: bool) -> Phases:
        """Phases of one layer."""
        runs = self.runs
        work = layer_work(self.model, runs, experts)
        forward, inputs, weights = self._costs(work.forward, work.input, work.weight)
        blocks = 1.0 if experts and not self.model.experts_shared else 2.0
        self._tensor_collectives(blocks, forward, inputs, weights)
        self._context_ring(work, forward, inputs)
        before = forward.up_bits.copy(), forward.out_bits.copy()
        if experts:
            self._expert_exchange(forward, inputs, weights)
        repeat = forward * runs.word("recompute", "full").astype(float)
        parts = (("selective", work.core), ("pointwise", work.pointwise), ("experts", work.block))
        for word, part in parts:
            which = runs.word("recompute", word)
            if which.any():
                (again,) = self._costs(part)
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
        inputs.launch += 0.5 * late
        weights.launch += 0.5 * late
        return Phases.of(forward, inputs, weights, repeat, none, none, none)

    def ahead(self, layer: Phases) -> Phases:
        """Layers that predict tokens further ahead, each with a product before it and logits after
        it (DeepSeek-V3, section 2.2). They are work of the last part.
        """
        if not (self.runs.mtp_layers > 0).any():
            return layer * 0.0
        none = Cost.none(len(self.runs))
        m, one = self.tokens, np.ones_like(self.tokens)
        wide, narrow = 2.0 * self.model.hidden * one, self.model.hidden / self.runs.tensor
        shapes = ((m, wide, narrow), (m, narrow, wide), (wide, m, narrow))
        forward, inputs, weights = self._costs(
            *(Work([Products(*mkn, one)], kernels=3.0 * one) for mkn in shapes)
        )
        more = Phases.of(forward, inputs, weights, none, none, none, none)
        return (layer + more) * self.runs.mtp_layers

    def _tensor_collectives(
        self, blocks: float, forward: Cost, inputs: Cost, weights: Cost
    ) -> None:
        """One all-reduce per block and direction; with sequence parallelism gathers and scatters.

        Backward, what follows a gradient of the input runs beside the gradient of the weights
        (Megatron-LM); with sequence parallelism half of it cannot, because the work waits for it.
        """
        runs, ring, volume = self.runs, self._tensor, self._hidden_bytes
        split = runs.sequence_parallel > 0
        each = np.where(split, 2.0 * ring.gather(volume), ring.all_reduce(volume))
        # With overlapped collectives only the first of `tensor` pieces stays exposed.
        share = np.where(runs.overlap_tensor > 0, 1.0 / runs.tensor, 1.0)
        forward.tensor = forward.tensor + blocks * each * share
        forward.hidden = forward.hidden + blocks * each * (1.0 - share)
        beside = blocks * np.where(split, 0.5 * each, each)
        waited = blocks * np.where(split, 0.5 * each, 0.0) * share
        room = self.system.tensor_overlap * np.minimum(beside, weights.compute + weights.memory)
        over = beside - room
        inputs.tensor = inputs.tensor + waited + over
        extra = np.where(split, blocks * ring.gather(volume), 0.0)  # inputs gathered once more
        inputs.hidden = inputs.hidden + blocks * each - waited - over + extra
        sent = blocks * 2.0 * volume
        calls = np.where((runs.tensor > 1) & (runs.cuda_graphs <= 0), 2.0, 0.0)
        for cost, again in ((forward, 0.0), (inputs, np.where(split, blocks * volume, 0.0))):
            cost.send(ring, sent + again)
            cost.host = cost.host + calls * self.system.launch_s

    def _context_ring(self, work: LayerWork, forward: Cost, inputs: Cost) -> None:
        """Keys and values pass around the context ring beside the attention they are for.

        PyTorch gathers them, repeated for every head, in forward and in backward, and passes their
        gradients around with 32 bits, `context` times. Its traced collectives wait at once
        (torch.distributed._functional_collectives), so that compiled steps hide none of it.
        """
        runs, model = self.runs, self.model
        if (runs.context <= 1).all():
            return
        ring = group(self.system, runs.context, runs.tensor)
        gathered = runs.word("context_exchange", "gathered")
        heads = np.where(gathered, model.heads, model.kv_heads)
        volume = HALF * self.tokens * heads * (model.query_dim + model.value_head_dim) / runs.tensor
        around = 1.0 + 2.0 * runs.context / np.maximum(runs.context - 1.0, 1.0)
        around = np.where(gathered, around, 2.0)
        sides = (
            (forward, work.core.attention_flops, np.ones_like(around)),
            (inputs, work.input.attention_flops, around),
        )
        for cost, flops, times in sides:
            spent = ring.pass_on(times * volume)
            beside = flops / self.rates.attention * (1.0 - 1.0 / runs.context)
            exposed = np.where(gathered, spent, np.maximum(0.0, spent - beside))
            cost.context = cost.context + exposed
            cost.hidden = cost.hidden + spent - exposed
            cost.send(ring, times * volume * runs.context)

    def _expert_exchange(self, forward: Cost, inputs: Cost, weights: Cost) -> None:
        """Tokens go to their experts and back, in both directions of the pass.

        GPUs that share an expert gather its tokens and scatter their results. Beside another
        microbatch, an exchange takes processors from the work that hides it.
        """
        runs, model, parts = self.runs, self.model, self.runs.expert_parts
        ring = group(self.system, runs.expert, parts)
        shared = group(self.system, parts, np.ones_like(parts))
        once = (runs.sequence_parallel > 0) | (parts < runs.tensor)
        tokens = self.tokens / np.where(once, runs.tensor, 1.0)
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
            cost.send(ring, 2.0 * volume, crossing)
            cost.up_bits = cost.up_bits + shared.bits(2.0 * gathered)[0]

    def ends(self) -> tuple[Phases, Phases]:
        """Embedding, and logits with loss; each summed over the tensor group."""
        none, ring, volume = Cost.none(len(self.runs)), self._tensor, self._hidden_bytes
        embedding, forward, inputs, weights = self._costs(*ends_work(self.model, self.runs))
        split = self.runs.sequence_parallel > 0
        # Embedding forward, logits backward; with sequence parallelism one half of each.
        once = np.where(split, ring.gather(volume), ring.all_reduce(volume))
        forward.tensor = forward.tensor + np.where(split, ring.gather(volume), 0.0)
        for cost in (embedding, inputs):
            cost.tensor = cost.tensor + once
            cost.send(ring, 2.0 * volume)
        costs = [one.bound_by_host() for one in (embedding, forward, inputs, weights)]
        return (
            Phases.of(none, none, none, none, costs[0], none, none),
            Phases.of(none, none, none, none, *costs[1:]),
        )


def _crossing(model: Architecture, ring: Group) -> Floats:
    """Nodes away that a token goes to, over the experts it has there, for experts in random nodes
    of which a router may allow a few alone (DeepSeek-V3, section 2.1.2).
    """
    nodes = np.maximum(ring.size / ring.local, 1.0)
    active = float(max(1, model.experts_active))
    visited = nodes * (1.0 - (1.0 - 1.0 / nodes) ** active)
    visited = np.minimum(visited, model.expert_nodes or np.inf)
    return np.asarray(visited / active)
