"""Events moved and cooled: never late, never worse, and better than windows where it counts."""

import numpy as np
import pipelines
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.optimize.anneal import Annealer
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.rounding import Rounder
from joulecut_engine.optimize.solver import solve

FACTORS = st.sampled_from([1.0, 1.01, 1.1, 1.4, 3.0])
MOVES = 3_000


@settings(max_examples=40, deadline=None)
@given(pipelines.problems(3, 4, 4), FACTORS, st.integers(1, 2**32))
def test_any_number_of_moves_leaves_a_plan_in_time_and_no_dearer(
    problem: Problem, factor: float, seed: int
) -> None:
    computation = Computation(problem)
    network = computation.network
    menu = Rounder(network, np.zeros(network.size, dtype=np.int64)).menu
    horizon_s = computation.fastest_s * factor
    price_w = problem.time_price_w
    option = Annealer(network, menu).cooled(menu.first.copy(), horizon_s, price_w, MOVES, seed)
    assert ((menu.first <= option) & (option < menu.last)).all()
    end_s = network.ends(menu.time[option]).max()
    assert end_s <= horizon_s * (1 + 1e-10)
    before_j = menu.cost[menu.first].sum() + price_w * computation.fastest_s
    after_j = menu.cost[option].sum() + price_w * end_s
    assert after_j <= before_j + 1e-9 * abs(before_j)


@settings(max_examples=25, deadline=None)
@given(pipelines.problems(2, 2, 3), FACTORS, st.booleans())
def test_small_plans_end_at_or_near_the_best(problem: Problem, factor: float, waits: bool) -> None:
    computation = Computation(problem, combinations_all=0)
    goal = Goal(computation.fastest_s * factor, waits)
    best = pipelines.brute_force(problem, goal)
    plan = computation.solve(goal, computation.relax(goal), rolls=4, moves=MOVES)
    assert check(problem, goal, plan) == ()
    assert best is not None
    assert best * (1 - 1e-9) <= plan.energy_j <= 1.05 * best + 1e-9


def test_it_goes_on_where_windows_stall() -> None:
    problem = pipelines.public_problem("a40", microbatches=24)
    computation = Computation(problem)
    goal = Goal(computation.fastest_s * 1.005)
    relaxed = computation.relax(goal)
    windows = computation.solve(goal, relaxed, rolls=60)
    moved = computation.solve(goal, relaxed, (windows,), rolls=0, moves=1_000_000)
    assert check(problem, goal, moved) == ()
    assert moved.energy_j < windows.energy_j


def test_a_thorough_answer_is_certified_to_a_quarter_percent() -> None:
    """The promise for 12 to 47 microbatches, where it is hardest: few options fit, no slack."""
    problem = pipelines.public_problem("a40", microbatches=12)
    goal = Goal(Computation(problem).fastest_s * 1.005)
    plan = solve(problem, goal, "computation", effort="thorough")
    assert check(problem, goal, plan) == ()
    assert plan.gap <= 0.0025
    assert plan == solve(problem, goal, "computation", effort="thorough")
