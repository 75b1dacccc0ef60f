"""The public measurements, read in place; nothing of them is in this repository.

Perseus (SOSP'24 artifact): GPT-3 175B stages on A100 and A40 at every clock. Stages 0 to 6
carry the same rows, so one inner stage and the head stage are read, forward and backward:
four distinct curves per card. Ali et al.: 21 applications on an A100.
"""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from joulecut_engine.estimate.card import Card, find_card
from joulecut_engine.estimate.evidence import Evidence, Work
from joulecut_engine.estimate.physics import Sweep
from joulecut_engine.graph.pipeline import KINDS

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
STAGES_AT = DATA / "perseus" / "stage_profile"
APPLICATIONS_AT = DATA / "dvfs" / "ali_ga100"

CARDS = {"A100": "A100-SXM", "A40": "A40"}
STAGE_FILES = {"A100": "gpt3-175b+a100_sxm_bf16.csv", "A40": "gpt3-175b+a40_bf16.csv"}
DISTINCT_STAGES = (0, 7)  # an inner one, and the last with the language-model head


def card(name: str) -> Card:
    found = find_card(CARDS[name])
    assert found is not None
    return found


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


def applications() -> dict[str, Sweep]:
    """Sweeps by name of application."""
    rows = defaultdict(list)
    for file_at in sorted(APPLICATIONS_AT.glob("*-dcgm.csv")):
        with file_at.open(newline="") as file:
            for row in csv.DictReader(file):
                measured = (row["sm_app_clock"], row["run_time"], row["power_usage"])
                rows[row["application"]].append(tuple(map(float, measured)))
    return {name: _sweep(rows[name]) for name in sorted(rows)}
