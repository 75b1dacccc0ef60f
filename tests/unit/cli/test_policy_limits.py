"""`policy check` warns of limits that lose money."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_cli.policy import best_break_even, limit_warnings
from joulecut_controller.policy.policy import GpuRef, JobPolicy, Policy, Slo
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Pipeline, Profile
from joulecut_engine.money import Iteration, Prices, worth
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import solve

JOB = JobPolicy("a", "enforce", Slo(max_slowdown=0.0), gpus=(GpuRef("n1", 0), GpuRef("n1", 1)))


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
