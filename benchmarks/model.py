"""The model of training runs against published measurements.

    python benchmarks/model.py [--set NAME ...] [--families N] [--out FILE]

Each set is predicted twice: with the catalogue's system as it is, and after a calibration that has
not seen the rows it is judged on (a model, a layout family, or two thirds of the rows held out).
The catalogue's efficiencies of A100 and B200 come from the Korthikanti and B200 sets themselves, so
there only the columns with rows left out are predictions.
Measured and predicted values are printed side by side where a set is small. Reads
../shared/data; sets that are absent are skipped. Speeds are process time of this machine.
"""

import argparse
import csv
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from model_kernels import KERNELS, predicted_tflops
from model_published import EXPERTS, FSDP, SOURCES, Published
from model_published import rows as published_rows

from joulecut_engine.graph import build
from joulecut_engine.graph.pipeline import Schedule
from joulecut_lab.model import formula
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.calibrate import Calibration, Measurement, calibrate
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.estimate import Estimate
from joulecut_lab.model.graph_level import simulate
from joulecut_lab.model.memory import layer_bytes
from joulecut_lab.model.power import power_of
from joulecut_lab.model.run import Run, misfit
from joulecut_lab.model.runs import Floats, Runs
from joulecut_lab.model.stage_profile import stage_profile
from joulecut_lab.model.stages import stages_of
from joulecut_lab.model.system import System

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SETS = DATA / "modelling"
KORTHIKANTI = {
    "megatron-22B": "megatron-22b",
    "gpt3-175B": "gpt3-175b",
    "turing-530B": "megatron-530b",
    "megatron-1T": "megatron-1t",
}
SEED = 0
FAMILIES = 99  # more than vTrain has: all of them
GIB = 2.0**30
lines: list[str] = []


def say(*words: object) -> None:
    line = " ".join(map(str, words))
    lines.append(line)
    print(line, flush=True)


def rows_of(path: str) -> list[dict[str, str]]:
    with (SETS / path).open(newline="") as file:
        return list(csv.DictReader(file))


def errors(system: System, rows: Sequence[Measurement]) -> Floats:
    by_model: dict[Architecture, list[int]] = {}
    for i, row in enumerate(rows):
        by_model.setdefault(row.architecture, []).append(i)
    answer = np.zeros(len(rows))
    for architecture, which in by_model.items():
        found = formula.evaluate(architecture, system, Runs.of([rows[i].run for i in which]))
        measured = np.array([rows[i].iteration_time_s for i in which])
        answer[which] = found.iteration_time_s / measured - 1.0
    return answer


def shown(error: Floats) -> str:
    worst = np.abs(error).max()
    return f"MAPE {np.abs(error).mean():.2%}, worst {worst:.1%}, bias {error.mean():+.1%}"


def fitted(found: Calibration) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in found.fitted.items())


def table5() -> list[Measurement]:
    answer = []
    for row in rows_of("korthikanti/table5_iteration_time.csv"):
        selective = row["recompute"] == "selective"
        run = Run(
            gpus=int(row["gpus"]),
            tensor=int(row["tensor_parallel"]),
            pipeline=int(row["pipeline_parallel"]),
            chunks=int(row["interleaving"]),
            microbatch=int(row["microbatch"]),
            global_batch=int(row["global_batch"]),
            sequence=2048,
            dtype="fp16",
            recompute="selective" if selective else "full",
            sequence_parallel=row["sequence_parallel"] == "1",
            dropout=True,
        )
        model = ARCHITECTURES[KORTHIKANTI[row["model"]]]
        answer.append(Measurement(model, run, float(row["iteration_time_s"])))
    return answer


def korthikanti() -> None:
    system = SYSTEMS["a100-sxm-80gb"]
    rows = table5()
    say("\n## Korthikanti Table 5: iteration time (bar 3 %)\n")
    before = errors(system, rows)
    everything = calibrate(rows, system)
    after = errors(everything.system, rows)
    held = np.zeros(len(rows))
    for model in {row.architecture for row in rows}:
        others = [row for row in rows if row.architecture != model]
        found = calibrate(others, system).system
        for i, row in enumerate(rows):
            if row.architecture == model:
                held[i] = errors(found, [row])[0]
    say("| model | recompute | measured s | catalogue | calibrated | model left out |")
    say("|---|---|---|---|---|---|")
    for row, a, b, c in zip(rows, before, after, held, strict=True):
        cells = (row.architecture.name, row.run.recompute, f"{row.iteration_time_s:.2f}")
        say("|", " | ".join([*cells, f"{a:+.1%}", f"{b:+.1%}", f"{c:+.1%}"]), "|")
    say(f"\ncatalogue: {shown(before)}; calibrated on all 8: {shown(after)};")
    say(f"leave one model out: {shown(held)}. Fitted: {fitted(everything)}")
    say("\n## Korthikanti Table 4: forward and backward of one 22B layer (bar 5 %)\n")
    say("| technique | measured ms | catalogue | calibrated on Table 5 |")
    say("|---|---|---|---|")
    gaps: list[list[float]] = [[], []]
    for entry in rows_of("korthikanti/table4_layer_ms_22B.csv"):
        name = entry["technique"]
        kind = "full" if "full" in name else "selective" if "selective" in name else "none"
        run = Run(
            8, 8, microbatch=4, global_batch=4, sequence=2048, dtype="fp16", dropout=True,
            recompute=kind, sequence_parallel="sequence_parallel" in name,
        )  # fmt: skip
        real = float(entry["forward_ms"]), float(entry["backward_ms"])
        cells = []
        for k, one in enumerate((system, everything.system)):
            layer = stages_of(ARCHITECTURES["megatron-22b"], one, Runs.of([run])).dense
            predicted = layer.forward_s[0] * 1e3, (layer.input_s + layer.weight_s)[0] * 1e3
            gaps[k] += [predicted[0] / real[0] - 1.0, predicted[1] / real[1] - 1.0]
            cells.append(f"{predicted[0]:.2f} + {predicted[1]:.2f}")
        say("|", " | ".join([name, f"{real[0]} + {real[1]}", *cells]), "|")
    say(f"\ncatalogue: {shown(np.array(gaps[0]))}; after Table 5: {shown(np.array(gaps[1]))}")
    figure7()


def figure7() -> None:
    say("\n## Korthikanti Figure 7: activation memory in percent of none (bar 2 points)\n")
    say("| model | SP | selective | both | full |\n|---|---|---|---|---|")
    worst = 0.0
    for row in rows_of("korthikanti/figure7_activation_percent.csv"):
        model = ARCHITECTURES[KORTHIKANTI[row["model"]]]

        def layer(kind: str, split: bool, model: Architecture = model) -> float:
            if kind == "full":
                return 2.0 * 2048 * model.hidden
            keys = {"recompute": kind, "sequence_parallel": split, "dropout": True}
            run = Run(8, 8, microbatch=1, global_batch=1, sequence=2048, **keys)
            return float(layer_bytes(model, Runs.of([run]), np.array([2048.0]), False)[0][0])

        whole = layer("none", False)
        cells = []
        for name, kind, split in (
            ("sequence_parallel", "none", True),
            ("selective", "selective", False),
            ("sequence_parallel+selective", "selective", True),
            ("full_recompute", "full", False),
        ):
            predicted = 100.0 * layer(kind, split) / whole
            worst = max(worst, abs(predicted - float(row[name])))
            cells.append(f"{row[name]} / {predicted:.2f}")
        say("|", " | ".join([model.name, *cells]), "|")
    say(f"\nmeasured / predicted; worst {worst:.2f} points, nothing fitted")


def vtrain_rows() -> list[Measurement]:
    answer = []
    for row in rows_of("vtrain_a100/ground_truth_single.csv"):
        cells = list(row.values())
        gpus, batch, micro, hidden, heads, layers, length, tensor, data, pipe = map(int, cells[:10])
        model = Architecture(
            layers, hidden, heads, heads, 4 * hidden, 50257, positions=length, tied=True,
            bias=True, norm_bias=True, name=f"gpt-{hidden}-{layers}",
        )  # fmt: skip
        run = Run(
            gpus, tensor, pipe, data, microbatch=micro, global_batch=batch, sequence=length,
            dtype="fp16", recompute="full", dropout=True, gradient_bytes=2,
        )  # fmt: skip
        answer.append(Measurement(model, run, float(cells[10]) / 1e3))
    return answer


def vtrain(families: int) -> None:
    system = SYSTEMS["a100-sxm-80gb"]
    rows = vtrain_rows()
    say("\n## vTrain, single node, 1,440 rows (bar 6 %; its authors 8.37 %, Calculon 39 %)\n")
    say("catalogue, nothing fitted:", shown(errors(system, rows)))
    third = np.random.default_rng(SEED).random(len(rows)) < 1.0 / 3.0
    some = [row for row, take in zip(rows, third, strict=True) if take]
    rest = [row for row, take in zip(rows, third, strict=True) if not take]
    found = calibrate(some, system)
    say(f"\ncalibrated on a random third ({len(some)} rows): on the rest", end_of(found, rest))
    say("fitted:", fitted(found))
    layouts = sorted({(row.run.tensor, row.run.pipeline) for row in rows})
    say("\nFamilies of one TP x PP wholly held out:\n\n| TP x PP | rows | error |\n|---|---|---|")
    for tensor, pipe in layouts[:families]:
        out = [row for row in rows if (row.run.tensor, row.run.pipeline) == (tensor, pipe)]
        kept = [row for row in rows if (row.run.tensor, row.run.pipeline) != (tensor, pipe)]
        say(f"| {tensor} x {pipe} | {len(out)} | {end_of(calibrate(kept, system), out)} |")
    say("\nHidden size left out (calibrated on the other one's rows):")
    for hidden in (1024, 2048):
        out = [row for row in rows if row.architecture.hidden == hidden]
        kept = [row for row in rows if row.architecture.hidden != hidden]
        say(f"- {hidden}: {end_of(calibrate(kept, system), out)}")
    say("\nThe set is bilinear in layers and microbatches to three digits: composed of profiled")
    say("operators, not single measured iterations.")


def end_of(found: Calibration, rows: Sequence[Measurement]) -> str:
    return shown(errors(found.system, rows))


def b200_rows() -> tuple[list[Measurement], list[str], Floats]:
    """Rows, their names, and the error of SimuMax's own times, as published beside them."""
    rows, names, theirs = [], [], []
    for row in rows_of("simumax_b200/measured.csv"):
        small = "70b" in row["model"]
        shape = (8192, 64, 8, 28672) if small else (16384, 128, 16, 53248)
        model = Architecture(int(row["layer_num"]), *shape, 128256, gated=True, name=row["model"])
        tensor, pipe = (int(re.search(rf"{k}(\d)", row["parallel"])[1]) for k in ("tp", "pp"))
        context = int(row["cp_size"])
        data = 8 // (tensor * pipe * context)
        run = Run(
            8, tensor, pipe, data, context, global_batch=int(row["mbc"]) * data,
            sequence=32768 if "seq32768" in row["case"] else 4096, sequence_parallel=tensor > 1,
            zero=1, flash_attention=True, fused_loss=True,
        )  # fmt: skip
        memory = float(row["real_alloc_gib"]) * GIB
        rows.append(Measurement(model, run, float(row["real_ms"]) / 1e3, None, memory))
        names.append(row["case"])
        theirs.append(float(row["simumax_ms"]) / float(row["real_ms"]) - 1.0)
    return rows, names, np.array(theirs)


def b200() -> None:
    rows, names, theirs = b200_rows()
    system = SYSTEMS["b200"]
    before = errors(system, rows)
    everything = calibrate(rows, system)
    after = errors(everything.system, rows)
    held = np.zeros(len(rows))
    for model in {row.architecture.name for row in rows}:
        found = calibrate([r for r in rows if r.architecture.name != model], system).system
        for i, row in enumerate(rows):
            if row.architecture.name == model:
                held[i] = errors(found, [row])[0]
    say("\n## 8 B200, SimuMax (bars: time 5 %, memory 1 %)\n")
    head = "case", "measured s", "SimuMax", "catalogue", "calibrated", "model left out", "GiB"
    say("|", " | ".join([*head, "predicted"]), "|")
    say("|---|---|---|---|---|---|---|---|")
    gaps = []
    for name, row, s, a, b, c in zip(names, rows, theirs, before, after, held, strict=True):
        found = formula.evaluate(row.architecture, system, Runs.of([row.run]))
        predicted = float(found.memory_bytes[0])
        gaps.append(predicted / row.memory_bytes - 1.0)
        cells = [name, f"{row.iteration_time_s:.3f}", *(f"{e:+.1%}" for e in (s, a, b, c))]
        say(
            "|",
            " | ".join([*cells, f"{row.memory_bytes / GIB:.2f}", f"{predicted / GIB:.2f}"]),
            "|",
        )
    say(f"\ntime: SimuMax as published {shown(theirs)}; catalogue {shown(before)};")
    say(f"calibrated on all 20 {shown(after)};")
    say(f"leave one model out {shown(held)}")
    say(f"memory, nothing fitted: {shown(np.array(gaps))}")
    say("fitted:", fitted(everything))


def predicted(row: Published) -> tuple[float, bool]:
    """The row's value as the model has it, and whether its memory fits."""
    run = Run(**row.run)
    assert misfit(run, row.model) is None, (row.name, misfit(run, row.model))
    found = formula.estimate(row.model, row.system, run)
    if row.unit == "tokens/s":
        return found.tokens_per_s / run.gpus, found.fits
    if row.unit == "s":
        return found.iteration_time_s, found.fits
    flops = found.model_flops - (1.0 - row.scores) * score_flops(row.model, run)
    return flops / found.iteration_time_s / run.gpus / 1e12, found.fits


LONG_TOKENS = 32_768


def score_flops(model: Architecture, run: Run) -> float:
    """Of attention scores in full, forward and backward of one iteration."""
    each = model.layers * model.heads * (model.query_dim + model.value_head_dim)
    return 6.0 * run.global_batch * run.sequence**2 * each


def time_error(row: Published, value: float) -> float:
    """Of the predicted time."""
    return value / row.value - 1.0 if row.unit == "s" else row.value / value - 1.0


def published() -> None:
    """No row of any family is fitted, so every family is held out."""
    say(
        "\n## Published runs, catalogue, nothing fitted (bars of rows: dense 6 %, experts 15 %,"
        " FSDP 12 %, 32,768 tokens and more 15 %)\n"
    )
    say("| family | run | measured | predicted | time | fits |\n|---|---|---|---|---|---|")
    gaps: dict[str, list[float]] = {}
    long: list[float] = []
    fitting = 0
    for row in published_rows():
        value, fits = predicted(row)
        fitting += fits
        gap = time_error(row, value)
        gaps.setdefault(row.family, []).append(gap)
        long += [gap] if row.run["sequence"] >= LONG_TOKENS else []
        cells = (row.family, row.name, f"{row.value:.4g} {row.unit}", f"{value:.4g}")
        say("|", " | ".join([*cells, f"{gap:+.1%}", str(fits)]), "|")
    say("\n| family | rows | time | source |\n|---|---|---|---|")
    for family, found in gaps.items():
        say(
            "|", " | ".join([family, str(len(found)), shown(np.array(found)), SOURCES[family]]), "|"
        )
    dense = tuple(family for family in gaps if family not in {*EXPERTS, *FSDP})
    for name, families in (("dense", dense), ("experts", EXPERTS), ("FSDP", FSDP)):
        means = [float(np.abs(gaps[family]).mean()) for family in families]
        every = np.concatenate([gaps[family] for family in families])
        say(f"\n{name}: rows {shown(every)}; mean of families {np.mean(means):.1%}")
    say(f"\n{LONG_TOKENS:,} tokens and more: rows {shown(np.array(long))}")
    count = sum(map(len, gaps.values()))
    say(f"\naccepted {count} of {count}; of these {count - fitting} are said not to fit")


def kernels() -> None:
    say("\n## Measured kernels, TFLOP/s, nothing fitted but the ends of tiles\n")
    say("| card | kind | count x m x k x n | measured | predicted | |\n|---|---|---|---|---|---|")
    gaps: dict[tuple[str, str], list[float]] = {}
    for kernel in KERNELS:
        gap = predicted_tflops(kernel) / kernel.tflops - 1.0
        gaps.setdefault((kernel.card, kernel.kind), []).append(gap)
        shape = f"{kernel.count} x {kernel.m} x {kernel.k} x {kernel.n}"
        cells = (kernel.card, kernel.kind, shape, f"{kernel.tflops:.0f}")
        say("|", " | ".join([*cells, f"{predicted_tflops(kernel):.0f}", f"{gap:+.1%}"]), "|")
    say()
    for (card, kind), found in gaps.items():
        say(f"- {card}, {kind}: {shown(np.array(found))}")


MLPERF_S = 10.626


def mlperf_run() -> Run:
    """GPT-3 175B FP8 on 512 H100, MLPerf v4.0; the layout is that of NVIDIA's 512-GPU entry."""
    return Run(
        512, 4, 8, 16, chunks=6, microbatch=2, global_batch=2048, sequence=2048, dtype="fp8",
        sequence_parallel=True, zero=1, overlap_gradients=True, overlap_tensor=True,
        flash_attention=True, dropout=True,
    )  # fmt: skip


def mlperf() -> None:
    say("\n## GPT-3 175B FP8 on 512 H100 (bars: time 10 %, power 4 %), catalogue\n")
    system, model = SYSTEMS["h100-sxm"], ARCHITECTURES["gpt3-175b"]
    run = mlperf_run()
    step = formula.estimate(model, system, run)
    only = formula.estimate(model, system, replace(run, forward_only=True))
    say("| | measured | predicted | |\n|---|---|---|---|")
    for name, real, predicted in (
        ("step s", MLPERF_S, step.iteration_time_s),
        ("node W, training", 6926.0, step.node_power_w),
        ("node W, forward only", 6288.0, only.node_power_w),
    ):
        say(f"| {name} | {real:g} | {predicted:.4g} | {predicted / real - 1.0:+.1%} |")


# Share of idle time, and peak memory of the fullest GPU in GB: 28.3B parameters on 32 A100, 96
# microbatches (zero-bubble pipeline parallelism, ICLR 2024, tables 4 and 5).
ZERO_BUBBLE: dict[Schedule, tuple[float, float]] = {
    "1f1b": (0.265, 43.0),
    "zb-h1": (0.142, 44.0),
    "zb-h2": (0.064, 74.0),
}


def zero_bubble_run(schedule: Schedule) -> tuple[Architecture, Run]:
    """The published run, as far as its figures give it.

    Layers are two per stage but for the first and last, so parameters give the hidden size. The
    31 microbatches more that zb-h2 keeps take 30 GB: one sequence of 1,024 tokens and 48 heads
    (29 GB) without a fused attention.
    """
    model = Architecture(
        62, 6144, 48, 48, 4 * 6144, 50304, positions=1024, tied=True, bias=True, norm_bias=True
    )
    return model, Run(
        32, 1, 32, schedule=schedule, microbatch=1, global_batch=96, sequence=1024, dtype="fp16"
    )


def idle_share(found: Estimate) -> float:
    """Time of the slowest stage between its first and last operation in which it does not work."""
    parts = found.breakdown_s
    idle = parts["bubble"] + parts["pipeline_comm"]
    return idle / (found.iteration_time_s - parts["optimizer"] - parts["data_comm"])


def zero_bubble() -> None:
    say("\n## Zero bubble, 28.3B on 32 A100 (bar 1.5 points), catalogue, nothing fitted\n")
    say("| schedule | published idle share | graph | formula | published GB | predicted |")
    say("|---|---|---|---|---|---|")
    system = SYSTEMS["a100-sxm-80gb"]
    for schedule, (real, real_gb) in ZERO_BUBBLE.items():
        model, run = zero_bubble_run(schedule)
        graph, _ = simulate(model, system, run)
        predicted = [
            graph,
            formula.estimate(model, system, run),
        ]
        shares = " | ".join(f"{100 * idle_share(one):.1f} %" for one in predicted)
        gb = max(stage.total_bytes for stage in graph.memory) / 1e9
        say(f"| {schedule} | {100 * real:.1f} % | {shares} | {real_gb:g} | {gb:.0f} |")
    stages = stages_of(model, system, Runs.of([run]))
    layers = stages.dense * 2.0
    phases = (layers.forward_s, layers.input_s, layers.weight_s)
    times = ", ".join(f"{1e3 * float(phase[0]):.1f}" for phase in phases)
    say(f"\ntwo layers, ms: forward, input, weight {times}; a transfer "
        f"{1e3 * float(stages.send_s[0]):.2f}")  # fmt: skip


def stage_rows(name: str) -> dict[int, dict[str, tuple[float, float]]]:
    """Seconds and joules of stage 0, forward and backward, by clock in MHz."""
    found: dict[int, dict[str, tuple[float, float]]] = {}
    path = DATA / "perseus" / "stage_profile" / f"gpt3-175b+{name}_bf16.csv"
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["stage"] == "0":
                cell = float(row["time"]), float(row["energy"])
                found.setdefault(int(row["frequency"]), {})[row["instruction"]] = cell
    return found


STAGE = Architecture(1, 12288, 96, 96, 49152, 8, positions=2048, bias=True, norm_bias=True)
MANY = 256  # microbatches, so that the optimizer, which was not measured, is nothing


def stage_run(mhz: int) -> Run:
    return Run(1, global_batch=MANY, sequence=2048, dropout=True, clock_mhz=mhz)


def stage_measurements(name: str) -> dict[int, Measurement]:
    return {
        mhz: Measurement(STAGE, stage_run(mhz), *(MANY * np.sum(list(kinds.values()), axis=0)))
        for mhz, kinds in stage_rows(name).items()
    }


def clocks() -> None:
    say("\n## Across clocks: A100 stage profile, calibrated at two (bar 2 / 2 %, ends 5 %)\n")
    rows = stage_measurements("a100_sxm")
    mhz = sorted(rows)
    say("| clocks MHz | time | worst | energy | worst |\n|---|---|---|---|---|")
    for pair in ((mhz[0], mhz[-1]), (mhz[0], mhz[-4]), (990, 1350)):
        system = calibrate([rows[one] for one in pair], SYSTEMS["a100-sxm-80gb"]).system
        runs = Runs.of([rows[one].run for one in mhz])
        predicted = formula.evaluate(STAGE, system, runs)
        time_s = np.array([rows[one].iteration_time_s for one in mhz])
        energy_j = np.array([rows[one].energy_j for one in mhz])
        one, two = predicted.iteration_time_s / time_s - 1.0, predicted.energy_j / energy_j - 1.0
        cells = [f"{np.abs(e).mean():.2%} | {np.abs(e).max():.1%}" for e in (one, two)]
        say(f"| {pair[0]}, {pair[1]} | {' | '.join(cells)} |")


RANGES = (1.0, 0.9, 0.8, 0.7, 0.6)  # of the highest clock
Sweep = dict[int, tuple[float, float]]  # seconds and joules by clock
ASTRAWATTCH = """AstraWattch claims, of layers on a DGX V100 from 735 to 1,530 MHz, errors of 9.9 to
2.1 % of time and 11.8 to 0.9 % of energy; no public sweep of layers on a V100 was found."""


def layers() -> None:
    """Errors at clocks that the calibration has not seen: of one clock, and of two."""
    say("\n## Layer classes across clocks (no bar)\n")
    say(
        "Calibrated at the highest clock alone, and at the highest and the lowest; mean errors.", ""
    )
    say("| card and class | clocks, of the highest | time, one | energy, one | time, two |"
        " energy, two |\n|---|---|---|---|---|---|")  # fmt: skip
    every: dict[str, list[Floats]] = {}
    for one, two in zip(swept(False), swept(True), strict=True):
        title, real = one[:2]
        for high, low in pairwise(RANGES):
            inside = [f for f in real if low < f / max(real) <= high]
            inside = [f for f in inside if f not in (max(real), min(real))]
            gaps = [
                np.array([told[f][k] / real[f][k] - 1.0 for f in inside])
                for told in (one[2], two[2])
                for k in (0, 1)
            ]
            name = f"{low:.0%} to {high:.0%}"
            every.setdefault(name, []).append(np.array([np.abs(gap).mean() for gap in gaps]))
            cells = [f"{np.abs(gap).mean():.1%} ({gap.mean():+.1%})" for gap in gaps]
            say("|", " | ".join([title, name, *cells]), "|")
    for name, means in every.items():
        say("|", " | ".join(["mean", name, *(f"{m:.1%}" for m in np.mean(means, axis=0))]), "|")
    say(f"\n{ASTRAWATTCH}")


def swept(two: bool) -> Iterator[tuple[str, Sweep, Sweep]]:
    """Classes: name, measured, predicted after a calibration at one clock or at two."""
    for name, card in (("a100_sxm", "a100-sxm-80gb"), ("a40", "a40")):
        yield from stages_swept(name, card, two)
    for kernel in ("dgemm", "stream"):
        yield kernel_swept(kernel, two)


def stages_swept(name: str, card: str, two: bool) -> Iterator[tuple[str, Sweep, Sweep]]:
    """Forward and backward of GPT-3's layers (Perseus)."""
    rows, measured = stage_rows(name), stage_measurements(name)
    top = max(rows)
    seen = [measured[top], measured[min(rows)]] if two else [measured[top]]
    system = calibrate(seen, SYSTEMS[card]).system
    held = [formula.estimate(STAGE, system, stage_run(mhz)).clock_mhz for mhz in rows]
    profile = stage_profile(STAGE, system, stage_run(top), held)
    for kind in ("forward", "backward"):
        options = dict(zip(rows, profile.options[0, kind], strict=True))
        # The calibration knows both kinds together: each begins at its own.
        at = options[top]
        seconds, joules = rows[top][kind][0] / at.time_s, rows[top][kind][1] / at.energy_j
        told = {f: (seconds * o.time_s, joules * o.energy_j) for f, o in options.items()}
        yield f"{card}, GPT-3 layers, {kind}", {f: rows[f][kind] for f in rows}, told


def kernel_swept(kernel: str, two: bool) -> tuple[str, Sweep, Sweep]:
    """Products or copies on an A100 (Ali et al.). Two clocks give the share of the time that
    follows the clock and that of the energy that follows the time.
    """
    system, copies = SYSTEMS["a100-sxm-80gb"], kernel == "stream"
    power = power_of(system)
    real: Sweep = {}
    path = DATA / "dvfs" / "ali_ga100" / f"datasets__dgemm_stream__GA100-dvfs-{kernel}-dcgm.csv"
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            seconds = float(row["run_time"])
            real[int(row["sm_app_clock"])] = seconds, seconds * float(row["power_usage"])
    real = {f: cell for f, cell in real.items() if f > RANGES[-1] * max(real)}
    mhz = np.array(sorted(real), dtype=np.float64)
    (low_s, low_j), (top_s, top_j) = real[min(real)], real[max(real)]
    follows = system.memory_clock_share if copies else 1.0
    if two:
        follows = (low_s / top_s - 1.0) / (mhz[-1] / mhz[0] - 1.0)
    time_s = top_s * (1.0 - follows + follows * mhz[-1] / mhz)
    kept_j = (power.idle_w + copies * power.waiting_over_idle_w(mhz)) * time_s
    moved = np.ones_like(mhz) if copies else power.voltage_square(mhz)
    moved = moved / moved[-1]
    factor = 1.0
    if two:
        factor = (low_j - top_j * moved[0]) / (kept_j[0] - kept_j[-1] * moved[0])
    energy_j = factor * kept_j + (top_j - factor * kept_j[-1]) * moved
    columns = mhz.astype(int).tolist(), time_s.tolist(), energy_j.tolist()
    told = {f: (s, j) for f, s, j in zip(*columns, strict=True)}
    return f"a100, {'copies' if copies else 'products'} ({kernel})", real, told


def speed() -> None:
    say("\n## Speed, process time\n")
    model, system = ARCHITECTURES["megatron-1t"], SYSTEMS["a100-sxm-80gb"]
    runs = Runs.of([
        Run(4096, tensor, pipeline, 4096 // tensor // pipeline, microbatch=microbatch,
            recompute=recompute, sequence_parallel=parallel, zero=zero, overlap_gradients=overlap,
            global_batch=4096, clock_mhz=mhz)
        for tensor, pipeline, microbatch, recompute, parallel, zero, overlap, mhz in product(
            (1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8), ("none", "selective", "full"),
            (False, True), range(4), (False, True), (1410.0, 1305.0))
    ])  # fmt: skip
    began = time.process_time()
    formula.evaluate(model, system, runs)
    spent = time.process_time() - began
    say(f"- formula level: {len(runs)} configurations in {spent:.2f} s, {len(runs) / spent:,.0f}/s")
    for stages, micro in ((8, 96), (64, 512)):
        run = Run(8 * stages, 8, stages, global_batch=micro, sequence=2048, recompute="full")
        simulate(model, system, run)
        began = time.process_time()
        simulate(model, system, run)
        whole = time.process_time() - began
        began = time.process_time()
        build(run.shape())
        say(f"- graph level {stages} x {micro}: {whole:.3f} s, of which the graph "
            f"{time.process_time() - began:.3f} s")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--set", action="append", dest="sets")
    parser.add_argument("--families", type=int, default=FAMILIES)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    words = "".join(f" --set {name}" for name in asked.sets or ())
    words += f" --families {asked.families}" if asked.families != FAMILIES else ""
    say("# Model of training runs against published measurements\n")
    say(f"Made by `python benchmarks/model.py{words}`, {time.strftime('%Y-%m-%d')}.")
    say("Times are predicted; errors are predicted over measured, minus 1, as mean of magnitudes")
    say("unless a sign stands before them. Of other systems only published answers are shown.")
    say("The catalogue's A100 and B200 were fitted to the Korthikanti and B200 sets: there only")
    say("columns with rows left out are predictions.")
    benches: dict[str, Callable[[], None]] = {
        "korthikanti": korthikanti,
        "b200": b200,
        "published": published,
        "kernels": kernels,
        "zero-bubble": zero_bubble,
        "mlperf": mlperf,
        "clocks": clocks,
        "layers": layers,
        "speed": speed,
        "vtrain": lambda: vtrain(asked.families),
    }
    for name, bench in benches.items():
        if asked.sets and name not in asked.sets:
            continue
        try:
            bench()
        except FileNotFoundError as error:
            say(f"\n{name}: skipped, {error.filename} is absent")
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
