"""Jobs that become faster or slower: the promise is against default clocks as the job is now."""

import pytest
from changing import Change, ChangingWorld, longest_above
from worlds import Controller

from joulecut_controller.policy.policy import Slo
from joulecut_controller.store.database import DatabaseStore
from joulecut_sim.plant import Noise

BUDGET, SETTLED_S, AFTER_S, CREEP_S = 0.05, 45, 60, 40
# After a jump: it shows, default clocks are measured, the clocks resume; and are measured once more
# before clocks are lowered further.
WITHIN_S = 25


def settled(store: DatabaseStore, *changes: Change, detailed: bool) -> Controller:
    """A job with a profile, under a plan, just before its changes."""
    world = ChangingWorld(stages=2, microbatches=4, scale=0.2, noise=Noise(operation=0.01))
    world.changes, world.detailed = changes, detailed
    policy = world.policy("enforce", slo=Slo(max_slowdown=BUDGET))
    controller = Controller(world, store, policy)
    controller.run(SETTLED_S)
    assert world.saved() > 0.05
    return controller


def test_a_job_that_creeps_is_not_lowered_again_and_again(store: DatabaseStore) -> None:
    controller = settled(store, Change(SETTLED_S, 0.9, lasts_s=CREEP_S), detailed=True)
    world = controller.world
    assert isinstance(world, ChangingWorld)
    controller.run(CREEP_S)
    slow = world.slowdowns(since_s=SETTLED_S)
    assert longest_above(slow, BUDGET + 0.01) <= 2, slow


@pytest.mark.parametrize(("ratio", "detailed"), [(0.8, False), (1.2, False), (0.95, True)])
def test_the_saving_of_a_job_that_changes_at_once_is_soon_back(
    store: DatabaseStore, ratio: float, *, detailed: bool
) -> None:
    controller = settled(store, Change(SETTLED_S, ratio), detailed=detailed)
    world = controller.world
    assert isinstance(world, ChangingWorld)
    before = world.saved()
    controller.run(WITHIN_S)
    assert world.saved() >= 0.8 * before, controller.job.sentence
    controller.run(AFTER_S - WITHIN_S)
    assert world.saved() >= 0.8 * before, controller.job.sentence
    slow = world.slowdowns(since_s=SETTLED_S)
    assert longest_above(slow, BUDGET + 0.01) <= 2, slow
    look = controller.job.default_time
    assert look.short_share < 0.2  # of a short run
    assert controller.job.view.measured.baseline.time_mean_s == pytest.approx(
        world.default_s * ratio, rel=0.01
    )


def test_a_job_that_changed_is_saved_for_after_a_restart_too(store: DatabaseStore) -> None:
    """Its rate alone does not say how much of its work the profile names."""
    controller = settled(store, Change(SETTLED_S, 0.9), detailed=False)
    world = controller.world
    assert isinstance(world, ChangingWorld)
    before = world.saved()
    controller.run(WITHIN_S)
    controller.stop()
    second = Controller(world, store, controller.source.policy)
    second.run(AFTER_S)
    assert world.saved() >= 0.8 * before, second.job.sentence
