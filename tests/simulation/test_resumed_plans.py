"""A new leader goes on with the plan of the one before, where what it rests on has not changed."""

import asyncio
import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from enforced import enforcing
from worlds import Controller, World

from joulecut_controller.orders import Order
from joulecut_controller.plan.plan import Plan
from joulecut_controller.policy.policy import ClockPolicy, Policy, Slo
from joulecut_controller.ports import ArrivedReport
from joulecut_controller.store.database import DatabaseStore, open_store

PASSES = 12  # within a lease and some more


@dataclass
class Killed:
    """What a leader that was killed left behind: its plan, its world and its store."""

    plan: Plan
    ttl_s: float
    world: World
    store: DatabaseStore


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, float, World, Path]:
    world, file = World(), tmp_path_factory.mktemp("store") / "controller.db"
    store = open_store(f"sqlite:///{file}")
    first = enforcing(world, store)
    store.close()
    assert first.job.applied is not None
    return first.job.applied, first.reconciler.ttl_s(), world, file


@pytest.fixture
def killed(left: tuple[Plan, float, World, Path], tmp_path: Path) -> Killed:
    plan, ttl_s, world, file = left
    shutil.copy(file, tmp_path / "controller.db")
    store = open_store(f"sqlite:///{tmp_path}/controller.db")
    return Killed(plan, ttl_s, copy.deepcopy(world), store)


def successor(
    world: World, store: DatabaseStore, policy: Policy | None = None, **options: object
) -> Controller:
    """The next leader of a controller that was killed: what it held is still held."""
    return Controller(world, store, policy or world.policy(), **options)  # type: ignore[arg-type]


def heard(world: World) -> tuple[ArrivedReport, ...]:
    """What a standby has of the job."""
    world.advance(1.0)
    newest = {one.report.uuid: one for one in world.take_reports()}
    return tuple(newest.values())


def test_no_lease_is_lost_and_the_solver_is_not_asked(killed: Killed) -> None:
    before, world, store = killed.plan, killed.world, killed.store
    clocks = world.clocks_mhz()

    def never(*_: object) -> None:
        raise AssertionError("the solver was asked")

    second = successor(world, store, prepare=never, reports=heard(world))
    changes = len(world.history)
    second.run(1)
    applied = second.job.applied
    assert applied is not None
    assert applied.parent == before.generation < applied.generation
    assert f"plan {before.generation} of an earlier term goes on" in applied.reason
    held = [lease for agent in world.agents.values() for lease, _ in agent.leases.values()]
    assert {lease.epoch for lease in held} == {second.reconciler.epoch}
    assert world.clocks_mhz() == clocks
    ran = [clocks for _, _, clocks in world.history[changes:]]
    assert all(one == clocks for one in ran)
    assert not [call for call in world.sent("clear") if call.epoch == second.reconciler.epoch]
    # The plan is numbered and in the log before it is applied.
    kinds = [event.kind for event in reversed(store.events(limit=1000))]
    assert kinds.index("plan", kinds.index("apply") + 1) < len(kinds) - kinds[::-1].index("apply")


def test_it_goes_on_where_some_leases_ran_out(killed: Killed) -> None:
    world, clocks = killed.world, killed.world.clocks_mhz()
    world.agents["n1:1"].leases.clear()
    second = successor(world, killed.store, reports=heard(world))
    second.run(1)
    assert second.job.applied is not None
    assert second.job.applied.parent == killed.plan.generation
    assert world.clocks_mhz() == clocks
    assert not [call for call in world.sent("clear") if call.epoch == second.reconciler.epoch]


def test_the_resumed_plan_runs_on_as_any_plan(killed: Killed) -> None:
    world, store = killed.world, killed.store
    clocks = world.clocks_mhz()
    second = successor(world, store)
    second.run(40)
    assert second.job.applied is not None
    assert world.clocks_mhz() == clocks
    assert len(second.plans()) == 1, "the same clocks were planned again"
    assert "unchanged" in second.job.sentence
    third = successor(world, store)
    third.run(PASSES)
    assert third.job.applied is not None, "a resumed plan can be resumed"
    assert not third.events("drift")


def test_a_new_leader_looks_at_default_clocks_when_the_one_before_would_have(
    killed: Killed,
) -> None:
    second = successor(killed.world, killed.store)
    second.run(1)
    first = second.boards[-1].jobs[0].default_time
    second.run(20)
    later = second.boards[-1].jobs[0].default_time
    assert first is not None
    assert first.age_s is not None
    assert later is not None
    assert later.age_s is not None
    assert first.age_s < 100.0, "default clocks were measured just before the plan"
    assert later.age_s == pytest.approx(first.age_s + 20.0, abs=1.0)


def test_a_solver_that_is_not_ready_does_not_end_it(killed: Killed) -> None:
    world = killed.world
    second = successor(world, killed.store, unready=lambda: "the solver is being compiled")
    second.run(PASSES)
    assert second.job.applied is not None
    assert not world.at_default()


def slower(world: World) -> Policy:
    return world.policy(slo=Slo(max_slowdown=0.05))


def tighter_bounds(world: World) -> Policy:
    return world.policy(clocks=ClockPolicy(min_mhz=1000, min_dwell_s=5.0))


def other_profile(world: World) -> Policy:
    return world.policy(profile=world.profile(lowest_mhz=950))


def taken(world: World) -> None:
    world.give("someone-else", "GPU-1", app="other")


def swapped(world: World) -> None:
    world.stage_of["GPU-0"], world.stage_of["GPU-1"] = 1, 0


def another_generation(world: World) -> None:
    agent = world.agents["n1:1"]
    uuid, (lease, ends_s) = next(iter(agent.leases.items()))
    agent.leases[uuid] = (replace(lease, generation=lease.generation + 7), ends_s)


def another_job(world: World) -> None:
    agent = world.agents["n1:1"]
    uuid, (lease, ends_s) = next(iter(agent.leases.items()))
    agent.leases[uuid] = (replace(lease, job="other"), ends_s)


@pytest.mark.parametrize("change", [slower, tighter_bounds, other_profile])
def test_another_policy_ends_it(killed: Killed, change: Callable[[World], Policy]) -> None:
    world = killed.world
    second = successor(world, killed.store, change(world), reports=heard(world))
    second.run(1)
    assert second.job.applied is None
    assert world.at_default()


@pytest.mark.parametrize("change", [swapped, taken, another_generation, another_job])
def test_another_job_ends_it(killed: Killed, change: Callable[[World], None]) -> None:
    world = killed.world
    change(world)
    second = successor(world, killed.store, reports=heard(world))
    second.run(1)
    epoch = second.reconciler.epoch
    assert second.job.applied is None
    assert not [call for call in world.sent("apply") if call.epoch == epoch]
    assert world.at_default()


def test_a_lost_agent_ends_it(killed: Killed) -> None:
    """Its GPUs cannot be held, and half a plan saves nothing."""
    world = killed.world
    reports = heard(world)
    world.agents["n2:1"].connected = False
    second = successor(world, killed.store, reports=reports)
    second.run(int(killed.ttl_s) + 1)
    assert not [call for call in world.sent("apply") if call.epoch == second.reconciler.epoch]
    assert world.at_default()


def test_a_paused_job_is_released(killed: Killed) -> None:
    """The leader died between the hold and its commands."""
    world = killed.world
    leases = {address: dict(agent.leases) for address, agent in world.agents.items()}
    second = successor(world, killed.store, reports=heard(world))
    second.run(1)
    asyncio.run(second.reconciler.commands.execute(Order("pause", world.job, by="ops")))
    for address, held in leases.items():
        world.agents[address].leases.update(held)
    third = successor(world, killed.store, reports=heard(world))
    third.run(1)
    assert third.job.applied is None
    assert world.at_default()


def test_in_recommend_nothing_is_sent(killed: Killed) -> None:
    world = killed.world
    sent = len(world.calls)
    successor(world, killed.store, world.policy("recommend"), reports=heard(world)).run(PASSES)
    assert len(world.calls) == sent
    assert world.at_default()
