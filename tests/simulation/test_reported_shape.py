"""A job whose policy entry has no pipeline: its shape comes from its own reports."""

from dataclasses import replace

import pytest
from unprofiled import UnprofiledWorld
from worlds import Controller

from joulecut_controller.ports import ArrivedReport
from joulecut_controller.store.database import DatabaseStore
from joulecut_wire.messages import PipelineShape

WHOLE = PipelineShape("1f1b", 4, 24)


class ShapedWorld(UnprofiledWorld):
    """`shapes` by GPU are part of each report."""

    def __init__(self, shapes: dict[str, PipelineShape]) -> None:
        super().__init__()
        self.shapes, self.detailed = shapes, True

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        return tuple(
            replace(one, report=replace(one.report, shape=self.shapes.get(one.report.uuid)))
            for one in super().take_reports()
        )


def _controller(store: DatabaseStore, shapes: dict[str, PipelineShape], passes: int) -> Controller:
    world = ShapedWorld(shapes)
    policy = world.unprofiled(budget=0.05)
    job = replace(policy.jobs[0], pipeline=None)
    controller = Controller(world, store, replace(policy, jobs=(job,)))
    controller.run(passes)
    return controller


def test_a_job_is_learnt_without_a_line_on_its_pipeline(store: DatabaseStore) -> None:
    """One rank may not show its schedule: the others do."""
    uuids = [f"GPU-{stage}" for stage in range(4)]
    shapes = dict.fromkeys(uuids, WHOLE) | {uuids[3]: PipelineShape("", 4, 0)}
    controller = _controller(store, shapes, 45)
    pipeline = controller.job.view.policy.pipeline
    assert (pipeline.schedule, pipeline.stages, pipeline.microbatches) == ("1f1b", 4, 24)
    assert controller.job.view.placement.complaint == ""
    assert controller.world.sent("apply")


@pytest.mark.parametrize(
    ("shapes", "complaint"),
    [
        ({}, ""),
        (dict.fromkeys(["GPU-0", "GPU-1"], PipelineShape("", 4, 0)), "schedule unknown"),
        ({"GPU-0": WHOLE, "GPU-1": PipelineShape("1f1b", 8, 24)}, "stages 4 and 8"),
        ({"GPU-0": WHOLE, "GPU-1": PipelineShape("gpipe", 4, 24)}, "schedule 1f1b and gpipe"),
    ],
)
def test_nothing_changes_where_the_shape_is_not_whole(
    store: DatabaseStore, shapes: dict[str, PipelineShape], complaint: str
) -> None:
    controller = _controller(store, shapes, 20)
    assert controller.job.view.policy.pipeline is None
    assert complaint in controller.job.view.placement.complaint
    assert bool(complaint) == bool(controller.job.view.placement.complaint)
    assert not controller.world.sent("apply")


def test_one_stage_needs_no_schedule(store: DatabaseStore) -> None:
    uuids = [f"GPU-{stage}" for stage in range(4)]
    world = ShapedWorld(dict.fromkeys(uuids, PipelineShape("", 1, 0)))
    world.stage_of = dict.fromkeys(uuids, 0)
    policy = world.unprofiled(budget=0.05)
    job = replace(policy.jobs[0], pipeline=None)
    controller = Controller(world, store, replace(policy, jobs=(job,)))
    controller.run(5)
    pipeline = controller.job.view.policy.pipeline
    assert (pipeline.stages, pipeline.data_parallel) == (1, 4)
    assert controller.job.view.placement.complaint == ""
