"""Clocks that make room for a hold-out window: what comes back, when, and what does not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import case_of, costs_of, seen, view_of, with_baseline
from worlds import World

from joulecut_controller.plan.planner import FIT_RATIO, Decision, decide
from joulecut_controller.plan.planning_input import Case, Standing
from joulecut_controller.plan.solver_cache import Answers
from joulecut_engine.estimate.profile_estimator import ProfileEstimator
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.solver import Solver

WORLD = World(stages=3, microbatches=9)
ESTIMATOR = ProfileEstimator({WORLD.job: WORLD.profile()})
ANSWERS = Answers(Solver)
SENTENCE = "hold-out window 3 of today: default clocks until 14:05 UTC, to measure the saving"
WINDOW_S = 330.0


def case(later_s: float = 0.0, baseline_ratio: float = 1.0, slowdown: float = 0.03) -> Case:
    """A job whose baseline is what the model says, times `baseline_ratio`."""
    view = view_of(WORLD, WORLD.now_s + later_s)
    asked = seen(WORLD, slowdown)
    return case_of(with_baseline(asked, costs_of(asked, view, ESTIMATOR), baseline_ratio), view)


def decided(asked: Case, standing: Standing) -> Decision:
    return decide(asked, standing, ESTIMATOR, ANSWERS)


def running() -> Standing:
    """A plan that runs for a while."""
    made = decided(case(later_s=-600.0), Standing())
    assert made.verdict == "change"
    return made.standing


def held_out(standing: Standing, later_s: float = 0.0) -> Decision:
    return decided(replace(case(later_s), holdout=SENTENCE), standing)


def released(standing: Standing) -> Standing:
    """As the steward leaves it once GPUs were given back."""
    return replace(standing, clocks=None, goal=None)


def test_a_hold_out_is_default_clocks_with_its_own_word() -> None:
    made = held_out(running())
    assert (made.verdict, made.topic, made.reason) == ("default", "holdout", SENTENCE)
    assert made.standing.clocks is None
    again = held_out(released(made.standing), later_s=30.0)
    assert again.standing.aside == made.standing.aside


@settings(max_examples=20, deadline=None)
@given(st.floats(1.0 - 0.9 * FIT_RATIO, 1.0 + 0.9 * FIT_RATIO))
def test_the_same_clocks_come_back_whatever_noise_the_baseline_has(ratio: float) -> None:
    before = running()
    resting = released(held_out(before).standing)
    asked = case(WINDOW_S, ratio)
    made = decided(asked, resting)
    assert made.verdict == "change"
    assert made.standing.clocks == before.clocks
    assert made.standing.aside is None
    assert made.standing.pace == before.pace
    assert "the hold-out window is over, the same clocks again" in made.reason
    choice = made.choice
    assert choice is not None
    # The guard's own view of it: the plan keeps the promise it carries.
    assert check(choice.costs.problem, choice.goal, choice.solution) == ()
    assert choice.forecast.iteration_time_s <= choice.deadline_s * (1 + 1e-6)
    assert asked.job.baseline is not None
    allowed_s = asked.job.baseline.time_mean_s * 1.03
    assert choice.deadline_s <= allowed_s * (1 + FIT_RATIO) * (1 + 1e-6)


@pytest.mark.parametrize("slowdown", [0.0, 0.01, 0.10])
def test_other_clocks_run_where_the_promise_became_another(slowdown: float) -> None:
    before = running()
    resting = released(held_out(before).standing)
    made = decided(case(WINDOW_S, slowdown=slowdown), resting)
    assert made.standing.clocks != before.clocks
    assert "the same clocks" not in made.reason
    if made.choice is not None:
        allowed_s = made.choice.prospect.baseline_s * (1.0 + slowdown)
        assert made.choice.deadline_s == pytest.approx(allowed_s)


def test_after_a_window_that_was_cut_short_clocks_wait_for_the_dwell() -> None:
    resting = released(held_out(running()).standing)
    soon = decided(case(later_s=2.0), resting)
    assert (soon.verdict, soon.topic) == ("default", "holdout")
    assert "cut short" in soon.reason
    assert soon.standing.aside is not None
    assert decided(case(later_s=6.0), released(soon.standing)).verdict == "change"


@pytest.mark.parametrize(
    "hindered",
    [
        {"paused": "standing back"},
        {"silent": True},
        {"mode": "recommend"},
        {"unready": "warming up"},
    ],
)
def test_whatever_forbids_a_plan_forbids_a_hold_out_and_forgets_what_ran(
    hindered: dict[str, object],
) -> None:
    resting = released(held_out(running()).standing)
    asked = replace(case(30.0), holdout=SENTENCE, **hindered)  # type: ignore[arg-type]
    made = decided(asked, resting)
    assert made.standing.aside is None or made.topic == "holdout"
    if "mode" not in hindered:
        assert made.topic != "holdout"


def test_nothing_is_put_aside_where_nothing_ran() -> None:
    assert held_out(Standing(mode="enforce")).standing.aside is None
