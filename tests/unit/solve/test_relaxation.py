"""The relaxation against a linear program solved by HiGHS, and what any bound must keep."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linprog

from joulecut_controller.hardware import ClockOption
from joulecut_controller.model import problem as build
from joulecut_controller.model import worthwhile
from joulecut_controller.solve.circulation import Relaxation
from joulecut_controller.solve.computation import Computation
from joulecut_controller.solve.problem import Goal, Problem
from joulecut_controller.workload import KINDS, Pipeline, Profile

FACTORS = st.sampled_from([1.0, 1.02, 1.1, 1.4, 2.0, 4.0])


def linear_program(problem: Problem, goal: Goal) -> float:
    """The same relaxation written out: weights on all options, starts, and the end time."""
    count = len(problem.graph.operations)
    first = np.cumsum([0, *map(len, problem.options)])
    starts, end = int(first[-1]), int(first[-1]) + count
    cost = np.zeros(end + 1)
    equal = sparse.lil_matrix((count, end + 1))
    rows: list[dict[int, float]] = []
    for i, options in enumerate(problem.options):
        power_w = problem.blocking_power_w[problem.graph.operations[i].stage]
        for k, option in enumerate(options):
            cost[first[i] + k] = option.effective_cost_j(power_w)
            equal[i, first[i] + k] = 1.0
        duration = {int(first[i]) + k: o.time_s for k, o in enumerate(options)}
        rows.append({starts + i: 1.0, **duration, end: -1.0})
        rows += [
            {starts + a: 1.0, **duration, starts + b: -1.0}
            for a, b in problem.graph.edges
            if a == i
        ]
    below = sparse.lil_matrix((len(rows), end + 1))
    for r, row in enumerate(rows):
        for column, value in row.items():
            below[r, column] += value
    cost[end] = 0.0 if goal.waits else problem.time_price_w
    bounds = [(0.0, None)] * end + [(0.0, goal.deadline_s)]
    solved = linprog(
        cost,
        A_ub=below.tocsr(),
        b_ub=np.zeros(len(rows)),
        A_eq=equal.tocsr(),
        b_eq=np.ones(count),
        bounds=bounds,
    )
    assert solved.status == 0
    waiting_j = problem.time_price_w * goal.deadline_s if goal.waits else 0.0
    return float(solved.fun) + waiting_j


def bound(problem: Problem, goal: Goal) -> float:
    """The relaxation's own word, without the cheap bound that the product also takes."""
    computation = Computation(problem)
    relaxed = computation.relax(goal)
    waiting_j = problem.time_price_w * goal.deadline_s if goal.waits else 0.0
    return relaxed.bound_j + waiting_j


@settings(max_examples=150, deadline=None)
@given(pipelines.problems(3, 4, 5), FACTORS, st.booleans())
def test_it_equals_the_linear_program(problem: Problem, factor: float, waits: bool) -> None:
    goal = Goal(Computation(problem).fastest_s * factor, waits)
    expected = linear_program(problem, goal)
    scale = sum(o[0].energy_j for o in problem.options) + problem.time_price_w * goal.deadline_s
    assert bound(problem, goal) == pytest.approx(expected, rel=1e-7, abs=1e-7 * scale)
    assert bound(problem, goal) <= expected + 1e-9 * scale


@pytest.mark.parametrize("name", ["a100", "a40"])
@pytest.mark.parametrize("slowdown", [0.0, 0.013, 0.1, 0.3])
def test_it_equals_the_linear_program_on_public_profiles(name: str, slowdown: float) -> None:
    problem = pipelines.public_problem(name, microbatches=12)
    goal = Goal(Computation(problem).fastest_s * (1 + slowdown))
    assert bound(problem, goal) == pytest.approx(linear_program(problem, goal), rel=1e-7)


@settings(max_examples=60, deadline=None)
@given(pipelines.problems(3, 3, 4), st.lists(FACTORS, min_size=2, max_size=4), st.booleans())
def test_more_time_never_raises_it(problem: Problem, factors: list[float], waits: bool) -> None:
    fastest_s = Computation(problem).fastest_s
    relaxed = [
        Computation(problem).relax(Goal(fastest_s * factor, waits)).bound_j
        for factor in sorted(factors)
    ]
    scale = sum(o[0].energy_j for o in problem.options)
    assert all(b <= a + 1e-8 * scale for a, b in pairwise(relaxed))


@settings(max_examples=60, deadline=None)
@given(pipelines.problems(2, 3, 4), FACTORS, st.integers(1, 60), st.integers(1, 60))
def test_another_option_never_raises_it(
    problem: Problem, factor: float, time: int, energy: int
) -> None:
    goal = Goal(Computation(problem).fastest_s * factor)
    extra = ClockOption(5000, 0.01 * time, 0.5 * energy)
    power_w = problem.blocking_power_w[problem.graph.operations[0].stage]
    richer = replace(
        problem,
        options=(worthwhile((*problem.options[0], extra), power_w), *problem.options[1:]),
        measured=(),
    )
    scale = sum(o[0].energy_j for o in problem.options)
    assert bound(richer, goal) <= bound(problem, goal) + 1e-8 * scale


@settings(max_examples=60, deadline=None)
@given(pipelines.problems(3, 3, 4), FACTORS, FACTORS)
def test_one_flow_bounds_every_deadline(problem: Problem, made_for: float, asked: float) -> None:
    computation = Computation(problem)
    relaxed = computation.relax(Goal(computation.fastest_s * made_for))
    goal = Goal(computation.fastest_s * asked)
    borrowed = computation.bound_j(goal, relaxed)
    own = computation.bound_j(goal, computation.relax(goal))
    scale = sum(o[0].energy_j for o in problem.options)
    assert borrowed <= own + 1e-8 * scale


@settings(max_examples=60, deadline=None)
@given(pipelines.problems(3, 4, 5), FACTORS)
def test_its_schedules_keep_order_and_deadline(problem: Problem, factor: float) -> None:
    computation = Computation(problem)
    goal = Goal(computation.fastest_s * factor)
    relaxed: Relaxation = computation.relax(goal)
    fastest_s = [problem.options[i][0].time_s for i in computation.waves.operation]
    grain_s = relaxed.grain_s
    for start_s, end_s in (relaxed.early_s, relaxed.late_s):
        assert (start_s >= -grain_s).all()
        assert (end_s - start_s >= np.array(fastest_s) - grain_s).all()
        assert end_s.max() <= goal.deadline_s + grain_s
        for before, after in computation.waves.edges:
            assert start_s[after] >= end_s[before] - grain_s
    assert (relaxed.early_s <= relaxed.late_s + grain_s).all()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=3, max_size=8, unique=True),
    st.floats(1e-6, 100.0),
    st.floats(0.1, 1000.0),
    st.sampled_from([0.0, 50.0, 150.0, 9999.0]),
)
def test_options_on_one_line_are_no_riddle(
    steps: list[int], second: float, watts: float, power_w: float
) -> None:
    """Slopes that differ by round-off alone; a flow must not be offered negative room."""
    line = tuple(
        ClockOption(1000 + k, step * second, (100 - step) * second * watts + power_w * 70 * second)
        for k, step in enumerate(steps)
    )
    shape = Pipeline("1f1b", 2, 2)
    problem = build(shape, Profile({(s, kind): line for s in (0, 1) for kind in KINDS}), power_w)
    computation = Computation(problem)
    for curve in computation.curves.distinct:
        assert all(later <= earlier for earlier, later in pairwise(curve.saved_w))
        assert all(later > earlier for earlier, later in pairwise(curve.hull_s))
    goal = Goal(computation.fastest_s * 1.3)
    scale = sum(o[0].energy_j for o in problem.options) + problem.time_price_w * goal.deadline_s
    assert bound(problem, goal) == pytest.approx(
        linear_program(problem, goal), rel=1e-6, abs=1e-6 * scale
    )


@pytest.mark.parametrize("apart", [0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-7, 1e-5])
def test_options_a_hair_apart_in_time_do_not_blunt_the_bound(apart: float) -> None:
    """Joules saved within a picosecond: watts that would drown all others in the flow."""
    twins = tuple(
        ClockOption(1410 - 15 * k, 0.05 * (1 + apart * k), 24.0 - 0.5 * k) for k in range(3)
    )
    slower = tuple(ClockOption(1000 - 15 * k, 0.06 + 0.01 * k, 20.0 - k) for k in range(4))
    menus = {(s, kind): (*twins, *slower) for s in range(4) for kind in KINDS}
    problem = build(Pipeline("1f1b", 4, 6), Profile(menus), 60.0)
    goal = Goal(Computation(problem).fastest_s * 1.02)
    expected = linear_program(problem, goal)
    assert bound(problem, goal) == pytest.approx(expected, rel=3e-6)
    assert bound(problem, goal) <= expected * (1 + 1e-9)
