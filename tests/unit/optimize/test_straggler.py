"""What a pipeline does while a sibling is late."""

import pytest
from heavy_end import job
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import brute_force, problems

from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import baseline, energy
from joulecut_engine.optimize.solver import Solver


@settings(max_examples=20)
@given(problems(2, 2, 3), st.sampled_from([1.0, 1.2, 2.0]))
def test_a_plan_that_waits_is_right_and_its_bound_holds(asked: Problem, late: float) -> None:
    frontier = Solver(asked, "computation")
    goal = Goal(late * frontier.fastest_s, waits=True)
    found, best_j = frontier.at(goal), brute_force(asked, goal)
    until_s = goal.deadline_s
    assert found.iteration_time_s <= until_s * (1 + 1e-9)
    assert found.energy_j == pytest.approx(energy(asked, found.clocks, until_s), rel=1e-9)
    assert found.lower_bound_j <= best_j * (1 + 1e-9)
    assert best_j <= found.energy_j * (1 + 1e-9)


def test_a_plan_that_waits_saves_more_than_waiting_at_default_clocks() -> None:
    frontier = Solver(job(), "computation")
    late_s = 1.2 * frontier.fastest_s
    found = frontier.at(Goal(late_s, waits=True))
    assert found.energy_j < 0.9 * energy(job(), baseline(job()).clocks, late_s)
