"""Efficiency through technology: what made one chip faster, and how demand grew.

B. Dally, NVIDIA, NASEM workshop on AI and electricity use, November 2024.
"""

from collections.abc import Iterator
from dataclasses import replace

from joulecut_engine.panel import Line, Mark, Panel
from joulecut_lab.exhibit import PREDICTED, PUBLISHED, Compared, Exhibit
from joulecut_lab.model import formula, post_dennard, technology
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.run import Run

TITLE = "Efficiency through technology"
TALK = "Dally, NASEM workshop, November 2024"
# FLOPs of a training run, by year; Epoch AI, notable models (2025), those before GPT-3 recalled.
TRAINED = (
    ("AlexNet", 2012.7, 4.7e17), ("BERT-Large", 2018.8, 2.9e20), ("GPT-2", 2019.1, 1.5e21),
    ("GPT-3 175B", 2020.4, 3.14e23), ("PaLM 540B", 2022.3, 2.5e24), ("GPT-4", 2023.2, 2.1e25),
    ("Gemini Ultra", 2023.9, 5.0e25), ("Llama 3.1 405B", 2024.5, 3.8e25),
)  # fmt: skip
TRAINED_SOURCE = "Epoch AI, notable AI models; AlexNet, BERT and GPT-2 recalled"
# TWh a year of all data centres.
DEMAND = ((2010, 194.0, "measured"), (2018, 205.0, "measured"), (2024, 415.0, "measured"),
          (2030, 945.0, "projected"))  # fmt: skip
DEMAND_SOURCE = (
    "Masanet et al., Science 2020 (2010 and 2018); IEA, Energy and AI, 2025 (2024, and its base "
    "case of 2030)"
)
# Of models in the catalogue: tokens of their training (their reports), published FLOPs.
TOKENS = {"gpt3-175b": (300e9, 3.14e23), "llama-3-405b": (15.6e12, 3.8e25)}


def demand() -> Iterator[Exhibit]:
    marks = tuple(Mark("", "ours", (year, flops), label=name) for name, year, flops in TRAINED)
    trained = Panel("FLOPs of training a model", "year", "", marks, log="y",
                    x_range=(2011.0, 2028.0), y_range=(1e17, 1e27))  # fmt: skip
    known = tuple((float(year), twh) for year, twh, basis in DEMAND if basis == "measured")
    last, ahead = known[-1], (float(DEMAND[-1][0]), DEMAND[-1][1])
    power = Panel("electricity of data centres", "year", "TWh a year",
                  (Line("estimated", "ours", known), Line("projected", "due", (last, ahead),
                                                          "dashed")), zero=True)  # fmt: skip
    compared = []
    for name, (tokens, published) in TOKENS.items():
        run = Run(gpus=1, sequence=2048 if name == "gpt3-175b" else 8192)
        found = formula.estimate(ARCHITECTURES[name], SYSTEMS["dgx-h100"], run)
        compared.append(Compared(f"{name}: FLOPs of its training",
                                 found.model_flops / run.sequence * tokens, published))  # fmt: skip
    yield Exhibit("Training FLOPs and electricity by year", PUBLISHED,
                  "The model's own count of FLOPs for two of them stands in the table.",
                  f"{TRAINED_SOURCE}; {DEMAND_SOURCE}", [trained, power],
                  compared=compared)  # fmt: skip


def gains() -> Iterator[Exhibit]:
    chain = post_dennard.gains()
    compared = [Compared(f"{one.what}: {one.how}", one.factor, one.published, "x") for one in chain]
    whole, published = 1.0, 1.0
    for one in chain:
        whole, published = whole * one.factor, published * one.published
    compared.append(Compared("together", whole, published, "x",
                             "the talk: 5,000 x speed, 1,250 x per watt in 12 years"))  # fmt: skip
    compared.append(Compared("without the die: per watt", whole / 2.0, 1250.0, "x"))
    yield Exhibit("Gains of one chip in a decade", "these tables", "", TALK, compared=compared)


def instructions() -> Iterator[Exhibit]:
    published = {"HFMA": (1.5, 2000.0), "HDP4A": (6.0, 500.0), "HMMA": (110.0, 22.0),
            "IMMA": (160.0, 16.0)}  # fmt: skip
    compared = []
    for one in technology.INSTRUCTIONS:
        pj, overhead = published[one.name]
        # The others are fetch and operands, 30 pJ, over the arithmetic.
        compared += [
            Compared(f"{one.name}: arithmetic", one.arithmetic_pj, pj, "pJ"),
            Compared(f"{one.name}: 30 pJ of fetch, decode and operands over it",
                     100.0 * 30.0 / one.arithmetic_pj, overhead, "%"),
        ]  # fmt: skip
    yield Exhibit("Specialised instructions amortise their overhead", PUBLISHED,
                  "Energies of a 45 nm process. The talk's slide prints 200 % for HFMA; 30 over "
                  "1.5 pJ are 2,000 %. HMMA and IMMA amortise better than 30 pJ alone would say.",
                  TALK, compared=compared)  # fmt: skip


def sparsity() -> Iterator[Exhibit]:
    rows = [("run", "iteration", "energy", "model FLOPs a joule")]
    architecture, system = ARCHITECTURES["llama-3-70b"], SYSTEMS["dgx-h100"]
    base = Run(gpus=64, tensor=8, pipeline=2, data=4, global_batch=512, sequence=8192,
               flash_attention=True, sequence_parallel=True, recompute="selective")  # fmt: skip
    for name, run in (("dense", base), ("two of four weights", replace(base, sparsity=0.5))):
        found = formula.estimate(architecture, system, run)
        joules = found.energy_j + found.host_j
        rows.append((name, f"{found.iteration_time_s:.2f} s", f"{joules / 1e6:.2f} MJ",
                     f"{found.model_flops / joules / 1e9:.1f} G"))  # fmt: skip
    yield Exhibit("Structured sparsity in a run", PREDICTED,
                  "`sparsity: 0.5` of a run: products with weights take half the operations in "
                  "forward and input gradients; gradients of weights, attention and logits stay "
                  "dense. Llama 3 70B on 64 H100.",
                  "Mishra et al., arXiv 2104.08378", rows=rows)  # fmt: skip


def cards() -> Iterator[Exhibit]:
    published = {
        "b200": (("fp8_tflops", 5000.0, 0.5, "FP8, dense (the slide's 10 PFLOP/s are sparse)"),
                 ("fp4_tflops", 10000.0, 0.5, "FP4, dense (20 PFLOP/s sparse)"),
                 ("hbm_gb_s", 8000.0, 1.0, "HBM, GB/s")),
        "gb200": (("scale_up_gb_s", 1800.0, 2.0, "NVLink, GB/s, both directions"),),
    }  # fmt: skip
    compared = []
    for name, facts in published.items():
        for key, value, factor, what in facts:
            ours = getattr(SYSTEMS[name], key) * (max(1.0, factor))
            compared.append(Compared(f"{name}: {what}", ours, value))
    rack = SYSTEMS["gb200"]
    compared += [
        Compared("GB200 NVL72: GPUs that the fast links join", float(rack.scale_up_size), 72.0),
        Compared("GB200 NVL72: FP8 with sparsity, PFLOP/s", 72 * 2 * rack.fp8_tflops / 1e3, 720.0),
        Compared("GB200 NVL72: FP4 with sparsity, PFLOP/s", 72 * 2 * rack.fp4_tflops / 1e3, 1400.0),
        Compared("GB200 NVL72: all-to-all, TB/s", 72 * 2 * rack.scale_up_gb_s / 1e3, 130.0),
    ]
    yield Exhibit("B200 and GB200 NVL72", "the catalogue",
                  "A B200 in a DGX has nine tenths of the slide's peak: 4.5 and 9 PFLOP/s.", TALK,
                  compared=compared)  # fmt: skip


def accelerators() -> Iterator[Exhibit]:
    rows = [("accelerator", "operations", "TOP/s per W", "source")]
    rows.append(("VS-Quant test chip, 5 nm", "INT4, inputs half zero, 0.46 V", "95.6",
                 "Keller et al., VLSI 2022, by Dally 2024"))  # fmt: skip
    rows += [
        (name, what, f"{getattr(SYSTEMS[name], key) / SYSTEMS[name].power_cap_w:.4g}",
         "data sheet, dense peak over limit")
        for name, what, key in (("a100-sxm-80gb", "INT8", "int8_tops"),
                                ("h100-sxm", "INT8", "int8_tops"), ("b200", "FP4", "fp4_tflops"))
    ]  # fmt: skip
    yield Exhibit("An inference accelerator of small integers", PUBLISHED,
                  "Cards at the dense peak of their data sheets and their limit. Small models by "
                  "pruning and distillation (Minitron, Hymba) are outside: this program models a "
                  "given architecture, not its quality.", TALK, rows=rows)  # fmt: skip


PARTS = (demand, gains, instructions, sparsity, cards, accelerators)
