"""The relaxation against a linear program solved by HiGHS, and what any bound must keep."""

from itertools import pairwise
from random import Random

import numpy as np
import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linprog

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.graph import graph_of
from joulecut_engine.graph.pipeline import KINDS, Operation, Pipeline, Profile
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.computation import MIXED_SHORT, Computation
from joulecut_engine.optimize.curves import curves_of
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.formulation import worthwhile
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.relaxation import Relaxer
from joulecut_engine.optimize.solver import solve

ACCURACY = 1e-7  # bounds are compared at ten times the tolerance that the relaxation stops at
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


@st.composite
def any_graph(draw: st.DrawFn, ordered: bool = False) -> Problem:
    """Operations that wait for whatever came before them; stages may do several at once, or
    work in order, as GPUs do."""
    count, stages = draw(st.integers(1, 12)), 3
    menus = draw(st.lists(pipelines.options(5), min_size=1, max_size=4))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = {(min(p), max(p)) for p in draw(st.lists(pairs, max_size=30)) if p[0] != p[1]}
    operations = [
        Operation(draw(st.integers(0, stages - 1)), i, draw(st.sampled_from(["forward", "weight"])))
        for i in range(count)
    ]
    if ordered:
        for stage in range(stages):
            edges.update(pairwise(i for i, o in enumerate(operations) if o.stage == stage))
    graph = graph_of(operations, edges, stages)
    powers_w = tuple(draw(st.sampled_from([0.0, 5.0, 30.0])) for _ in range(stages))
    options = tuple(
        worthwhile(draw(st.sampled_from(menus)), powers_w[o.stage]) for o in graph.operations
    )
    return Problem(graph, options, powers_w, draw(st.sampled_from([0.0, 20.0])))


def bound(problem: Problem, goal: Goal) -> float:
    """The relaxation's own word, without the cheap bound that the product also takes."""
    computation = Computation(problem)
    relaxed = computation.relax(goal)
    waiting_j = problem.time_price_w * goal.deadline_s if goal.waits else 0.0
    return relaxed.bound_j + waiting_j


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("factor", [1.0, 1.02])
def test_costs_that_cancel_are_no_reason_to_stop_short(factor: float, waits: bool) -> None:
    """Beyond waiting these cost -4 J and 4 J: their sum says nothing of what is at stake."""
    forward = (ClockOption(1000, 0.03, 0.5), ClockOption(1015, 0.25, 3.5))
    backward = (ClockOption(1000, 0.25, 11.5),)
    operations = [Operation(0, i, kind) for kind in ("forward", "backward") for i in range(3)]
    edges = {(0, 1), (0, 3), (1, 2), (1, 4), (2, 3), (2, 5), (3, 4), (4, 5)}
    options = (forward,) * 3 + (backward,) * 3
    problem = Problem(graph_of(operations, edges, 1), options, (30.0,), 0.0)
    computation = Computation(problem)
    goal = Goal(computation.fastest_s * factor, waits)
    useful_s = computation.useful_deadline_s(goal.deadline_s)
    relaxed = Relaxer(computation.network).relax(useful_s, computation.time_price_w(goal))
    waiting_j = problem.time_price_w * goal.deadline_s if goal.waits else 0.0
    expected_j = linear_program(problem, goal)
    assert relaxed.bound_j + waiting_j == pytest.approx(expected_j, abs=1e-6)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("slowest", [2.0, 30.0, 1000.0])
def test_options_far_apart_do_not_make_the_bound_loose(slowest: float, waits: bool) -> None:
    """Options that no real card has."""
    menus = {
        (stage, kind): (
            ClockOption(1400, 0.01, 1.5 + 0.1 * stage),
            ClockOption(1015, 0.01 * slowest, 1.0),
        )
        for stage in range(4)
        for kind in KINDS
    }
    problem = build(Pipeline("1f1b", 4, 24), Profile(menus), 5.0)
    computation = Computation(problem)
    for factor in (1.0, 1.02, 1.5):
        goal = Goal(computation.fastest_s * factor, waits)
        expected = linear_program(problem, goal)
        assert bound(problem, goal) == pytest.approx(expected, rel=1e-6)


def scattered(seed: int, count: int, choices: tuple[int, ...]) -> Problem:
    """Operations that wait for some of the ten before them, each with a menu of its own: as many
    options as one of `choices`, times over two orders of magnitude."""
    random, stages = Random(seed), 5
    edges = {
        (max(0, i - random.randint(1, 10)), i)
        for i in range(1, count)
        for _ in range(random.choice([0, 1, 1, 2, 3]))
    }
    operations = [Operation(random.randrange(stages), i, "forward") for i in range(count)]
    for stage in range(stages):
        edges.update(pairwise(i for i, o in enumerate(operations) if o.stage == stage))
    graph = graph_of(operations, edges, stages)
    menus = []
    for _ in operations:
        base_s = 10 ** random.uniform(-3, -1)
        span, energy_j = random.choice([1.05, 1.5, 3.0, 10.0]), base_s * random.uniform(100, 500)
        shares = sorted(random.uniform(1, span) for _ in range(random.choice(choices) - 1))
        falls = [random.uniform(0.3, 1.0) / share**0.5 for share in [1.0, *shares]]
        menus.append(
            tuple(
                ClockOption(1400 - k, base_s * share, energy_j * fall)
                for k, (share, fall) in enumerate(zip([1.0, *shares], falls, strict=True))
            )
        )
    options = tuple(worthwhile(menu, 20.0) for menu in menus)
    return Problem(graph, options, (20.0,) * stages)


@pytest.mark.parametrize("factor", [1.0, 1.001, 1.1, 3.0])
@pytest.mark.parametrize("seed", [5, 9, 11, 20])
def test_it_arrives_where_no_two_operations_are_alike(seed: int, factor: float) -> None:
    """From 1 to 12 options side by side. Of these jobs two want many short steps at the fastest
    deadline; the others' energy rises so steeply there that a deadline a millionth longer would
    bound it a thousandth lower."""
    problem = scattered(seed, 150, (1, 2, 3, 12))
    computation = Computation(problem)
    goal = Goal(computation.fastest_s * factor)
    useful_s = computation.useful_deadline_s(goal.deadline_s)
    relaxed = Relaxer(computation.network).relax(useful_s, problem.time_price_w)
    assert relaxed.bound_j == pytest.approx(linear_program(problem, goal), rel=1e-7)


@given(st.one_of(pipelines.problems(3, 4, 5), any_graph()), FACTORS, st.booleans())
def test_it_stays_below_the_linear_program_and_near_it(
    problem: Problem, factor: float, waits: bool
) -> None:
    """On the smallest graphs, all ties, it may stop a little short."""
    goal = Goal(Computation(problem).fastest_s * factor, waits)
    expected = linear_program(problem, goal)
    scale = sum(o[0].energy_j for o in problem.options) + problem.time_price_w * goal.deadline_s
    found = bound(problem, goal)
    assert expected - 1e-4 * scale <= found <= expected + 1e-9 * scale


@pytest.mark.parametrize(
    ("name", "slowdown"),
    [("simulated a40", 0.0), ("simulated a100", 0.013), ("simulated a40", 0.3)],
)
def test_it_equals_the_linear_program_on_simulated_profiles(name: str, slowdown: float) -> None:
    problem = pipelines.profiled(name, microbatches=12)
    goal = Goal(Computation(problem).fastest_s * (1 + slowdown))
    expected = linear_program(problem, goal)
    assert bound(problem, goal) == pytest.approx(expected, rel=1e-7)


@given(pipelines.problems(3, 3, 4), FACTORS, FACTORS)
def test_one_flow_bounds_every_deadline(problem: Problem, made_for: float, asked: float) -> None:
    computation = Computation(problem)
    relaxed = computation.relax(Goal(computation.fastest_s * made_for))
    goal = Goal(computation.fastest_s * asked)
    borrowed = computation.bound_j(goal, relaxed)
    own = computation.bound_j(goal, computation.relax(goal))
    scale = sum(o[0].energy_j for o in problem.options)
    assert borrowed <= own + ACCURACY * scale


@given(pipelines.problems(3, 3, 4), st.tuples(FACTORS, FACTORS), st.floats(0.0, 1.0), st.booleans())
def test_a_mixture_of_two_bounds_every_deadline_between(
    problem: Problem, ends: tuple[float, float], share: float, waits: bool
) -> None:
    computation = Computation(problem)
    short_s, long_s = (computation.fastest_s * factor for factor in sorted(ends))
    between_s = short_s + share * (long_s - short_s)
    for deadline_s in (short_s, long_s):
        computation.relax(Goal(deadline_s, waits))
    mixed = computation.relax(Goal(between_s, waits))
    own_j = Computation(problem).relax(Goal(between_s, waits)).bound_j
    scale = sum(o[0].energy_j for o in problem.options)
    assert mixed.bound_j <= own_j + ACCURACY * scale
    assert mixed.bound_j >= own_j - MIXED_SHORT * abs(own_j) - ACCURACY * scale
    assert mixed.limits_s.max() <= mixed.iteration_s + 1e-4 * computation.fastest_s


@given(st.one_of(pipelines.problems(3, 4, 5), any_graph()), FACTORS)
def test_its_schedule_leaves_room_for_all_and_ends_in_time(problem: Problem, factor: float) -> None:
    computation = Computation(problem)
    network = computation.network
    goal = Goal(computation.fastest_s * factor)
    relaxed = computation.relax(goal)
    least_s = (network.around(network.fastest)[0] + network.fastest) / network.second
    assert relaxed.iteration_s <= goal.deadline_s * (1 + 1e-5)
    assert (relaxed.limits_s >= least_s - 1e-4 * computation.fastest_s).all()
    assert relaxed.limits_s.max() <= relaxed.iteration_s + 1e-4 * computation.fastest_s


@settings(max_examples=40)
@given(any_graph(ordered=True), FACTORS, st.booleans())
def test_plans_for_any_graph_are_right(problem: Problem, factor: float, waits: bool) -> None:
    goal = Goal(Computation(problem).fastest_s * factor, waits)
    assert check(problem, goal, solve(problem, goal, "computation")) == ()


def test_wide_graphs_have_plans() -> None:
    """Every operation waits for a dozen others from anywhere before it: no envelope is narrow."""
    chance = Random(7)
    menu = tuple(ClockOption(1400 - 100 * k, 1.0 + 0.1 * k, 90.0 - 5 * k) for k in range(5))
    count = 400
    edges = {(chance.randrange(j), j) for j in range(1, count) for _ in range(12)}
    # A GPU each: no order is given, and two at once on one GPU are no plan.
    graph = graph_of([Operation(i, i, "forward") for i in range(count)], edges, count)
    problem = Problem(graph, (menu,) * count, (0.1,) * count)
    computation = Computation(problem)
    goal = Goal(computation.fastest_s * 1.05)
    plan = solve(problem, goal, "computation")
    assert check(problem, goal, plan) == ()
    assert plan.gap < 0.05


def test_nothing_overflows_at_16384_operations() -> None:
    """Kiloseconds and gigajoules too: units come from the data."""
    profile = Profile(
        {
            (stage, kind): tuple(
                ClockOption(1400 - 50 * k, 1e4 * (1 + 0.05 * k**1.5), 1e9 * (9 - k) * factor)
                for k in range(7)
            )
            for stage in range(16)
            for kind, factor in (("forward", 1.0), ("backward", 2.0))
        }
    )
    problem = build(Pipeline("1f1b", 16, 512), profile, 1e4)
    assert len(problem.graph.operations) == 16_384
    computation = Computation(problem)
    goal = Goal(computation.fastest_s * 1.02)
    plan = computation.solve(goal, computation.relax(goal))
    assert check(problem, goal, plan) == ()
    assert plan.gap < 0.02


def test_an_operation_that_takes_no_time_is_refused() -> None:
    menu = (ClockOption(1400, 0.0, 1.0),)
    graph = graph_of([Operation(0, 0, "forward")], [], 1)
    with pytest.raises(ValueError, match=r"takes 0\.0 s at 1400 MHz"):
        Computation(Problem(graph, (menu,), (0.0,)))


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
    for curve in curves_of(problem).distinct:
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
