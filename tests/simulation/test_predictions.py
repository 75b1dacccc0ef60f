"""Predictions from other jobs: every dry run has a plan, and measured jobs teach the next ones."""

import json
import statistics
from dataclasses import replace

import pytest
from unprofiled import UnprofiledWorld
from worlds import Agent, Controller, World, few_points

from joulecut_controller.board import Learnt
from joulecut_controller.cluster.state import next_step, state_of
from joulecut_controller.known_jobs import NAME, decoded, encoded
from joulecut_controller.plan.plan import Plan
from joulecut_controller.policy.policy import PredictPolicy
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.web.job_json import job_json
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.estimate.other_jobs import (
    JUDGES_MIN,
    ClockShares,
    Counters,
    KnownJob,
    OtherJobs,
)
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Profile
from joulecut_sim.gpt3 import Curve, Instruction
from joulecut_sim.plant import Noise, Plant
from joulecut_wire.messages import GpuSnapshot

PASSES = 80
CLOCK_STEP_MHZ = 15


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

    def true_profile(self) -> Profile:
        """What the plant does at every clock."""
        plant = self.plant
        return Profile(
            {
                (stage, kind): tuple(
                    ClockOption(
                        mhz,
                        plant.time_s(stage, kind, mhz),
                        plant.time_s(stage, kind, mhz) * plant.power_w(stage, kind, mhz),
                    )
                    for mhz in self.sku.clocks_mhz
                    if mhz >= 800
                )
                for stage in range(self.stages)
                for kind in KINDS
            },
            "swept",
        )


def learned(store: DatabaseStore, job: str, clock_share: float) -> Controller:
    """A controller that has measured the job at lower clocks."""
    world = MemoryWorld(job, clock_share)
    controller = Controller(world, store, world.unprofiled())
    controller.run(PASSES)
    return controller


@pytest.mark.parametrize("detailed", [True, False])
def test_a_dry_run_without_profile_and_keeper_has_a_plan_a_band_and_a_frontier(
    store: DatabaseStore, detailed: bool
) -> None:
    world = UnprofiledWorld(stages=4, microbatches=8)
    world.detailed = detailed
    for agent in world.agents.values():
        agent.controllable = False
    policy = world.unprofiled("recommend")
    controller = Controller(world, store, policy, frontier=few_points)
    controller.run(2)
    controller.run(120, until=lambda: bool(controller.job.frontier))
    job = controller.job
    assert state_of(job) == "recommended"
    assert job.decision.predicted_from.startswith("predicted from other jobs: public sweeps alone")
    assert next_step(job).startswith(job.decision.predicted_from)
    assert "not controllable" in next_step(job)
    assert job.decision.reason.startswith(job.decision.predicted_from)
    made = job.decision.forecast
    assert made.band.saved_low_ratio < made.saved_ratio < made.band.saved_high_ratio
    assert made.slowdown_ratio <= 0.05
    assert made.slowdown_ratio <= made.band.slowdown_high_ratio
    assert len(job.frontier) > 5
    truth = sum(truly(world, job.decision)) / sum(truly(world, None)) if detailed else None
    if truth is not None:
        assert made.band.saved_low_ratio <= 1.0 - truth <= made.band.saved_high_ratio
    assert job_json(job, controller.boards[-1].view)["decision"]["predicted_from"]
    assert not world.sent("apply")


def truly(world: UnprofiledWorld, plan: Plan | None) -> list[float]:
    """Joules of each GPU in an iteration under a plan of one clock per GPU; None: default."""
    asked = {one.uuid: one.clock_mhz for one in plan.actions} if plan else {}
    clocks = [asked.get(uuid) or world.sku.clock_max_mhz for uuid in world.uuids]
    return [stage.energy_j for stage in world.plant.iterate(clocks).stages]


def test_measured_jobs_teach_and_no_name_is_kept(store: DatabaseStore) -> None:
    learned(store, "one", 0.5)
    known = decoded(store.learnt(NAME))
    assert {one.counters.kind for one in known} == {"forward", "backward"}
    assert all(one.counters.memory_ratio == pytest.approx(0.5) for one in known)
    assert [one.shares.time for one in known] == pytest.approx([0.5, 0.5], abs=0.15)
    assert "one" not in store.learnt(NAME)
    for one in known:  # the first pair is of default clocks, the others of lower ones
        (default_mhz, full), *lower = one.drawn
        assert full == 1.0
        assert lower
        assert all(mhz < default_mhz and ratio < 1.0 for mhz, ratio in lower)
    learned(store, "one", 0.5)  # a restart: a job teaches once
    assert len(decoded(store.learnt(NAME))) == len(known)


def test_what_a_job_taught_leaves_it_where_its_own_iterations_say_otherwise(
    store: DatabaseStore,
) -> None:
    """By its profile nine tenths of the time follow the clock, in truth a half. Without the profile
    nothing of that is known.
    """
    world = MemoryWorld("one", 0.5)
    wrong = MemoryWorld("one", 0.9).true_profile()
    controller = Controller(world, store, world.policy("enforce", profile=wrong))

    def taught() -> list[float]:
        return [one.shares.time for one in decoded(store.learnt(NAME))]

    controller.run(40, until=taught)
    assert taught() == pytest.approx([0.9, 0.9], abs=0.05)
    controller.run(60, until=lambda: max(taught()) < 0.7)
    assert taught() == pytest.approx([0.5, 0.5], abs=0.15)
    controller.stop()
    controller = Controller(world, store, world.policy("enforce", profile=wrong))  # a restart
    for _ in range(40):
        controller.run(1)
        assert taught() == pytest.approx([0.5, 0.5], abs=0.15)
    controller.source.put(world.unprofiled(digest="2"))
    controller.run(20, until=lambda: not taught())
    assert not taught()


def test_rows_of_the_version_before_teach_shares_and_no_voltage_curve(store: DatabaseStore) -> None:
    shown = '{"card":"x","clock_ratio":1.0,"power_ratio":0.9}'
    row = f'{{"shown":{shown},"shares":{{"time":0.6,"power":0.2}}'
    store.keep_learnt(NAME, f'{{"version":2,"finished":[{row},"workload":"abc"}}]}}')
    (one,) = decoded(store.learnt(NAME))
    assert one == KnownJob("abc", Counters("x", 1.0, 0.9), ClockShares(0.6, 0.2))
    assert OtherJobs([one]).voltage("x", 1500.0) == OtherJobs(()).voltage("x", 1500.0)


@pytest.mark.parametrize("drawn", [[[1400.0, 1.0]], [[1400.0, 1.0], [1200.0, 0.0]]])
def test_a_known_job_that_drew_nothing_is_a_damaged_record(drawn: list[list[float]]) -> None:
    shown = {"card": "x", "clock_ratio": 1.0, "power_ratio": 0.9}
    row = {"shown": shown, "shares": {"time": 0.6, "power": 0.2}, "drawn": drawn}
    with pytest.raises(ValueError, match="drew nothing"):
        decoded(json.dumps({"version": 2, "finished": [row]}))


def test_what_another_process_stores_while_the_controller_runs_stays(store: DatabaseStore) -> None:
    world = MemoryWorld("one", 0.5)
    policy = world.policy("recommend", profile=world.true_profile())
    controller = Controller(world, store, policy)
    controller.run(2)
    layer = KnownJob("a layer", Counters(world.sku.model, 1.0, 0.9), ClockShares(0.6, 0.2))
    store.keep_learnt(NAME, encoded([layer]))
    controller.run(40)
    known = decoded(store.learnt(NAME))
    assert known[0] == layer
    assert len(known) > 1


def test_enforcement_begins_no_higher_where_jobs_were_measured_and_no_window_is_a_point_over(
    store: DatabaseStore,
) -> None:
    lowest = {}
    for forest in (True, False):
        world = MemoryWorld(f"forest {forest}", 0.6)
        shown = Counters(world.sku.model, 1.0, 0.9, 1.0, 0.4)
        rows = [
            KnownJob(f"job{number}", shown, ClockShares(0.6 + 0.01 * (number % 3), 0.2))
            for number in range(JUDGES_MIN)
        ]
        store.keep_learnt(NAME, encoded(rows))
        policy = replace(world.unprofiled(), predict=PredictPolicy(forest))
        controller = Controller(world, store, policy)
        controller.run(150, until=lambda world=world: bool(world.sent("apply")))
        lowest[forest] = min(world.clocks_mhz().values())
        assert controller.job.applied.forecast.slowdown_ratio <= 0.05
        assert "predicted from other jobs" in controller.job.learnt.text
        base_s = statistics.fmean(duration_s for _, duration_s, _ in world.history[:20])
        controller.run(60)
        lived = [duration_s for _, duration_s, _ in world.history]
        windows = [statistics.fmean(lived[at : at + 10]) for at in range(0, len(lived) - 9, 10)]
        assert max(windows) <= base_s * (1.0 + 0.05 + 0.01)
        assert "samples of the running job" in controller.job.learnt.text
    assert lowest[True] <= lowest[False] + CLOCK_STEP_MHZ, "both keep the worst case"


def test_a_job_that_moves_to_another_card_is_predicted_anew(store: DatabaseStore) -> None:
    """What it measured on the card before is no curve of this one."""
    world, learner = UnprofiledWorld(stages=2, microbatches=8), OnlineEstimator({})
    world.detailed = True
    controller = Controller(world, store, world.unprofiled("enforce"), learner=learner)
    controller.run(150, until=lambda: learner.ran_lower(world.job))
    assert learner.ran_lower(world.job)
    other = UnprofiledWorld(stages=2, microbatches=8, card="a40", prefix="other")
    other.detailed, other.now_s = True, world.now_s
    for agent in world.agents.values():
        agent.uuids, agent.connected = (), False
    vars(world).update(vars(other), agents=world.agents | other.agents)

    def highest_mhz() -> int:
        found = learner.predicted(world.job)
        options = found.options.values() if found else ()
        return max((one.clock_mhz for each in options for one in each), default=0)

    before_mhz = highest_mhz()
    controller.run(60, until=lambda: highest_mhz() > before_mhz)
    assert before_mhz < highest_mhz() <= other.sku.clock_max_mhz
    assert not learner.ran_lower(world.job)
    controller.run(150, until=lambda: bool(controller.job.applied))
    assert controller.job.applied


def test_a_damaged_record_is_one_line_and_starts_empty(store: DatabaseStore) -> None:
    for text in ("{", '{"version": 99}', '{"finished": [1]}'):
        store.keep_learnt(NAME, text)
        world = MemoryWorld("one", 0.5)
        controller = Controller(world, store, world.unprofiled())
        controller.run(2)
        assert "known jobs cannot be read and start empty" in controller.events("learn")[-1]


def test_a_fit_is_put_in_force_in_a_later_pass_and_passes_do_not_wait(
    store: DatabaseStore,
) -> None:
    world = World()
    learner = OnlineEstimator({})
    controller = Controller(world, store, world.policy("recommend"), learner=learner)
    controller.run(1)
    assert controller.boards[-1].sentence
    assert controller.job.learnt == Learnt(
        "predicted from the profile; nothing learned from the running job yet"
    )
    controller.run(400, until=lambda: learner.learning_stats(world.job).taken > 0)
    controller.run(1)
    text = controller.job.learnt.text
    assert text.startswith("predicted from the profile and ")
    assert "before learning" in text
