"""Plans that change clocks within an iteration, in closed loop on a virtual clock."""

import asyncio
from dataclasses import replace

import pytest
from held_out import held_out, run_while, until_held_out, windows
from timed_agents import TimedWorld, Timing
from worlds import Controller, World

from joulecut_controller.orders import Order
from joulecut_controller.policy.policy import ClockPolicy, JobPolicy, Policy, Slo, Verify
from joulecut_controller.ports import Store
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.trust.breaker import WINDOWS
from joulecut_sim.plant import Noise

PASSES = 120  # a baseline of 30 iterations of two seconds, confirmed by several looks
WAIT_PASSES = 60  # twenty dwell times, after which a granularity is tried again


# Operations of 50 to 100 ms: time for a clock to change between two of them.
SHAPE = {"stages": 3, "microbatches": 12, "scale": 1.0}
QUIET = Noise(operation=0.002, gpu_time=0.0, gpu_power=0.0)


@pytest.fixture
def world() -> World:
    return World(noise=QUIET, timed=True, **SHAPE)


def policy_of(world: World, slowdown: float = 0.0, **job: object) -> Policy:
    clocks = ClockPolicy(min_mhz=900, min_dwell_s=5.0)
    policy = world.policy(slo=Slo(max_slowdown=slowdown), clocks=clocks)
    jobs: tuple[JobPolicy, ...] = (replace(policy.jobs[0], **job),)
    return replace(policy, jobs=jobs)


def timed(world: World, store: Store, policy: Policy | None = None) -> Controller:
    """A controller whose plan changes clocks within an iteration, settled."""
    controller = Controller(world, store, policy or policy_of(world), interval_s=2.0)
    controller.run(PASSES, until=lambda: any(map(world._steps_of, world.uuids)))
    assert controller.job.applied is not None, controller.job.sentence
    assert controller.job.applied.granularity == "changes"
    return controller


def test_nothing_is_slower_and_several_percent_are_saved(
    world: World, store: DatabaseStore
) -> None:
    """Then starts are missed, and one clock per GPU is left, which saves nothing here."""
    controller = timed(world, store)
    controller.run(20)  # four changes of each GPU, where they pay
    base, plan = controller.job.view.measured.baseline, controller.job.applied
    assert base.energy_j is not None
    assert all(action.lowest_mhz is not None for action in plan.actions)
    controller.run(40)
    now = controller.job.view.measured.current
    assert now.time_mean_s <= base.time_mean_s * 1.0035
    assert now.energy_j <= base.energy_j * 0.95
    assert controller.job.applied.generation == plan.generation  # nothing to change again
    world.missed_ratio = 0.5
    controller.run(1)
    assert not any(map(world._steps_of, world.uuids))
    decision = controller.job.decision
    assert "missed" in decision.granularity_why
    world.missed_ratio = 0.0
    controller.run(5)
    assert not any(map(world._steps_of, world.uuids))  # not at once
    controller.run(WAIT_PASSES)
    assert any(map(world._steps_of, world.uuids))


def test_a_straggler_an_operator_and_a_drift(world: World, store: DatabaseStore) -> None:
    """Waiting lowers more within the same granularity; any doubt ends all of it."""
    controller = timed(world, store)
    before = controller.job.applied
    world.peer_s = 1.2 * before.forecast.iteration_time_s
    controller.run(15)
    controller.run(40, until=lambda: controller.job.applied is not None)
    waiting = controller.job.applied
    assert waiting.forecast.saved_ratio > before.forecast.saved_ratio
    world.peer_s = 0.0
    controller.run(15)
    assert world.recent_s(5) <= before.forecast.iteration_time_s * 1.002
    done = asyncio.run(controller.reconciler.commands.execute(Order("restore", world.job)))
    assert not done.refused
    assert world.at_default()
    asyncio.run(controller.reconciler.commands.execute(Order("resume", world.job)))
    controller.run(60, until=lambda: any(map(world._steps_of, world.uuids)))
    assert any(map(world._steps_of, world.uuids))
    world.agents["n1:1"].drift[world.uuids[0]] = "another writer"
    controller.run(2)
    assert world.at_default()


def test_a_hold_out_measures_changes_within_an_iteration(store: DatabaseStore) -> None:
    """Default clocks for a slot, without a step; then the same plan, and both are measured.
    Agents time the changes, late and with some starts lost.
    """
    world = TimedWorld(Timing(lost_ratio=0.002), noise=QUIET, **SHAPE)
    controller = timed(world, store, policy_of(world, verify=Verify(0.5, 60.0)))
    plan = controller.job.applied
    assert plan is not None
    until_held_out(controller, 600)
    controller.run(10)
    assert world.at_default()
    assert not any(map(world._steps_of, world.uuids))
    run_while(controller, lambda: held_out(controller), 600)
    controller.run(10)
    assert any(map(world._steps_of, world.uuids))
    controller.run(600, until=lambda: len(windows(store, "plan")) >= 1)
    (default, *_), (under_plan, *_) = windows(store, "default"), windows(store, "plan")
    assert default.time_mean_s == pytest.approx(under_plan.time_mean_s, rel=0.004)
    assert under_plan.energy_j < 0.95 * default.energy_j
    assert under_plan.predicted_energy_j == pytest.approx(under_plan.energy_j, rel=0.02)
    assert controller.job.trips == 0


def test_changes_that_make_a_job_slower_end_within_two_windows(
    world: World, store: DatabaseStore
) -> None:
    """However little planner and guard know of the cause."""
    controller = timed(world, store)
    before = len(world.history)
    world.hidden_ratio = 1.2
    controller.run(120, until=world.at_default)
    assert world.at_default()
    assert len(world.history) - before <= 2 * WINDOWS[0] + 8
