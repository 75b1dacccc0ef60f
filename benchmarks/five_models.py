"""Savings of five models on A100 and A40: predicted profiles beside Perseus' measured runs.

    python benchmarks/five_models.py [--only gpt3-xl ...]

What is predicted, and how, stands in `joulecut_lab.talks.five_models`. Layouts are read from
../shared/data.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from joulecut_engine import plan
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_lab.model import formula
from joulecut_lab.talks.five_models import (
    PUBLISHED,
    PUBLISHED_EMULATED,
    STRAGGLERS,
    Workload,
    emulated,
    saved,
    stages_of,
    whole,
)

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "perseus" / "workloads"
LIMITS = DATA.parent / "zeus_baseline" / "A100" / "zeus_global.csv"


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
        found, shape = stages_of(work), Pipeline("1f1b", work.stages, work.microbatches)
        mine, watts = saved(found, shape), found.blocking_power_w
        within = plan(found.profile, shape, blocking_power_w=watts, max_slowdown=slower)
        row(*cells, f"{mine.alone:.1f}", f"{100.0 * within.saved_ratio:.1f}", shown(late),
            shown(mine.late))  # fmt: skip


def emulated_runs() -> None:
    print("\n## Emulated: 1,024 GPUs, 16 pipelines of 8 stages x 96 microbatches\n")
    row("card", "model", "published, no straggler", "predicted", "published, cluster, x1.2",
        "predicted, cluster, x1.2", "predicted, a waiting pipeline, x1.2")  # fmt: skip
    row(*["---"] * 7)
    for (card, model), (alone, cluster) in PUBLISHED_EMULATED.items():
        found = emulated(card, model)
        mine = saved(found, Pipeline("1f1b", 8, 96))
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
