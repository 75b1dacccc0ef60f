"""Jobs whose operations differ: explained by the times of their own operations."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from job_states import changed
from numpy.typing import NDArray
from planning import at_default, case_of, costs_of, seen, view_of, with_baseline
from worlds import World

from joulecut_controller.observe.operation_traces import (
    OperationTraces,
    mean_traces_of,
    timed_of,
    traces_of,
)
from joulecut_controller.plan.planner import Decision, decide
from joulecut_controller.plan.planning_input import PlannerState
from joulecut_controller.plan.solver_cache import SolverCache
from joulecut_controller.plan.traces import delay_of
from joulecut_controller.view import PipelineTrace
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph import Graph, build
from joulecut_engine.optimize.levels import levels_of
from joulecut_engine.optimize.solver import Solver
from joulecut_wire import reports

WORLD = World(stages=3, microbatches=9)
ESTIMATOR = OnlineEstimator({WORLD.job: WORLD.profile()})
VIEW = view_of(WORLD, WORLD.now_s)
COSTS = costs_of(seen(WORLD, 0.03), VIEW, ESTIMATOR)
GRAPH = COSTS.problem.graph
ANSWERS = SolverCache(Solver)
BESIDE_RATIO = 1.01  # communication and optimizer
Floats = NDArray[np.float64]


def lengths(iterations: int, spread: float) -> Floats:
    """Seconds (iterations, operations): long sequences are long in every stage."""
    usual = np.array([option.time_s for option in at_default(COSTS).options])
    microbatch = [operation.microbatch for operation in GRAPH.operations]
    drawn = np.random.default_rng(3).lognormal(
        0.0, spread, (iterations, WORLD.pipeline.microbatches)
    )
    return usual * (drawn / drawn.mean())[:, microbatch]


def traces(seconds: Floats, graph: Graph = GRAPH) -> tuple[PipelineTrace, ...]:
    made = []
    times_s = BESIDE_RATIO * levels_of(GRAPH).iteration_times(seconds.T)
    for number, (row, measured_s) in enumerate(zip(seconds, times_s.tolist(), strict=True)):
        stages: list[dict[str, list[float]]] = [{} for _ in graph.order]
        orders: list[tuple[str, ...]] = []
        for stage, order in enumerate(graph.order):
            kinds = [graph.operations[i].kind for i in order]
            for i, kind in zip(order, kinds, strict=True):
                stages[stage].setdefault(kind, []).append(row[i])
            orders.append(tuple(kinds))
        arrays = tuple({kind: np.array(one) for kind, one in stage.items()} for stage in stages)
        made.append(PipelineTrace(number, measured_s, arrays, tuple(orders)))
    return tuple(made)


def decision(
    kept: Sequence[PipelineTrace], slowdown: float = 0.02, *, timed: bool = True
) -> Decision:
    measured_s = [trace.measured_s for trace in kept]
    job = with_baseline(seen(WORLD, slowdown, traces=tuple(kept) if timed else ()), COSTS)
    assert job.measured.baseline is not None
    spread_s = float(np.std(measured_s))
    baseline = replace(
        job.measured.baseline, time_mean_s=float(np.mean(measured_s)), time_sd_s=spread_s
    )
    asked = case_of(changed(job, baseline=baseline), VIEW)
    return decide(asked, PlannerState(), ESTIMATOR, ANSWERS)


def test_uneven_iterations_are_explained_by_their_own_operations() -> None:
    kept = traces(lengths(64, 0.3))
    means_s = at_default(COSTS).iteration_time_s
    assert np.mean([trace.measured_s for trace in kept]) > 1.1 * means_s
    made = decision(kept)
    assert made.topic == "plan"
    assert made.plan.forecast.saved_ratio > 0.01


def test_a_plan_of_uneven_work_keeps_its_budget_on_iterations_to_come() -> None:
    seconds = lengths(400, 0.3)
    made = decision(traces(seconds[:200]), slowdown=0.02)
    assert made.state.clocks is not None
    default = at_default(COSTS).options
    clocks = zip(GRAPH.operations, made.state.clocks, default, strict=True)
    slower = []
    for operation, clock_mhz, usual in clocks:
        option = COSTS.option(operation, clock_mhz)
        slower.append(option.time_s / usual.time_s)
    later = seconds[200:]
    ratio = (
        levels_of(GRAPH).iteration_times((later * np.array(slower)).T).mean()
        / levels_of(GRAPH).iteration_times(later.T).mean()
    )
    assert 1.0 < ratio < 1.023


def test_another_schedule_or_another_count_is_refused() -> None:
    kept = list(traces(lengths(32, 0.3)))
    gpipe = build(replace(WORLD.pipeline, schedule="gpipe"))
    wrong = decision(
        [replace(one, orders=traces(lengths(1, 0.3), gpipe)[0].orders) for one in kept]
    )
    assert (wrong.topic, wrong.verdict) == ("explained", "default")
    assert "the schedule has" in wrong.reason
    fewer = [
        replace(one, stages=tuple({k: s[1:] for k, s in stage.items()} for stage in one.stages))
        for one in kept
    ]
    assert "ran 8 x backward; the schedule has 9" in decision(fewer).reason


def test_time_that_operations_do_not_explain_is_refused() -> None:
    kept = [replace(one, measured_s=1.2 * one.measured_s) for one in traces(lengths(32, 0.3))]
    assert decision(kept).topic == "explained"


def test_a_slow_gpu_is_named_with_its_place_and_a_throttled_one_with_its_reason() -> None:
    seconds = np.tile(lengths(1, 0.0), (4, 1))
    seconds[2, [i for i, o in enumerate(GRAPH.operations) if o.stage == 1]] *= 1.5
    uuids = [((f"a{r}",), (WORLD.uuids[1] if r == 2 else f"b{r}",), (f"c{r}",)) for r in range(4)]
    newest = tuple(
        replace(one, iteration=9, uuids=uuids[r]) for r, one in enumerate(traces(seconds))
    )
    job = seen(WORLD, 0.02, newest=newest)
    found = delay_of(job, GRAPH, VIEW.gpus, None)
    place = VIEW.gpus[WORLD.uuids[1]].place
    assert found.text.startswith(f"pipeline 2 stage 1 (GPU {place}) delays iterations by ")
    assert found.text.endswith("its operations take 1.50 x those of its peers")
    assert delay_of(job, GRAPH, {}, found) is found  # the same iteration
    shown = VIEW.gpus[WORLD.uuids[1]]
    assert shown.snapshot is not None
    throttled = replace(shown, snapshot=replace(shown.snapshot, slow_reason="thermal"))
    found = delay_of(job, GRAPH, {WORLD.uuids[1]: throttled}, None)
    assert (found.cause, found.text.split(": ", 1)[1]) == ("throttle", "throttled: thermal")
    even = traces(seconds[:1].repeat(4, axis=0))
    waited = tuple(replace(one, iteration=10, uuids=uuids[r]) for r, one in enumerate(even))
    slowed = changed(job, newest=waited, newest_at_default=newest)  # the others, by a plan
    named = delay_of(slowed, GRAPH, VIEW.gpus, None)
    assert named.part.is_gpu
    uneven = delay_of(changed(job, newest=newest[:2]), GRAPH, VIEW.gpus, None)
    assert uneven.part.name == "stage 2"  # the model's own split: no pipeline is slow


def report(uuid: str, forward: list[float], order: str = "01") -> reports.IterationReport:
    backward = [2.0 * seconds for seconds in forward]
    operations = [
        {"kind": kind, "count": len(each), "busy_s": sum(each), "durations_s": each}
        for kind, each in (("forward", forward), ("backward", backward))
    ]
    raw = {"v": 1, "job": "j", "uuid": uuid, "stage": 0, "iteration": 7, "duration_s": 9.0}
    made = reports.decode(json.dumps({**raw, "ops": operations, "order": order}).encode())
    assert isinstance(made, reports.IterationReport)
    return made


def test_a_lock_step_group_is_its_slowest_gpu_and_a_missing_gpu_hides_the_pipeline() -> None:
    timed = {}
    for uuid, forward in (
        ("a", [1.0, 2.0]),
        ("b", [1.2, 2.2]),
        ("c", [3.0, 3.0]),
        ("d", [3.0, 3.0]),
    ):
        found = timed_of(report(uuid, forward, "0011"))
        assert found is not None
        timed[uuid] = found
    durations_s = dict.fromkeys("abcd", 9.0)
    pipelines = ((("a", "b"), ("c", "d")),)
    (trace,) = traces_of(7, timed, durations_s, pipelines)
    assert trace.stages[0]["forward"] == pytest.approx([1.2, 2.2])
    assert trace.orders[1] == ("forward", "forward", "backward", "backward")
    del timed["d"]
    assert traces_of(7, timed, durations_s, pipelines) == ()


def test_sums_of_operations_name_a_slow_gpu_and_say_nothing_of_even_ones() -> None:
    graph = build(WORLD.pipeline)
    pipelines = tuple(tuple((f"{s}{r}a", f"{s}{r}b") for s in range(3)) for r in range(4))
    count = float(WORLD.pipeline.microbatches)

    def delay(slow: str, ratio: float) -> str:
        busy = {
            uuid: {
                kind: (seconds * (ratio if uuid == slow else 1.0), count)
                for kind, seconds in (("forward", 0.2), ("backward", 0.4))
            }
            for stages in pipelines
            for group in stages
            for uuid in group
        }
        newest = mean_traces_of(3, busy, dict.fromkeys(busy, 1.0), pipelines)
        found = delay_of(seen(WORLD, 0.02, newest=newest), graph, {}, None)
        return found.part.name if found else ""

    assert delay("12b", 1.3) == "pipeline 2 stage 1"
    assert delay("12b", 1.03) == ""
    assert delay("", 1.0) == ""
    assert mean_traces_of(3, {}, {}, pipelines) == ()
    assert mean_traces_of(3, {}, {}, pipelines[:2]) == ()


def test_traces_are_bounded_and_start_over_with_another_shape() -> None:
    kept = OperationTraces()
    long = np.ones(1 << 14)
    for number in range(40):
        kept.add([PipelineTrace(number, 1.0, ({"forward": long},), ((),))])
    assert [trace.iteration for trace in kept.newest()] == list(range(24, 40))
    kept.add([PipelineTrace(40, 1.0, ({"forward": long[1:]},), ((),))])
    assert [trace.iteration for trace in kept.newest()] == [40]


def test_sums_alone_are_no_times() -> None:
    sums = tuple(replace(op, durations_s=()) for op in report("a", [1.0]).operations)
    assert timed_of(replace(report("a", [1.0]), operations=sums)) is None
