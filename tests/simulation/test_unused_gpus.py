"""GPUs that a job holds and does not use, on a virtual clock: low until the first work."""

from dataclasses import replace

import pytest
from worlds import Controller, World

from joulecut_controller.board import JobBoard
from joulecut_controller.cluster.needs import cluster_needs
from joulecut_controller.cluster.state import next_step, state_of
from joulecut_controller.plan.guard import Authority, refusal
from joulecut_controller.plan.plan import Basis
from joulecut_controller.policy.policy import Fixed, GpuRef, IdlePolicy, Mode, Policy, policy_json
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.web.board_json import board_json
from joulecut_controller.web.job_json import job_json
from joulecut_engine.optimize.check import check

LISTED = tuple(GpuRef(node, index) for node in ("n1", "n2") for index in range(2))
AFTER, PASS_S = 12, 5.0  # passes of a controller until a GPU is unused


@pytest.fixture
def world() -> World:
    return World(stages=4, microbatches=12)


def notebooks(mode: Mode = "enforce", lock_mhz: int = 0) -> Policy:
    """No entry: whatever holds GPUs is a stranger."""
    idle = IdlePolicy(60.0, mode, lock_mhz)
    return Policy(idle=idle, source="world", digest=repr(idle))


def run_by(world: World, store: DatabaseStore, policy: Policy) -> Controller:
    return Controller(world, store, policy, interval_s=PASS_S)


def held(world: World) -> set[int]:
    return set(world.clocks_mhz().values())


def parked(controller: Controller) -> list[JobBoard]:
    return [job for job in controller.boards[-1].jobs if state_of(job) == "parked"]


def said(controller: Controller) -> str:
    board = controller.boards[-1]
    return " | ".join(need.text for need in cluster_needs(board))


def test_a_notebooks_gpus_are_low_until_its_first_work(world: World, store: DatabaseStore) -> None:
    low_mhz = 1005
    controller = run_by(world, store, notebooks(lock_mhz=low_mhz))
    world.running = False
    world.give("notebook", *world.uuids[:3])
    controller.run(AFTER - 1)
    assert world.at_default(), "not before `after`"
    controller.run(6)
    assert [world.clocks_mhz()[uuid] for uuid in world.uuids[:3]] == [low_mhz] * 3
    assert world.clocks_mhz()["GPU-3"] == world.sku.clock_max_mhz, "no job holds it"
    (job,) = parked(controller)
    assert job.view.policy.name == "idle:train.notebook"
    assert "3 GPUs held by namespace train" in said(controller)
    assert "3 at the clock of unused GPUs" in said(controller)
    board_json(controller.boards[-1])
    job_json(job, controller.boards[-1].view)
    assert policy_json(controller.boards[-1].policy or Policy())["jobs"] == []
    sent = len(world.sent("apply"))
    controller.run(120)
    assert (len(world.sent("apply")), len(parked(controller))) == (sent, 1), "and it stays so"
    world.running = True
    world.advance(1.0)  # no pass of a controller
    assert world.at_default()
    controller.run(AFTER)
    assert world.at_default()
    assert [job.mode for job in controller.boards[-1].jobs] == ["recommend"], "found by its reports"
    assert not controller.events("drift")
    world.running = False
    controller.run(AFTER + 6)
    assert held(world) == {low_mhz, world.sku.clock_max_mhz}, "and the next time again"
    controller.stop()
    assert world.at_default()


def test_a_job_of_the_policy_comes_back_to_its_plan(world: World, store: DatabaseStore) -> None:
    policy = replace(world.policy(gpus=LISTED), idle=IdlePolicy(60.0, "enforce"))
    world.give("demo")
    controller = run_by(world, store, policy)
    controller.run(60, until=lambda: not world.at_default())
    planned = world.clocks_mhz()
    world.running = False  # an evaluation elsewhere
    controller.run(AFTER - 1)
    assert world.at_default()
    controller.run(7)
    assert held(world) == {900}, "the entry's own min_mhz"
    assert state_of(controller.job) == "parked"
    world.running = True
    world.advance(1.0)
    assert world.at_default()
    controller.run(60, until=lambda: not world.at_default())
    assert state_of(controller.job) == "enforced"
    now = world.clocks_mhz()
    assert all(abs(now[uuid] - mhz) <= 30 for uuid, mhz in planned.items()), (planned, now)


def test_a_job_that_reports_works_whatever_its_gpus_show(
    world: World, store: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = world._snapshot
    world.give("demo")
    monkeypatch.setattr(
        world, "_snapshot", lambda *of: replace(shown(*of), utilization_gpu_ratio=0.0)
    )
    policy = replace(world.policy("recommend", gpus=LISTED), idle=IdlePolicy(60.0, "enforce"))
    run_by(world, store, policy).run(AFTER + 12)
    assert world.at_default()


def test_without_a_controller_work_ends_it_and_so_does_the_lease(
    world: World, store: DatabaseStore
) -> None:
    world.running = False
    world.give("notebook")
    for ends in (lambda: setattr(world, "running", True), lambda: world.advance(60.0)):
        controller = run_by(world, store, notebooks())
        controller.run(AFTER + 6)
        assert held(world) == {world.sku.clocks_mhz[0]}
        ends()  # the controller is gone
        world.advance(1.0)
        assert world.at_default()
        world.running = False


def test_an_agent_that_cannot_end_it_gets_no_command(world: World, store: DatabaseStore) -> None:
    world.agents["n2:1"].lowers_unused = False
    world.running = False
    world.give("old", *world.uuids[2:])
    world.give("new", *world.uuids[:2])
    controller = run_by(world, store, notebooks())
    controller.run(AFTER + 6)
    assert {call.address for call in world.sent("apply")} == {"n1:1"}
    (job,) = (one for one in controller.boards[-1].jobs if one.view.policy.name.endswith("old"))
    assert "the agent of GPU n2/0 (1) cannot end it at the first work" in job.sentence
    assert next_step(job) == job.sentence
    assert "2 at the clock of unused GPUs" in said(controller)


@pytest.mark.parametrize("mode", ["recommend", "off"])
def test_a_dry_run_sends_nothing(world: World, store: DatabaseStore, mode: Mode) -> None:
    world.running = False
    world.give("notebook")
    for policy in (
        notebooks(mode),
        replace(notebooks(), mode="off"),
        replace(world.policy(mode, gpus=LISTED), idle=IdlePolicy(60.0, "enforce")),
    ):
        controller = run_by(world, store, policy)
        controller.run(AFTER + 6)
        assert not world.calls
    plan = controller.job.decision
    assert [one.unused_mhz for one in plan.actions] == ([900] * 4 if mode == "recommend" else [])


def test_the_next_job_and_a_person_end_it(world: World, store: DatabaseStore) -> None:
    world.running = False
    world.give("first")
    controller = run_by(world, store, notebooks())
    controller.run(AFTER + 6)
    assert held(world) == {world.sku.clocks_mhz[0]}
    world.give("second")  # of the same owner, and as idle at first
    controller.run(AFTER - 1)
    assert world.at_default()
    controller.run(8)
    assert held(world) == {world.sku.clocks_mhz[0]}
    controller.source.put(notebooks("recommend"))
    controller.run(5)
    assert world.at_default()


def test_the_guard_takes_no_other_clock_for_unused_gpus(world: World, store: DatabaseStore) -> None:
    world.running = False
    world.give("notebook")
    controller = run_by(world, store, notebooks())
    controller.run(AFTER + 6)
    (job,) = parked(controller)
    assert job.applied is not None
    view, fixed = controller.boards[-1].view, Fixed(unused=True)
    plan = replace(job.applied, generation=10**6, basis=Basis(fixed=fixed))
    authority = Authority(10**6, 1, 15.0, 60.0, 60.0)
    assert refusal(plan, view, authority, check) == ""
    for change in ({"clock_mhz": 1005}, {"unused_mhz": 0}, {"unused_mhz": 215}):
        actions = tuple(replace(one, **change) for one in plan.actions)
        assert refusal(replace(plan, actions=actions), view, authority, check), change
    old = tuple(replace(node, lowers_unused=False) for node in view.nodes)
    assert "cannot end the lease" in refusal(plan, replace(view, nodes=old), authority, check)
    assert refusal(replace(plan, basis=Basis()), view, authority, check)
