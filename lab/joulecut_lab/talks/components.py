"""Time and energy of distributed training by component, and the component whose clock pays.

T. Bhuiyan and T. A. Khan, Columbia University, SRC CUBiC poster: AstraWattch.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from joulecut_engine.panel import LINES, Line, Panel, stacked
from joulecut_lab.exhibit import PREDICTED, SIMULATED, Compared, Exhibit
from joulecut_lab.model import formula, marginal
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.run import Run
from joulecut_lab.model_command import scaling
from joulecut_lab.run_file import of_mapping
from joulecut_lab.study.cell import Selection
from joulecut_lab.study.evaluate import Curves, by_clock, evaluate
from joulecut_lab.study.layer import sweep
from joulecut_lab.study.measure import Rule
from joulecut_lab.study.simulated import SimulatedBench
from joulecut_sim.layer_plant import LayerCard, layer_card

TITLE = "Energy of distributed training by component"
TALK = "Bhuiyan and Khan, SRC CUBiC poster"
# Its errors of time and energy by clock, in per cent, on a DGX V100.
ERRORS = {735: (9.9, 11.8), 930: (4.6, 2.2), 1132: (2.2, 2.0), 1335: (2.1, 4.0), 1530: (7.4, 0.9)}
# The poster's case: a switch of eight H100, four of them in a ring.
LLAMA_2 = {
    "model": "llama-2-70b",
    "system": {"accelerator": "h100-sxm", "gpus_per_node": 8, "power_cap_w": 700, "idle_w": 80,
               "scale_up_gb_s": 400, "scale_up_pj_per_bit": 2, "scale_out_gb_s": 50,
               "scale_out_pj_per_bit": 25},
    "run": {"gpus": 32, "tensor": 8, "data": 4, "microbatch": 1, "global_batch": 32,
            "sequence": 4096, "sequence_parallel": True, "flash_attention": True,
            "recompute": "full", "zero": 2, "gradient_bytes": 2},
}  # fmt: skip


def breakdown() -> Iterator[Exhibit]:
    panels = []
    for name, gpus, tensor, pipeline in (("llama-3-8b", 8, 1, 1), ("llama-3-70b", 64, 8, 4)):
        run = Run(gpus=gpus, tensor=tensor, pipeline=pipeline, data=gpus // tensor // pipeline,
                  global_batch=64, sequence=8192, flash_attention=True, sequence_parallel=True,
                  recompute="selective", zero=1)  # fmt: skip
        found = formula.estimate(ARCHITECTURES[name], SYSTEMS["dgx-h100"], run)
        label = f"{name}, {gpus} H100"
        component = found.component_time_s
        busy = sum(component.values()) - component["waiting"]
        mean = sum(found.mean_breakdown_s.values()) - found.mean_breakdown_s["bubble"]
        # Components are the slowest stage's; those of the mean GPU are in proportion.
        shares = {key: one * mean / busy for key, one in component.items() if key != "waiting"}
        shares["waiting"] = found.mean_breakdown_s["bubble"]
        panels += [
            stacked(f"{label}: time by component", "s", {"mean GPU": shares,
                                                         "slowest stage": component}),
            stacked(f"{label}: energy by component", "kJ", {"whole run": found.energy_breakdown_j},
                    unit=1e3),
        ]  # fmt: skip
    yield Exhibit(
        "Time and energy by compute, memory and network",
        PREDICTED,
        "One iteration of 64 sequences of 8,192 tokens: what is exposed of the mean GPU and of "
        "the slowest stage, and energy of all GPUs with their hosts. `joulecut model RUN.yaml "
        "--plot` draws it for a run of your own.",
        f"{TALK}; its example: compute 120 J, 6 s, memory 20 J, 3 s, network 15 J, 2 s",
        panels,
    )


def _v100_sxm() -> LayerCard:
    """The poster's card, of a DGX: the PCIe card's chip with its own clocks and limit."""
    card = layer_card("v100-pcie", "card")
    sheet = replace(
        card.sku.sheet, name="v100-sxm", model="Tesla V100-SXM2-32GB", clocks=(135, 1530, 7.5),
        limits_w=(100.0, 300.0, 300.0), memory_gb=32.0, bf16_tflops=125.0, fp32_tflops=15.7,
    )  # fmt: skip
    sku = replace(card.sku, sheet=sheet, clocks_mhz=sheet.clocks_mhz, power_limit_w=300.0)
    return replace(card, sku=sku)


def over_clocks() -> Iterator[Exhibit]:
    """Errors by clock where five clocks of every layer taught, and where random rows did."""
    bench = SimulatedBench(_v100_sxm(), seed=1)
    models = ("gpt-125m", "gpt-1.3b", "gpt-13b")
    cells = Selection(models, (512, 1024), ("fp16",), 4, "training", 0).cells()
    clocks = [mhz for mhz in bench.choices_mhz() if mhz >= 700][::-2][
        ::-1
    ]  # the poster's are among them
    rows = list(sweep(bench, bench, cells, clocks, rule=Rule(), say=lambda _: None))
    found = evaluate(rows, 1, only=("held-out clocks", "random rows"), predictors=(Curves,))
    drawn, few = (by_clock(rows, one) for one in found)
    lines = []
    for title, errors, kind in (("", few, "line"), (", of random rows", drawn, "dotted"),
                                (", published", ERRORS, "dashed")):  # fmt: skip
        for k, (name, colour) in enumerate(zip(("time", "energy"), LINES, strict=False)):
            scale = 1.0 if errors is ERRORS else 100.0
            points = tuple((float(mhz), scale * pair[k]) for mhz, pair in errors.items())
            lines.append(Line(f"{name}{title}", colour, points, kind))  # type: ignore[arg-type]
    compared = []
    for mhz, published in ERRORS.items():
        taught = mhz > max(few)
        errors = drawn if taught else few
        near = min(errors, key=lambda one, at=mhz: abs(one - at))  # type: ignore[misc]
        note = f"at {near:.0f} MHz" if abs(near - mhz) > 1 else ""
        if taught:
            note = "of random rows: the highest clock teaches"
        for k, name in enumerate(("time", "energy")):
            what = f"{mhz} MHz: error of {name}"
            compared.append(Compared(what, 100.0 * errors[near][k], published[k], "%", note))
    yield Exhibit(
        "Errors of time and energy over clocks",
        f"{SIMULATED}: a V100",
        "A sweep of decoder layers on a simulated V100 SXM2. A simulated card is easier to "
        "predict than a measured one: the method is checked here, not its errors. Five clocks "
        "of every layer teach, the others are judged; of random rows, four fifths teach. "
        "`joulecut study fit FILE` prints the same of your own sweep.",
        TALK + ", DGX V100",
        [Panel("mean error of the clocks not seen", "clock, MHz", "%", tuple(lines),
               zero=True)],
        compared=compared,
    )  # fmt: skip


def traces() -> Iterator[Exhibit]:
    rows = [
        ("step", "command"),
        ("profile once: Kineto, Nsight or Chakra", "joulecut model trace TRACE --also MHZ=FILE"),
        ("model everywhere", "joulecut model RUN.yaml with --calibrated SYSTEM.yaml"),
        ("Chakra execution traces with energy and clock", "joulecut model trace --chakra DIR"),
    ]
    text = (
        "Written by these commands and read back by the published schema of Chakra; ASTRA-sim, "
        "which comes as source alone, was not run on them."
    )
    yield Exhibit("From profiles to traces", "commands", text, TALK, rows=rows)


def marginals() -> Iterator[Exhibit]:
    file = of_mapping(LLAMA_2, str(Path("talk")))
    found = marginal.marginal(file.architecture, file.system, file.run)
    factors = [0.5 + 0.05 * k for k in range(21)]
    panels = []
    for title, key in (("iteration time", "iteration_time_s"), ("energy with hosts", "total_j")):
        lines = []
        for component, colour in zip(marginal.COMPONENTS, LINES, strict=False):
            scaled = marginal.scale(file.architecture, file.system, file.run, component, factors)
            today = next(one for one in scaled if abs(one.factor - 1.0) < 1e-9)
            points = tuple((one.factor, 100.0 * (getattr(one, key) / getattr(today, key) - 1.0))
                           for one in scaled)  # fmt: skip
            lines.append(Line(marginal.NAMES[component], colour, points))
        panels.append(Panel(title, "clock of one component, relative", "change, %", tuple(lines)))
    yield Exhibit(
        "Marginal efficiency: LLaMA-2-70B on a switch of 8 and a ring of 4",
        PREDICTED,
        f"{scaling.pays(found)} of its clock. The poster's finding is the same: bits cost little, "
        "communication overlaps poorly, waiting GPUs draw much.",
        TALK,
        panels,
        rows=[scaling.HEAD, *scaling.elasticities(found)],
    )


PARTS = (breakdown, over_clocks, traces, marginals)
