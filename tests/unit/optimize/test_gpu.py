"""One clock per GPU: optimal where it can be proven, never late, never two clocks."""

import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Pipeline, Profile
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.problem import Goal, Infeasible
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver, solve


@settings(max_examples=80)
@given(st.data())
def test_brute_force_finds_hardly_better(data: st.DataObject) -> None:
    problem = data.draw(pipelines.problems(3, 3, 5, same_clocks=True))
    goal = data.draw(pipelines.goals(Solver(problem, "gpu").fastest_s))
    plan = solve(problem, goal, "gpu")
    best = pipelines.brute_force_gpu(problem, goal)
    assert check(problem, goal, plan) == ()
    assert plan.lower_bound_j <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= plan.energy_j <= best * 1.05


@settings(max_examples=40)
@given(st.data())
def test_no_plan_per_gpu_beats_the_bound_per_operation(data: st.DataObject) -> None:
    problem = data.draw(pipelines.problems(3, 4, 4, same_clocks=True))
    goal = Goal(Solver(problem, "gpu").fastest_s * data.draw(st.sampled_from([1.0, 1.3, 2.0])))
    fine = solve(problem, goal, "computation")
    coarse = solve(problem, goal, "gpu")
    assert coarse.energy_j >= fine.lower_bound_j * (1 - 1e-9)
    assert coarse.lower_bound_j >= fine.lower_bound_j * (1 - 1e-9)


def test_a_clock_that_is_dominated_for_one_kind_can_still_be_the_best() -> None:
    forward = (ClockOption(1400, 1.0, 100.0), ClockOption(900, 1.2, 80.0))
    backward = (ClockOption(1400, 2.0, 200.0), ClockOption(900, 2.0, 201.0))
    profile = Profile({(0, "forward"): forward, (0, "backward"): backward})
    problem = build(Pipeline("1f1b", 1, 1), profile, 0.0)
    goal = Goal(4.0)
    plan = solve(problem, goal, "gpu")
    assert {option.clock_mhz for option in plan.clocks} == {900}
    assert plan.energy_j == 281.0
    assert check(problem, goal, plan) == ()


def test_the_fastest_with_one_clock_may_be_slower_than_the_baseline() -> None:
    forward = (ClockOption(1400, 1.0, 1.0), ClockOption(900, 2.0, 1.0))
    backward = (ClockOption(1400, 2.0, 1.0), ClockOption(900, 1.0, 1.0))
    problem = build(
        Pipeline("1f1b", 1, 1), Profile({(0, "forward"): forward, (0, "backward"): backward}), 0.0
    )
    with pytest.raises(Infeasible, match="fastest possible 3 s"):
        solve(problem, Goal(baseline(problem).iteration_time_s), "gpu")


@pytest.mark.parametrize("stages", [64, 65, 100])
def test_a_deep_pipeline_with_hardly_a_choice(stages: int) -> None:
    only = (ClockOption(1400, 1.0, 100.0),)
    menus = {(stage, kind): only for stage in range(stages) for kind in KINDS}
    slower = ClockOption(900, 1.5, 70.0)
    menus |= {(0, kind): (*only, slower) for kind in KINDS}
    problem = build(Pipeline("1f1b", stages, 2), Profile(menus), 0.0)
    goal = Goal(baseline(problem).iteration_time_s * 1.5)
    plan = solve(problem, goal, "gpu")
    assert check(problem, goal, plan) == ()
    assert [option.clock_mhz for option in plan.clocks].count(900) == 4


@pytest.mark.parametrize("slowdown", [0.0, 0.01, 0.05])
def test_the_gap_is_honest_and_small(slowdown: float) -> None:
    problem = pipelines.profiled("simulated a100", microbatches=12)
    goal = Goal(baseline(problem).iteration_time_s * (1 + slowdown))
    plan = solve(problem, goal, "gpu")
    assert check(problem, goal, plan) == ()
    assert plan.bound_granularity == "gpu"
    assert plan.gap <= 0.004
    finer = solve(problem, goal, "computation")
    assert finer.lower_bound_j < plan.lower_bound_j
