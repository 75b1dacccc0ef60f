"""Narrowed problems and slices lose no plan: held to every plan there is."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import goals, priced, problems

from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.narrowing import choices, narrowed, without
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import solution
from joulecut_engine.optimize.slices import Size, Slices

CLOSE = 1e-9
PLANS_MAX = 3_000


def _plans(problem: Problem, goal: Goal) -> list[tuple[float, tuple[int, ...]]]:
    """Energy and option numbers of every plan that is in time."""
    found = []
    for chosen in itertools.product(*(range(len(menu)) for menu in problem.options)):
        clocks = tuple(menu[k] for menu, k in zip(problem.options, chosen, strict=True))
        energy_j = priced(problem, goal, clocks)
        if energy_j is not None:
            found.append((energy_j, chosen))
    return found


@st.composite
def _asked(draw: st.DrawFn) -> tuple[Problem, Goal]:
    problem = draw(
        problems(stages_max=2, microbatches_max=2).filter(
            lambda p: 1 < np.prod([float(len(menu)) for menu in p.options]) <= PLANS_MAX
        )
    )
    return problem, draw(goals(Computation(problem).fastest_s))


@given(_asked(), st.sampled_from([1.0, 1.001, 1.02, 1.2]))
@settings(max_examples=40)
def test_no_plan_below_the_target_is_lost(asked: tuple[Problem, Goal], above: float) -> None:
    problem, goal = asked
    plans = _plans(problem, goal)
    best_j = min(plans)[0]
    target_j = best_j + abs(best_j) * (above - 1.0)
    left = narrowed(Computation(problem), goal, target_j)
    assert left is not None
    assert left.bound_j <= best_j * (1 + CLOSE)
    menus = left.computation.problem.options
    kept = [
        energy_j
        for energy_j, chosen in plans
        if all(
            offered[k] in menu
            for offered, k, menu in zip(problem.options, chosen, menus, strict=True)
        )
    ]
    assert min(kept) <= best_j * (1 + CLOSE)


@given(_asked())
@settings(max_examples=40)
def test_nothing_is_left_only_where_nothing_is_better(asked: tuple[Problem, Goal]) -> None:
    problem, goal = asked
    best_j = min(_plans(problem, goal))[0]
    assert narrowed(Computation(problem), goal, best_j) is not None
    below = narrowed(Computation(problem), goal, best_j - 0.5 * abs(best_j))
    assert below is None or below.bound_j <= best_j * 0.5 * (1 + CLOSE)


@given(_asked(), st.sampled_from([1, 2, 3, 48]))
@settings(max_examples=40)
def test_what_slices_lose_adds_up_to_a_bound(asked: tuple[Problem, Goal], rows: int) -> None:
    problem, goal = asked
    plans = _plans(problem, goal)
    best_j, _ = min(plans)
    left = narrowed(Computation(problem), goal, best_j * (1 + CLOSE))
    assert left is not None
    own = left.computation
    lost_j = Slices(own, left.relaxed, goal, own.time_price_w(goal)).losses_j(Size(rows, 250, 400))
    assert lost_j.min() >= 0.0
    assert left.bound_j + lost_j[-1] <= best_j * (1 + CLOSE)
    sure_j = lost_j[:-1][own.network.row]
    assert without(left, goal, best_j * (1 + CLOSE), sure_j) is not None
    assert choices(own.problem) <= choices(problem)


@given(_asked(), st.sampled_from([1, 2, 3, 48]), st.sampled_from([0.0, 0.5]))
@settings(max_examples=40)
def test_a_slice_never_makes_a_plan_dearer_or_late(
    asked: tuple[Problem, Goal], rows: int, begin: float
) -> None:
    problem, goal = asked
    computation = Computation(problem)
    slices = Slices(computation, computation.relax(goal), goal, computation.time_price_w(goal))
    fastest = np.zeros(len(problem.options), dtype=np.int64)
    row = computation.network.row
    found = slices.improved(fastest[row], Size(rows, 250, 60), begin)[row].tolist()
    clocks = tuple(menu[k] for menu, k in zip(problem.options, found, strict=True))
    plan = solution(problem, goal, "computation", clocks, 0.0)
    before = solution(problem, goal, "computation", tuple(menu[0] for menu in problem.options), 0.0)
    costs_j = [
        sum(
            option.effective_cost_j(problem.blocking_power_w[operation.stage])
            for option, operation in zip(made.clocks, problem.graph.operations, strict=True)
        )
        for made in (before, plan)
    ]
    assert costs_j[1] <= costs_j[0] + 1e-9 * abs(costs_j[0])
    assert plan.iteration_time_s <= max(goal.deadline_s, before.iteration_time_s) * (1 + 1e-6)
