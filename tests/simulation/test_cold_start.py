"""From no profile at all to the clocks that save most: the real controller, a virtual clock."""

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from possible import common, search_in_jitter
from predicted_work import predicted_work
from unprofiled import UnprofiledWorld
from worlds import Controller

from joulecut_controller.store.database import DatabaseStore
from joulecut_sim.plant import Noise, Plant

BUDGET = 0.05
WINDOW = 50
STEADY_SHARE = 0.88  # the floor of a steady job in benchmarks/job_life.py


def windows(world: UnprofiledWorld) -> list[float]:
    """True slowdowns of windows of 50 iterations, against the plant's own default."""
    top = [world.sku.clock_max_mhz] * world.stages
    default_s = statistics.fmean(world.plant.iterate(top).own_s for _ in range(300))
    times = [duration_s for _, duration_s, _ in world.history]
    return [
        statistics.fmean(times[at : at + WINDOW]) / default_s - 1.0
        for at in range(0, len(times) - WINDOW + 1, WINDOW)
    ]


def saved(world: UnprofiledWorld) -> float:
    """What the clocks in force save, by the plant's own means without jitter."""
    still = Plant(
        world.plant.skus,
        world.plant.microbatches,
        time_scale=world.scale,
        noise=Noise(operation=0.0),
        seed=1,
    )
    clocks = [world.clocks_mhz()[uuid] for uuid in world.uuids]
    default = [world.sku.clock_max_mhz] * world.stages
    return 1.0 - still.iterate(clocks).energy_j / still.iterate(default).energy_j


@pytest.mark.nightly  # twenty seconds of a processor; test_job_life.py has a short life
@pytest.mark.parametrize("detailed", [False, True])
def test_ten_minutes_after_a_cold_start_the_budget_is_used_and_kept(
    store: DatabaseStore, detailed: bool
) -> None:
    world = UnprofiledWorld()
    world.detailed = detailed
    controller = Controller(world, store, world.unprofiled(budget=BUDGET))
    controller.run(600)
    if detailed:
        possible = STEADY_SHARE * search_in_jitter(world.plant, BUDGET).saved_ratio
    else:
        possible = 0.6 * common(world.plant, BUDGET).saved_ratio
    assert saved(world) >= possible, controller.job.sentence
    slow = windows(world)
    assert max(slow) <= BUDGET + 0.005
    late = [slowdown > BUDGET + 0.001 for slowdown in slow]
    assert not any(a and b for a, b in pairwise(late))
    assert "predicted from other jobs" in controller.job.learnt.text


def test_a_predicted_profile_is_one_where_operations_correct_it(store: DatabaseStore) -> None:
    world = UnprofiledWorld()
    world.detailed = True
    profile = predicted_work(world.plant, 855)
    policy = world.unprofiled(budget=BUDGET)
    job = replace(policy.jobs[0], profile=profile)
    controller = Controller(world, store, replace(policy, jobs=(job,)))
    controller.run(120, until=lambda: not world.at_default())
    assert not world.at_default(), controller.job.sentence
    assert len(controller.job.view.placement.stages) == world.stages


def test_recommend_probes_nothing_and_says_what_other_jobs_let_expect(
    store: DatabaseStore,
) -> None:
    world = UnprofiledWorld()
    controller = Controller(world, store, world.unprofiled("recommend"))
    controller.run(60)
    assert world.calls == []
    assert controller.job.decision.predicted_from


def test_a_restart_loses_nothing_that_was_learnt(store: DatabaseStore) -> None:
    world = UnprofiledWorld()
    world.detailed = True
    before = Controller(world, store, world.unprofiled())
    before.run(200)
    reached = sum(world.clocks_mhz().values())
    assert "samples of the running job" in before.job.learnt.text
    before.stop()
    assert world.at_default()
    after = Controller(world, store, world.unprofiled())
    after.run(80, until=lambda: not world.at_default())
    assert "samples of the running job" in after.job.learnt.text
    top = world.stages * world.sku.clock_max_mhz
    lowered = (top - sum(world.clocks_mhz().values())) / (top - reached)
    assert 0.4 <= lowered <= 1.1, "the slowdown of all clocks together is measured again"


@pytest.mark.parametrize(
    ("card", "detailed"),
    [
        pytest.param("a40", True, marks=pytest.mark.long),
        pytest.param("h100-sxm", True, marks=pytest.mark.long),
        ("a40", False),
    ],
)
def test_other_cards_save_within_the_budget(
    store: DatabaseStore, card: str, detailed: bool
) -> None:
    world = UnprofiledWorld(card=card)
    world.detailed = detailed
    controller = Controller(world, store, world.unprofiled(budget=BUDGET))
    controller.run(400)
    if detailed:
        possible = 0.75 * search_in_jitter(world.plant, BUDGET).saved_ratio
    else:
        possible = 0.6 * common(world.plant, BUDGET).saved_ratio
    assert saved(world) >= possible, controller.job.sentence
    late = [slowdown > BUDGET + 0.01 for slowdown in windows(world)]
    assert not any(late)
