"""The target `least_cost`: the slowdown at which time and energy cost least."""

from dataclasses import replace

import pytest
from worlds import Controller, World, few_points

from joulecut_cli.report.record import changes_json
from joulecut_controller.policy.policy import Cost, Policy, Series, Slo
from joulecut_controller.savings.stored import read_prices
from joulecut_controller.store.database import DatabaseStore

LEAST = Slo(max_slowdown=0.0, given_as="least_cost", least_cost=True)
# On a small job steps of a clock are coarse: time is cheap enough that more than one pays.
CHEAP_TIME = Cost(gpu_hour=0.15, kwh=0.30, pue=1.2)
DEAR_TIME = Cost(gpu_hour=4.0, kwh=0.05, pue=1.2)


def priced(policy: Policy, cost: Cost, digest: str, slo: Slo = LEAST) -> Policy:
    jobs = tuple(replace(job, slo=slo) for job in policy.jobs)
    return replace(policy, jobs=jobs, cost=cost, digest=digest)


def target(controller: Controller) -> float:
    slowdown = controller.job.view.policy.slo.max_slowdown
    assert slowdown is not None
    return slowdown


def follow(controller: Controller, policy: Policy) -> float:
    """The target some steps after a policy came into force."""
    controller.source.put(policy)
    controller.run(8)
    return target(controller)


def test_the_target_follows_the_prices_within_its_bound(store: DatabaseStore) -> None:
    world = World(stages=2, microbatches=8)
    policy = world.policy("enforce")
    controller = Controller(world, store, priced(policy, CHEAP_TIME, "cheap"), frontier=few_points)
    controller.run(200, until=lambda: bool(controller.job.frontier))
    controller.run(30)
    prices, gpus = CHEAP_TIME.prices(), world.stages
    points = controller.job.frontier
    costs = [prices.cost(one.iteration_time_s, one.energy_j, gpus) for one in points]
    best = points[costs.index(min(costs))].iteration_time_s / points[0].iteration_time_s - 1.0
    assert best > 0.01
    assert target(controller) == pytest.approx(best, abs=0.1 * best)
    plan = controller.job.applied
    assert plan is not None, controller.job.sentence
    assert 0.0 < plan.forecast.slowdown_ratio <= target(controller) + 0.003
    assert any(text.startswith("least cost at ") for text in controller.events("policy"))

    bound = replace(LEAST, bound=best / 2.0)
    assert follow(controller, priced(policy, CHEAP_TIME, "bound", bound)) == best / 2.0
    assert follow(controller, priced(policy, DEAR_TIME, "dear")) < 0.003
    assert follow(controller, priced(policy, CHEAP_TIME, "again")) == pytest.approx(best, rel=0.1)
    assert not controller.job.trips


def test_a_new_leader_goes_on_with_the_target_of_the_one_before(store: DatabaseStore) -> None:
    world = World(stages=2, microbatches=8)
    policy = priced(world.policy("enforce"), CHEAP_TIME, "cheap")
    controller = Controller(world, store, policy, frontier=few_points)
    controller.run(200, until=lambda: bool(controller.job.frontier))
    controller.run(30)
    following = Controller(world, store, policy)  # its frontiers have no points
    following.run(3)
    assert target(following) == target(controller) > 0.01


def test_before_a_frontier_is_known_no_slowdown_is_allowed(store: DatabaseStore) -> None:
    world = World(stages=2, microbatches=8)
    policy = priced(world.policy("enforce"), CHEAP_TIME, "cheap")
    controller = Controller(world, store, policy)  # its frontiers have no points
    controller.run(60)
    assert target(controller) == 0.0


def test_clocks_follow_prices_by_the_hour_within_a_dwell(store: DatabaseStore) -> None:
    world = World(stages=2, microbatches=8)
    begun_s = 1.8e9 + world.now_s  # as the controller's wall clock begins
    turns_s = begun_s + 130.0
    series = ((begun_s, 0.30), (turns_s, 0.001), (turns_s + 60.0, 0.30))
    hourly = {"p.csv": series}
    cost = replace(CHEAP_TIME, kwh_series=Series(csv="p.csv"), currency="EUR")
    policy = replace(priced(world.policy("enforce"), cost, "hourly"), hourly=hourly)
    controller = Controller(world, store, policy, frontier=few_points)
    controller.run(150, until=lambda: target(controller) > 0.01)
    controller.run(30)
    dear, clocks_mhz = target(controller), sum(world.clocks_mhz().values())
    assert dear > 0.01
    controller.run(500, until=lambda: 1.8e9 + world.now_s >= turns_s + 12.0)
    assert target(controller) < 0.003, "energy is nearly free: time counts"
    assert sum(world.clocks_mhz().values()) > clocks_mhz
    prices = controller.boards[-1].policy
    assert "0.001 EUR a kWh by p.csv" in str(prices.cost.prices())
    controller.run(500, until=lambda: 1.8e9 + world.now_s >= turns_s + 80.0)
    assert sum(world.clocks_mhz().values()) == pytest.approx(clocks_mhz, rel=0.02)
    assert target(controller) == pytest.approx(dear, rel=0.1)
    assert not controller.job.trips
    until_s = 1.8e9 + world.now_s
    assert "0.001 to 0.3" in read_prices(store, cost, begun_s - 1.0, until_s).hour
    told = changes_json(store.events(job=world.job), world.job, begun_s - 1.0)
    assert any("EUR a kWh" in change["text"] for change in told)
