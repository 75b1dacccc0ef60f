"""Jobs under one power budget do more than under equal limits, and keep it whatever dies."""

import pytest
from sharing import OVER_RATIO, at_default, drawn, share
from worlds import Controller, few_points

from joulecut_controller.store.database import DatabaseStore


@pytest.mark.nightly
@pytest.mark.parametrize(("seed", "jobs", "ratio"), [(0, 2, 0.85), (3, 3, 0.65)])
def test_jobs_do_nearly_what_the_best_fixed_clocks_do(seed: int, jobs: int, ratio: float) -> None:
    done = share(drawn(seed, jobs), ratio, minutes=4.0)
    assert done.own >= done.equal, "equal limits are the floor"
    assert done.own >= 0.97 * done.best
    assert done.used >= 0.97
    assert (done.over, done.gone) == (0, 0)


@pytest.mark.first
def test_what_a_job_leaves_goes_to_another_and_back_within_the_budget(store: DatabaseStore) -> None:
    sharing = drawn(0, 2)
    stops, goes_on = sharing.worlds
    budget_w = 0.7 * sum(at_default(world).power_w for world in sharing.worlds)
    controller = Controller(sharing, store, sharing.policy(budget_w), frontier=few_points)
    worst_w = 0.0

    def seconds(count: int) -> None:
        nonlocal worst_w
        for _ in range(count):
            before_j = sharing.energy_j()
            controller.run(1)
            worst_w = max(worst_w, sharing.energy_j() - before_j)

    controller.run(60)
    shared_s = [world.recent_s(8) for world in sharing.worlds]
    stops.running, stops._current = False, None
    seconds(30)
    assert goes_on.recent_s(8) < 1.03 / at_default(goes_on).rate_hz < 0.95 * shared_s[1]
    stops.running = True
    stops._begin()
    seconds(25)
    assert [world.recent_s(8) for world in sharing.worlds] == pytest.approx(shared_s, rel=0.03)
    assert worst_w <= (1.0 + OVER_RATIO) * budget_w
