"""What delays an iteration, by the times of its operations."""

import json
from dataclasses import replace

import numpy as np
import pytest
from job_states import changed
from numpy.typing import NDArray
from planning import at_default, costs_of, seen, view_of
from worlds import World

from joulecut_controller.observe.operation_traces import (
    mean_traces_of,
    timed_of,
    traces_of,
)
from joulecut_controller.plan.traces import delay_of
from joulecut_controller.view import PipelineTrace
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph import build
from joulecut_engine.optimize.levels import levels_of
from joulecut_wire import reports

WORLD = World(stages=3, microbatches=9)
ESTIMATOR = OnlineEstimator({WORLD.job: WORLD.profile()})
VIEW = view_of(WORLD, WORLD.now_s)
COSTS = costs_of(seen(WORLD, 0.03), VIEW, ESTIMATOR)
GRAPH = COSTS.problem.graph
Floats = NDArray[np.float64]


def traces(seconds: Floats) -> tuple[PipelineTrace, ...]:
    made = []
    times_s = levels_of(GRAPH).iteration_times(seconds.T)
    for number, (row, measured_s) in enumerate(zip(seconds, times_s.tolist(), strict=True)):
        stages: list[dict[str, list[float]]] = [{} for _ in GRAPH.order]
        for stage, order in enumerate(GRAPH.order):
            for i in order:
                stages[stage].setdefault(GRAPH.operations[i].kind, []).append(row[i])
        arrays = tuple({kind: np.array(one) for kind, one in stage.items()} for stage in stages)
        made.append(PipelineTrace(number, measured_s, arrays))
    return tuple(made)


def test_a_slow_gpu_is_named_with_its_place_and_a_throttled_one_with_its_reason() -> None:
    seconds = np.tile([option.time_s for option in at_default(COSTS).options], (4, 1))
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


def report(uuid: str, forward: list[float]) -> reports.IterationReport:
    backward = [2.0 * seconds for seconds in forward]
    operations = [
        {"kind": kind, "count": len(each), "busy_s": sum(each), "durations_s": each}
        for kind, each in (("forward", forward), ("backward", backward))
    ]
    raw = {"v": 1, "job": "j", "uuid": uuid, "stage": 0, "iteration": 7, "duration_s": 9.0}
    made = reports.decode(json.dumps({**raw, "ops": operations}).encode())
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
        found = timed_of(report(uuid, forward))
        assert found is not None
        timed[uuid] = found
    durations_s = dict.fromkeys("abcd", 9.0)
    pipelines = ((("a", "b"), ("c", "d")),)
    (trace,) = traces_of(7, timed, durations_s, pipelines)
    assert trace.stages[0]["forward"] == pytest.approx([1.2, 2.2])
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


def test_sums_alone_are_no_times() -> None:
    sums = tuple(replace(op, durations_s=()) for op in report("a", [1.0]).operations)
    assert timed_of(replace(report("a", [1.0]), operations=sums)) is None
