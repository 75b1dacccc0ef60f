"""The public measurements, read in place; nothing of them is in this repository.

Perseus (SOSP'24 artifact): GPT-3 175B stages on A100 and A40 at every clock. Stages 0 to 6
carry the same rows, so one inner stage and the head stage are read, forward and backward:
four distinct curves per card. Ali et al.: 21 applications on an A100 with DCGM counters.
Vidur: times of decoder layers over shapes on A100 and A40.
"""

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from joulecut_engine.estimate.application import Counters, Swept
from joulecut_engine.estimate.card import Card, named
from joulecut_engine.estimate.evidence import Evidence, Work
from joulecut_engine.estimate.physics import Sweep
from joulecut_engine.estimate.roofline import Ceiling
from joulecut_engine.estimate.shapes import LayerSample, LayerShape
from joulecut_engine.graph.pipeline import KINDS

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
STAGES_AT = DATA / "perseus" / "stage_profile"
APPLICATIONS_AT = DATA / "dvfs" / "ali_ga100"
LAYERS_AT = DATA / "dvfs" / "vidur_layers" / "mlp_median_a100_a40.csv"

CARDS = {"A100": "A100-SXM", "A40": "A40"}
STAGE_FILES = {"A100": "gpt3-175b+a100_sxm_bf16.csv", "A40": "gpt3-175b+a40_bf16.csv"}
DISTINCT_STAGES = (0, 7)  # an inner one, and the last with the language-model head
# What a decoder layer does besides attention scores, which the public file does not hold.
PARTS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
MS_PER_S = 1e3


def card(name: str) -> Card:
    found = named(CARDS[name])
    assert found is not None
    return found


def ceiling(name: str) -> Ceiling:
    return Ceiling.of(card(name))


def stages(name: str, workload: str = "gpt3") -> tuple[Evidence, ...]:
    """The four distinct curves of one card, card not named; clocks ascending."""
    rows = defaultdict(list)
    with (STAGES_AT / STAGE_FILES[name]).open(newline="") as file:
        for row in csv.DictReader(file):
            time_s, energy_j = float(row["time"]), float(row["energy"])
            measured = (float(row["frequency"]), time_s, energy_j / time_s)
            rows[int(row["stage"]), row["instruction"]].append(measured)
    return tuple(
        Evidence(Work(workload, stage, kind), _sweep(rows[stage, kind]))
        for stage in DISTINCT_STAGES
        for kind in KINDS
    )


def _sweep(rows: list[tuple[float, float, float]]) -> Sweep:
    clocks_mhz, time_s, power_w = np.array(sorted(rows)).T
    return Sweep(clocks_mhz, time_s, power_w)


def at(evidence: Evidence, clocks_mhz: tuple[int, ...], name: str | None = None) -> Evidence:
    """The same work measured at some clocks only; `name` says which card it ran on."""
    sweep = evidence.sweep
    kept = np.isin(sweep.clocks_mhz, clocks_mhz)
    probed = Sweep(sweep.clocks_mhz[kept], sweep.time_s[kept], sweep.power_w[kept])
    return Evidence(evidence.work, probed, None if name is None else card(name))


@dataclass(frozen=True, slots=True)
class Application:
    name: str
    swept: Swept


def applications() -> tuple[Application, ...]:
    """By name. Counters are those at the highest clock."""
    rows = defaultdict(list)
    for file_at in sorted(APPLICATIONS_AT.glob("*-dcgm.csv")):
        with file_at.open(newline="") as file:
            for row in csv.DictReader(file):
                rows[row["application"]].append(row)
    return tuple(Application(name, _swept(rows[name])) for name in sorted(rows))


def _swept(rows: list[dict[str, str]]) -> Swept:
    measured = [
        (float(row["sm_app_clock"]), float(row["run_time"]), float(row["power_usage"]))
        for row in rows
    ]
    top = max(rows, key=lambda row: float(row["sm_app_clock"]))
    # STREAM's file has no column for the tensor pipe: it has no use for it.
    pipes = sum(
        float(top.get(pipe) or 0.0) for pipe in ("tensor_activity", "fp64_active", "fp32_active")
    )
    counters = Counters(
        engine_active=float(top["gr_engine_active"]),
        sm_active=float(top["sm_active"]),
        memory_active=float(top["dram_active"]),
        pipes_active=pipes,
    )
    return Swept(counters, _sweep(measured))


@dataclass(frozen=True, slots=True)
class Layer:
    """One measured layer. Models of one shape (Llama 2 70B and Llama 3 70B) are one `family`."""

    model: str
    family: str
    sample: LayerSample


def layers(name: str) -> tuple[Layer, ...]:
    """All layers measured on a card, in the order of the file."""
    on = ceiling(name)
    found = []
    with LAYERS_AT.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] != name.lower():
                continue
            shape = LayerShape(
                tokens=int(row["num_tokens"]),
                d_model=int(row["n_embd"]),
                heads=int(row["n_head"]),
                kv_heads=int(row["n_kv_head"]),
                d_ffn=int(row["n_expanded_embd"]),
                gated=row["use_gated_mlp"] == "True",
                tensor_parallel=int(row["num_tensor_parallel_workers"]),
            )
            # phi-2 has one norm only; its second is empty in the file.
            time_s = sum(float(row[f"{part}_ms"] or 0.0) for part in PARTS) / MS_PER_S
            family = f"{shape.d_model} x {shape.d_ffn}, {shape.heads}/{shape.kv_heads} heads"
            found.append(Layer(row["model"], family, LayerSample(shape, on, time_s)))
    return tuple(found)
