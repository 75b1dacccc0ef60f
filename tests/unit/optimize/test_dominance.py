"""More freedom never costs: not more changes, nor what a rule of thumb finds within the limits."""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_cli import jobfile
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.clock_changes import DWELLS
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.problem import ChangeLimits, Goal, NoCommonClock, Problem
from joulecut_engine.optimize.rules_of_thumb import off_path
from joulecut_engine.optimize.schedule import baseline, solution
from joulecut_engine.optimize.solver import Solver, solve
from joulecut_lab.compare import baselines

ROUND_OFF = 1e-9  # of an energy: sums in another order
CARDS = Path(__file__).resolve().parents[3] / "examples" / "cards"
RULES: tuple[Callable[[Problem], list[baselines.Clocks]], ...] = (
    lambda problem: [baselines.all_max(problem)],
    lambda problem: [off_path(problem)],
    baselines.one_clock,
    baselines.clock_per_stage,
    baselines.power_cap,
    baselines.cap_per_stage,
)


def rules_j(
    problem: Problem, goal: Goal, granularity: Granularity, limits: ChangeLimits | None = None
) -> float:
    """What the best plan of a rule takes that this granularity allows; infinite without one."""
    best_j = math.inf
    for rule in RULES:
        try:
            plans = rule(problem)
        except NoCommonClock:
            continue
        for clocks in plans:
            plan = solution(problem, goal, granularity, clocks, 1e-9)
            if not check(problem, goal, replace(plan, limits=limits)):
                best_j = min(best_j, plan.energy_j)
    return best_j


@settings(max_examples=3)
@given(st.data(), st.sampled_from([1.0, 1.02, 1.2]))
def test_no_rule_is_cheaper_than_a_search(data: st.DataObject, factor: float) -> None:
    problem = data.draw(pipelines.problems(3, 4, 4, same_clocks=True))
    shared = Solver(problem, "gpu")
    goal = Goal(shared.fastest_s * factor)
    found_j = [shared.solve(goal).energy_j]
    assert found_j[0] <= rules_j(problem, goal, "gpu") * (1 + ROUND_OFF)
    for most in (2, 4):
        limits = ChangeLimits(most)
        plan = solve(problem, goal, "changes", limits=limits)
        assert check(problem, goal, plan) == ()
        assert plan.energy_j <= rules_j(problem, goal, "changes", limits) * (1 + ROUND_OFF)
        found_j.append(plan.energy_j)
    for fewer_j, more_j in itertools.pairwise(found_j):
        assert more_j <= fewer_j * (1 + ROUND_OFF)


@settings(max_examples=2)
@given(
    pipelines.problems(3, 5, 4, same_clocks=True),
    st.sampled_from([1.0, 1.02, 1.2]),
    st.randoms(use_true_random=False),
)
def test_more_changes_and_shorter_dwells_never_cost(
    problem: Problem, factor: float, dice: random.Random
) -> None:
    """Each question by itself and in any order: none sees what another has found."""
    fastest_s = baseline(problem).iteration_time_s
    goal = Goal(Solver(problem, "gpu").fastest_s * factor)
    dwells_s = [share * fastest_s for share in (*DWELLS[::-1], 0.0)]
    asked = list(itertools.product((0, 2, 3, 4), dwells_s))
    dice.shuffle(asked)
    found_j = {}
    for most, dwell_s in asked:
        limits = ChangeLimits(most, min_dwell_s=dwell_s)
        plan = solve(problem, goal, "changes", limits=limits)
        assert check(problem, goal, plan) == ()
        found_j[most, dwell_s] = plan.energy_j
    for (most, dwell_s), (more, shorter_s) in itertools.product(found_j, repeat=2):
        if more >= most and shorter_s <= dwell_s:
            freer_j, bound_j = found_j[more, shorter_s], found_j[most, dwell_s]
            assert freer_j <= bound_j * (1 + ROUND_OFF)


def test_points_of_a_frontier_are_no_dearer_than_those_of_fewer_changes() -> None:
    """They were at 5 %: that of fewer changes alone began with its plan for a shorter time."""
    problem = pipelines.profiled("simulated a100", microbatches=6, stages=3)
    fastest_s = baseline(problem).iteration_time_s
    few, more = (Solver(problem, "changes", ChangeLimits(most)) for most in (2, 4))
    for slowdown in (0.0, 0.02, 0.05):
        goal = Goal(fastest_s * (1 + slowdown))
        assert more.at(goal).energy_j <= few.at(goal).energy_j * (1 + ROUND_OFF)


@pytest.mark.parametrize("card", ["h200"])
def test_with_enough_changes_no_rule_saves_more_at_full_speed(card: str) -> None:
    """An EnvPipe-like rule, which changes clocks nearly as often as there are operations, saved
    more on an H200 than as many changes did. So did clocks per operation."""
    job = jobfile.read(CARDS / f"{card}.yaml")
    problem = build(replace(job.pipeline, microbatches=5), job.profile, job.blocking_power_w)
    goal, limits = Goal(baseline(problem).iteration_time_s), ChangeLimits(16)
    plan = solve(problem, goal, "changes", limits=limits)
    assert check(problem, goal, plan) == ()
    assert plan.energy_j <= rules_j(problem, goal, "computation") * (1 + ROUND_OFF)
    assert plan.energy_j <= solve(problem, goal, "computation").energy_j * (1 + ROUND_OFF)
