"""The whole loop on a simulated job and a virtual clock: its modes, and what it promises."""

from dataclasses import replace

from changing import ChangingWorld
from enforced import PASSES_TO_PLAN, enforcing
from worlds import Controller, World

from joulecut_controller.policy.policy import Slo
from joulecut_controller.store.database import DatabaseStore
from joulecut_engine.optimize.check import check


def test_recommend_then_enforce_then_recommend(world: World, store: DatabaseStore) -> None:
    controller = Controller(world, store, world.policy("recommend"))
    controller.run(60)
    recommended = controller.job.decision
    assert recommended.mode == "recommend"
    assert any(action.verb == "lower" for action in recommended.actions)
    assert recommended.forecast.saved_ratio > 0.05
    assert recommended.generation in {
        one.generation for one in store.events() if one.kind == "plan"
    }
    assert controller.job.applied is None
    assert world.calls == []
    controller.source.put(world.policy("enforce", digest="2"))
    controller.run(2)
    applied = controller.job.applied
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
    baseline = controller.job.view.measured.baseline
    assert world.recent_s() <= baseline.time_mean_s * 1.021
    assert controller.job.account.measured_j is None  # nothing was paired: no hold-outs
    assert controller.job.account.predicted_j > 0
    current = controller.job.view.measured.current
    forecast = controller.job.applied.forecast
    assert abs(current.energy_j / forecast.energy_j - 1.0) < 0.02


def test_with_nothing_new_nothing_happens(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    controller.run(60)  # the careful first plan, and the better one that it leads to
    plans, audit = controller.plans(), len(store.events(limit=1000))
    applies = len(world.sent("apply"))
    controller.run(30)
    assert controller.plans() == plans
    assert len(world.sent("apply")) == applies
    assert len(world.sent("renew")) > 30
    assert len(store.events(limit=1000)) == audit


def test_a_plan_that_comes_out_late_is_backed_off(world: World, store: DatabaseStore) -> None:
    """Something slows the job below default clocks that no report explains."""
    world.hidden_ratio = 1.012
    controller = enforcing(world, store, slo=Slo(max_slowdown=0.02))
    baseline = controller.job.view.measured.baseline
    assert any("backing off" in text for text in controller.events("verify"))
    assert world.recent_s() <= baseline.time_mean_s * 1.021
    first, *_ = controller.plans()
    assert controller.job.applied.generation > first
    raised = [call for call in world.sent("apply") if call.generation > first]
    assert raised


def test_a_late_plan_whose_correction_is_refused_ends_at_default_clocks(
    world: World, store: DatabaseStore
) -> None:
    world.hidden_ratio = 1.012
    faults: list[str] = []
    policy = world.policy(slo=Slo(max_slowdown=0.02))
    controller = Controller(
        world, store, policy, judge=lambda *asked: tuple(faults) or check(*asked)
    )
    controller.run(60, until=lambda: not world.at_default())
    assert not world.at_default()
    faults.append("planted fault")
    controller.run(60, until=world.at_default)
    assert world.at_default()
    decided = controller.job.decision
    assert decided.reason == "late, and the next plan is refused: planted fault"
    controller.run(20)
    assert world.at_default()  # the same plan is refused from there as well


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


def test_a_graph_that_does_not_explain_the_job_changes_nothing(store: DatabaseStore) -> None:
    """Half of the microbatches stand in the policy: the model is off by far more than 3 %. The job
    reports no operations, which would show how many there are.
    """
    world = ChangingWorld()
    world.detailed = False
    policy = world.policy(pipeline=replace(world.pipeline, microbatches=12))
    controller = Controller(world, store, policy)
    controller.run(40)
    assert world.calls == []
    assert "the pipeline graph predicts" in controller.job.sentence


def test_microbatches_that_run_count_where_the_policy_has_others(store: DatabaseStore) -> None:
    world = World()
    policy = world.policy(pipeline=replace(world.pipeline, microbatches=12))
    controller = Controller(world, store, policy)
    controller.run(40)
    assert not world.at_default()
    pipeline = controller.job.view.policy.pipeline
    assert pipeline.microbatches == world.pipeline.microbatches


def test_while_the_solver_is_made_ready_passes_go_on_without_a_plan(
    world: World, store: DatabaseStore
) -> None:
    why = ["the solver is being compiled"]
    controller = Controller(world, store, world.policy(), unready=lambda: why[0])
    controller.run(PASSES_TO_PLAN)
    assert controller.job.view.measured.baseline is not None
    assert controller.job.sentence == why[0]
    assert world.at_default()
    why[0] = ""
    controller.run(5, until=lambda: not world.at_default())
    assert not world.at_default()
