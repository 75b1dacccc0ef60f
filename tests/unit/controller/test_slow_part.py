"""The part of a job that delays its iterations, planted and found."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from joulecut_controller.plan.slow_part import (
    DELAY_RATIO_MIN,
    by_operation,
    misfit,
    slow_part,
)
from joulecut_engine.graph import Graph, build
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_engine.optimize.levels import levels_of

Floats = NDArray[np.float64]
STAGES, MICROBATCHES, PIPELINES = 4, 8, 4


@pytest.fixture(scope="module")
def graph() -> Graph:
    return build(Pipeline("1f1b", STAGES, MICROBATCHES))


def noisy(graph: Graph, dice: np.random.Generator, noise: float = 0.03) -> Floats:
    usual = [1.0 if o.kind == "forward" else 2.0 for o in graph.operations]
    factors = dice.lognormal(0.0, noise, size=(PIPELINES, len(usual)))
    return np.array(usual) * factors


def columns(graph: Graph, **wanted: int) -> list[int]:
    return [
        i
        for i, operation in enumerate(graph.operations)
        if all(getattr(operation, key) == value for key, value in wanted.items())
    ]


def named(graph: Graph, seconds: Floats, beside_s: Any = 0.0) -> tuple[str, str] | None:
    found = slow_part(graph, seconds, levels_of(graph).iteration_times(seconds.T) + beside_s)
    return (found.name, found.cause) if found else None


def test_no_part_of_a_uniform_job_is_named(graph: Graph) -> None:
    dice = np.random.default_rng(1)
    assert {named(graph, noisy(graph, dice)) for _ in range(300)} == {None}


def test_a_slow_gpu_is_named_wherever_it_is(graph: Graph) -> None:
    dice = np.random.default_rng(2)
    for _ in range(100):
        seconds = noisy(graph, dice)
        pipeline, stage = int(dice.integers(PIPELINES)), int(dice.integers(STAGES))
        seconds[pipeline, columns(graph, stage=stage)] *= 1.3
        assert named(graph, seconds) == (f"pipeline {pipeline} stage {stage}", "compute")


def test_long_sequences_are_the_data_of_their_pipeline(graph: Graph) -> None:
    dice = np.random.default_rng(3)
    for _ in range(50):
        seconds = noisy(graph, dice)
        pipeline = int(dice.integers(PIPELINES))
        lengths = dice.permutation(np.linspace(1.0, 2.6, MICROBATCHES))
        for microbatch, length in enumerate(lengths):  # as long in every stage
            seconds[pipeline, columns(graph, microbatch=microbatch)] *= length
        assert named(graph, seconds) == (f"pipeline {pipeline}", "data")


def test_time_beside_the_operations_is_the_network(graph: Graph) -> None:
    seconds = noisy(graph, np.random.default_rng(4))
    beside_s = np.array([1.0, 1.0, 6.0, 1.0])
    assert named(graph, seconds, beside_s) == ("pipeline 2", "network")


def test_a_stage_that_all_pipelines_wait_for_is_named(graph: Graph) -> None:
    seconds = noisy(graph, np.random.default_rng(5))
    seconds[:, columns(graph, stage=2)] *= 1.3
    assert named(graph, seconds) == ("stage 2", "compute")
    assert named(graph, seconds[:1]) == ("stage 2", "compute")  # one pipeline has stages too


def test_of_two_pipelines_neither_is_the_odd_one() -> None:
    graph = build(Pipeline("1f1b", 2, 4))
    seconds = np.ones((2, len(graph.operations)))
    seconds[0] *= 2.0
    assert named(graph, seconds) is None


def test_a_delay_is_what_the_peers_time_would_save(graph: Graph) -> None:
    seconds = np.ones((PIPELINES, len(graph.operations)))
    seconds[1, columns(graph, stage=0)] = 1.5
    times_s = levels_of(graph).iteration_times(seconds.T)
    found = slow_part(graph, seconds, times_s)
    assert found.delay_ratio == pytest.approx(1.0 - float(times_s[0] / times_s.max()))
    assert found.delay_ratio > DELAY_RATIO_MIN
    assert found.factor == pytest.approx(1.5)


def stages_of(graph: Graph, seconds: Floats) -> list[dict[str, list[float]]]:
    times: list[dict[str, list[float]]] = [{} for _ in graph.order]
    for stage, order in enumerate(graph.order):
        for i in order:
            times[stage].setdefault(graph.operations[i].kind, []).append(float(seconds[i]))
    return times


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved-1f1b", "zb-h1"])
def test_times_in_the_order_they_ran_are_those_of_the_operations(schedule: Any) -> None:
    chunks = 2 if schedule == "interleaved-1f1b" else 1
    graph = build(Pipeline(schedule, STAGES, MICROBATCHES, chunks=chunks))
    seconds = np.random.default_rng(6).uniform(1.0, 2.0, len(graph.operations))
    times = stages_of(graph, seconds)
    assert not misfit(graph, times)
    assert by_operation(graph, [times, times])[1] == pytest.approx(seconds)


def test_another_count_or_stage_is_a_misfit(graph: Graph) -> None:
    times = stages_of(graph, np.ones(len(graph.operations)))
    assert misfit(graph, times[1:])
    assert misfit(build(Pipeline("1f1b", STAGES, MICROBATCHES + 1)), times)
    assert misfit(build(Pipeline("zb-h1", STAGES, MICROBATCHES)), times)
