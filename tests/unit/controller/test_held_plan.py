"""What a job holds: taken, credited, given back, and told apart from what others left."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from worlds import World

from joulecut_controller.election.claims import Claims
from joulecut_controller.observe.iteration_stats import IterationStats
from joulecut_controller.observe.observer import JobObservation, Observer
from joulecut_controller.plan.plan import Action, Plan
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.context import ReconcileContext
from joulecut_controller.reconcile.leases import Leases, Place
from joulecut_controller.reconcile.plan_rollout import PlanRollout, drift
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_controller.view import View
from joulecut_engine.optimize.check import check
from joulecut_wire.errors import Unavailable

TTL_S = 30.0
CLOCK_MHZ = 1200


@dataclass
class JobBench:
    """A tenure of the one job of a world, and what it works with."""

    world: World
    store: DatabaseStore
    context: ReconcileContext
    rollout: PlanRollout

    def look(self) -> tuple[View, JobObservation]:
        observer, policy, now_s = self.context.observer, self.world.policy(), self.world.now_s
        state = self.world.observe(now_s)
        observer.arrange(policy, state, now_s)
        reports = observer.route(self.world.take_reports())[0].get(self.world.job, [])
        stats = self.rollout._stats
        observation, view = observer.observe(policy.jobs[0], state, reports, now_s, stats=stats)
        return view, observation

    def plan(self, generation: int = 1) -> Plan:
        actions = tuple(
            Action(uuid, stage, "lower", CLOCK_MHZ, "slack")
            for stage, uuid in enumerate(self.world.uuids)
        )
        return Plan(self.world.job, generation, 0, "enforce", "gpu", actions, "slack", 1.8e9)

    def apply(self, generation: int = 1) -> str:
        view, _ = self.look()
        asyncio.run(self.rollout.set_clocks(self.plan(generation), view, TTL_S))
        return self.rollout.action

    def drift(self) -> str:
        """Of what is seen now."""
        view, observation = self.look()
        holding = self.rollout.holding
        assert holding is not None
        return drift(holding, observation, view) if self.rollout.is_newer(view) else ""

    def clears_orphaned(self, view: View, observation: JobObservation) -> bool:
        return asyncio.run(self.rollout.clear_orphaned(observation, view))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[JobBench]:
    world = World()
    store = open_store(f"sqlite:///{tmp_path}/controller.db")
    epoch = store.next_epoch(0)
    store.fence(epoch)
    context = ReconcileContext(
        store=store,
        audit=AuditLog(store, lambda: 1.8e9),
        leases=Leases(world, epoch),
        observer=Observer(stale_s=5.0),
        check=check,
        claims=Claims(epoch),
        interval_s=1.0,
        stale_s=5.0,
        now_s=lambda: world.now_s,
        unix_s=lambda: 1.8e9,
    )
    rollout = PlanRollout(context, world.job, IterationStats(lag_s=1.0))
    yield JobBench(world, store, context, rollout)
    store.close()


def test_a_reading_from_before_the_newest_power_limit_shows_our_lease(bench: JobBench) -> None:
    assert bench.apply(3)
    leases, job = bench.context.leases, bench.world.job
    for agent in bench.world.agents.values():
        agent.keeps = True
    places = {Place(agent.address, agent.uuids[0]): 300.0 for agent in bench.world.agents.values()}
    for generation in (4, 5):
        asyncio.run(
            leases.limit_power(
                places, generation=generation, ttl_s=TTL_S, keep=True, reason="a budget"
            )
        )
    assert all(leases.owns(job, generation) for generation in (3, 4, 5))
    assert not leases.owns(job, 2)
    asyncio.run(leases.release(job, "enough"))
    assert not leases.owns(job, 4)


def test_what_cannot_be_written_down_is_held_all_the_same(bench: JobBench) -> None:
    """The store fails when the agents have obeyed: what stands is what they were told."""
    bench.store.next_epoch(10)  # another controller's term: this one writes no more
    with pytest.raises(Unavailable):
        bench.apply(7)
    assert set(bench.world.clocks_mhz().values()) == {CLOCK_MHZ}
    assert bench.rollout.applied == bench.plan(7)
    assert bench.rollout.held_s() == 0.0
    view, observation = bench.look()
    assert not bench.clears_orphaned(view, observation)
    outcome = asyncio.run(bench.rollout.release_all("enough"))
    assert outcome.settings == len(bench.world.uuids)
    assert bench.rollout.applied is None
    assert bench.world.at_default()
    bench.context.audit.catch_up()
    assert "another controller leads" in bench.context.audit.trouble
    assert bench.context.audit.newest[0].text == "4 GPUs back to default clocks: enough"


def test_an_old_view_shows_no_orphaned_leases(bench: JobBench) -> None:
    """A pass may take seconds for the jobs before: ages count from when it looked."""
    bench.apply(1)
    bench.context.leases.end("killed")
    view, observation = bench.look()
    bench.world.advance(3.0)  # the look grows old, the leases in it do not
    assert not bench.clears_orphaned(view, observation)
    view, observation = bench.look()
    assert bench.clears_orphaned(view, observation)


def test_a_view_from_before_a_command_shows_no_drift(bench: JobBench) -> None:
    """Commands are sent while a pass goes on with what it saw when it began."""
    bench.world.advance(2.0)
    view, observation = bench.look()
    assert observation.job.measured.locks
    bench.world.advance(0.5)
    bench.apply(1)
    assert not bench.rollout.is_newer(view)
    bench.world.advance(1.0)
    assert bench.drift() == ""
    bench.world.agents["n2:1"].leases.clear()
    bench.world.advance(0.5)
    assert "lost its lease" in bench.drift()


@pytest.mark.parametrize("late_s", [0.0, 1.5, 20.0])
def test_a_reading_made_before_a_command_contradicts_nothing_however_late(
    bench: JobBench, late_s: float
) -> None:
    bench.world.advance(2.0)
    bench.look()
    bench.apply(1)
    for agent in bench.world.agents.values():
        agent.leases.clear()
    bench.world.advance(late_s + 0.5)
    bench.world.behind = True
    assert bench.drift() == ""
    bench.world.behind = False
    bench.world.advance(0.5)
    assert "lost its lease" in bench.drift()


def test_a_completed_plan_replaces_its_own_generation_only(bench: JobBench) -> None:
    bench.apply(5)
    leases = bench.context.leases
    leases.complete(bench.plan(4))
    assert bench.rollout.generation == 5
    leases.end("another controller leads")
    leases.complete(bench.plan(5))
    assert bench.rollout.applied is None
