"""Options without time: left out of the bound, never out of a plan that is on time."""

from random import Random

import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.graph import graph_of
from joulecut_engine.graph.pipeline import Operation
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.deadline_presolve import fitting
from joulecut_engine.optimize.network import network_of
from joulecut_engine.optimize.problem import Effort, Goal, Problem
from joulecut_engine.optimize.schedule import makespan
from joulecut_engine.optimize.solver import solve


@settings(max_examples=60, deadline=None)
@given(pipelines.problems(3, 4, 5), st.integers(0, 2**32))
def test_no_plan_on_time_is_lost(problem: Problem, seed: int) -> None:
    """Any plan, given exactly the time it takes."""
    random = Random(seed)
    clocks = tuple(random.choice(menu) for menu in problem.options)
    time_s, _ = makespan(problem, clocks)
    fitted = fitting(problem, network_of(problem), time_s)
    menus = problem.options if fitted is None else fitted.options
    for clock, menu, before in zip(clocks, menus, problem.options, strict=True):
        assert clock in menu
        assert menu == before[: len(menu)]


def test_at_the_fastest_time_the_critical_path_has_no_choice() -> None:
    menu = (ClockOption(1400, 1.0, 90.0), ClockOption(1000, 1.3, 60.0))
    operations = [Operation(0, k, "forward") for k in range(3)] + [Operation(1, 0, "forward")]
    graph = graph_of(operations, [(0, 1), (1, 2)], 2)
    problem = Problem(graph, (menu,) * 4, (1.0, 1.0))
    fitted = fitting(problem, network_of(problem), 3.0)
    assert fitted is not None
    sizes = {o: len(m) for o, m in zip(graph.operations, fitted.options, strict=True)}
    assert [sizes[o] for o in operations] == [1, 1, 1, 2]
    assert fitting(problem, network_of(problem), 3.9) is None


@pytest.mark.parametrize("effort", ["quick", "usual", "thorough"])
@pytest.mark.parametrize("waits", [False, True])
def test_minutes_do_not_make_a_bound_of_seconds_loose(effort: Effort, waits: bool) -> None:
    """Each operation by itself may take a second, two, or too long for next to nothing."""
    random = Random(1)
    menu = tuple(
        ClockOption(1400 - k, time_s, energy_j)
        for k, (time_s, energy_j) in enumerate([(1.0, 90.0), (2.0, 80.0), (150.0, 10.0)])
    )
    # A GPU each: no order is given, and two at once on one GPU are no plan.
    operations = [Operation(k, k, "forward") for k in range(200)]
    edges = [(k, k + 4) for k in range(196) if random.random() < 0.5]
    problem = Problem(graph_of(operations, edges, 200), (menu,) * 200, (0.0,) * 200)
    goal = Goal(120.0, waits)
    plan = solve(problem, goal, "computation", effort=effort)
    assert check(problem, goal, plan) == ()
    assert plan.gap < 1e-6
