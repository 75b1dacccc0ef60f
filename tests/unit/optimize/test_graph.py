"""The pipeline graph against orders written by hand, and what any graph must keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.graph import Graph, build
from joulecut_engine.graph.pipeline import SCHEDULES, Operation, Pipeline, Schedule

pipelines = st.builds(Pipeline, st.sampled_from(SCHEDULES), st.integers(1, 6), st.integers(1, 9))


def orders(graph: Graph) -> list[str]:
    """`F0 B0`: forwards and backwards of each stage by microbatch."""
    return [
        " ".join(
            f"{graph.operations[i].kind[0].upper()}{graph.operations[i].microbatch}"
            for i in program
        )
        for program in graph.order
    ]


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "expected"),
    [
        (
            "1f1b",
            4,
            6,
            [
                "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
                "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
                "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
                "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
            ],
        ),
        ("1f1b", 3, 1, ["F0 B0", "F0 B0", "F0 B0"]),
        ("1f1b", 4, 2, ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]),
        ("gpipe", 2, 3, ["F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"]),
    ],
)
def test_orders_are_those_written_by_hand(
    schedule: Schedule, stages: int, microbatches: int, expected: list[str]
) -> None:
    assert orders(build(Pipeline(schedule, stages, microbatches))) == expected


def test_edges_are_those_written_by_hand() -> None:
    graph = build(Pipeline("1f1b", 2, 2))
    named = {
        tuple(f"{o.kind[0].upper()}{o.stage}{o.microbatch}" for o in (graph.operations[a], b))
        for a, i in graph.edges
        for b in [graph.operations[i]]
    }
    assert named == {
        # F(s, m) -> F(s + 1, m), F(S - 1, m) -> B(S - 1, m), B(s + 1, m) -> B(s, m)
        ("F00", "F10"),
        ("F01", "F11"),
        ("F10", "B10"),
        ("F11", "B11"),
        ("B10", "B00"),
        ("B11", "B01"),
        # stage order: F0 F1 B0 B1 on stage 0, F0 B0 F1 B1 on stage 1
        ("F00", "F01"),
        ("F01", "B00"),
        ("B00", "B01"),
        ("B10", "F11"),
    }


@given(pipelines)
def test_every_operation_once_and_in_topological_order(pipeline: Pipeline) -> None:
    graph = build(pipeline)
    everything = {
        Operation(stage, microbatch, kind)
        for stage in range(pipeline.stages)
        for microbatch in range(pipeline.microbatches)
        for kind in ("forward", "backward")
    }
    assert len(graph.operations) == len(everything)
    assert set(graph.operations) == everything
    assert all(a < b for a, b in graph.edges)
    assert list(graph.edges) == sorted(set(graph.edges))
    assert sorted(i for program in graph.order for i in program) == list(range(len(everything)))


@given(pipelines)
def test_a_stage_never_holds_more_forwards_than_its_depth(pipeline: Pipeline) -> None:
    """Why 1F1B exists: activations in flight are bounded by the stages that follow."""
    graph = build(pipeline)
    for stage, program in enumerate(graph.order):
        held = most = 0
        for i in program:
            held += 1 if graph.operations[i].kind == "forward" else -1
            most = max(most, held)
        bound = pipeline.stages - stage if pipeline.schedule == "1f1b" else pipeline.microbatches
        assert most == min(bound, pipeline.microbatches)


@pytest.mark.parametrize("stages_microbatches", [(0, 1), (1, 0)])
def test_nothing_is_not_a_pipeline(stages_microbatches: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        build(Pipeline("1f1b", *stages_microbatches))
