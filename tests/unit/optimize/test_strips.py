"""The bound with whole choices in it: below every plan, above the relaxation."""

import itertools
from dataclasses import replace

import numpy as np
import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import (
    KINDS,
    SCHEDULES,
    SENDS,
    Pipeline,
    Profile,
    Schedule,
)
from joulecut_engine.graph.shape import kinds_of
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.events import events_of
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.formulation import worthwhile
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.relaxation import Interior

FACTORS = st.sampled_from([1.0, 1.01, 1.05, 1.1, 1.3, 2.0])


@st.composite
def steady(draw: st.DrawFn, stages_max: int, microbatches_max: int, count: int) -> Problem:
    """Pipelines long enough to have a steady part, with few options and large steps."""
    one = st.tuples(st.integers(20, 40), st.integers(1, 40))
    menus = st.lists(one, min_size=1, max_size=count).map(
        lambda pairs: tuple(
            ClockOption(1000 + 15 * i, 0.01 * time, 0.5 * energy)
            for i, (time, energy) in enumerate(pairs)
        )
    )
    stages = draw(st.integers(2, stages_max))
    same = draw(st.booleans())
    first = {kind: draw(menus) for kind in KINDS}
    profile = Profile(
        {
            (stage, kind): first[kind] if same and stage < stages - 1 else draw(menus)
            for stage in range(stages)
            for kind in KINDS
        }
    )
    shape = Pipeline("1f1b", stages, draw(st.integers(2, microbatches_max)))
    return build(shape, profile, [draw(st.sampled_from([0.0, 5.0, 30.0])) for _ in range(stages)])


def bounds(problem: Problem, goal: Goal) -> tuple[list[float], list[float]]:
    """Relaxed and raised, from both methods, waiting included."""
    computation = Computation(problem)
    useful_s = computation.useful_deadline_s(goal.deadline_s)
    price_w = computation.time_price_w(goal)
    found = [
        computation.relax(goal),
        computation.relax(goal, near=True),
        Interior(computation.network).relax(useful_s, price_w),
    ]
    waiting_j = problem.time_price_w * goal.deadline_s if goal.waits else 0.0
    plain = [one.bound_j + waiting_j for one in found]
    raised = [computation.raised(goal, one) for one in found]
    finer = computation.finer(goal, found[0], raised[0])
    assert finer.bound_j >= raised[0].bound_j
    return plain, [one.bound_j + waiting_j for one in (finer, *raised[1:])]


@settings(max_examples=60, deadline=None)
@given(st.one_of(steady(2, 3, 2), pipelines.problems(2, 2, 3)), FACTORS, st.booleans())
def test_no_plan_of_a_small_problem_is_below_it(
    problem: Problem, factor: float, waits: bool
) -> None:
    goal = Goal(Computation(problem).fastest_s * factor, waits)
    best = pipelines.brute_force(problem, goal)
    assert best is not None
    plain, raised = bounds(problem, goal)
    for before, after in zip(plain, raised, strict=True):
        assert before <= after <= best + 1e-9 * abs(best) + 1e-12


def integer_program(problem: Problem, goal: Goal) -> float:
    """The best plan there is, by HiGHS: one weight per option, starts, and the end time."""
    count = len(problem.graph.operations)
    menus = [
        worthwhile(options, problem.blocking_power_w[operation.stage])
        for operation, options in zip(problem.graph.operations, problem.options, strict=True)
    ]
    first = np.cumsum([0, *map(len, menus)])
    starts, end = int(first[-1]), int(first[-1]) + count
    cost = np.zeros(end + 1)
    cost[end] = 0.0 if goal.waits else problem.time_price_w
    rows, low, high = [], [], []
    for i, menu in enumerate(menus):
        power_w = problem.blocking_power_w[problem.graph.operations[i].stage]
        one, late = np.zeros(end + 1), np.zeros(end + 1)
        for k, option in enumerate(menu):
            cost[first[i] + k] = option.effective_cost_j(power_w)
            one[first[i] + k] = 1.0
            late[first[i] + k] = option.time_s
        rows.append(one)
        low.append(1.0)
        high.append(1.0)
        late[starts + i] = 1.0
        for after in [starts + b for a, b in problem.graph.edges if a == i] + [end]:
            row = late.copy()
            row[after] -= 1.0
            rows.append(row)
            low.append(-np.inf)
            high.append(0.0)
    whole = np.zeros(end + 1, dtype=np.int64)
    whole[:starts] = 1
    upper = np.append(np.append(np.ones(starts), np.full(count, np.inf)), goal.deadline_s)
    solved = milp(
        cost,
        constraints=LinearConstraint(np.array(rows), low, high),
        integrality=whole,
        bounds=Bounds(np.zeros(end + 1), upper),
        options={"mip_rel_gap": 1e-7},
    )
    assert solved.status == 0, solved.message
    waiting_j = problem.time_price_w * goal.deadline_s if goal.waits else 0.0
    return float(solved.fun) + waiting_j


@settings(max_examples=25, deadline=None)
@given(steady(3, 5, 3), FACTORS)
def test_no_plan_of_a_short_pipeline_is_below_it(problem: Problem, factor: float) -> None:
    goal = Goal(Computation(problem).fastest_s * factor)
    best = integer_program(problem, goal)
    plain, raised = bounds(problem, goal)
    for before, after in zip(plain, raised, strict=True):
        assert before <= after <= best + 1e-5 * abs(best)  # what HiGHS may miss the deadline by


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("factor", [1.0, 1.02])
def test_any_schedule_keeps_its_plans_above_it(schedule: Schedule, factor: float) -> None:
    menus = {
        (stage, kind): tuple(
            ClockOption(
                1400 - 100 * k, (1 + 0.2 * k) * (1 + 0.03 * stage), 90.0 - 12 * k + 5 * k**2
            )
            for k in range(3)
        )
        for stage in range(4)
        for kind in KINDS
    }
    problem = build(Pipeline(schedule, 4, 8), Profile(menus), 12.0)
    computation = Computation(problem)
    goal = Goal(computation.fastest_s * factor)
    relaxed = computation.relax(goal)
    raised = computation.raised(goal, relaxed)
    plan = computation.solve(goal, raised, rolls=50)
    assert relaxed.bound_j <= raised.bound_j <= plan.energy_j


@pytest.mark.parametrize(
    "pipeline",
    [
        Pipeline("1f1b", 3, 4, transfers="overlapped"),
        Pipeline("gpipe", 3, 3, transfers="synchronous"),
        Pipeline("interleaved-1f1b", 2, 4, chunks=2),
        Pipeline("zb-h1", 3, 4),
        Pipeline("zb-v", 2, 3, chunks=2),
        Pipeline("dualpipe-v", 2, 4, chunks=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [1, 2])
def test_nor_is_a_plan_below_it_where_sends_or_chunks_come_between(
    pipeline: Pipeline, seed: int
) -> None:
    dice = np.random.default_rng(seed)
    menus = {}
    for stage, kind in itertools.product(range(pipeline.stages), kinds_of(pipeline)):
        times, joules = np.sort(dice.uniform(1, 1.6, 2)), np.sort(dice.uniform(1, 2, 2))[::-1]
        menus[stage, kind] = tuple(
            ClockOption(1400 - 100 * k, 0.1 * float(t), 30 * float(e))
            for k, (t, e) in enumerate(zip(times, joules, strict=True))
        )
        if kind in SENDS:
            menus[stage, kind] = (ClockOption(0, 0.01, 0.1),)
    problem = build(pipeline, Profile(menus), 20.0)
    goal = Goal(Computation(problem).fastest_s * (1.0 + 0.02 * (seed - 1)))
    best = integer_program(problem, goal)
    plain, raised = bounds(problem, goal)
    for before, after in zip(plain, raised, strict=True):
        assert before <= after <= best + 1e-5 * abs(best)


def test_two_clocks_that_do_not_fit_one_period_are_counted() -> None:
    """By hand. The last stage needs 2.2 s per microbatch; the one before it has 1 s or 1.4 s for
    each of two operations. The relaxation spends the 0.2 s between (5 J of 10), no plan can."""
    fast, slow = ClockOption(1400, 1.0, 100.0), ClockOption(1000, 1.4, 90.0)
    last = (ClockOption(1400, 1.1, 100.0),)
    menus = {(0, kind): (fast, slow) for kind in KINDS} | {(1, kind): last for kind in KINDS}
    problem = build(Pipeline("1f1b", 2, 40), Profile(menus), 0.0)
    computation = Computation(problem)
    goal = Goal(computation.fastest_s)
    relaxed = computation.relax(goal)
    raised = computation.raised(goal, relaxed)
    plan = computation.solve(goal, raised, rolls=20)
    assert raised.bound_j - relaxed.bound_j == pytest.approx(5.0 * 38, rel=0.1)
    assert plan.gap < 0.002
    assert plan.energy_j / relaxed.bound_j - 1 > 0.01


def test_at_the_fastest_iteration_nobody_may_be_late() -> None:
    """By hand. The stage before the last could run slow in both its operations if only the last
    one took a hundredth longer; the relaxation's price for that is low, the truth forbids it."""
    first = tuple(ClockOption(1400 - int(k), 1.0 + k / 1000, 100.0 - k / 40) for k in (0, 205, 400))
    last = (ClockOption(1400, 1.1, 100.0), ClockOption(1000, 1.11, 90.0))
    menus = {(0, kind): first for kind in KINDS} | {(1, kind): last for kind in KINDS}
    problem = build(Pipeline("1f1b", 2, 40), Profile(menus), 0.0)
    computation = Computation(problem)
    goal = Goal(computation.fastest_s)
    relaxed = computation.relax(goal)
    raised = computation.raised(goal, relaxed)
    near_j = computation.solve(goal, raised, rolls=20).energy_j * (1 - 5e-5)
    finer = computation.finer(goal, relaxed, raised, near_j)
    plan = computation.solve(goal, finer, rolls=20)
    assert finer.bound_j - relaxed.bound_j > 10 * (raised.bound_j - relaxed.bound_j)
    assert plan.gap < 1e-4
    later = Goal(computation.fastest_s * 1.02)
    relaxed = computation.relax(later)
    raised = computation.raised(later, relaxed)
    plan = computation.solve(later, raised, rolls=20)
    finer = computation.finer(later, relaxed, raised, plan.energy_j * (1 - 5e-4))
    assert raised.bound_j < finer.bound_j <= plan.energy_j


def test_finer_questions_agree() -> None:
    """What no link's flow pays for adds nothing, and nobody asks twice."""
    problem = pipelines.public_problem("a40", microbatches=12)
    computation = Computation(problem)
    goal = Goal(computation.fastest_s * 1.01)
    relaxed = computation.relax(goal)
    assert computation.raised(goal, replace(relaxed, link_w=None)).bound_j == relaxed.bound_j
    once, again = computation.raised(goal, relaxed), computation.raised(goal, relaxed)
    assert relaxed.bound_j < once.bound_j == again.bound_j


def test_stages_meet_once_per_microbatch_and_direction() -> None:
    """In the steady part of 1F1B two neighbours share an event: from it one goes on with a
    forward and the other with a backward."""
    menu = (ClockOption(1400, 1.0, 1.0),)
    problem = build(
        Pipeline("1f1b", 4, 12), Profile({(s, k): menu for s in range(4) for k in KINDS}), 0.0
    )
    network = Computation(problem).network
    events = events_of(network)
    operations = [problem.graph.operations[i] for i in network.operation]
    shared = 0
    for event in range(events.count):
        to = [o for o, e in zip(operations, events.begin, strict=True) if e == event]
        if len(to) == 2 and {o.kind for o in to} == {"forward", "backward"}:
            shared += 1
            assert abs(to[0].stage - to[1].stage) == 1
    assert shared >= 3 * 7
    for a, b in itertools.pairwise(range(network.size)):
        assert events.begin[a] != events.done[a]
        assert events.begin[b] != events.done[b]
