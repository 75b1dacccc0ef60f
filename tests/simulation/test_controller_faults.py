"""Whatever goes wrong below a controller, the job is put back as a whole, and told why."""

import asyncio
import tempfile
from typing import Any

from enforced import PASSES_TO_PLAN, enforcing
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from worlds import Controller, World

from joulecut_controller.metrics.collector import BoardCollector
from joulecut_controller.policy.policy import ClockPolicy, Slo
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_sim.plant import Noise
from joulecut_wire.errors import Unavailable


def test_a_refused_apply_puts_the_whole_job_back(world: World, store: DatabaseStore) -> None:
    world.agents["n2:1"].refuse = "writes per minute"
    controller = Controller(world, store, world.policy())
    controller.run(PASSES_TO_PLAN, until=lambda: bool(world.sent("apply")))
    assert world.at_default()
    assert {call.address for call in world.sent("clear")} == {"n1:1", "n2:1"}
    assert any("put back" in text for text in controller.events("apply"))
    assert "writes per minute" in controller.boards[-1].sentence
    attempts = len(world.sent("apply"))
    controller.run(1)
    assert len(world.sent("apply")) == attempts
    assert "backing off" in controller.job.sentence
    controller.run(60)
    assert len(world.sent("apply")) <= attempts + 2 * 5  # 2, 4, 8, 16, 32 s apart
    world.agents["n2:1"].refuse = ""
    controller.run(40, until=lambda: not world.at_default())
    assert not world.at_default()


def test_a_lost_agent_puts_the_job_back_where_it_can(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    world.agents["n2:1"].connected = False
    controller.run(1)
    assert not world.agents["n1:1"].leases
    controller.run(3)
    assert world.at_default()  # what could not be told ran out
    assert "no current reading of GPU n2/0" in controller.job.sentence
    world.agents["n2:1"].connected = True
    controller.run(30, until=lambda: not world.at_default())
    assert not world.at_default()


def test_leases_lost_behind_our_back_are_drift(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    for agent in world.agents.values():
        agent.leases.clear()  # both agents were started again
    controller.run(2)
    assert world.at_default()
    assert any("lost its lease" in text for text in controller.events("drift"))
    registry = CollectorRegistry()
    registry.register(
        BoardCollector(
            lambda: None, controller.reconciler.metrics, epoch=lambda: 1, leads=lambda: True
        )
    )
    assert registry.get_sample_value("joulecut_controller_drifts_total") == 1.0, "of one job"
    controller.run(20, until=lambda: not world.at_default())
    assert not world.at_default()


def test_a_silent_job_is_released(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    world.running = False
    controller.run(10)
    assert world.at_default()
    assert "silent" in controller.job.sentence
    sent = len(world.calls)
    controller.run(10)
    assert len(world.calls) == sent


class FillingStore:
    """A store in front of another, whose disk becomes full."""

    def __init__(self, store: DatabaseStore) -> None:
        self._store = store
        self.full = False

    def __getattr__(self, name: str) -> Any:
        if self.full and name in {"record", "next_generation", "keep_baseline"}:
            raise Unavailable("store: the disk is full")
        return getattr(self._store, name)


def test_a_heartbeat_outlives_a_store_that_cannot_note_its_refusal(
    world: World, store: DatabaseStore
) -> None:
    filling = FillingStore(store)
    controller = enforcing(world, filling)
    world.agents["n2:1"].connected = False
    filling.full = True
    asyncio.run(controller.reconciler.beat_all())
    assert not controller.events("renew")
    filling.full = False
    for _ in range(3):
        asyncio.run(controller.reconciler.beat_all())
    controller.run(1)
    assert len(controller.events("renew")) == 1, "said as soon as it can be, and once"


def test_a_policy_that_ends_control_does_so_while_the_store_is_full(
    world: World, store: DatabaseStore
) -> None:
    filling = FillingStore(store)
    controller = enforcing(world, filling)
    filling.full = True
    controller.source.put(world.policy("off", digest="2"))
    controller.run(1)
    assert world.at_default()
    board = controller.boards[-1]
    assert board.policy_digest == "2"
    assert "the audit log waits for the store: store: the disk is full" in board.sentence
    filling.full = False
    controller.run(1)
    assert "in force: 2" in controller.events("policy")
    assert "back to default clocks" in controller.events("clear")[-1]
    assert controller.reconciler.metrics.results["failed"] == 0


def test_a_policy_that_asks_for_other_clocks_sets_none_while_the_store_is_full(
    world: World, store: DatabaseStore
) -> None:
    """No clock is set before its plan stands in the trail; what was promised before has ended."""
    filling = FillingStore(store)
    controller = enforcing(world, filling, slo=Slo(max_slowdown=0.1))
    applies = len(world.sent("apply"))
    filling.full = True
    controller.source.put(world.policy(slo=Slo(max_slowdown=0.03), digest="2"))
    controller.run(30)
    assert len(world.sent("apply")) == applies
    assert world.at_default(), "the job is not left slower than it now agrees to"
    filling.full = False
    controller.run(PASSES_TO_PLAN, until=lambda: not world.at_default())
    assert not world.at_default()


def test_a_full_store_stops_commands_and_says_so(world: World, store: DatabaseStore) -> None:
    filling = FillingStore(store)
    controller = enforcing(world, filling)
    filling.full = True
    controller.run(5)
    assert not world.at_default(), "nothing new has to be written, so nothing changes"
    applies = len(world.sent("apply"))
    world.peer_s = world.recent_s() * 1.15  # a reason to plan anew
    controller.run(12)
    assert len(world.sent("apply")) == applies
    assert "the disk is full" in controller.boards[-1].sentence
    assert world.at_default(), "the heartbeat went on without passes"


@settings(max_examples=8)
@given(
    min_mhz=st.sampled_from([0, 700, 1005, 1200, 1395, 1410]),
    lowest_mhz=st.sampled_from([0, 900, 1110, 1305]),
    slowdown=st.sampled_from([0.0, 0.01, 0.05, 0.3]),
    seed=st.integers(0, 99),
    peer_ratio=st.sampled_from([0.0, 1.05, 1.6]),
)
def test_no_clock_below_policy_or_profile_ever_leaves(
    min_mhz: int, lowest_mhz: int, slowdown: float, seed: int, peer_ratio: float
) -> None:
    with tempfile.TemporaryDirectory(prefix="jc") as folder:
        store = open_store(f"sqlite:///{folder}/controller.db")
        world = World(stages=2, microbatches=8, seed=seed, noise=Noise(operation=0.003))
        policy = world.policy(
            slo=Slo(max_slowdown=slowdown),
            clocks=ClockPolicy(min_mhz=min_mhz, min_dwell_s=2.0),
            profile=world.profile(lowest_mhz),
        )
        controller = Controller(world, store, policy)
        controller.run(14)
        world.peer_s = world.recent_s() * peer_ratio
        controller.run(6)
        store.close()
    asked = [mhz for call in world.sent("apply") for _, mhz in call.clocks_mhz]
    assert all(mhz >= max(min_mhz, lowest_mhz) for mhz in asked)
    assert all(mhz in world.sku.clocks_mhz for mhz in asked)
    assert all(mhz < world.sku.clock_max_mhz for mhz in asked), "the default needs no lease"
    generations = [call.generation for call in world.sent("apply")]
    assert generations == sorted(generations)
