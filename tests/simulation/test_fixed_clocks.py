"""Fixed clocks and power limits of the policy, on a virtual clock: under leases, without reports
unless a target stands beside them.
"""

from dataclasses import replace

import pytest
import yaml
from worlds import Controller, World

from joulecut_controller.plan.guard import Authority, refusal
from joulecut_controller.plan.plan import Basis
from joulecut_controller.policy.parse import parse
from joulecut_controller.policy.policy import ClockPolicy, Fixed, GpuRef, PodMatch, Policy, Slo
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.web.board_json import board_json
from joulecut_controller.web.job_json import job_json
from joulecut_engine.optimize.check import check
from joulecut_wire.document import parse as document
from joulecut_wire.errors import BadInput

LISTED = tuple(GpuRef(node, index) for node in ("n1", "n2") for index in range(2))


@pytest.fixture
def world() -> World:
    return World(stages=4, microbatches=12)


def fixed(world: World, mhz: int = 1200, mode: str = "enforce", **changes: object) -> Policy:
    changes = {"gpus": LISTED, "pipeline": None, "profile": None, **changes}
    slo = changes.pop("slo", Slo(max_slowdown=0.0, given_as=""))
    for agent in world.agents.values():
        agent.keeps = True  # power limits can be set there
    return world.policy(
        mode=mode, slo=slo, clocks=ClockPolicy(lock_mhz=mhz), digest=f"{mhz}{mode}{changes}",
        **changes,
    )  # fmt: skip


def held(world: World) -> set[int]:
    return set(world.clocks_mhz().values())


@pytest.mark.parametrize("reports", [True, False])
def test_a_fixed_clock_is_set_and_stays_while_the_policy_asks(
    world: World, store: DatabaseStore, *, reports: bool
) -> None:
    world.running = reports
    controller = Controller(world, store, fixed(world))
    controller.run(5)
    assert held(world) == {1200}
    controller.run(150)  # no window, no breaker, no second plan
    assert held(world) == {1200}
    assert len(controller.plans()) == 1
    assert len(world.sent("apply")) == 2
    assert controller.job.applied is not None
    board_json(controller.boards[-1])
    job_json(controller.job, controller.boards[-1].view)
    controller.source.put(fixed(world, 1300))  # 1300 is no clock of the card
    controller.run(5)
    assert held(world) == {1290}
    controller.source.put(fixed(world, mode="recommend"))
    controller.run(30)
    assert world.at_default()
    sent = len(world.sent("apply"))
    assert {one.clock_mhz for one in controller.job.decision.actions} == {1200}
    controller.source.put(fixed(world))
    controller.run(5)
    assert held(world) == {1200}
    assert len(world.sent("apply")) == sent + 2
    controller.stop()
    assert world.at_default()


def test_it_ends_with_the_key(world: World, store: DatabaseStore) -> None:
    controller = Controller(world, store, fixed(world))
    controller.run(5)
    assert held(world) == {1200}
    controller.source.put(world.policy(gpus=LISTED, digest="solved"))
    assert controller.run(5, until=world.at_default) < 5
    controller.run(100, until=lambda: not world.at_default())
    assert not world.at_default(), controller.job.sentence  # by a plan with a forecast
    controller.source.put(fixed(world))
    controller.run(10)
    assert held(world) == {1200}


def test_a_silent_controller_or_agent_and_a_person_end_it(
    world: World, store: DatabaseStore
) -> None:
    controller = Controller(world, store, fixed(world))
    controller.run(5)
    world.agents["n2:1"].connected = False
    controller.run(60)
    world.agents["n2:1"].connected = True
    controller.run(60)
    assert held(world) == {1200}, controller.job.sentence
    world.advance(120.0)  # leases end without a controller
    assert world.at_default()


def test_it_follows_the_owner_of_the_gpus(world: World, store: DatabaseStore) -> None:
    """A pool: every running job of a partition, as its jobs come and go."""
    pods = PodMatch("train", (("app", "gpt3"),))
    policy = fixed(world, gpus=(), pods=pods, each=True, name="pool")
    controller = Controller(world, store, policy)
    world.give("run-1", *world.uuids[:2], app="gpt3")
    world.give("other", *world.uuids[2:], app="web")
    controller.run(10)
    locked = [uuid for uuid, mhz in world.clocks_mhz().items() if mhz == 1200]
    assert locked == list(world.uuids[:2])
    world.give("run-2", *world.uuids[2:], app="gpt3")
    controller.run(10)
    assert held(world) == {1200}
    world.take_away()
    controller.run(30)
    assert world.at_default()


def test_a_clock_below_the_card_is_refused_and_one_above_needs_no_lock(
    world: World, store: DatabaseStore
) -> None:
    controller = Controller(world, store, fixed(world, 20))
    controller.run(10)
    assert "the lowest clock of GPU" in controller.job.sentence
    controller.source.put(fixed(world, 9000))
    controller.run(10)
    assert world.at_default()
    assert world.calls == []


def test_the_guard_takes_no_fixed_clock_that_the_policy_does_not_ask_for(
    world: World, store: DatabaseStore
) -> None:
    controller = Controller(world, store, fixed(world))
    controller.run(5)
    seen, applied = controller.boards[-1], controller.job.applied
    assert applied is not None
    view = seen.view
    plan = replace(applied, generation=10**6, basis=Basis(fixed=Fixed(1200)))
    authority = Authority(10**6, 1, 15.0, 60.0, 60.0)
    assert refusal(plan, view, authority, check) == ""
    lower = tuple(replace(one, clock_mhz=1005) for one in plan.actions)
    for wrong in (
        replace(plan, basis=Basis(fixed=Fixed(1005)), actions=lower),
        replace(plan, basis=Basis(fixed=Fixed(1200, 250.0))),
        replace(plan, actions=tuple(replace(one, power_limit_w=250.0) for one in plan.actions)),
        replace(plan, actions=lower),
        replace(plan, actions=plan.actions[1:]),
        replace(plan, basis=Basis()),
    ):
        assert refusal(wrong, view, authority, check)


def limited(world: World) -> set[float]:
    return set(world.limits_w().values())


def test_a_power_limit_is_set_and_ends_with_its_lease(world: World, store: DatabaseStore) -> None:
    world.running = False  # an order rests on no report
    mhz, own_w, top_mhz = 1200, world.sku.power_limit_w, world.sku.clock_max_mhz
    controller = Controller(world, store, fixed(world, mhz, power_limit_w=250.0))
    controller.run(150)
    assert (held(world), limited(world)) == ({mhz}, {250.0})
    assert len(controller.plans()) == 1
    assert len(world.sent("apply")) == 2
    board_json(controller.boards[-1])
    job_json(controller.job, controller.boards[-1].view)
    for asked_w, there_w in ((300.0, 300.0), (own_w, own_w), (200.0, 200.0), (10.0, own_w)):
        controller.source.put(fixed(world, mhz, power_limit_w=asked_w))
        controller.run(10)
        assert limited(world) == {there_w}, controller.job.sentence
    assert "the lowest power limit of GPU" in controller.job.sentence
    controller.source.put(fixed(world, mhz, mode="recommend", power_limit_w=200.0))
    controller.run(10)
    assert (held(world), limited(world)) == ({top_mhz}, {own_w})
    assert {one.power_limit_w for one in controller.job.decision.actions} == {200.0}
    controller.source.put(fixed(world, mhz, power_limit_w=200.0))
    controller.run(10)
    assert limited(world) == {200.0}
    world.agents["n1:1"].end("GPU-0")  # it lost its lease
    assert controller.run(20, until=lambda: limited(world) == {own_w}) < 20, "all or none"
    controller.run(60)
    assert limited(world) == {200.0}
    controller.stop()
    assert limited(world) == {own_w}


def test_a_limit_that_another_writer_lowered_is_never_raised(
    world: World, store: DatabaseStore
) -> None:
    policy = fixed(world, 0, power_limit_w=300.0)
    world.agents["n1:1"].limits_w["GPU-0"] = 250.0
    Controller(world, store, policy).run(10)
    assert [world.limits_w()[uuid] for uuid in world.uuids] == [250.0, 300.0, 300.0, 300.0]


def test_under_a_power_budget_the_limit_bounds_what_the_budget_gives(
    world: World, store: DatabaseStore
) -> None:
    own_w = world.sku.power_limit_w
    policy = fixed(world, 0, power_limit_w=250.0)
    controller = Controller(world, store, policy)
    controller.run(10)
    assert limited(world) == {250.0}
    budget = replace(policy, power_budget_w=4 * own_w, digest="budget")
    controller.source.put(budget)
    controller.run(60)
    assert limited(world) == {250.0}
    assert set(world.agents["n1:1"].kept.values()) == {250.0}, "it stays without a controller"
    controller.source.put(replace(policy, digest="lifted"))
    for _ in range(120):
        controller.run(1)
        assert max(limited(world)) <= own_w
    assert limited(world) == {250.0}
    controller.stop()
    assert limited(world) == {own_w}


@pytest.mark.parametrize(
    ("asked", "slowdown", "stays"),
    [({"mhz": 900}, 0.02, False), ({"mhz": 0, "power_limit_w": 200.0}, 0.9, True)],
)
def test_the_breaker_keeps_a_target_beside_it(
    world: World, store: DatabaseStore, asked: dict[str, float], slowdown: float, *, stays: bool
) -> None:
    slo = Slo(max_slowdown=slowdown)
    controller = Controller(world, store, fixed(world, **asked, slo=slo))
    controller.run(3)
    assert (world.at_default(), limited(world)) == (True, {world.sku.power_limit_w}), "no baseline"
    controller.run(200, until=lambda: bool(controller.job.applied))
    assert controller.job.applied is not None, controller.job.sentence
    controller.run(120)
    assert (controller.job.applied is not None) == stays, controller.job.sentence
    assert bool(controller.job.trips) != stays
    if stays:
        world.running = False  # a job that says nothing keeps no target
        controller.run(200, until=lambda: controller.job.applied is None)
        assert controller.job.applied is None
        assert limited(world) == {world.sku.power_limit_w}


MATCHED = {"match": {"gpus": ["n1/0-3"]}, "clocks": {"lock_mhz": 1200}, "power_limit_w": 350}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"match": None}, "a fixed clock names no GPU"),
        ({"match": None, "clocks": {}}, "a fixed power limit names no GPU"),
        ({"power_limit_w": 0}, "power_limit_w"),
        ({"power_limit_w": "350 MW"}, "power_limit_w"),
        ({"slo": {"least_cost": True}}, "contradicts slo.least_cost"),
        ({"slo": {"max_slowdown": "1%", "min_rate": {"value": 1, "unit": "iterations/s"}}}, "one "),
        ({"clocks": {"lock_mhz": 1200, "min_mhz": 1300}}, "below min_mhz 1300"),
        ({"clocks": {"lock_mhz": 0}}, "lock_mhz"),
        ({"clocks": {"lock_mhz": "fast"}}, "lock_mhz"),
        ({"pipeline": {"schedule": "1f1b", "stages": 4, "microbatches": 8}}, "contradicts pipel"),
        ({"verify": {"holdout": "5%"}}, "contradicts verify.holdout"),
    ],
)
def test_what_contradicts_a_fixed_clock_is_one_line(keys: dict[str, object], said: str) -> None:
    def read(**job: object) -> Policy:
        file = {"apiVersion": "joulecut/v1", "kind": "Policy", "jobs": [{"name": "pool", **job}]}
        return parse(document(yaml.safe_dump(file).encode(), "policy.yaml"), pytest.fail)

    (right,) = read(**MATCHED).jobs
    assert (right.fixed, right.mode, right.is_order) == (Fixed(1200, 350.0), "recommend", True)
    (targeted,) = read(**MATCHED, slo={"max_slowdown": "1%"}).jobs
    assert not targeted.is_order
    with pytest.raises(BadInput, match=said):
        read(**{key: value for key, value in {**MATCHED, **keys}.items() if value is not None})
