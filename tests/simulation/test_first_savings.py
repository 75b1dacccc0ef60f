"""First recommendations: a job is predicted from its counters, and teaches once it is probed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from unprofiled import UnprofiledWorld
from worlds import Agent, Controller

from joulecut_controller.learn.known_jobs import NAME, decoded
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_sim.gpt3 import Curve, Instruction
from joulecut_sim.plant import Noise, Plant
from joulecut_wire.messages import GpuSnapshot

PASSES = 900


class MemoryPlant(Plant):
    """Of every operation's time `clock_share` follows the clock."""

    clock_share = 0.5

    def curve(self, stage: int, instruction: Instruction) -> Curve:
        return replace(super().curve(stage, instruction), clock_bound=self.clock_share)


class MemoryWorld(UnprofiledWorld):
    """A job whose memory utilisation is the part of the time that does not follow the clock; its
    GPUs show their mean power between two looks.
    """

    detailed = True

    def __init__(self, job: str, clock_share: float) -> None:
        self.read: dict[str, tuple[float, float]] = {}  # energy counter, and when
        self.power_w: dict[str, float] = {}
        super().__init__(job=job, stages=2, microbatches=8, scale=0.1)
        noise = Noise(operation=0.002)
        self.plant = MemoryPlant([self.sku] * 2, 8, time_scale=self.scale, noise=noise, seed=1)
        self.plant.clock_share = clock_share

    def _snapshot(self, agent: Agent, uuid: str) -> GpuSnapshot:
        shown = super()._snapshot(agent, uuid)
        energy_j, (before_j, before_s) = shown.energy_j or 0.0, self.read.get(uuid, (0.0, 0.0))
        if self.now_s > before_s:  # a step may look twice at the same moment
            self.read[uuid] = energy_j, self.now_s
            if before_j:
                self.power_w[uuid] = (energy_j - before_j) / (self.now_s - before_s)
        return replace(
            shown,
            power_average_w=self.power_w.get(uuid),
            utilization_memory_ratio=1.0 - self.plant.clock_share,
        )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DatabaseStore]:
    made = open_store(f"sqlite:///{tmp_path}/controller.db")
    yield made
    made.close()


def learned(store: DatabaseStore, job: str, clock_share: float) -> Controller:
    """A controller that has probed the job to the end."""
    world = MemoryWorld(job, clock_share)
    controller = Controller(world, store, world.unprofiled())

    def enough() -> bool:
        advice = controller.job.probing
        return advice is not None and advice.verdict == "enough"

    controller.run(PASSES, until=enough)
    assert enough(), controller.job.sentence
    controller.run(2)
    return controller


def first_text(controller: Controller) -> str:
    """The first recommendation that was shown."""
    texts = (board.jobs[0].learnt.text for board in controller.boards)
    return next(text for text in texts if text)


def test_a_job_is_predicted_before_it_is_probed_and_teaches_afterwards(
    store: DatabaseStore,
) -> None:
    first = learned(store, "one", 0.5)
    assert first_text(first).startswith("predicted from its counters, not measured: at ")
    assert first_text(first).endswith("by physics alone")
    assert not first.job.learnt.text  # what is measured now replaces it
    (known,) = decoded(store.learnt(NAME))
    assert known.workload == "one"
    assert known.counters.memory_ratio == pytest.approx(0.5)
    # The card runs at its power cap by default, which hides a tenth of what follows the clock.
    assert known.shares.time == pytest.approx(0.5, abs=0.15)
    second = learned(store, "two", 0.8)
    assert first_text(second).endswith("by 1 probed job")
    learned(store, "two", 0.8)  # a restart: a job teaches once
    assert [one.workload for one in decoded(store.learnt(NAME))] == ["one", "two"]


def test_no_clock_is_set_by_a_prediction(store: DatabaseStore) -> None:
    world = MemoryWorld("one", 0.1)
    controller = Controller(world, store, world.unprofiled("recommend"))
    controller.run(PASSES, until=lambda: bool(controller.job.learnt.text))
    controller.run(20)
    assert "predicted from its counters" in controller.job.learnt.text
    assert not any(agent.leases for agent in world.agents.values())


def test_known_jobs_of_the_version_before_are_read(store: DatabaseStore) -> None:
    shown = {"card": "NVIDIA A40", "clock_ratio": 1.0, "power_ratio": 0.8, "busy_ratio": 0.9}
    shown |= {"gpu_ratio": 0.99, "memory_ratio": 0.4}
    state = {
        "version": 1,
        "records": {"one": {"shape": "x", "shown": shown, "predicted": None, "finished": True}},
        "finished": [{"shown": shown, "shares": {"time": 0.5, "power": 0.3}}],
        "scores": [],
    }
    store.keep_learnt(NAME, json.dumps(state))
    world = MemoryWorld("two", 0.5)
    controller = Controller(world, store, world.unprofiled("recommend"), learnt="restored before")
    controller.run(PASSES, until=lambda: bool(controller.job.learnt.text))
    assert controller.job.learnt.text.endswith("by 1 probed job")


def test_a_damaged_record_is_one_line_and_starts_empty(store: DatabaseStore) -> None:
    for text in ("{", '{"version": 99}', '{"finished": [1]}'):
        store.keep_learnt(NAME, text)
        world = MemoryWorld("one", 0.5)
        controller = Controller(world, store, world.unprofiled())
        controller.run(2)
        assert "known jobs cannot be read and start empty" in controller.events("learn")[-1]
