"""The schedule found on one rank is the one that the rank ran, or unknown."""

import itertools

import pytest

from joulecut_agent.jobs.pipeline_shape import shape_of
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_engine.graph.schedules import programs

SIZES = list(itertools.product(range(1, 5), range(1, 9)))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_schedule_is_recognised_or_left_open(schedule: str) -> None:
    known = 0
    for stages, microbatches in SIZES:
        pipeline = Pipeline(schedule=schedule, stages=stages, microbatches=microbatches)
        for stage, program in enumerate(programs(pipeline)):
            kinds = [operation.kind for operation in program]
            shape = shape_of(kinds, stage, stages=stages)
            assert shape.microbatches in {0, microbatches}
            assert shape.schedule in {"", schedule}
            known += shape.schedule == schedule
    assert known > len(SIZES)


def test_another_order_is_no_schedule() -> None:
    for kinds in (["backward", "forward"], ["forward"], [], ["forward"] * 2 + ["backward"]):
        shape = shape_of(kinds, 0, stages=2)
        assert (shape.schedule, shape.microbatches) == ("", 0)
    assert shape_of([], 3, stages=3) is None
