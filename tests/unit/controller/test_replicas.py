"""Replicas of a job: how slow the slowest GPU of a stage is."""

from dataclasses import replace

import pytest
from job_states import changed
from planning import costs_of, seen, view_of
from shapes import ShapeWorld

from joulecut_controller.observe.own_pace import delay_of
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


def test_the_slow_gpu_of_a_stage_is_named_and_a_throttled_one_with_its_reason() -> None:
    world = ShapeWorld(Pipeline("1f1b", 2, 3, data_parallel=3))
    gpus = view_of(world, 0.0).gpus
    ratios = dict.fromkeys(world.uuids, 0.98) | {"GPU-0-0-0": 1.0, "GPU-1-2-0": 1.0}
    stages = tuple(tuple(f"GPU-{s}-{r}-0" for r in range(3)) for s in range(2))
    job = changed(seen(world, 0.02), stages=stages, time_ratios=ratios)
    assert delay_of(job, gpus) is None  # two percent
    for uuid in stages[1][:2]:
        ratios[uuid] = 0.8
    slow = delay_of(job, gpus)
    place = gpus["GPU-1-2-0"].place
    assert slow.text == f"stage 1 (GPU {place}): operations take 1.25 x those of other replicas"
    assert (slow.delay_ratio, slow.cause) == (pytest.approx(0.2), "compute")
    shown = gpus["GPU-1-2-0"]
    hot = replace(shown.snapshot, slow_reason="hw_thermal")
    slow = delay_of(job, {**gpus, shown.uuid: replace(shown, snapshot=hot)})
    assert slow.cause == "throttle"
    assert slow.text.endswith("; throttled: hw_thermal")
    assert delay_of(changed(job, time_ratios={}), gpus) is None
