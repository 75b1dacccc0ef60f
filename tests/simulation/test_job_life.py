"""The truth of the worlds that control is judged by: default clocks cost and save nothing."""

import pytest
from life import CAPPED, LifeWorld, live, lives, saved_of, slowdown_of, windows_over

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


@pytest.mark.parametrize("name", sorted(LIVES)[::4])
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


@pytest.mark.first
def test_a_job_on_limited_cards_saves_most_of_what_they_can() -> None:
    """Nothing is known of it but its operations, of which the site's limit hides a third."""
    shape = {"stages": 4, "microbatches": 8}
    seen = live(LIVES["limited-h200"](seed=7, knows="operations", **shape), 3.0)
    assert seen.share >= 0.8
    assert seen.over_row <= 1
