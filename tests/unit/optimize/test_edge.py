"""A second clock for the first forward and the last backward, and what bounds coarse plans."""

import itertools

import numpy as np
import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.clock_groups import Groups
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.shared_clock import SharedClock
from joulecut_engine.optimize.shared_clock_bound import Bounds, Task
from joulecut_engine.optimize.solver import Solver, solve

COARSE: tuple[Granularity, ...] = ("gpu", "edge")


def clocks_of(problem: Problem, goal: Goal) -> float | None:
    """Least energy of all plans with two clocks per stage, written out."""
    sets = []
    for indices in problem.graph.order:
        kinds = [problem.graph.operations[i].kind for i in indices]
        first, last = kinds.index("forward"), len(kinds) - 1 - kinds[::-1].index("backward")
        between = indices[first + 1 : last]
        sets += [[i for i in indices if i not in between], list(between)]
    sets = [members for members in sets if members]
    menus = problem.measured
    shared = [
        sorted(set.intersection(*({o.clock_mhz for o in menus[i]} for i in members)))
        for members in sets
    ]
    best: float | None = None
    for choice in itertools.product(*shared):
        clock = {i: c for members, c in zip(sets, choice, strict=True) for i in members}
        clocks = tuple(
            next(o for o in menus[i] if o.clock_mhz == clock[i]) for i in range(len(menus))
        )
        energy_j = pipelines.priced(problem, goal, clocks)
        if energy_j is not None and (best is None or energy_j < best):
            best = energy_j
    return best


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_small_plans_are_optimal(data: st.DataObject) -> None:
    problem = data.draw(pipelines.problems(2, 3, 4, same_clocks=True))
    goal = data.draw(pipelines.goals(Solver(problem, "edge").fastest_s))
    plan = solve(problem, goal, "edge")
    assert check(problem, goal, plan) == ()
    assert plan.energy_j == pytest.approx(clocks_of(problem, goal), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(COARSE), st.sampled_from([0, 12]))
def test_the_search_alone_is_near_and_never_below_its_bound(
    data: st.DataObject, granularity: Granularity, cases: int
) -> None:
    problem = data.draw(pipelines.problems(2, 3, 4, same_clocks=True))
    computation = Computation(problem)
    tied = SharedClock(computation, granularity, combinations_all=0)
    goal = data.draw(pipelines.goals(tied.fastest_s))
    plan = tied.solve(goal, computation.relax(goal), effort=cases)
    brute = clocks_of if granularity == "edge" else pipelines.brute_force_gpu
    best = brute(problem, goal)
    assert best is not None
    assert check(problem, goal, plan) == ()
    assert best * (1 - 1e-9) <= plan.energy_j <= best * 1.05
    assert plan.lower_bound_j <= best * (1 + 1e-9)


@pytest.mark.parametrize("granularity", COARSE)
@pytest.mark.parametrize("slowdown", [0.0, 0.01, 0.05])
def test_the_gap_of_coarse_plans_is_honest_and_small(
    granularity: Granularity, slowdown: float
) -> None:
    problem = pipelines.profiled("simulated a100", microbatches=12)
    goal = Goal(baseline(problem).iteration_time_s * (1 + slowdown))
    plan = solve(problem, goal, granularity)
    assert check(problem, goal, plan) == ()
    assert plan.bound_granularity == granularity
    assert plan.gap <= 0.004
    finer = solve(problem, goal, "computation")
    assert finer.lower_bound_j < plan.lower_bound_j


def test_freedom_saves() -> None:
    problem = pipelines.profiled("simulated a40", microbatches=24)
    goal = Goal(baseline(problem).iteration_time_s * 1.005)
    energies = [solve(problem, goal, g).energy_j for g in ("gpu", "edge", "computation")]
    assert energies == sorted(energies, reverse=True)


def test_distinguishing_cases_only_sharpens_a_bound() -> None:
    problem = pipelines.profiled("simulated a40", microbatches=12)
    computation = Computation(problem)
    groups = Groups(problem, "gpu")
    task = Task(computation.fastest_s * 1.03, problem.time_price_w, computation.fastest_s)
    bounds = Bounds(groups)
    first = bounds.at(task)
    second = bounds.refined(first, task, np.inf, 20)
    assert second.bound_j >= first.bound_j


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(COARSE))
def test_any_prices_prove_something_true(data: st.DataObject, granularity: Granularity) -> None:
    """Whatever the linear program suggests: here prices are drawn at random."""
    problem = data.draw(pipelines.problems(2, 2, 3, same_clocks=True))
    computation = Computation(problem)
    groups = Groups(problem, granularity)
    bounds = Bounds(groups)
    goal = Goal(Solver(problem, granularity).fastest_s * 1.3)
    task = Task(goal.deadline_s, problem.time_price_w, computation.fastest_s)
    bounds.at(task)
    price = st.floats(0.0, 1e4)
    prices_w = np.array([data.draw(price) for _ in bounds._paths])
    brute = clocks_of if granularity == "edge" else pipelines.brute_force_gpu
    best = brute(problem, goal)
    assert best is not None
    assert bounds._lagrange_j(task, np.isfinite(groups.cost_j), prices_w) <= best * (1 + 1e-9)
