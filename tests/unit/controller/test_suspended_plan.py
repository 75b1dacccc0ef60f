"""Clocks that make room for a hold-out window: what comes back, when, and what does not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_states import changed
from planning import case_of, costs_of, seen, view_of, with_baseline
from worlds import World

from joulecut_controller.plan.planner import FIT_RATIO, Decision, decide
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.solver_cache import SolverCache
from joulecut_controller.plan.veto import Kind, Veto
from joulecut_controller.policy.policy import TOLERANCE_RATIO
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.solver import Solver

WORLD = World(stages=3, microbatches=9)
ESTIMATOR = OnlineEstimator({WORLD.job: WORLD.profile()})
ANSWERS = SolverCache(Solver)
SENTENCE = "hold-out window: default clocks until 14:05 UTC, to measure the saving"
WINDOW = Veto("default-window", SENTENCE)
WINDOW_S = 330.0


def inputs(
    later_s: float = 0.0, baseline_ratio: float = 1.0, slowdown: float = 0.03
) -> PlanningInput:
    """A job whose baseline is what the model says, times `baseline_ratio`."""
    view = view_of(WORLD, WORLD.now_s + later_s)
    asked = seen(WORLD, slowdown)
    return case_of(with_baseline(asked, costs_of(asked, view, ESTIMATOR), baseline_ratio), view)


def decided(asked: PlanningInput, state: PlannerState) -> Decision:
    return decide(asked, state, ESTIMATOR, ANSWERS)


def running() -> PlannerState:
    """A plan that runs for a while."""
    made = decided(inputs(later_s=-600.0), PlannerState())
    assert made.verdict == "change"
    return made.state


def held_out(state: PlannerState, later_s: float = 0.0) -> Decision:
    return decided(replace(inputs(later_s), vetoes=(WINDOW,)), state)


def released(state: PlannerState) -> PlannerState:
    """As the steward leaves it once GPUs were given back."""
    return replace(state, clocks=None, goal=None)


def test_a_hold_out_is_default_clocks_with_its_own_word() -> None:
    made = held_out(running())
    assert (made.verdict, made.topic, made.reason) == ("default", "default-window", SENTENCE)
    assert made.state.clocks is None
    again = held_out(released(made.state), later_s=30.0)
    assert again.state.suspended == made.state.suspended


@settings(max_examples=20, deadline=None)
@given(st.floats(1.0 - 0.9 * FIT_RATIO, 1.0 + 0.9 * FIT_RATIO))
def test_the_same_clocks_come_back_whatever_noise_the_baseline_has(ratio: float) -> None:
    before = running()
    resting = released(held_out(before).state)
    asked = inputs(WINDOW_S, ratio)
    made = decided(asked, resting)
    assert made.verdict == "change"
    assert made.state.clocks == before.clocks
    assert made.state.suspended is None
    assert made.state.pace == before.pace
    assert "the window at default clocks is over, the same clocks again" in made.reason
    plan = made.plan
    assert plan is not None
    assert plan.basis is not None
    assert plan.basis.problem is not None
    assert plan.basis.goal is not None
    assert plan.solution is not None
    assert plan.forecast is not None
    assert plan.deadline_s is not None
    # The guard's own view of it: the plan keeps the promise it carries.
    assert check(plan.basis.problem, plan.basis.goal, plan.solution) == ()
    assert plan.forecast.iteration_time_s <= plan.deadline_s * (1 + 1e-6)
    assert asked.job.measured.baseline is not None
    allowed_s = asked.job.measured.baseline.time_mean_s * 1.03
    assert plan.deadline_s <= allowed_s * (1 + FIT_RATIO) * (1 + 1e-6)


@pytest.mark.parametrize("slowdown", [0.0, 0.01, 0.10])
def test_other_clocks_run_where_the_promise_became_another(slowdown: float) -> None:
    before = running()
    resting = released(held_out(before).state)
    made = decided(inputs(WINDOW_S, slowdown=slowdown), resting)
    assert made.state.clocks != before.clocks
    assert "the same clocks" not in made.reason
    if made.plan is not None:
        assert made.solved is not None
        allowed_s = made.solved[0].baseline_s * (1.0 + max(slowdown, TOLERANCE_RATIO))
        assert made.plan.deadline_s == pytest.approx(allowed_s)


def test_after_a_window_that_was_cut_short_clocks_wait_for_the_dwell() -> None:
    resting = released(held_out(running()).state)
    soon = decided(inputs(later_s=2.0), resting)
    assert (soon.verdict, soon.topic) == ("default", "dwell")
    assert soon.state.suspended is not None
    assert decided(inputs(later_s=6.0), released(soon.state)).verdict == "change"


@pytest.mark.parametrize("kind", ["command", "breaker", "back-off", "unready"])
def test_a_veto_that_releases_forgets_what_a_window_suspended(kind: Kind) -> None:
    resting = released(held_out(running()).state)
    stricter = Veto(kind, "standing back")
    made = decided(replace(inputs(30.0), vetoes=(WINDOW, stricter)), resting)
    assert made.verdict == "default"
    assert made.state.suspended is None


def test_a_silent_job_goes_on_after_a_window() -> None:
    before = running()
    resting = released(held_out(before).state)
    asked = inputs(30.0)
    quiet = changed(asked.job, report_age_s=1e3)
    silent = decided(replace(asked, job=quiet), resting)
    assert (silent.verdict, silent.topic) == ("default", "silent")
    assert decided(inputs(WINDOW_S), released(silent.state)).state.clocks == before.clocks


def test_without_a_plan_nothing_is_suspended() -> None:
    assert held_out(PlannerState(mode="enforce")).state.suspended is None
