"""Five models on A100 and A40: stage profiles predicted for the layouts of Perseus' measured runs.

GPT-3, Bloom and BERT are runs of the model, their stages as published (Bloom's shared out by the
model); T5's stages are put together from predicted layers, Wide-ResNet's from convolutions as the
matrix products that they are. Shapes, sequence lengths and number type are those of the published
code (ml-energy/zeus, branch kronos, merak/examples): 32-bit numbers in TF32 products, full
recomputation, 1F1B. Published savings are of Perseus' artifact (SOSP'24): measured without a
straggler, computed from the measured frontier with one. Nothing is fitted to these runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from joulecut_engine import plan
from joulecut_engine.datasheets import SHEETS
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Kind, Pipeline, Profile
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.solver import solve
from joulecut_lab.model.cost import Cost, Rates, cost_of, rates
from joulecut_lab.model.power import blocking_power_w, power_of
from joulecut_lab.model.runs import Runs
from joulecut_lab.model.system import System
from joulecut_lab.model.work import Products, Work
from joulecut_lab.run_file import LOW_SHARE, STEP_MHZ, Predicted, RunFile, of_mapping, predicted

STRAGGLERS = 1.05, 1.1, 1.2, 1.5  # iteration times over the fastest
# The model counts two bytes a number; these runs keep four, so memory and links have half the rate.
WIDE = 2.0
SYSTEMS: dict[str, dict[str, Any]] = {
    # NVIDIA A100 80 GB PCIe data sheet, 2021: 300 W, 1,935 GB/s; stages talk over PCIe 4.0.
    "A100": {"accelerator": "a100-sxm-80gb", "gpus_per_node": 4, "power_cap_w": 300.0,
             "fp32_tflops": SHEETS["a100-sxm"].tf32_tflops, "hbm_gb_s": 1935.0 / WIDE,
             "scale_up_gb_s": 25.0 / WIDE},
    "A40": {"accelerator": "a40", "gpus_per_node": 4,
            "fp32_tflops": SHEETS["a40"].tf32_tflops, "hbm_gb_s": 696.0 / WIDE,
            "scale_up_gb_s": 25.0 / WIDE, "scale_out_gb_s": 12.5 / WIDE},
}  # fmt: skip
# Vocabularies are padded to eight: the model's rate of odd dimensions was measured with 16 bits,
# and the published partitions, balanced by measured times, leave no room for it.
GPT = {"vocab": 50264, "positions": 1024, "tied": True, "bias": True, "norm_bias": True}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt3-xl": {"layers": 24, "hidden": 2048, "heads": 16, "ffn": 8192, **GPT},
    "gpt3-2.7b": {"layers": 32, "hidden": 2560, "heads": 32, "ffn": 10240, **GPT},
    "gpt3-6.7b": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 16384, **GPT},
    "bloom-3b": {"layers": 30, "hidden": 2560, "heads": 32, "ffn": 10240, **GPT,
                 "vocab": 250880, "positions": 0, "embedding_norm": True},
    # Without fused attention a decoder computes all scores, as an encoder does: the same work.
    "bert-huge-uncased": {"layers": 24, "hidden": 2048, "heads": 16, "ffn": 8192, **GPT,
                          "vocab": 30528, "positions": 512},
    # One encoder layer; `t5` adds what a decoder's has more.
    "t5-3b": {"hidden": 1024, "heads": 32, "head_dim": 128, "ffn": 16384, "vocab": 32128,
              "tied": True},
}  # fmt: skip
SEQUENCE = {"bert-huge-uncased": 512, "t5-3b": 512}  # tokens; others 1,024
# Parts of a published partition before the first layer; one more, the logits, follows the last.
EMBEDDINGS = {"gpt3": 2, "bert": 1, "bloom": 1}
T5_LAYERS = 24  # of the encoder, and of the decoder, whose layers are cut in two
# Perseus, saved in percent: without a straggler, its slowdown (clipped at 0 in the artifact), and
# at the four stragglers.
PUBLISHED: dict[tuple[str, str], tuple[float, float, tuple[float, ...]]] = {
    ("A100", "gpt3-xl"): (13.2, 0.1, (14.7, 15.9, 15.5, 14.3)),
    ("A100", "bloom-3b"): (11.7, 0.2, (13.6, 15.6, 15.2, 14.0)),
    ("A100", "bert-huge-uncased"): (12.9, 0.5, (14.9, 16.9, 16.4, 15.0)),
    ("A100", "t5-3b"): (10.6, 1.3, (15.3, 18.0, 17.9, 16.5)),
    ("A100", "wide-resnet101_8"): (3.2, 2.3, (9.4, 12.7, 12.6, 11.6)),
    ("A40", "gpt3-2.7b"): (21.1, 0.2, (24.5, 26.0, 25.9, 24.0)),
    ("A40", "bloom-3b"): (22.4, 0.0, (25.5, 26.4, 25.9, 24.0)),
    ("A40", "bert-huge-uncased"): (15.7, 0.0, (20.0, 22.6, 24.1, 22.2)),
    ("A40", "t5-3b"): (28.5, 0.0, (27.9, 27.3, 26.2, 23.4)),
    ("A40", "wide-resnet101_8"): (20.4, 0.2, (24.3, 26.2, 26.3, 24.4)),
    ("A40", "gpt3-6.7b"): (13.1, 0.3, ()),
}
# Of its emulation from measured stages: without a straggler, and all 1,024 GPUs with one of 1.2.
PUBLISHED_EMULATED = {
    ("A100", "GPT-3 175B"): (13.3, 27.0),
    ("A100", "Bloom 176B"): (4.3, 29.9),
    ("A40", "GPT-3 175B"): (8.9, 23.6),
    ("A40", "Bloom 176B"): (2.4, 21.1),
}
EMULATED = {
    "GPT-3 175B": {"layers": 96, "hidden": 12288, "heads": 96, "ffn": 49152, "vocab": 50304,
                   "positions": 2048},
    "Bloom 176B": {"layers": 70, "hidden": 14336, "heads": 112, "ffn": 57344, "vocab": 250880,
                   "embedding_norm": True},
}  # fmt: skip
# Wide-ResNet-101 (torchvision), every block's inner width times eight: blocks of each group, their
# inner and outer width, and the side of their output for images of 224.
RESNET = ((3, 512, 256, 56), (4, 1024, 512, 28), (23, 2048, 1024, 14), (3, 4096, 2048, 7))
STEM = 64, 112  # width and side of what the first convolution, 7 x 7 over three colours, makes
# Bytes of a kernel per number in forward and backward, beside a product: normalisation reads twice.
BATCH_NORM, RELU, SUM = (6.0, 10.0), (4.0, 6.0), (6.0, 4.0)
PIPELINES = 16
Options = dict[Kind, tuple[ClockOption, ...]]


@dataclass(frozen=True)
class Workload:
    """One row of the published layouts."""

    card: str
    model: str
    partition: str
    data: int
    tensor: int
    stages: int
    microbatch: int
    microbatches: int


EVEN = "uniform_transformer"  # the same number of layers in each stage
WORKLOADS = (
    Workload("A100", "gpt3-xl", "custom:0,8,14,21,27", 1, 1, 4, 8, 128),
    Workload("A100", "bloom-3b", "", 1, 1, 4, 4, 128),
    Workload("A100", "bert-huge-uncased", "custom:0,8,14,20,26", 1, 1, 4, 8, 32),
    Workload("A100", "t5-3b", "custom:0,16,33,53,74", 1, 1, 4, 4, 32),
    Workload("A100", "wide-resnet101_8", "custom:0,7,16,25,34", 1, 1, 4, 64, 24),
    Workload("A40", "gpt3-2.7b", EVEN, 1, 1, 8, 4, 256),
    Workload("A40", "bloom-3b", "", 1, 1, 8, 4, 128),
    Workload("A40", "bert-huge-uncased", EVEN, 1, 1, 8, 8, 32),
    Workload("A40", "t5-3b", "custom:0,9,16,24,33,43,53,63,74", 1, 1, 8, 4, 32),
    Workload("A40", "wide-resnet101_8", "custom:0,4,9,13,17,21,25,30,34", 1, 1, 8, 32, 48),
    Workload("A40", "gpt3-6.7b", EVEN, 2, 2, 4, 4, 64),
)


def cuts(work: Workload) -> list[int]:
    """First part of each stage, and the number of parts."""
    return [int(cut) for cut in work.partition.removeprefix("custom:").split(",")]


def modelled(work: Workload, **shape: Any) -> RunFile:
    """The run on a published layout; `shape` replaces keys of the architecture and of the run."""
    keys = {
        "gpus": work.data * work.tensor * work.stages, "tensor": work.tensor, "data": work.data,
        "pipeline": work.stages, "microbatch": work.microbatch,
        "global_batch": work.microbatch * work.microbatches * work.data,
        "sequence": SEQUENCE.get(work.model, 1024), "dtype": "fp32", "recompute": "full",
        "weight_bytes": 4, "master_bytes": 0,
    }  # fmt: skip
    keys |= {key: shape.pop(key) for key in ("first_layers", "last_layers") if key in shape}
    return of_mapping(
        {"model": SHAPES[work.model] | shape, "system": SYSTEMS[work.card], "run": keys}, work.model
    )


def whole(work: Workload) -> RunFile:
    """A model of equal layers; middle stages that differ by one may stand in another order."""
    if not work.partition:
        return modelled(work)
    if work.partition == EVEN:
        even = SHAPES[work.model]["layers"] // work.stages
        return modelled(work, first_layers=even, last_layers=even)
    before = next(count for name, count in EMBEDDINGS.items() if work.model.startswith(name))
    parts = [b - a for a, b in pairwise(cuts(work))]
    return modelled(work, first_layers=parts[0] - before, last_layers=parts[-1] - 1)


def t5(work: Workload) -> Predicted:
    """T5 of predicted layers: an encoder's, a decoder's two attentions, its feed-forward block."""
    three = replace(work, stages=3)
    full = predicted(modelled(three, layers=3))
    bare = predicted(modelled(three, layers=3, ffn=8))
    block: Options = {kind: _of(full, 1, kind) for kind in KINDS}
    attention: Options = {kind: _of(bare, 1, kind) for kind in KINDS}

    def unit(at: int) -> Options:
        """Part `at` of the partition: embedding, encoder, halves of decoder layers, logits."""
        if at == 0:
            return {kind: _sum(_of(full, 0, kind), (block[kind], -1.0)) for kind in block}
        if at <= T5_LAYERS:
            return block
        if at <= 3 * T5_LAYERS:
            if (at - T5_LAYERS) % 2:  # attention to itself and to the encoder
                return {kind: _sum(one, (one, 1.0)) for kind, one in attention.items()}
            return {kind: _sum(block[kind], (attention[kind], -1.0)) for kind in block}
        return {kind: _sum(_of(full, 2, kind), (block[kind], -1.0)) for kind in block}

    edges = cuts(work)
    options: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
    for stage, (first, end) in enumerate(pairwise(edges)):
        for kind in block:
            one, *more = [unit(at)[kind] for at in range(first, end)]
            options[stage, kind] = _sum(one, *((other, 1.0) for other in more))
    return replace(full, profile=Profile(options, "predicted layers"))


@dataclass(frozen=True)
class Convolution:
    """As a product: an output number of each of `wide_out` needs `kernel` squared of each of
    `wide_in`. What follows it goes over its output: normalisation, and a sum or an activation.
    """

    wide_in: int
    kernel: int
    wide_out: int
    side: int
    after: tuple[float, float] = RELU

    def cost(self, images: int, system: System, each: Rates, runs: Runs) -> tuple[Cost, Cost]:
        """Of a forward and of a backward, which repeats the forward."""
        one = np.ones(len(runs))
        m, k, n = (one * size for size in (
            images * self.side**2, self.wide_in * self.kernel**2, self.wide_out))  # fmt: skip
        moved = [m * n * sum(pair) for pair in zip(BATCH_NORM, self.after, strict=True)]
        ahead = Work([Products(m, k, n, one)], bytes=moved[0], kernels=3.0)
        back = Work([Products(m, n, k, one), Products(k, m, n, one)], bytes=moved[1], kernels=6.0)
        forward = cost_of(system, each, ahead, runs)
        return forward, forward + cost_of(system, each, back, runs)


def blocks_of_resnet() -> Iterator[tuple[Convolution, ...]]:
    """The parts of the published partition: the stem and 33 bottlenecks."""
    yield (Convolution(3, 7, *STEM),)
    wide, side_in = STEM[0], STEM[1] // 2  # after pooling
    for blocks, inner, outer, side in RESNET:
        for _ in range(blocks):
            ends = Convolution(inner, 1, outer, side, SUM)
            short = () if wide == outer else (Convolution(wide, 1, outer, side, (0.0, 0.0)),)
            yield (Convolution(wide, 1, inner, side_in), Convolution(inner, 3, inner, side), ends,
                   *short)  # fmt: skip
            wide, side_in = outer, side


def resnet(work: Workload) -> Predicted:
    """Wide-ResNet of predicted convolutions; its classes, a thousand, count for nothing."""
    frame = modelled(replace(work, model="gpt3-xl"), layers=work.stages)
    system, parts = frame.system, list(blocks_of_resnet())
    top = system.clock_max_mhz

    def stages(clocks_mhz: Sequence[float]) -> list[dict[Kind, Cost]]:
        runs = Runs.of([frame.run] * len(clocks_mhz)).at_clock(np.array(clocks_mhz))
        each, none = rates(system, runs), Cost.none(len(runs))
        found = []
        for first, end in pairwise(cuts(work)):
            pairs = [one.cost(work.microbatch, system, each, runs)
                     for part in parts[first:end] for one in part]  # fmt: skip
            found.append({kind: sum((pair[k] for pair in pairs), none)
                          for k, kind in enumerate(KINDS)})  # fmt: skip
        return found

    whole = sum((one for stage in stages([top]) for one in stage.values()), Cost.none(1))
    held = float(whole.held_clock_mhz(system, np.array([top]))[0])
    clocks = range(int(top), int(LOW_SHARE * top), -STEP_MHZ)
    real = [min(float(mhz), held) for mhz in clocks]
    options: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
    for place, stage in enumerate(stages(real)):
        for kind, cost in stage.items():
            options[place, kind] = cost.options(power_of(system), clocks, np.array(real))
    watts = blocking_power_w(system, held)
    return Predicted(Profile(options, "predicted convolutions"), watts, frame.run.shape())


def _of(found: Predicted, part: int, kind: Kind) -> tuple[ClockOption, ...]:
    return found.profile.options[part, kind]


def _sum(
    one: tuple[ClockOption, ...], *others: tuple[tuple[ClockOption, ...], float]
) -> tuple[ClockOption, ...]:
    """Options one after another, clock by clock, each of the others times a factor."""
    answer = []
    for place, option in enumerate(one):
        time_s = option.time_s + sum(f * more[place].time_s for more, f in others)
        energy_j = option.energy_j + sum(f * more[place].energy_j for more, f in others)
        answer.append(ClockOption(option.clock_mhz, time_s, energy_j))
    return tuple(answer)


def emulated(card: str, model: str) -> Predicted:
    """One of 16 pipelines of 8 stages, 8 GPUs each, 96 microbatches of one sequence."""
    shape = {"bias": True, "norm_bias": True, "tied": True} | EMULATED[model]
    accelerator = {"A100": "a100-sxm-80gb", "A40": "a40"}[card]
    run = {"gpus": 64, "tensor": 8, "pipeline": 8, "microbatch": 1, "global_batch": 96,
           "sequence": 2048, "dtype": "bf16"}  # fmt: skip
    system = {"accelerator": accelerator, "gpus_per_node": 8}
    return predicted(of_mapping({"model": shape, "system": system, "run": run}, model))


@dataclass(frozen=True)
class Saved:
    """Percent saved, of one pipeline; `late` with each straggler, `cluster` of all pipelines."""

    alone: float
    late: tuple[float, ...]
    cluster: tuple[float, ...]


def saved(found: Predicted, shape: Pipeline) -> Saved:
    """Joules of a late pipeline are counted to the end of the straggler's iteration. The straggler
    takes its own energy that many times, whatever its plan.
    """
    alone = plan(found.profile, shape, blocking_power_w=found.blocking_power_w)
    fastest, others = alone.baseline, PIPELINES - 1
    late, cluster = [], []
    for factor in STRAGGLERS:
        until_s = factor * fastest.iteration_time_s
        found_j = solve(alone.problem, Goal(until_s, waits=True), "computation").energy_j
        idle_j = alone.problem.time_price_w * (until_s - fastest.iteration_time_s)
        before_j = fastest.energy_j + idle_j
        late.append(100.0 * (1.0 - found_j / before_j))
        all_j = others * found_j + factor * alone.energy_j
        cluster.append(100.0 * (1.0 - all_j / (others * before_j + factor * fastest.energy_j)))
    return Saved(100.0 * alone.saved_ratio, tuple(late), tuple(cluster))


def stages_of(work: Workload) -> Predicted:
    """Its stage profile and waiting power."""
    own = {"t5-3b": t5, "wide-resnet101_8": resnet}.get(work.model)
    return own(work) if own else predicted(whole(work))
