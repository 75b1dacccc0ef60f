"""The whole loop on a simulated job and a virtual clock: what is decided, sent and undone."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import Controller, World

from joulecut_controller.graph.shape import chunks_of, part_of
from joulecut_controller.hardware import ClockOption
from joulecut_controller.policy.policy import ClockPolicy, Slo
from joulecut_controller.solve.margin import Statistic
from joulecut_controller.solve.problem import Problem, Solution
from joulecut_controller.solve.solver import frontier, prepared
from joulecut_controller.solve.straggler import Kept
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_controller.workload import Granularity, Kind, Pipeline, Profile, Schedule
from joulecut_sim.plant import Noise
from joulecut_wire.errors import Unavailable

PASSES_TO_PLAN = 25  # a baseline of 30 iterations, confirmed by several looks
STUDY_S = 120.0  # real seconds; a frontier of 12 points takes one or two on an idle core


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DatabaseStore]:
    made = open_store(f"sqlite:///{tmp_path}/controller.db")
    yield made
    made.close()


@pytest.fixture
def world() -> World:
    return World()


def enforcing(world: World, store: DatabaseStore, **policy: object) -> Controller:
    """A controller that holds a plan, some time after the change settled."""
    controller = Controller(world, store, world.policy(**policy))  # type: ignore[arg-type]
    controller.run(PASSES_TO_PLAN, until=lambda: not world.at_default())
    assert not world.at_default(), controller.boards[-1].sentence
    controller.run(30)
    return controller


# -- modes ---------------------------------------------------------------------------------


def test_recommend_plans_records_and_sends_nothing(world: World, store: DatabaseStore) -> None:
    controller = Controller(world, store, world.policy("recommend"))
    controller.run(60)
    plan = controller.job.decision
    assert plan is not None
    assert plan.mode == "recommend"
    assert any(action.verb == "lower" for action in plan.actions)
    assert plan.forecast is not None
    assert plan.forecast.saved_ratio > 0.05
    assert controller.job.applied is None
    assert store.last_plan_json(world.job)
    controller.stop()
    assert world.calls == []


def test_recommend_then_enforce_then_recommend(world: World, store: DatabaseStore) -> None:
    controller = Controller(world, store, world.policy("recommend"))
    controller.run(PASSES_TO_PLAN)
    recommended = controller.job.decision
    controller.source.put(world.policy("enforce", digest="2"))
    controller.run(2)
    applied = controller.job.applied
    assert applied is not None
    assert recommended is not None
    assert applied.generation > recommended.generation
    assert applied.mode == "enforce"
    controller.source.put(world.policy("recommend", digest="3"))
    controller.run(2)
    assert world.at_default()
    sent = len(world.calls)
    assert {call.op for call in world.calls[-2:]} == {"clear"}
    controller.run(20)
    assert len(world.calls) == sent
    assert controller.job.applied is None


def test_off_and_a_job_that_left_give_everything_back(world: World, store: DatabaseStore) -> None:
    for change in (world.policy("off", digest="off"), replace(world.policy(), jobs=())):
        controller = enforcing(world, store)
        controller.source.put(change)
        controller.run(1)
        assert world.at_default()
        sent = len(world.calls)
        controller.run(10)
        assert len(world.calls) == sent


# -- the promise ---------------------------------------------------------------------------


def test_a_cold_start_measures_first_and_then_keeps_the_target(
    world: World, store: DatabaseStore
) -> None:
    controller = Controller(world, store, world.policy(slo=Slo(max_slowdown=0.02)))
    controller.run(3)
    assert "measuring the baseline" in controller.job.sentence
    assert world.calls == []
    controller.run(PASSES_TO_PLAN + 30)
    assert controller.job.applied is not None
    baseline = controller.job.view.baseline
    assert baseline is not None
    assert world.recent_s() <= baseline.time_mean_s * 1.021
    assert controller.job.saved_measured_j > 0
    assert controller.job.saved_predicted_j > 0
    current = controller.job.view.current
    forecast = controller.job.applied.forecast
    assert current is not None
    assert forecast is not None
    assert current.energy_j is not None
    assert abs(current.energy_j / forecast.energy_j - 1.0) < 0.02


def test_with_nothing_new_nothing_happens(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    plans, audit = controller.plans(), len(store.events(limit=1000))
    applies = len(world.sent("apply"))
    controller.run(40)
    assert controller.plans() == plans
    assert len(world.sent("apply")) == applies
    assert len(world.sent("renew")) > 40
    assert len(store.events(limit=1000)) == audit
    assert controller.boards[-1].sentence == "nothing to do"


def test_a_plan_that_comes_out_late_is_backed_off(world: World, store: DatabaseStore) -> None:
    """Something slows the job below default clocks that no report explains."""
    world.hidden_ratio = 1.012
    controller = enforcing(world, store, slo=Slo(max_slowdown=0.02))
    baseline = controller.job.view.baseline
    assert baseline is not None
    assert any("backing off" in text for text in controller.events("verify"))
    assert world.recent_s() <= baseline.time_mean_s * 1.021
    first, *_ = controller.plans()
    assert controller.job.applied is not None
    assert controller.job.applied.generation > first
    raised = [call for call in world.sent("apply") if call.generation > first]
    assert raised


def test_an_absolute_target_is_kept(world: World, store: DatabaseStore) -> None:
    default_s = world.plant.iterate([world.sku.clock_max_mhz] * world.stages).own_s
    target_s = default_s * 1.04
    slo = Slo(max_iteration_time_s=target_s, given_as="max_iteration_time")
    controller = enforcing(world, store, slo=slo)
    assert default_s * 1.02 < world.recent_s() <= target_s * 1.001
    assert "max_iteration_time" in controller.events("plan")[-1]


def test_an_unreachable_target_changes_nothing_and_says_so(
    world: World, store: DatabaseStore
) -> None:
    slo = Slo(max_iteration_time_s=0.1, given_as="min_rate")
    controller = Controller(world, store, world.policy(slo=slo))
    controller.run(40)
    assert world.calls == []
    assert "target unreachable: min_rate asks for 0.1 s" in controller.job.sentence
    unreachable = [text for text in controller.events("plan") if "unreachable" in text]
    assert len(unreachable) == 1


def test_a_target_that_becomes_unreachable_gives_back(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    slo = Slo(max_iteration_time_s=0.1, given_as="max_iteration_time")
    controller.source.put(world.policy(slo=slo, digest="2"))
    controller.run(2)
    assert world.at_default()
    assert "unreachable" in controller.job.sentence


def test_a_graph_that_does_not_explain_the_job_changes_nothing(store: DatabaseStore) -> None:
    """Half of the microbatches stand in the policy: the model is off by far more than 3 %."""
    world = World()
    policy = world.policy(pipeline=replace(world.pipeline, microbatches=12))
    controller = Controller(world, store, policy)
    controller.run(40)
    assert world.calls == []
    assert "the pipeline graph predicts" in controller.job.sentence


def test_no_pipeline_means_no_change(world: World, store: DatabaseStore) -> None:
    controller = Controller(world, store, world.policy(profile=None, pipeline=None))
    controller.run(30)
    assert world.calls == []
    assert "no pipeline" in controller.job.sentence


# -- stragglers ----------------------------------------------------------------------------


def test_a_straggler_is_waited_for_and_its_recovery_is_not(
    world: World, store: DatabaseStore
) -> None:
    controller = enforcing(world, store)
    before = world.clocks_mhz()
    alone_s = world.recent_s()
    world.peer_s = alone_s * 1.15
    took = controller.run(6, until=lambda: world.clocks_mhz() != before)
    assert took <= 3
    during = world.clocks_mhz()
    assert all(during[uuid] <= before[uuid] for uuid in before)
    assert sum(during.values()) < sum(before.values())
    controller.run(20)
    assert world.recent_s() <= world.peer_s * 1.005
    applied = controller.job.applied
    assert applied is not None
    assert "is waited for" in applied.reason
    world.peer_s = 0.0
    took = controller.run(6, until=lambda: world.clocks_mhz() == before)
    assert took <= 3
    controller.run(15)
    assert world.recent_s() <= alone_s * 1.005


def test_layerwise_synchronisation_gets_no_credit_for_waiting(
    world: World, store: DatabaseStore
) -> None:
    controller = enforcing(world, store, pipeline=replace(world.pipeline, sync="layer"))
    plans = controller.plans()
    world.peer_s = world.recent_s() * 1.15
    controller.run(15)
    assert controller.plans() == plans


# -- faults --------------------------------------------------------------------------------


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
    assert "standing back" in controller.job.sentence
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
    assert "nothing fresh is known of GPU n2/0" in controller.job.sentence
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
    controller.run(20, until=lambda: not world.at_default())
    assert not world.at_default()


def test_a_silent_job_is_given_back(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    world.running = False
    controller.run(10)
    assert world.at_default()
    assert "silent" in controller.job.sentence
    sent = len(world.calls)
    controller.run(10)
    assert len(world.calls) == sent


def test_an_uncontrollable_gpu_means_a_refused_plan(world: World, store: DatabaseStore) -> None:
    world.agents["n1:1"].controllable = False
    controller = Controller(world, store, world.policy())
    controller.run(40)
    assert world.calls == []
    plan = controller.job.decision
    assert plan is not None
    assert "not controllable: MIG is on" in plan.refused
    assert plan.changes_nothing
    assert len(controller.plans()) == 1  # the same refusal is not numbered again and again


def test_granularity_computation_is_recommended_but_never_applied(
    world: World, store: DatabaseStore
) -> None:
    clocks = ClockPolicy(granularity="computation", min_dwell_s=5.0)
    recommending = Controller(world, store, world.policy("recommend", clocks=clocks))
    recommending.run(PASSES_TO_PLAN)
    plan = recommending.job.decision
    assert plan is not None
    assert plan.actions
    assert not plan.refused
    enforced = Controller(world, store, world.policy("enforce", clocks=clocks))
    enforced.run(PASSES_TO_PLAN)
    refused = enforced.job.decision
    assert refused is not None
    assert "not applied yet" in refused.refused
    assert world.calls == []


def test_a_broken_policy_keeps_the_old_one_in_force(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    held = world.clocks_mhz()
    controller.source.damage("mode is 'enfroce'")
    controller.run(10)
    board = controller.boards[-1]
    assert "enfroce" in board.policy_error
    assert world.clocks_mhz() == held
    assert len(controller.events("policy")) == 1
    controller.source.broken = ""
    controller.source.put(world.policy(digest="2"))
    controller.run(1)
    assert controller.boards[-1].policy_error == ""
    assert controller.boards[-1].policy_digest == "2"


# -- terms, restarts, silence --------------------------------------------------------------


def test_a_restart_uses_the_stored_baseline_and_newer_numbers(
    world: World, store: DatabaseStore
) -> None:
    first = enforcing(world, store)
    generation, epoch = first.plans()[-1], first.reconciler.epoch
    second = Controller(world, store, world.policy())  # the first was killed: nothing was cleared
    took = second.run(10, until=lambda: second.job.applied is not None)
    assert took < 8, "a new baseline was measured"
    assert second.reconciler.epoch == epoch + 1
    assert second.plans()[-1] > generation
    cleared = [call for call in world.sent("clear") if call.epoch == epoch + 1]
    assert cleared, "leases of the earlier term are not adopted"


def test_a_recommending_successor_leaves_old_leases_to_run_out(
    world: World, store: DatabaseStore
) -> None:
    enforcing(world, store)
    sent = len(world.calls)
    successor = Controller(world, store, world.policy("recommend"))
    successor.run(10)
    assert world.at_default()
    assert len(world.calls) == sent


def test_two_controllers_do_not_duel(world: World, store: DatabaseStore) -> None:
    old = enforcing(world, store)
    new = Controller(world, store, world.policy())
    new.run(8, until=lambda: new.job.applied is not None)
    sent = [call for call in world.calls if call.epoch == old.reconciler.epoch]
    for _ in range(5):
        old.run(1)
        new.run(1)
    assert not old.reconciler.leads
    assert "another controller leads" in old.boards[-1].sentence
    assert len(old.events("lead")) == 1
    later = [call for call in world.calls if call.epoch == old.reconciler.epoch]
    assert len(later) - len(sent) <= 2, "a heartbeat was under way, nothing more"
    old.stop()
    new.run(1)
    held = [lease for agent in world.agents.values() for lease, _ in agent.leases.values()]
    assert {lease.epoch for lease in held} == {new.reconciler.epoch}


def test_a_dead_controller_costs_one_lease(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    ttl_s = controller.reconciler.ttl_s()
    assert ttl_s == 3.0 * controller.interval_s
    world.advance(ttl_s + 0.01)
    assert world.at_default()


def test_a_heartbeat_without_passes_stops(world: World, store: DatabaseStore) -> None:
    """The passes hang, the heartbeat task lives: GPUs must not stay capped for that."""
    controller = enforcing(world, store)

    async def beats_only(seconds: int) -> None:
        for _ in range(seconds):
            world.advance(1.0)
            await controller.reconciler.beat()

    asyncio.run(beats_only(4))
    assert not world.at_default()
    asyncio.run(beats_only(6))
    assert world.at_default()


def test_stopping_gives_everything_back(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    controller.stop()
    assert world.at_default()
    assert any("the controller stops" in text for text in controller.events("clear"))


class FillingStore:
    """A store in front of another, whose disk becomes full."""

    def __init__(self, store: DatabaseStore) -> None:
        self._store = store
        self.full = False

    def __getattr__(self, name: str) -> Any:
        if self.full and name in {"record", "keep_plan", "next_generation", "keep_baseline"}:
            raise Unavailable("store: the disk is full")
        return getattr(self._store, name)


def test_a_full_store_stops_commands_and_says_so(world: World, store: DatabaseStore) -> None:
    filling = FillingStore(store)
    controller = enforcing(world, filling)  # type: ignore[arg-type]
    filling.full = True
    controller.run(5)
    assert not world.at_default(), "nothing new has to be written, so nothing changes"
    applies = len(world.sent("apply"))
    world.peer_s = world.recent_s() * 1.15  # a reason to plan anew
    controller.run(12)
    assert len(world.sent("apply")) == applies
    assert "the disk is full" in controller.boards[-1].sentence
    assert world.at_default(), "the heartbeat went on without passes"


# -- bounds, whatever is asked ---------------------------------------------------------------


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


# -- what the solver offers ------------------------------------------------------------------


def test_the_first_plan_of_a_jittering_job_is_not_late(store: DatabaseStore) -> None:
    world = World(noise=Noise(operation=0.03, gpu_time=0.0), seed=3)
    controller = Controller(world, store, world.policy(slo=Slo(max_slowdown=0.03)))
    controller.run(60, until=lambda: not world.at_default())
    baseline = controller.job.view.baseline
    assert baseline is not None
    assert baseline.operation_sd_ratio == pytest.approx(0.03, rel=0.25)
    begun = len(world.history)
    controller.run(80)
    assert len(controller.plans()) == 1, "no backing off"
    times_s = [duration_s for _, duration_s, _ in world.history[begun + 2 :]]
    assert sum(times_s) / len(times_s) <= baseline.time_mean_s * 1.0315


def test_a_p95_target_takes_more_margin_than_a_mean(store: DatabaseStore) -> None:
    planned = []
    statistics: tuple[Statistic, ...] = ("mean", "p95")
    for statistic in statistics:
        world = World(noise=Noise(operation=0.03, gpu_time=0.0), seed=3)
        still = Controller(world, store, world.policy("recommend"))
        still.run(PASSES_TO_PLAN)
        baseline = still.job.view.baseline
        assert baseline is not None
        slo = Slo(
            max_iteration_time_s=1.03 * baseline.time_mean_s,
            given_as="max_iteration_time",
            statistic=statistic,
        )
        still.source.put(world.policy("recommend", slo=slo, digest=statistic))
        still.run(3)
        plan = still.job.decision
        assert plan is not None
        assert plan.forecast is not None
        planned.append(plan.forecast)
    mean, p95 = planned
    assert p95.iteration_time_s < mean.iteration_time_s
    assert p95.saved_ratio < mean.saved_ratio


def _few_points(problem: Problem, points: int, granularity: Granularity) -> tuple[Solution, ...]:
    return frontier(problem, min(points, 8), granularity, effort="quick")


def test_a_power_budget_slows_an_enforced_job_and_lets_it_go_again(store: DatabaseStore) -> None:
    world = World(stages=2, microbatches=8)
    policy = world.policy(slo=Slo(max_slowdown=0.0))
    controller = Controller(world, store, policy, frontier=_few_points)
    controller.run(200, until=lambda: bool(controller.job.frontier))
    drawn_w = controller.job.frontier[0].energy_j / controller.job.frontier[0].iteration_time_s
    tight = replace(policy, power_budget_w=0.93 * drawn_w, digest="tight")
    controller.source.put(tight)
    controller.run(60, until=lambda: controller.job.applied is not None)
    plan, budget = controller.job.applied, controller.boards[-1].budget
    assert plan is not None, controller.job.sentence
    assert budget is not None
    assert plan.forecast is not None
    assert "power budget" in plan.reason
    assert plan.forecast.slowdown_ratio > 0.005
    assert plan.forecast.energy_j / plan.forecast.iteration_time_s <= tight.power_budget_w * 1.005
    controller.run(40)
    current = controller.job.view.current
    assert current is not None
    assert current.power_w is not None
    assert current.power_w <= tight.power_budget_w * 1.03
    controller.source.put(replace(policy, digest="free"))
    controller.run(60, until=world.at_default)
    assert world.at_default()
    assert controller.boards[-1].budget is None


def test_a_power_budget_only_advises_where_nothing_is_enforced(store: DatabaseStore) -> None:
    world = World(stages=2, microbatches=8)
    policy = replace(world.policy("recommend", slo=Slo(max_slowdown=0.0)), power_budget_w=1.0)
    controller = Controller(world, store, policy, frontier=_few_points)
    controller.run(200, until=lambda: bool(controller.job.frontier))
    controller.run(5)
    assert world.calls == []
    assert any("cannot be kept" in text for text in controller.events("plan"))
    assert sum("cannot be kept" in text for text in controller.events("plan")) == 1
    budget = controller.boards[-1].budget
    assert budget is not None
    assert budget.complaint


def test_a_straggler_is_answered_from_the_kept_frontier(store: DatabaseStore) -> None:
    world = World(stages=2, microbatches=8)
    built: list[Kept] = []

    def keep(problem: Problem, granularity: Granularity) -> Kept:
        built.append(Kept(prepared(problem, granularity), points=12))
        return built[-1]

    controller = Controller(world, store, world.policy(), keep=keep)
    controller.run(PASSES_TO_PLAN, until=lambda: not world.at_default())
    world.peer_s = 1.15 * world.recent_s()
    reconciler = controller.reconciler
    gives_up_s = time.monotonic() + STUDY_S

    def at_hand() -> bool:
        costs = reconciler._stewards[world.job].standing.costs
        kept = reconciler._stragglers.of(costs, "gpu") if costs is not None else None
        if kept is not None and kept is built[-1]:
            return True
        time.sleep(0.005)  # virtual time flies while a thread builds the frontier
        return time.monotonic() > gives_up_s

    # In one go: the end of a run withdraws what has been asked of the thread.
    controller.run(100_000, until=at_hand)
    assert time.monotonic() <= gives_up_s

    def answered() -> bool:
        plan = controller.job.applied
        return plan is not None and "waited for" in plan.reason

    world.peer_s *= 1.1
    controller.run(60)
    controller.run(200, until=answered)
    assert answered()
    assert world.recent_s(5) <= world.peer_s * 1.01


def test_while_the_solver_is_made_ready_passes_go_on_without_a_plan(
    world: World, store: DatabaseStore
) -> None:
    why = ["the solver is being compiled"]
    controller = Controller(world, store, world.policy(), unready=lambda: why[0])
    controller.run(PASSES_TO_PLAN)
    assert controller.job.view.baseline is not None
    assert controller.job.sentence == why[0]
    assert world.at_default()
    why[0] = ""
    controller.run(5, until=lambda: not world.at_default())
    assert not world.at_default()


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "interleaved-1f1b", "dualpipe-v"])
def test_other_schedules_are_planned_from_a_profile_of_their_kinds(
    store: DatabaseStore, schedule: Schedule
) -> None:
    world = World(stages=2, microbatches=8)
    pipeline = Pipeline(schedule, 2, 8, chunks=chunks_of(schedule, None))
    chunks = pipeline.chunks
    parts: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
    for (stage, kind), menu in world.profile().options.items():
        split: tuple[tuple[Kind, float], ...] = ((kind, 1.0),)
        if kind == "backward":
            split += (("input", 0.5), ("weight", 0.5))
        for chunk in range(chunks):
            for part, share in split:
                ratio = share / chunks
                parts[part_of(pipeline, stage, chunk), part] = tuple(
                    ClockOption(o.clock_mhz, o.time_s * ratio, o.energy_j * ratio) for o in menu
                )
    profile = Profile({key: parts[key] for key in sorted(parts)}, "made")
    # What the job measures is another schedule's time; an absolute target far off fits any.
    policy = world.policy("recommend", pipeline=pipeline, profile=profile)
    controller = Controller(world, store, policy)
    controller.run(PASSES_TO_PLAN)
    sentence = controller.job.sentence
    assert "graph predicts" in sentence or controller.job.decision is not None, sentence
    costs = controller.reconciler._stewards[world.job].standing.costs
    assert costs is not None
    assert len(costs.problem.graph.operations) >= 2 * 8 * chunks * 2


def test_a_term_that_no_controller_can_have_reached_says_what_to_do(
    world: World, store: DatabaseStore
) -> None:
    controller = enforcing(world, store)
    world.agents["n2:1"].epoch_seen = 2**64 - 1
    controller.run(2)
    sentence = controller.boards[-1].sentence
    assert "agent n2:1 has seen term 18446744073709551615" in sentence
    assert "delete the keeper's journal" in sentence
    assert "\n" not in sentence
    sent = len(world.calls)
    controller.run(5)
    assert len(world.calls) == sent
