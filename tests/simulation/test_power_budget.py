"""The power budget on a virtual clock: whatever dies, the limits in force stay within it."""

import asyncio
import itertools
from dataclasses import replace

import pytest
from worlds import Controller, World

from joulecut_controller.orders import Order
from joulecut_controller.plan.plan import Action, Plan
from joulecut_controller.policy.policy import Mode, Policy, Slo
from joulecut_controller.power.limits import RAMP_S
from joulecut_controller.reconcile.leases import Leases, Place
from joulecut_controller.store.database import DatabaseStore

SETTLED_PASSES = 12


def budgeted(*, share: float = 0.8) -> tuple[World, Policy]:
    """Four GPUs at work on two nodes and two idle ones, with a budget below what they draw."""
    world = World(stages=4, microbatches=8)
    world.add_idle_node("n3", 2)
    for agent in world.agents.values():
        agent.keeps = True
    world.advance(5.0)
    policy = world.policy(slo=Slo(max_slowdown=0.05))
    return world, replace(policy, power_budget_w=share * world.power_w(), digest="budget")


def test_limits_are_lowered_before_others_are_raised(store: DatabaseStore) -> None:
    world, policy = budgeted()
    controller = Controller(world, store, policy)
    assert world.power_w() > policy.power_budget_w
    controller.run(SETTLED_PASSES)
    shown = controller.boards[-1].power_limits
    assert (shown.state, shown.best_effort) == ("kept", "")
    assert world.counted_w() <= policy.power_budget_w
    assert world.counted_w() >= 0.97 * policy.power_budget_w, "used, not wasted"
    assert min(world.limits_w().values()) >= world.sku.power_limit_min_w
    # A tighter budget, then a wider one: within the larger of both on the way, always.
    for share in (0.9, 1.0):
        was_w = world.counted_w()
        wanted = replace(policy, power_budget_w=share * policy.power_budget_w, digest=str(share))
        controller.source.put(wanted)
        for _ in range(SETTLED_PASSES):
            controller.run(1)
            assert world.counted_w() <= max(was_w, wanted.power_budget_w)
        assert world.counted_w() <= wanted.power_budget_w


def test_no_limit_stands_above_those_that_stay_where_no_clocks_are_held() -> None:
    """Its order may have come before a window at default clocks, which draws more."""
    world = World(stages=2, microbatches=4)
    gpus = {gpu.uuid: gpu for gpu in world.observe(world.now_s).gpus}
    places = [Place(gpu.address, uuid) for uuid, gpu in gpus.items()]
    leases, numbers = Leases(world, 1), itertools.count(1)

    async def limits_w(limit_w: float, *, above: bool) -> set[float]:
        await leases.limit_power(
            dict.fromkeys(places, limit_w),
            generation=next(numbers), ttl_s=30.0, keep=not above, above=above, reason="",
        )  # fmt: skip
        return set(world.limits_w().values())

    async def go() -> None:
        assert await limits_w(250.0, above=False) == {250.0}
        assert await limits_w(300.0, above=True) == {250.0}
        lower = [Action(uuid, 0, "lower", 1200, "") for uuid in world.stage_of]
        plan = Plan(world.job, next(numbers), 0, "enforce", actions=tuple(lower))
        assert not (await leases.apply(plan, gpus, 30.0)).refused
        assert await limits_w(300.0, above=True) == {300.0}

    asyncio.run(go())


@pytest.mark.parametrize("cut_off", ["", "n1:1"])
def test_dead_controllers_and_nodes_keep_the_budget(store: DatabaseStore, cut_off: str) -> None:
    world, policy = budgeted()
    controller = Controller(world, store, policy)
    controller.run(SETTLED_PASSES)
    if cut_off:
        world.agents[cut_off].connected = False
        controller.run(20)
    worst_w = 0.0
    for _ in range(200):  # no controller: every lease ends
        world.advance(1.0)
        worst_w = max(worst_w, world.power_w(), world.counted_w())
    assert worst_w <= policy.power_budget_w
    assert world.at_default(), "clocks are restored"
    following = Controller(world, store, policy)
    for _ in range(30):
        following.run(1)
        assert world.counted_w() <= policy.power_budget_w


@pytest.mark.parametrize("moved", [False, True])
def test_a_node_that_is_not_there_counts_with_its_last_limit(
    store: DatabaseStore, moved: bool
) -> None:
    world, policy = budgeted()
    Controller(world, store, policy).run(SETTLED_PASSES)
    gone = world.agents.pop("n3:1")
    kept_w = sum(gone.limits_w[uuid] for uuid in gone.uuids)
    world.agents["n3:1"] = replace(gone, uuids=(), node="", connected=False)
    if moved:
        silent = world.agents.pop("n3:1")
        world.agents["n9:1"] = replace(silent, address="n9:1", connected=True, claimed=gone.uuids)
    wider = replace(policy, power_budget_w=1.2 * policy.power_budget_w, digest="wider")
    following, used_w = Controller(world, store, wider), 0.0
    for _ in range(2 * SETTLED_PASSES):  # limits move between jobs: lowered first, raised later
        following.run(1)
        total_w = world.counted_w() + kept_w
        assert total_w <= wider.power_budget_w
        used_w = max(used_w, total_w)
    assert used_w >= 0.97 * wider.power_budget_w


def test_recommend_sends_nothing_and_says_what_it_would_do(store: DatabaseStore) -> None:
    world, policy = budgeted()
    quiet = world.policy("recommend")
    controller = Controller(
        world, store, replace(quiet, power_budget_w=policy.power_budget_w, digest="quiet")
    )
    controller.run(SETTLED_PASSES)
    shown = controller.boards[-1].power_limits
    assert world.sent("apply", "clear") == []
    assert shown.state == "recommended"
    assert 0.0 < sum(shown.limits_w.values()) <= (policy.power_budget_w or 0.0)


def test_without_a_budget_limits_go_back_on_a_ramp(store: DatabaseStore) -> None:
    world, policy = budgeted()
    controller = Controller(world, store, policy)
    controller.run(SETTLED_PASSES)
    gap_w = 6 * world.sku.power_limit_w - world.counted_w()
    controller.source.put(replace(policy, power_budget_w=None, digest="none"))
    began_w, sums_w = world.counted_w(), list[float]()
    for _ in range(round(RAMP_S) + 5):
        controller.run(1)
        sums_w.append(world.counted_w())
    assert set(world.limits_w().values()) == {world.sku.power_limit_w}
    assert not any(agent.kept for agent in world.agents.values())
    for second, sum_w in enumerate(sums_w):
        assert sum_w - began_w <= gap_w * min(1.0, (second + 1.0) / RAMP_S) + 1.0
    controller.run(5)
    assert controller.boards[-1].power_limits is None


def test_restoring_everything_lifts_the_limits_until_resumed(store: DatabaseStore) -> None:
    world, policy = budgeted()
    controller = Controller(world, store, policy)
    controller.run(SETTLED_PASSES)
    commands = controller.reconciler.commands
    done = asyncio.run(commands.execute(Order("restore", by="test")))
    assert done.complete, done
    before_w = world.counted_w()
    controller.run(2)
    assert world.counted_w() < before_w + 0.2 * (3000.0 - before_w), "on a ramp"
    controller.run(round(RAMP_S) + 5)
    assert set(world.limits_w().values()) == {world.sku.power_limit_w}
    asyncio.run(commands.execute(Order("resume", by="test")))
    controller.run(SETTLED_PASSES)
    assert world.counted_w() <= policy.power_budget_w


def test_a_limit_that_another_writer_raised_is_left_and_made_room_for(
    store: DatabaseStore,
) -> None:
    world, policy = budgeted(share=1.1)
    controller = Controller(world, store, policy)
    controller.run(SETTLED_PASSES)
    world.agents["n3:1"].limits_w["GPU-n3-0"] = 400.0
    controller.run(SETTLED_PASSES)
    shown = controller.boards[-1].power_limits
    assert world.limits_w()["GPU-n3-0"] == 400.0
    assert "; n3/0: another writer has set its power limit to 400 W" in shown.sentence
    assert world.counted_w() <= policy.power_budget_w


@pytest.mark.parametrize("first", ["counter", "limit"])
def test_a_reload_between_two_readings_is_no_person(store: DatabaseStore, first: str) -> None:
    """Counter and limit are read at different times, so that one reading shows half of it."""
    world, policy = budgeted()
    controller = Controller(world, store, policy)
    controller.run(SETTLED_PASSES)
    agent = world.agents["n1:1"]
    for half in ("first", "second") * 2:
        for uuid in agent.uuids:
            if (first == "counter") == (half == "first"):
                world.begin_energy(uuid)
            else:
                agent.limits_w.pop(uuid, None)
        if half == "second":
            controller.run(3)
            assert world.counted_w() <= policy.power_budget_w
            controller.run(SETTLED_PASSES)
        else:
            controller.run(1)
        shown = controller.boards[-1].power_limits
        assert shown is not None
        assert "another writer" not in str(shown)
    agent.limits_w[agent.uuids[0]] = world.sku.power_limit_w
    controller.run(SETTLED_PASSES)
    assert world.limits_w()[agent.uuids[0]] == world.sku.power_limit_w, "a person's, and left"


def test_a_raise_without_an_answer_counts_as_done(store: DatabaseStore) -> None:
    world, policy = budgeted()
    controller = Controller(world, store, policy)
    controller.run(SETTLED_PASSES)
    lost = world.agents["n3:1"]
    lost.answers = False  # commands arrive, their answers do not
    wider = replace(policy, power_budget_w=1.3 * policy.power_budget_w, digest="wider")
    controller.source.put(wider)
    for _ in range(SETTLED_PASSES):
        controller.run(1)
        assert world.counted_w() <= wider.power_budget_w
    lost.answers = True
    controller.source.put(policy)
    controller.run(SETTLED_PASSES)
    assert world.counted_w() <= policy.power_budget_w


def test_a_refused_raise_is_tried_again(store: DatabaseStore) -> None:
    world, policy = budgeted()
    controller = Controller(world, store, policy)
    controller.run(SETTLED_PASSES)
    world.agents["n2:1"].refuse = "changed 0.1 s ago"
    wider = replace(policy, power_budget_w=1.5 * policy.power_budget_w, digest="wider")
    controller.source.put(wider)
    controller.run(SETTLED_PASSES)
    before_w = sum(world.agents["n2:1"].limits_w.values())
    world.agents["n2:1"].refuse = ""
    controller.run(SETTLED_PASSES)
    assert sum(world.agents["n2:1"].limits_w.values()) > before_w
    assert world.counted_w() <= (wider.power_budget_w or 0.0)


@pytest.mark.parametrize("budget", ["recommended", "none, jobs enforced", "enforced"])
def test_limits_of_a_controller_with_another_store_are_its_own(
    store: DatabaseStore, budget: str
) -> None:
    """Only who enforces a budget takes them over; nobody else touches them."""
    world, policy = budgeted()
    for agent in world.agents.values():
        agent.limits_w = dict.fromkeys(agent.uuids, 200.0)
        agent.kept = dict(agent.limits_w)
    mode: Mode = "enforce" if "enforced" in budget else "recommend"
    asked = replace(policy.jobs[0], mode=mode)
    policy = replace(policy, jobs=(asked,) if mode == "enforce" else ())
    budget_w = None if "none" in budget else policy.power_budget_w
    controller = Controller(world, store, replace(policy, power_budget_w=budget_w))
    controller.run(round(RAMP_S) + 5)
    touched = [call for call in world.sent("apply") if any(w for _, w in call.limits_w)]
    assert bool(touched) == (budget == "enforced")
    if budget != "enforced":
        assert set(world.limits_w().values()) == {200.0}
    if mode == "recommend":
        assert not world.calls


def test_a_budget_below_the_least_limits_names_what_is_possible(store: DatabaseStore) -> None:
    world, policy = budgeted()
    controller = Controller(world, store, replace(policy, power_budget_w=450.0, digest="small"))
    controller.run(SETTLED_PASSES)
    shown = controller.boards[-1].power_limits
    assert "600 W is the least possible" in shown.best_effort
    assert set(world.limits_w().values()) == {world.sku.power_limit_min_w}


def test_an_agent_that_keeps_no_limits_makes_it_best_effort(store: DatabaseStore) -> None:
    world, policy = budgeted()
    world.agents["n2:1"].keeps = False
    controller = Controller(world, store, replace(policy, power_budget_w=2000.0))
    controller.run(SETTLED_PASSES)
    shown = controller.boards[-1].power_limits
    assert "keeps no power limits" in shown.best_effort
    assert not world.agents["n2:1"].limits_w
    assert world.counted_w() <= 2000.0, "the others make room for it"


def test_a_lying_agent_takes_no_more_than_one_node_can_have(store: DatabaseStore) -> None:
    """It shows limits that no board has, on GPUs that it lets nobody set."""
    world, policy = budgeted()
    liar, node_w = world.agents["n3:1"], 800.0
    policy = replace(policy, node_power_w=node_w)
    controller = Controller(world, store, policy)
    liar.limits_w = dict.fromkeys(liar.uuids, 50_000.0)
    liar.controllable = False
    others_w = policy.power_budget_w - node_w
    for _ in range(2):
        controller.run(SETTLED_PASSES)
        assert 0.97 * others_w <= sum(world.limits_w()[uuid] for uuid in world.uuids) <= others_w
        # Many GPUs that draw nothing do not lessen what counts for the others of their node.
        none = tuple(f"GPU-none-{n}" for n in range(40))
        liar.uuids, liar.limits_w = (
            (*liar.uuids, *none),
            {**liar.limits_w, **dict.fromkeys(none, 1.0)},
        )
        world._energy |= dict.fromkeys(none, 0.0)
    # New GPUs in each message: none is remembered for longer than an hour.
    for turn in range(4):
        liar.uuids = tuple(f"GPU-{turn}-{n}" for n in range(8))
        world._energy |= dict.fromkeys(liar.uuids, 0.0)
        liar.limits_w = dict.fromkeys(liar.uuids, 50_000.0)
        controller.run(1)
    world.running = False  # what lasts is the time, and not its iterations
    controller.interval_s = 600.0
    controller.run(8)
    assert controller.boards[-1].power_limits.in_force_w <= policy.power_budget_w
    assert len(controller.reconciler._services.power_budget._gpus) == 4 + 8
