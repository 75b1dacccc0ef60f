"""The fleet prior: three jobs teach it, the fourth is predicted before it is probed, and scored."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from unprofiled import UnprofiledWorld
from worlds import Agent, Controller

from joulecut_controller.metrics.collector import BoardCollector
from joulecut_controller.reconcile.fleet_prior_shadow import NAME
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
    """A job whose memory utilisation is the part of the time that does not follow the clock."""

    detailed = True

    def __init__(self, job: str, clock_share: float) -> None:
        super().__init__(job=job, stages=2, microbatches=8, scale=0.1)
        noise = Noise(operation=0.002)
        self.plant = MemoryPlant([self.sku] * 2, 8, time_scale=self.scale, noise=noise, seed=1)
        self.plant.clock_share = clock_share

    def _snapshot(self, agent: Agent, uuid: str) -> GpuSnapshot:
        memory = 1.0 - self.plant.clock_share
        return replace(super()._snapshot(agent, uuid), utilization_memory_ratio=memory)


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


def test_a_fourth_job_is_predicted_before_it_is_probed_and_scored_after(
    store: DatabaseStore,
) -> None:
    for job, share in (("one", 0.3), ("two", 0.6), ("three", 0.9)):
        first = learned(store, job, share)
        assert first.boards[-1].prior_errors is None
        assert "physics expects 70 % of the time" in first.job.learnt.text
    last = learned(store, "four", 0.85)
    shown = next(board.jobs[0].learnt.text for board in last.boards if board.jobs[0].learnt.text)
    assert "decides nothing: forest expects" in shown
    assert "no forest was scored yet, 3 finished jobs teach it" in shown
    errors = last.boards[-1].prior_errors
    assert errors is not None
    assert errors.jobs == 1
    # The card runs at its power cap by default, which hides a tenth of what follows the clock.
    assert errors.errors["physics"][0] == pytest.approx(0.15, abs=0.1)
    assert errors.errors["mean"][0] == pytest.approx(0.25, abs=0.1)
    assert errors.errors["forest"][0] < errors.errors["mean"][0]
    assert "mean error over 1 job: forest" in last.job.learnt.text
    reconciler = last.reconciler
    collector = BoardCollector(
        lambda: last.boards[-1], reconciler.metrics, epoch=1, leads=lambda: True
    )
    families = {family.name: family for family in collector.collect()}
    samples = families["joulecut_fleet_prior_error_ratio"].samples
    assert {(s.labels["predictor"], s.labels["quantity"]) for s in samples} == {
        (predictor, quantity)
        for predictor in ("forest", "mean", "physics")
        for quantity in ("time", "power")
    }
    again = learned(store, "four", 0.85)  # a restart: nothing is recorded or scored twice
    assert again.boards[-1].prior_errors == errors


def test_a_standby_that_has_its_predictors_ready_reads_the_fleet_prior_too(
    store: DatabaseStore,
) -> None:
    learned(store, "one", 0.5)
    kept = store.learnt(NAME)
    assert kept
    world = MemoryWorld("one", 0.5)
    controller = Controller(world, store, world.unprofiled(), learnt="restored before the term")
    controller.run(3)
    assert "1 finished job teaches it" in controller.job.learnt.text
    assert store.learnt(NAME) == kept


def test_a_damaged_record_is_one_line_and_starts_empty(store: DatabaseStore) -> None:
    for text in ("{", '{"version": 99}', '{"records": [1]}'):
        store.keep_learnt(NAME, text)
        world = MemoryWorld("one", 0.5)
        controller = Controller(world, store, world.unprofiled())
        controller.run(2)
        assert "fleet prior cannot be read and starts empty" in controller.events("learn")[-1]
