"""Replicas of a job: how slow the slowest GPU of a stage is."""

import pytest
from job_states import changed
from planning import costs_of, seen, view_of
from shapes import ShapeWorld

from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph.pipeline import Pipeline


def test_the_slowest_gpu_is_known_from_the_others_before_it_is_learnt() -> None:
    world = ShapeWorld(Pipeline("1f1b", 2, 3, data_parallel=8))
    ratios = dict.fromkeys(world.uuids, 0.95) | {"GPU-0-0-0": 1.0}
    stages = tuple(tuple(f"GPU-{s}-{r}-0" for r in range(8)) for s in range(2))
    job = changed(seen(world, 0.02), stages=stages, time_ratios=ratios)
    mhz = world.sku.clock_max_mhz
    profile = world.profile()
    costs = costs_of(job, view_of(world, 0.0), OnlineEstimator({world.job: profile}))
    usual_s = next(o.time_s for o in profile.options[0, "forward"] if o.clock_mhz == mhz)
    assert costs.table[0, "forward"][mhz].time_s == pytest.approx(usual_s / 0.95, rel=0.01)
