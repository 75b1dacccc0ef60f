"""Jobs of several replicas and lock-step groups: clocks of their own, and the constant time.

2 stages x 8 microbatches, tensor parallelism over 2 GPUs, 2 replicas; one GPU takes 5 % longer.
"""

from dataclasses import replace

import pytest
from shapes import ShapeWorld, UnprofiledShapes, possible
from worlds import Controller

from joulecut_controller.policy.policy import Slo
from joulecut_controller.reconcile.worker_calls import completion
from joulecut_controller.store.database import DatabaseStore
from joulecut_engine.graph.pipeline import Pipeline

BUDGET = 0.02
CONSTANT_S = 0.004  # 6 % of an iteration
SHAPE = Pipeline("1f1b", 2, 8, tensor_parallel=2, data_parallel=2)


@pytest.mark.parametrize("seen_apart", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_faster_gpus_have_clocks_of_their_own(store: DatabaseStore, seen_apart: bool) -> None:
    world = ShapeWorld(SHAPE, slow={(0, 0, 0): 1.05}, constant_s=CONSTANT_S, seen_apart=seen_apart)
    policy = world.policy(slo=Slo(max_slowdown=BUDGET))
    controller = Controller(world, store, policy, complete=completion)
    controller.run(90)
    clocks = world.clocks_mhz()
    assert clocks["GPU-0-1-0"] == clocks["GPU-0-1-1"] < clocks["GPU-0-0-0"]
    apart = clocks["GPU-0-0-1"] < clocks["GPU-0-0-0"]
    assert apart is seen_apart  # where reports contain the waiting for it, nothing is known
    job = controller.job
    assert job.view.measured.baseline is not None
    plans = [board.jobs[0].applied for board in controller.boards]
    forecasts = [plan.forecast for plan in plans if plan and plan.forecast]
    assert max(one.variability_bloat_w or 0.0 for one in forecasts) > 0.0  # of default clocks
    # What only the own times would show, and one step of clocks.
    missed = 0.012 if seen_apart else 0.02
    assert world.saved() >= possible(world.plant, BUDGET) - missed, job.sentence
    assert world.recent_s(250) <= job.view.measured.baseline.time_mean_s * (1.0 + BUDGET + 0.002)


def test_replicas_that_nobody_names_keep_one_clock(store: DatabaseStore) -> None:
    world = ShapeWorld(SHAPE, slow={(0, 0, 0): 1.05}, named=False)
    controller = Controller(world, store, world.policy(slo=Slo(max_slowdown=BUDGET)))
    controller.run(8)
    clocks = world.clocks_mhz()
    assert not world.at_default()
    assert len({clocks[uuid] for uuid, stage in world.stage_of.items() if stage == 0}) == 1


@pytest.mark.parametrize(
    "shape",
    [
        replace(SHAPE, schedule="interleaved-1f1b", chunks=2),
        pytest.param(replace(SHAPE, schedule="zb-h1"), marks=pytest.mark.nightly),
    ],
    ids=lambda shape: shape.schedule,
)
def test_running_jobs_of_other_schedules(store: DatabaseStore, shape: Pipeline) -> None:
    """Their costs are learnt from reports that tell neither chunks nor parts of the model."""
    world = ShapeWorld(shape, slow={(0, 0, 0): 1.05}, constant_s=CONSTANT_S)
    controller = Controller(world, store, world.policy(slo=Slo(max_slowdown=BUDGET)))
    controller.run(90)
    job = controller.job
    assert job.applied is not None, job.sentence
    assert world.saved() >= possible(world.plant, BUDGET) - 0.01, job.sentence
    assert world.recent_s(150) <= job.view.measured.baseline.time_mean_s * (1.0 + BUDGET + 0.002)


@pytest.mark.nightly
def test_groups_and_replicas_without_a_profile(store: DatabaseStore) -> None:
    world = UnprofiledShapes(SHAPE, slow={(0, 0, 0): 1.05})
    controller = Controller(world, store, world.unprofiled(budget=BUDGET))
    controller.run(230)
    clocks = world.clocks_mhz()
    assert clocks["GPU-0-1-0"] < clocks["GPU-0-0-0"]
    assert world.saved() >= possible(world.plant, BUDGET) - 0.012, controller.job.sentence
    baseline = controller.job.view.measured.baseline
    assert world.recent_s(400) <= baseline.time_mean_s * (1.0 + BUDGET + 0.002)


def test_a_slow_gpu_is_waited_for_and_no_longer_than_it_is_slow(store: DatabaseStore) -> None:
    """No script sends the times of siblings: the job's own operations show the slow GPU, and
    that it has recovered, which iterations at lower clocks do not.
    """
    world = ShapeWorld(replace(SHAPE, data_parallel=3), constant_s=CONSTANT_S / 2)
    slow, usual = (0, 1, 0), world.plant.ratio[0, 1, 0]
    controller = Controller(world, store, world.policy(slo=Slo(max_slowdown=BUDGET)))
    controller.run(20)
    before = world.saved()
    assert before > 0.04
    world.plant.ratio[slow] = 1.2 * usual
    controller.run(15)
    assert world.saved() > before + 0.05, controller.job.sentence
    clocks = world.clocks_mhz()
    assert clocks["GPU-0-0-0"] < clocks["GPU-0-1-0"]
    default = [world.sku.clock_max_mhz] * len(world.uuids)
    assert world.recent_s(30) <= world.plant.iterate(default).own_s * (1.0 + BUDGET + 0.01)
    assert controller.job.delay.text.startswith("stage 0 (GPU n1/0): ")
    world.plant.ratio[slow] = usual
    controller.run(2)
    assert world.recent_s(10) <= world.plant.iterate(default).own_s * 1.01, controller.job.sentence
    controller.run(12, until=lambda: controller.job.delay is None)
    assert controller.job.delay is None
    controller.run(12)
    assert world.saved() > before - 0.02, controller.job.sentence
    assert world.recent_s(60) <= world.plant.iterate(default).own_s * (1.0 + BUDGET + 0.01)


def test_what_was_learnt_of_a_gpu_that_slows_down_does_not_hold(store: DatabaseStore) -> None:
    """Clocks learnt without a profile are not set again, which the breaker would have to end."""
    world = UnprofiledShapes(replace(SHAPE, data_parallel=3), constant_s=CONSTANT_S / 2)
    controller = Controller(world, store, world.unprofiled(budget=BUDGET))
    controller.run(25)
    assert world.saved() > 0.01, controller.job.sentence
    world.plant.ratio[0, 1, 0] *= 1.2
    controller.run(60)
    assert world.saved() > 0.06, controller.job.sentence
    assert not controller.events("hold")
