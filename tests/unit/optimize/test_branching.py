"""Small problems are answered exactly: held to every plan there is."""

import itertools

import numpy as np
import pytest

from joulecut_engine.graph.build import build
from joulecut_engine.graph.clock_option import ClockOption, undominated
from joulecut_engine.graph.pipeline import Pipeline, Profile, Schedule
from joulecut_engine.graph.shape import kinds_of
from joulecut_engine.optimize.branching import settled, sliced, small
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.formulation import problem as made
from joulecut_engine.optimize.problem import Goal, Problem, Solution
from joulecut_engine.optimize.schedule import baseline, energy, makespan, solution
from joulecut_engine.optimize.solver import Solver


def _problem(seed: int) -> Problem:
    """One or two stages, few options, times and energies like dice: far from convex."""
    dice = np.random.default_rng(seed)
    stages, microbatches = (1, 3) if seed % 2 else (2, 2)
    schedule: Schedule = "1f1b" if seed % 3 else "gpipe"
    graph = build(Pipeline(schedule=schedule, stages=stages, microbatches=microbatches))
    menus: dict[tuple[int, str], tuple[ClockOption, ...]] = {}
    for operation in graph.operations:
        times = np.sort(dice.uniform(1.0, 3.0, 3))
        joules = np.sort(dice.uniform(200.0, 900.0, 3))[::-1]
        options = tuple(
            ClockOption(1400 - 200 * k, float(t), float(e))
            for k, (t, e) in enumerate(zip(times, joules, strict=True))
        )
        menus.setdefault((operation.stage, operation.kind), undominated(options))
    chosen = tuple(menus[operation.stage, operation.kind] for operation in graph.operations)
    return Problem(graph, chosen, tuple(dice.uniform(0.0, 100.0, stages)))


def _best_j(problem: Problem, goal: Goal) -> float:
    best_j = float("inf")
    for clocks in itertools.product(*problem.options):
        time_s, _ = makespan(problem, clocks)
        if time_s <= goal.deadline_s:
            paid_s = goal.deadline_s if goal.waits else time_s
            best_j = min(best_j, energy(problem, clocks, paid_s))
    return best_j


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("slower", [1.0, 1.13, 1.6])
@pytest.mark.parametrize("waits", [False, True])
def test_the_bound_is_the_best_plan_and_never_above_it(
    seed: int, slower: float, waits: bool
) -> None:
    problem = _problem(seed)
    goal = Goal(baseline(problem).iteration_time_s * slower, waits)
    best_j = _best_j(problem, goal)
    computation = Computation(problem)
    first = Solver(problem, "computation", "quick").solve(goal)
    proof = settled(computation, goal, first)
    assert best_j * (1.0 - 1e-3) <= proof.lower_bound_j <= best_j <= proof.energy_j * (1 + 1e-12)
    assert check(problem, goal, proof) == ()
    answer = Solver(problem, "computation", "thorough").solve(goal)
    assert answer.lower_bound_j <= best_j <= answer.energy_j * (1.0 + 1e-12)
    assert answer.gap <= 1e-3


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("waits", [False, True])
def test_slices_find_the_best_plan_from_the_fastest(seed: int, waits: bool) -> None:
    problem = _problem(seed)
    fastest = baseline(problem)
    goal = Goal(fastest.iteration_time_s * 1.2, waits)
    found = sliced(Computation(problem), goal, _fastest(problem, goal))
    assert found.lower_bound_j <= _best_j(problem, goal) <= found.energy_j * (1.0 + 1e-12)
    assert found.gap <= 2e-3
    assert check(problem, goal, found) == ()


def _fastest(problem: Problem, goal: Goal) -> Solution:
    clocks = tuple(menu[0] for menu in problem.options)
    return solution(problem, goal, "computation", clocks, 1.0)


def test_large_problems_are_left_to_the_search() -> None:
    menu = tuple(ClockOption(1410 - 15 * k, 1.0 + 0.01 * k, 400.0 - k) for k in range(20))
    graph = build(Pipeline(schedule="1f1b", stages=8, microbatches=48))
    problem = Problem(graph, (menu,) * len(graph.operations), (80.0,) * 8)
    assert not small(Computation(problem))


@pytest.mark.parametrize(("schedule", "slower"), [("gpipe", 1.02), ("1f1b", 1.0), ("zb-h1", 1.1)])
def test_few_clocks_and_sends_are_answered_within_the_bar(
    schedule: Schedule, slower: float
) -> None:
    """Three percent were left on such problems before: four stages, three microbatches."""
    dice = np.random.default_rng(7)
    pipeline = Pipeline(schedule, 4, 3, transfers="overlapped")
    rows = {
        (stage, kind): tuple(
            ClockOption(1400 - 200 * k, 0.05 * float(time), 15.0 * float(joules))
            for k, (time, joules) in enumerate(
                zip(np.sort(dice.uniform(1, 2, 4)), -np.sort(-dice.uniform(1, 2, 4)), strict=True)
            )
        )
        for stage in range(4)
        for kind in kinds_of(pipeline)
    }
    asked = made(pipeline, Profile(rows), 80.0)
    goal = Goal(baseline(asked).iteration_time_s * slower)
    found = Solver(asked, "computation", "thorough").solve(goal)
    assert check(asked, goal, found) == ()
    assert found.gap <= 5e-3
