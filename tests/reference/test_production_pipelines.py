"""Two production jobs, operation by operation (OSDI'25, StragglerAnalysis), read in place."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from joulecut_engine.graph import Graph, build
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_engine.optimize.formulation import priced
from joulecut_engine.optimize.jitter import Noise, Trials, judge_of
from joulecut_engine.optimize.jitter_margin import assured
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.recorded import iteration_times, recorded
from joulecut_engine.optimize.slow_part import slow_part
from joulecut_engine.optimize.solver import Solver

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "stragglers"
EXPLAINED_RATIO = 0.03
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """`seconds` (steps, pipelines, operations) and `measured_s` (steps, pipelines)."""

    graph: Graph
    seconds: Floats
    measured_s: Floats


def trace(name: str) -> Trace:
    path = DATA / f"trace-{name}.parquet"
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    if not path.exists():
        pytest.skip(f"no {path}: public traces are read in place")
    table = parquet.read_table(path)
    columns = {name: table[name].to_numpy() for name in table.column_names}
    computes = np.isin(columns["optype"], ["forward-compute", "backward-compute"])
    one = {name: column[computes] for name, column in columns.items()}
    stages, microbatches = int(one["stage"].max()) + 1, int(one["mb_id"].max()) + 1
    graph = build(Pipeline("1f1b", stages, microbatches))
    column = np.zeros((2, stages, microbatches), dtype=np.int64)
    for i, operation in enumerate(graph.operations):
        kind = int(operation.kind == "forward")
        column[kind, operation.stage, operation.microbatch] = i
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
    return Trace(graph, seconds / ranks, end_s - begin_s)


@pytest.fixture(scope="module")
def slowed() -> Trace:
    """4 stages x 4 pipelines; one worker was slowed on purpose."""
    return trace("AR")


@pytest.fixture(scope="module")
def uneven() -> Trace:
    """2 stages x 32 pipelines; sequences of different length."""
    return trace("SE")


def test_no_iteration_is_refused(slowed: Trace, uneven: Trace) -> None:
    for job in (slowed, uneven):
        flat = job.seconds.reshape(-1, job.seconds.shape[-1])
        ratio = iteration_times(job.graph, flat) / job.measured_s.ravel()
        assert np.abs(ratio - 1.0).max() < EXPLAINED_RATIO


def test_the_slowed_worker_is_named_in_every_step(slowed: Trace) -> None:
    for seconds, measured_s in zip(slowed.seconds, slowed.measured_s.tolist(), strict=True):
        found = slow_part(slowed.graph, seconds, measured_s)
        assert found is not None
        assert (found.name, found.cause) == ("pipeline 0 stage 0", "compute")
        assert found.delay_ratio > 0.3


@pytest.mark.parametrize("slowdown", [0.01, 0.02, 0.05])
def test_plans_of_uneven_work_keep_their_budget_in_the_second_half(
    uneven: Trace, slowdown: float
) -> None:
    """Under a card whose time goes with 1 / clock and whose power with its square, plus a base."""
    half = len(uneven.seconds) // 2
    seen, later = uneven.seconds[:half], uneven.seconds[half:]
    pipelines, operations = seen.shape[1], uneven.graph.operations
    kept = recorded(uneven.graph, seen.reshape(-1, len(operations)))
    clocks = range(900, 1411, 30)
    ratio = {mhz: 1410.0 / mhz for mhz in clocks}
    mean_s = {
        (stage, kind): seen[
            ..., [i for i, o in enumerate(operations) if (o.stage, o.kind) == (stage, kind)]
        ].mean()
        for stage in range(2)
        for kind in ("forward", "backward")
    }
    menus = {
        key: tuple(
            ClockOption(mhz, ratio[mhz] * s, ratio[mhz] * s * (100.0 + 300.0 / ratio[mhz] ** 2))
            for mhz in clocks
        )
        for key, s in mean_s.items()
    }
    problem = priced(uneven.graph, [menus[o.stage, o.kind] for o in operations], 75.0)
    noise = Noise(siblings=pipelines, recorded=kept)
    solver, trials = Solver(problem, "gpu"), Trials(problem, noise)
    usual = [menus[o.stage, o.kind][-1] for o in operations]
    target_s = judge_of(problem, noise).spread(usual).mean_s * (1.0 + slowdown)
    found = assured(
        problem,
        solver,
        Goal(2.0 * solver.fastest_s),
        trials,
        statistic="mean",
        target_s=target_s,
        judge=judge_of(problem, noise),
    )
    slower = np.array([ratio[option.clock_mhz] for option in found.plan.clocks])

    def step_s(factors: Floats) -> float:
        flat = (later * factors).reshape(-1, len(operations))
        return float(iteration_times(uneven.graph, flat).reshape(-1, pipelines).max(axis=1).mean())

    late = step_s(slower) / step_s(np.ones(len(operations))) - 1.0 - slowdown
    assert -0.01 < late < 0.003
