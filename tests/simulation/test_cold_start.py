"""From no profile at all to the clocks that save most: the real controller, a virtual clock."""

import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from cards import CardPlant
from drawn import DrawnPlant
from learning import Course
from long_iterations import Disturbance, LongIterationsWorld
from plant_variants import OddPlant
from possible import common, search_in_jitter
from predicted_work import predicted_work
from unprofiled import UnprofiledWorld
from worlds import Controller

from joulecut_controller.learn.measured_profile import measured_profile
from joulecut_controller.store.database import DatabaseStore
from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import find

BUDGET = 0.05
WINDOW = 50
Job = Callable[[Noise, int], Plant]


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


@pytest.mark.parametrize("detailed", [False, True])
def test_ten_minutes_after_a_cold_start_the_budget_is_used_and_kept(
    store: DatabaseStore, detailed: bool
) -> None:
    world = UnprofiledWorld()
    world.detailed = detailed
    controller = Controller(world, store, world.unprofiled(budget=BUDGET))
    controller.run(600)
    if detailed:
        possible = 0.95 * search_in_jitter(world.plant, BUDGET).saved_ratio
    else:
        possible = 0.6 * common(world.plant, BUDGET).saved_ratio
    assert saved(world) >= possible, controller.job.sentence
    assert controller.job.probed is not None
    if detailed:  # joulecut profile
        lowest = [min(origins) for origins in measured_profile(controller.job.probed).origins]
        assert lowest <= [world.clocks_mhz()[uuid] for uuid in world.uuids]
    slow = windows(world)
    assert max(slow) <= BUDGET + 0.005
    late = [slowdown > BUDGET + 0.001 for slowdown in slow]
    assert not any(a and b for a, b in pairwise(late))
    assert controller.job.probing.lowest_mhz
    assert "no profile" in controller.job.sentence


@pytest.mark.parametrize("detailed", [False, True])
def test_a_prediction_is_a_profile_where_operations_correct_it_and_else_waits(
    store: DatabaseStore, detailed: bool
) -> None:
    world = UnprofiledWorld()
    world.detailed = detailed
    profile = predicted_work(world.plant, 855)
    policy = world.unprofiled(budget=BUDGET)
    job = replace(policy.jobs[0], profile=profile, predicted=profile)
    controller = Controller(world, store, replace(policy, jobs=(job,)))
    controller.run(120, until=lambda: not world.at_default())
    assert not world.at_default(), controller.job.sentence
    assert (controller.job.probing is None) == detailed, controller.job.sentence


def test_every_iteration_counts_once(store: DatabaseStore) -> None:
    world = UnprofiledWorld(scale=1.2)  # 5 s an iteration, so a window is a dozen of them
    controller = Controller(world, store, world.unprofiled("recommend"))
    controller.run(250)
    readings = json.loads(store.notebook(world.job))["readings"]
    counted = sum(reading["iterations"] for reading in readings)
    assert 0.7 * len(world.history) <= counted <= len(world.history)


def test_recommend_probes_nothing_and_says_what_other_jobs_let_expect(
    store: DatabaseStore,
) -> None:
    world = UnprofiledWorld()
    controller = Controller(world, store, world.unprofiled("recommend"))
    controller.run(60)
    assert world.calls == []
    assert controller.job.probing is None
    assert controller.job.decision.predicted_from


def test_a_restart_in_the_middle_of_learning_loses_nothing(store: DatabaseStore) -> None:
    world = UnprofiledWorld()
    world.detailed = True
    before = Controller(world, store, world.unprofiled())
    before.run(60)
    learnt = before.job.probing
    assert learnt.measurements > 2
    before.stop()
    assert world.at_default()
    after = Controller(world, store, world.unprofiled())
    after.run(80, until=lambda: not world.at_default())
    again = after.job.probing
    assert again.measurements >= learnt.measurements
    assert again.lowest_mhz == learnt.lowest_mhz
    assert sum(world.clocks_mhz().values()) < 4 * world.sku.clock_max_mhz - 200, (
        "what was learnt is used at once, not step by step"
    )


def card(name: str, stages: int) -> Job:
    return lambda noise, seed: CardPlant(name, stages, 12, noise=noise, seed=seed)


def gpt3(name: str, scale: float) -> Job:
    skus = [find(name, "card")] * 4
    return lambda noise, seed: Plant(skus, 24, time_scale=scale, noise=noise, seed=seed)


def not_sold(noise: Noise, seed: int) -> Plant:
    return DrawnPlant(4, 24, noise=noise, seed=seed)


def of_no_formula(noise: Noise, seed: int) -> Plant:
    return OddPlant(3, 12, time_scale=0.09, noise=noise, seed=seed)


RATE_ALONE = 0.6  # of the possible: one clock for all


@pytest.mark.parametrize(
    ("job", "jitter", "seed", "budget", "share", "wobble"),
    [
        (card("h100-sxm", 4), 0.01, 6, 0.05, RATE_ALONE, 0.0),
        (card("b200", 3), 0.01, 6, 0.1, 0.95, 0.0),
        (gpt3("a40", 0.03), 0.04, 2, 0.05, RATE_ALONE, 0.0),
        # Windows are off by 0.6 % by luck: taken at their word, one was 1.45 points late here.
        (gpt3("a100-sxm", 0.045), 0.005, 3, 0.05, 0.5, 0.04),
        (not_sold, 0.01, 2, 0.02, 0.9, 0.0),
        (of_no_formula, 0.01, 4, 0.05, RATE_ALONE, 0.0),
    ],
)
def test_cards_and_jobs_are_learnt_within_the_budget(
    job: Job, jitter: float, seed: int, budget: float, share: float, wobble: float
) -> None:
    """Most of what is possible is saved, and no window is late by more than half a point, nor two
    in a row at all.
    """

    def made(jitter: float, seed: int) -> Plant:
        return job(Noise(operation=jitter), seed)

    detailed = share > RATE_ALONE
    course = Course(made, jitter=jitter, seed=seed, budget=budget, detailed=detailed, wobble=wobble)
    course.run()
    outcome = course.outcome()
    assert outcome.share >= share, outcome
    assert outcome.over_points <= 0.5, outcome
    assert outcome.over_in_row <= 1, outcome


def test_long_iterations_are_learnt_from_their_rate(store: DatabaseStore) -> None:
    world = LongIterationsWorld(Disturbance(), seed=32)
    controller = Controller(world, store, world.unprofiled(budget=BUDGET))
    while len(world.asked) < 90:
        controller.run(5)
    verdict = world.verdict(BUDGET)
    assert max(verdict.over) <= 0.005
    assert verdict.share(90) >= 0.2


@pytest.mark.parametrize("iterations", [12, 60])
def test_a_gpu_that_throttles_at_first_is_no_baseline(
    store: DatabaseStore, iterations: int
) -> None:
    """One that never recovers is learnt from as it is."""
    quiet = Disturbance(throttle_share=0.0, hiccup_share=0.0, throttle_first=iterations)
    world = LongIterationsWorld(quiet, seed=307)
    world.detailed = True
    controller = Controller(world, store, world.unprofiled(budget=0.05))
    while len(world.asked) < 60:
        controller.run(5)
    verdict = world.verdict(0.05)
    if iterations < 60:
        assert max(verdict.over) <= 0.0
    assert verdict.saved[-1] > 0.0


def test_long_iterations_are_learnt_from_their_operations(store: DatabaseStore) -> None:
    """Seven seconds each, noise of 2 % that lasts, hiccups, GPUs that throttle."""
    world = LongIterationsWorld(Disturbance(), seed=2)
    world.detailed = True
    controller = Controller(world, store, world.unprofiled(budget=BUDGET))
    while len(world.asked) < 60:
        controller.run(5)
    verdict = world.verdict(BUDGET)
    assert verdict.share(60) >= 0.6, verdict.share(60)  # a dozen of them measure default clocks
    assert max(verdict.over) <= 0.005
    assert verdict.over_in_row <= 1
