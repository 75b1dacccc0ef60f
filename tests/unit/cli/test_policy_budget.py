"""`policy check` says what a power budget means, and refuses one that no limits can keep."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_controller.policy.policy import Cost, GpuRef, JobPolicy, Policy, Slo
from joulecut_controller.policy.preview import (
    best_break_even,
    budget_check,
    hindrances,
    limit_warnings,
)
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Pipeline, Profile
from joulecut_engine.money import Iteration, Prices, worth
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import solve
from joulecut_wire.errors import BadInput

JOB = JobPolicy("a", "enforce", Slo(max_slowdown=0.0), gpus=(GpuRef("n1", 0), GpuRef("n1", 1)))


def board(*, keeps: bool = True, settable: bool = True) -> dict[str, Any]:
    gpu = {
        "node": "n1",
        "power_limit_w": 500.0,
        "power_limit_least_w": 100.0,
        "power_controllable": settable,
        "why_not_controllable": "" if settable else "MIG is on",
    }
    return {
        "nodes": [{"node": "n1", "keeps_power_limits": keeps}],
        "gpus": [{**gpu, "index": index} for index in range(2)],
    }


def policy(budget_w: float | None, host_power_w: float = 0.0) -> Policy:
    cost = Cost(host_power_w=host_power_w)
    return Policy(jobs=(JOB,), cost=cost, power_budget_w=budget_w, source="p.yaml")


@given(
    probes=st.lists(st.tuples(st.floats(0.1, 2.0), st.floats(50.0, 700.0)), min_size=2, max_size=6),
    microbatches=st.integers(2, 6),
    slowdown=st.floats(0.0, 0.3),
)
@settings(max_examples=40, deadline=None)
def test_no_plan_breaks_even_above_the_bound_of_its_profile(
    probes: list[tuple[float, float]], microbatches: int, slowdown: float
) -> None:
    """So a limit above the bound loses money whatever the plan."""
    options = tuple(ClockOption(900 + 15 * i, t, t * w) for i, (t, w) in enumerate(probes))
    profile = Profile({(s, k): options for s in range(2) for k in ("forward", "backward")})
    shape = Pipeline("1f1b", 2, microbatches)
    job = replace(JOB, profile=profile, blocking_power_w=40.0, pipeline=shape)
    asked = problem(shape, profile, 40.0)
    fastest = baseline(asked)
    plan = solve(asked, Goal(fastest.iteration_time_s * (1.0 + slowdown)), "computation")
    ends = (Iteration(one.iteration_time_s, one.energy_j) for one in (fastest, plan))
    bound = best_break_even(job, Prices())
    assert worth(*ends, 2, Prices()).break_even_slowdown <= bound + 1e-12


def test_a_limit_above_break_even_is_a_warning_unless_watts_are_short() -> None:
    loose = replace(JOB, slo=Slo(max_slowdown=0.02))
    assert list(limit_warnings(Policy(jobs=(JOB, loose)), Prices())) == ["a"]
    text = limit_warnings(Policy(jobs=(loose,)), Prices())["a"]
    assert "max_slowdown 2 % is above the break-even of about 0.31 %" in text
    assert limit_warnings(Policy(jobs=(loose,), power_budget_w=1e5), Prices()) == {}
    assert limit_warnings(Policy(jobs=(loose,)), Prices(gpu_hour=0.1)) == {}


def test_without_a_budget_there_is_nothing_to_say() -> None:
    assert budget_check(policy(None), board()) is None


def test_a_budget_below_the_least_limits_is_refused_with_the_least_figure() -> None:
    with pytest.raises(BadInput, match=r"cluster\.power_budget_w.*allowed: 260 W or more"):
        budget_check(policy(250.0, host_power_w=30.0), board())
    with pytest.raises(BadInput, match="allowed: 60 W or more"):
        budget_check(policy(50.0, host_power_w=30.0), None)


@pytest.mark.parametrize(
    ("given", "why"), [({"keeps": False}, "keeper"), ({"settable": False}, "MIG is on")]
)
def test_what_cannot_be_limited_makes_it_best_effort(given: dict[str, bool], why: str) -> None:
    found = budget_check(policy(1500.0), board(**given))
    assert why in found["text"]
    assert len(found["best_effort"]) == 2
    fine = budget_check(policy(1500.0), board())
    assert fine["best_effort"] == []


def test_gpus_that_no_command_can_reach_are_named() -> None:
    one = {**board(settable=False), "jobs": []}
    assert hindrances(policy(None), None) == {}
    assert hindrances(policy(None), one) == {"a": "GPU n1/0: not controllable: MIG is on"}
    assert hindrances(policy(None), {**board(), "jobs": [], "gpus": []}) == {
        "a": "GPU n1/0: no agent has it"
    }
    known = {**board(), "jobs": [{"name": "a", "hindrance": "its agent sees drift"}]}
    assert hindrances(policy(None), known) == {"a": "its agent sees drift"}


def test_recommend_sends_nothing() -> None:
    quiet = JobPolicy("a", "recommend", Slo(max_slowdown=0.0))
    found = budget_check(Policy(jobs=(quiet,), power_budget_w=1500.0), board())
    assert "no command is sent" in found["text"]
