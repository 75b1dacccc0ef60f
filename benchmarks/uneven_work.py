"""Two production jobs, operation by operation: what explains them.

    python benchmarks/uneven_work.py

Reads ../shared/data/stragglers (ByteDance-Seed/StragglerAnalysis, OSDI'25) in place. Durations are
measured.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyarrow import parquet

from joulecut_engine.graph import Graph, build
from joulecut_engine.graph.pipeline import Kind, Pipeline
from joulecut_engine.optimize.levels import levels_of

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "stragglers"
EXPLAINED_RATIO = 0.03
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """`seconds` (steps, pipelines, operations) and `measured_s` (steps, pipelines)."""

    graph: Graph
    seconds: Floats
    measured_s: Floats

    @property
    def flat(self) -> Floats:
        return self.seconds.reshape(-1, self.seconds.shape[-1])


def job(name: str) -> Job:
    """Raises FileNotFoundError."""
    table = parquet.read_table(DATA / f"trace-{name}.parquet")
    columns = {column: table[column].to_numpy() for column in table.column_names}
    computes = np.isin(columns["optype"], ["forward-compute", "backward-compute"])
    one = {column: values[computes] for column, values in columns.items()}
    stages, microbatches = int(one["stage"].max()) + 1, int(one["mb_id"].max()) + 1
    graph = build(Pipeline("1f1b", stages, microbatches))
    column = np.zeros((2, stages, microbatches), dtype=np.int64)
    for i, operation in enumerate(graph.operations):
        column[int(operation.kind == "forward"), operation.stage, operation.microbatch] = i
    forward = (one["optype"] == "forward-compute").astype(np.int64)
    steps, step = np.unique(one["step"], return_inverse=True)
    at = step, one["dp_rank"]
    operation_of = column[forward, one["stage"], one["mb_id"]]
    shape = (len(steps), int(one["dp_rank"].max()) + 1)
    seconds, ranks = (np.zeros((*shape, len(graph.operations))) for _ in range(2))
    np.add.at(seconds, (*at, operation_of), one["duration"])  # mean over the tensor-parallel group
    np.add.at(ranks, (*at, operation_of), 1.0)
    begin_s, end_s = np.full(shape, np.inf), np.zeros(shape)
    np.minimum.at(begin_s, at, one["start_ts"])
    np.maximum.at(end_s, at, one["start_ts"] + one["duration"])
    return Job(graph, seconds / ranks, end_s - begin_s)


def explained(one: Job) -> tuple[Floats, Floats]:
    """Modelled over measured time of each pipeline: by its means, and by its own operations."""
    means = one.flat.copy()
    for columns in _columns(one.graph).values():
        means[:, columns] = means[:, columns].mean(axis=1, keepdims=True)
    measured_s = one.measured_s.ravel()
    by_means, by_own = (levels_of(one.graph).iteration_times(each.T) for each in (means, one.flat))
    return by_means / measured_s, by_own / measured_s


def _columns(graph: Graph) -> dict[tuple[int, Kind], list[int]]:
    found: dict[tuple[int, Kind], list[int]] = {}
    for i, operation in enumerate(graph.operations):
        found.setdefault((operation.stage, operation.kind), []).append(i)
    return found


def main() -> None:
    jobs = {name: job(name) for name in ("AR", "SE")}
    print("| job, report | mean error | worst | above 3 % |\n|---|---|---|---|")
    for name, one in jobs.items():
        for words, ratio in zip(("means", "each operation"), explained(one), strict=True):
            error = ratio - 1.0
            most, above = np.abs(error).max(), (np.abs(error) > EXPLAINED_RATIO).mean()
            print(f"| {name}, {words} | {error.mean():+.2%} | {most:.2%} | {above:.1%} |")


if __name__ == "__main__":
    main()
