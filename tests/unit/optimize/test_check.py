"""The second opinion: silent on right plans, and each fault it knows is planted here once."""

import ast
import inspect
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Granularity, Pipeline, Profile
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.problem import Goal, Problem, Solution
from joulecut_engine.optimize.solver import solve

OPTIONS = (ClockOption(1400, 1.0, 100.0), ClockOption(1200, 1.2, 90.0), ClockOption(900, 2.0, 80.0))
GOAL = Goal(9.0)


@pytest.fixture
def problem() -> Problem:
    profile = Profile({(stage, kind): OPTIONS for stage in range(2) for kind in KINDS})
    return build(Pipeline("1f1b", 2, 2), profile, 20.0, 3.0)


def other_clock(plan: Solution, i: int) -> tuple[ClockOption, ...]:
    other = next(o for o in OPTIONS if o != plan.clocks[i])
    return (*plan.clocks[:i], other, *plan.clocks[i + 1 :])


FAULTS: dict[str, tuple[Callable[[Solution], Solution], str]] = {
    "a clock is missing": (
        lambda p: replace(p, clocks=p.clocks[1:]),
        "8 operations, but 7 clocks and 8 starts",
    ),
    "a start is missing": (
        lambda p: replace(p, start_s=p.start_s[1:]),
        "8 operations, but 8 clocks and 7 starts",
    ),
    "an option nobody measured": (
        lambda p: replace(p, clocks=(replace(p.clocks[0], energy_j=1.0), *p.clocks[1:])),
        "has no option",
    ),
    "another clock than the times say": (
        lambda p: replace(p, clocks=other_clock(p, 0)),
        "adds up to",
    ),
    "a makespan that is too good": (
        lambda p: replace(p, iteration_time_s=p.iteration_time_s * (1 - 1e-6)),
        "longest path",
    ),
    "a makespan that is too long": (
        lambda p: replace(p, iteration_time_s=p.iteration_time_s * (1 + 1e-6)),
        "longest path",
    ),
    "a start before its input": (
        lambda p: replace(p, start_s=(*p.start_s[:-1], p.start_s[-1] - 0.01)),
        "starts before",
    ),
    "a start before the iteration": (
        lambda p: replace(p, start_s=(-0.1, *p.start_s[1:])),
        "before the iteration",
    ),
    "an end after the iteration": (
        lambda p: replace(p, start_s=(*p.start_s[:-1], p.start_s[-1] + 0.01)),
        "after the iteration",
    ),
    "a start that is no number": (
        lambda p: replace(p, start_s=(float("nan"), *p.start_s[1:])),
        "before the iteration",
    ),
    "energy that does not add up": (
        lambda p: replace(p, energy_j=p.energy_j * (1 + 1e-6)),
        "adds up to",
    ),
    "a bound above the energy": (
        lambda p: replace(p, lower_bound_j=p.energy_j * 1.001),
        "lower bound",
    ),
    "a bound that says nothing": (lambda p: replace(p, lower_bound_j=0.0), "lower bound"),
    "a bound that is no number": (
        lambda p: replace(p, lower_bound_j=float("nan")),
        "lower bound",
    ),
    "a granularity it cannot judge": (
        lambda p: replace(p, granularity="kernel"),
        "unknown granularity kernel",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("granularity", ["computation", "gpu"])
def test_a_planted_fault_is_found(problem: Problem, granularity: Granularity, fault: str) -> None:
    plan = solve(problem, GOAL, granularity)
    assert check(problem, GOAL, plan) == ()
    plant, complaint = FAULTS[fault]
    assert any(complaint in found for found in check(problem, GOAL, plant(plan)))


def test_a_missed_deadline_is_found(problem: Problem) -> None:
    plan = solve(problem, GOAL, "computation")
    tighter = Goal(plan.iteration_time_s * (1 - 1e-8))
    assert any("misses" in found for found in check(problem, tighter, plan))


def test_two_clocks_on_one_gpu_are_found(problem: Problem) -> None:
    plan = solve(problem, GOAL, "computation")
    assert len({option.clock_mhz for option in plan.clocks}) > 1
    found = check(problem, GOAL, replace(plan, granularity="gpu"))
    assert any("granularity gpu means one" in complaint for complaint in found)


def test_waiting_is_charged_to_the_deadline(problem: Problem) -> None:
    alone, waiting = Goal(30.0), Goal(30.0, waits=True)
    plan = solve(problem, waiting, "computation")
    assert check(problem, waiting, plan) == ()
    assert any("adds up to" in found for found in check(problem, alone, plan))


def test_a_graph_that_lets_a_gpu_do_two_things_at_once_is_found(problem: Problem) -> None:
    """Whoever laid out the schedule may have forgotten what a GPU does first."""
    graph, found = problem.graph, set[str]()
    for line in graph.order:
        for pair in itertools.pairwise(line):
            edges = tuple(edge for edge in graph.edges if edge != pair)
            loose = replace(problem, graph=replace(graph, edges=edges))
            found.update(check(loose, GOAL, solve(loose, GOAL, "computation")))
    assert any("share a GPU at one time" in complaint for complaint in found)


def test_it_knows_nothing_of_the_solver() -> None:
    tree = ast.parse(Path(inspect.getfile(check)).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"joulecut_engine.optimize.problem"}
