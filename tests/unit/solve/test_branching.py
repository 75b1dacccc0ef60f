"""Small problems are answered exactly: held to every plan there is."""

import itertools

import numpy as np
import pytest

from joulecut_controller.graph.build import build
from joulecut_controller.hardware import ClockOption, undominated
from joulecut_controller.solve.branching import branched, small
from joulecut_controller.solve.problem import Goal, Problem
from joulecut_controller.solve.schedule import baseline, energy, makespan
from joulecut_controller.solve.solver import Solver
from joulecut_controller.workload import Pipeline


def _problem(seed: int) -> Problem:
    """One or two stages, few options, times and energies like dice: far from convex."""
    dice = np.random.default_rng(seed)
    stages, microbatches = (1, 3) if seed % 2 else (2, 2)
    schedule = "1f1b" if seed % 3 else "gpipe"
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
    proof = branched(problem, goal, goal.deadline_s)
    assert proof.bound_j <= best_j
    assert proof.bound_j >= best_j * (1.0 - 1e-3)
    answer = Solver(problem, "computation", "thorough").solve(goal)
    assert answer.lower_bound_j <= best_j <= answer.energy_j * (1.0 + 1e-12)
    assert answer.gap <= 1e-3


def test_large_problems_are_left_to_the_search() -> None:
    menu = tuple(ClockOption(1410 - 15 * k, 1.0 + 0.01 * k, 400.0 - k) for k in range(20))
    graph = build(Pipeline(schedule="1f1b", stages=4, microbatches=8))
    problem = Problem(graph, (menu,) * len(graph.operations), (80.0,) * 4)
    assert not small(problem)
