"""The truth of the worlds that control is judged by: default clocks cost and save nothing."""

import pytest
from life import CAPPED, LifeWorld, live, lives, saved_of, slowdown_of, windows_over

from joulecut_sim.plant import Noise
from joulecut_wire.messages import Lease

LIVES = lives()
OTHER_CARDS = {"limited-h200", *(f"capped-{card}" for card in CAPPED)}
SECONDS = 900.0  # each life has been through all of its phases by then


def made(name: str) -> LifeWorld:
    return LIVES[name](stages=4, microbatches=8, iteration_s=2.0)


def hold(world: LifeWorld, clock_mhz: int) -> None:
    """Every GPU at this clock, under a lease that does not end."""
    for agent in world.agents.values():
        for uuid in agent.uuids:
            agent.leases[uuid] = Lease(world.job, 1, 1, 0, clock_mhz, 0.0), float("inf")


@pytest.mark.parametrize("name", sorted(LIVES))
def test_at_default_clocks_nothing_is_saved_and_nothing_is_late(name: str) -> None:
    world = made(name)
    world.advance(SECONDS)
    assert saved_of(world.lived) == slowdown_of(world.lived) == 0.0
    assert windows_over(world.lived, 0.0) == (0, 0)


@pytest.mark.parametrize("name", sorted(set(LIVES) - OTHER_CARDS))
def test_a_lower_clock_is_held_against_the_same_work(name: str) -> None:
    """Both figures of an iteration: nothing that happens to the job is taken for the clocks'."""
    worlds = made(name), made("steady")
    for world in worlds:
        world.advance(0.1)  # a new job would end a lease
        hold(world, 1110)
        world.advance(39.9)
    seen, still = ([one for one in world.lived if not one.at_default] for world in worlds)
    assert saved_of(seen) == pytest.approx(saved_of(still), abs=0.04)
    assert slowdown_of(seen) == pytest.approx(slowdown_of(still), abs=0.04)


def test_a_steady_life_is_as_slow_as_the_plant_says() -> None:
    world = made("steady")
    hold(world, 1110)
    world.advance(400.0)
    world.plant.noise = Noise(operation=0.0)
    lower, usual = (world.plant.iterate([mhz] * world.stages) for mhz in (1110, 1410))
    assert slowdown_of(world.lived) == pytest.approx(lower.own_s / usual.own_s - 1.0, abs=0.002)
    assert saved_of(world.lived) == pytest.approx(1 - lower.energy_j / usual.energy_j, abs=0.002)


def test_under_a_limit_a_lock_above_the_held_clock_changes_nothing() -> None:
    """At 500 W an H200 holds about 1,310 MHz."""
    seen = []
    for mhz in (1500, 1110):
        world = made("limited-h200")
        world.advance(0.1)
        hold(world, mhz)
        world.advance(39.9)
        ran = [one for one in world.lived if not one.at_default]
        seen.append((saved_of(ran), slowdown_of(ran)))
    assert seen[0] == (0.0, 0.0)
    assert seen[1][0] > 0.02
    assert seen[1][1] > 0.05


def test_a_job_on_limited_cards_saves_most_of_what_they_can() -> None:
    """Nothing is known of it but its operations, of which the site's limit hides a third."""
    seen = live(LIVES["limited-h200"](seed=7, knows="operations"), 3.0)
    assert seen.share >= 0.8
    assert seen.over_row <= 1
