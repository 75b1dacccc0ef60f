"""Savings of five models on A100 and A40: predicted profiles beside Perseus' measured runs.

    python benchmarks/five_models.py [--only gpt3-xl ...]

GPT-3, Bloom and BERT are runs of the model, their stages as published; T5's stages are put together
from predicted layers; Wide-ResNet is not modelled. Layouts are read from ../shared/data; shapes,
sequence lengths and number type are those of the published code (ml-energy/zeus, branch kronos,
merak/examples): 32-bit numbers in TF32 products, full recomputation, 1F1B. Published savings are of
Perseus' artifact (SOSP'24): measured without a straggler, computed from the measured frontier with
one. Ours are predicted: profile by the model, plan by the solver, nothing fitted to these runs.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from joulecut_engine import plan
from joulecut_engine.datasheets import SHEETS
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Pipeline, Profile
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.solver import solve
from joulecut_lab.model import formula
from joulecut_lab.run_file import Predicted, RunFile, of_mapping, predicted

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "perseus" / "workloads"
LIMITS = DATA.parent / "zeus_baseline" / "A100" / "zeus_global.csv"
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


def workloads() -> list[Workload]:
    found = []
    for path in sorted(DATA.glob("*/models_*.csv")):
        card = path.stem.removeprefix("models_")
        with path.open(newline="") as file:
            found += [
                Workload(card, row["model"], row["partition_method"], int(row["dp"]),
                         int(row["tp"]), int(row["pp"]), int(row["microbatch_size"]),
                         int(row["num_microbatches"]))
                for row in csv.DictReader(file)
            ]  # fmt: skip
    return sorted(found, key=lambda one: list(PUBLISHED).index((one.card, one.model)))


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
    if not work.partition.startswith("custom:"):  # the same number of layers in each stage
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
    block = {kind: _of(full, 1, kind) for kind in ("forward", "backward")}
    attention = {kind: _of(bare, 1, kind) for kind in ("forward", "backward")}

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

    edges, options = cuts(work), {}
    for stage, (first, end) in enumerate(pairwise(edges)):
        for kind in block:
            one, *more = [unit(at)[kind] for at in range(first, end)]
            options[stage, kind] = _sum(one, *((other, 1.0) for other in more))
    return replace(full, profile=Profile(options, "predicted layers"))


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
    within: float  # at the published slowdown
    late: tuple[float, ...]
    cluster: tuple[float, ...]


def saved(found: Predicted, shape: Pipeline, slowdown: float) -> Saved:
    """Joules of a late pipeline are counted to the end of the straggler's iteration. The straggler
    takes its own energy that many times, whatever its plan.
    """
    watts = found.blocking_power_w
    alone = plan(found.profile, shape, blocking_power_w=watts)
    within = plan(found.profile, shape, blocking_power_w=watts, max_slowdown=slowdown / 100.0)
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
    ratios = alone.saved_ratio, within.saved_ratio
    return Saved(*(100.0 * one for one in ratios), tuple(late), tuple(cluster))


def row(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def shown(values: tuple[float, ...]) -> str:
    return " / ".join(f"{value:.1f}" for value in values) or "-"


def measured_runs(only: list[str] | None) -> None:
    print("## Measured runs\n")
    row("card", "model", "stages x microbatches", "published (slower)", "predicted, 0 %",
        "predicted, as slow", "straggler, published", "straggler, predicted")  # fmt: skip
    row(*["---"] * 8)
    for work in workloads():
        if only and work.model not in only:
            continue
        told, slower, late = PUBLISHED[work.card, work.model]
        cells = [work.card, work.model, f"{work.stages} x {work.microbatches}",
                 f"{told} ({slower})"]  # fmt: skip
        if work.model.startswith("wide-resnet"):
            row(*cells, "not modelled: convolutions", "-", shown(late), "-")
            continue
        found = t5(work) if work.model.startswith("t5") else predicted(whole(work))
        mine = saved(found, Pipeline("1f1b", work.stages, work.microbatches), slower)
        row(*cells, f"{mine.alone:.1f}", f"{mine.within:.1f}", shown(late), shown(mine.late))


def emulated_runs() -> None:
    print("\n## Emulated: 1,024 GPUs, 16 pipelines of 8 stages x 96 microbatches\n")
    row("card", "model", "published, no straggler", "predicted", "published, cluster, x1.2",
        "predicted, cluster, x1.2", "predicted, a waiting pipeline, x1.2")  # fmt: skip
    row(*["---"] * 7)
    for (card, model), (alone, cluster) in PUBLISHED_EMULATED.items():
        found = emulated(card, model)
        mine = saved(found, Pipeline("1f1b", 8, 96), 0.0)
        at = STRAGGLERS.index(1.2)
        row(card, model, alone, f"{mine.alone:.1f}", cluster, f"{mine.cluster[at]:.1f}",
            f"{mine.late[at]:.1f}")  # fmt: skip


@dataclass(frozen=True)
class Limited:
    """A run under one power limit for all GPUs: seconds and joules of an iteration."""

    work: Workload
    limit_w: float
    measured: tuple[float, float]
    predicted: tuple[float, float]


def limited() -> Iterator[Limited]:
    """Zeus' baseline of the same artifact, of the models that are whole runs; nothing fitted."""
    runs = {work.model: work for work in workloads() if work.card == "A100"}
    with LIMITS.open(newline="") as file:
        for line in csv.DictReader(file):
            work, limit_w = runs[line["model_name"]], float(line["power_limit_0"])
            if work.model.startswith(("t5", "wide")):
                continue
            run = whole(work)
            system = replace(run.system, power_cap_w=limit_w)
            told = formula.estimate(run.architecture, system, run.run)
            real = float(line["time"]), float(line["energy"])
            yield Limited(work, limit_w, real, (told.iteration_time_s, told.energy_j))


def against(one: tuple[float, float], first: tuple[float, float]) -> tuple[float, float]:
    """Percent slower, and percent saved."""
    return 100.0 * (one[0] / first[0] - 1.0), 100.0 * (1.0 - one[1] / first[1])


def under_limits() -> None:
    print("\n## A100 under power limits\n")
    row("model", "limit, W", "s, measured", "predicted", "W per GPU, measured", "predicted",
        "slower / saved, measured", "predicted")  # fmt: skip
    row(*["---"] * 8)
    first: dict[str, Limited] = {}
    for one in limited():
        top = first.setdefault(one.work.model, one)  # highest limits come first
        pairs = (one.measured, top.measured), (one.predicted, top.predicted)
        row(one.work.model, f"{one.limit_w:.0f}",
            *(f"{seconds:.2f}" for (seconds, _), _ in pairs),
            *(f"{joules / seconds / one.work.stages:.0f}" for (seconds, joules), _ in pairs),
            *(shown(against(*pair)) for pair in pairs))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", help="a model of the measured runs")
    asked = parser.parse_args()
    if not DATA.is_dir():
        print(f"skipped: {DATA} is absent")
        return
    print("Savings in percent of the energy at the highest clocks. Stragglers take "
          f"{', '.join(map(str, STRAGGLERS))} times the fastest iteration.\n")  # fmt: skip
    measured_runs(asked.only)
    if not asked.only:
        emulated_runs()
        under_limits()


if __name__ == "__main__":
    main()
