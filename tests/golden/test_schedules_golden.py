"""The order of every schedule, as text to be compared with the figures in its paper."""

from pathlib import Path

import orders
import pytest
from golden_text import same_as_golden

from joulecut_engine.graph import build
from joulecut_engine.graph.pipeline import SCHEDULES_ALL, Pipeline, Schedule
from joulecut_engine.graph.shape import chunks_of

KEPT = Path(__file__).parent / "schedules"
STAGES, MICROBATCHES = 4, 8  # as in most of the figures


@pytest.mark.parametrize("schedule", SCHEDULES_ALL)
def test_order(schedule: Schedule) -> None:
    pipeline = Pipeline(schedule, STAGES, MICROBATCHES, chunks=chunks_of(schedule, None))
    same_as_golden(KEPT / f"{schedule}.txt", "\n".join(orders.written(pipeline, build(pipeline))))
