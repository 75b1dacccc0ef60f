"""Plans with a clock per operation: right, in time, and close to what brute force finds."""

import itertools
from dataclasses import replace

import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import (
    GRANULARITIES,
    KINDS,
    SENDS,
    Granularity,
    Pipeline,
    Profile,
    Transfers,
)
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.problem import Goal, Infeasible, Problem
from joulecut_engine.optimize.schedule import (
    baseline,
    energy,
    floor_j,
    makespan,
)
from joulecut_engine.optimize.solver import Solver, solve


@given(st.data())
def test_small_plans_are_optimal_and_certified(data: st.DataObject) -> None:
    problem = data.draw(pipelines.problems(2, 2, 3))
    goal = data.draw(pipelines.goals(baseline(problem).iteration_time_s))
    plan = solve(problem, goal, "computation")
    best = pipelines.brute_force(problem, goal)
    assert check(problem, goal, plan) == ()
    assert plan.energy_j == pytest.approx(best, rel=1e-9)
    assert plan.lower_bound_j <= best * (1 + 1e-9)


@given(st.data())
def test_the_search_alone_is_right_and_near_the_optimum(data: st.DataObject) -> None:
    """The same small problems without the shortcut that tries every combination."""
    problem = data.draw(pipelines.problems(2, 2, 3))
    goal = data.draw(pipelines.goals(baseline(problem).iteration_time_s))
    computation = Computation(problem, combinations_all=0)
    clocks = computation.solve(goal, computation.relax(goal), effort=20).clocks
    energy = pipelines.priced(problem, goal, clocks)
    best = pipelines.brute_force(problem, goal)
    fastest = pipelines.priced(problem, goal, baseline(problem).clocks)
    assert energy is not None, "late"
    # Of 1,800 random problems 2 % were off the optimum, the worst by 11 %; one met since by 26.
    assert best * (1 - 1e-9) <= energy <= min(fastest, 1.3 * best) * (1 + 1e-9)


@settings(max_examples=40)
@given(st.data())
def test_larger_plans_are_right_and_above_their_bound(data: st.DataObject) -> None:
    problem = data.draw(pipelines.problems(4, 6, 6))
    goal = data.draw(pipelines.goals(baseline(problem).iteration_time_s))
    plan = solve(problem, goal, "computation")
    assert check(problem, goal, plan) == ()
    assert 0.0 < plan.lower_bound_j <= plan.energy_j
    charged = replace(goal, deadline_s=plan.iteration_time_s) if not goal.waits else goal
    assert plan.energy_j == pytest.approx(pipelines.priced(problem, charged, plan.clocks))


@settings(max_examples=30)
@given(st.data())
def test_a_hint_is_never_made_worse(data: st.DataObject) -> None:
    problem = data.draw(pipelines.problems(3, 5, 5))
    fastest_s = baseline(problem).iteration_time_s
    before = solve(problem, Goal(fastest_s * 1.1), "computation")
    after = solve(problem, Goal(fastest_s * 1.2), "computation", hint=before)
    assert after.energy_j <= before.energy_j


def test_the_same_question_gets_the_same_answer() -> None:
    problem = pipelines.profiled("simulated a40", microbatches=6)
    goal = Goal(baseline(problem).iteration_time_s * 1.01)
    assert solve(problem, goal, "computation") == solve(problem, goal, "computation")


@settings(max_examples=25)
@given(st.data(), st.sampled_from([1e-9, 1e-4, 1e5]), st.sampled_from([1e-6, 1.0, 1e9]))
def test_scale_does_not_matter(data: st.DataObject, seconds: float, joules: float) -> None:
    """Nanoseconds to days, microjoules to gigajoules: the same plan in other units."""
    problem = data.draw(pipelines.problems(3, 3, 4))
    watts = joules / seconds
    scaled = Problem(
        problem.graph,
        tuple(
            tuple(
                ClockOption(o.clock_mhz, o.time_s * seconds, o.energy_j * joules) for o in options
            )
            for options in problem.options
        ),
        tuple(power * watts for power in problem.blocking_power_w),
        problem.overhead_power_w * watts,
    )
    goal = Goal(baseline(problem).iteration_time_s * 1.2)
    goal_scaled = Goal(goal.deadline_s * seconds)
    plan, other = solve(problem, goal, "computation"), solve(scaled, goal_scaled, "computation")
    assert check(scaled, goal_scaled, other) == ()
    assert other.lower_bound_j == pytest.approx(plan.lower_bound_j * joules, rel=1e-6)
    assert other.energy_j >= plan.lower_bound_j * joules * (1 - 1e-6)


def test_few_choices_among_many_operations_are_all_tried() -> None:
    """A hundred operations of which eight can choose: more than numpy has dimensions."""
    fixed, free = (
        (ClockOption(1000, 1.0, 9.0),),
        (ClockOption(1000, 1.0, 9.0), ClockOption(900, 1.5, 5.0)),
    )
    menus = {(s, kind): fixed for s in range(6) for kind in KINDS} | {(5, "backward"): free}
    problem = build(Pipeline("gpipe", 6, 8), Profile(menus), 1.0)
    goal = Goal(baseline(problem).iteration_time_s + 1.0)
    plan = solve(problem, goal, "computation")
    assert check(problem, goal, plan) == ()
    assert sorted(option.clock_mhz for option in plan.clocks)[:3] == [900, 900, 1000]


def test_a_lone_pipeline_stops_at_its_cheapest_time_and_a_waiting_one_goes_on() -> None:
    options = (ClockOption(1400, 1.0, 100.0), ClockOption(900, 2.0, 90.0))
    problem = build(
        Pipeline("1f1b", 1, 1), Profile({(0, kind): options for kind in KINDS}), 0.0, 50.0
    )
    alone, waiting = (solve(problem, Goal(10.0, waits), "computation") for waits in (False, True))
    assert alone.iteration_time_s == 2.0  # a second more would cost 50 J and save 10
    assert waiting.iteration_time_s == 4.0  # the ten seconds are paid for anyway
    assert waiting.energy_j == 180.0 + 10.0 * 50.0


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("deadline_s", [0.0, -1.0, 1e-3, float("nan"), float("-inf")])
def test_an_impossible_deadline_names_the_fastest_time(
    granularity: Granularity, deadline_s: float
) -> None:
    options = (ClockOption(1400, 1.0, 100.0), ClockOption(900, 2.0, 90.0))
    problem = build(
        Pipeline("1f1b", 2, 2), Profile({(s, k): options for s in (0, 1) for k in KINDS}), 1
    )
    with pytest.raises(Infeasible, match="fastest possible 6 s"):
        solve(problem, Goal(deadline_s), granularity)


def test_an_endless_deadline_is_no_deadline() -> None:
    problem = pipelines.profiled("simulated a100", microbatches=4)
    for granularity in GRANULARITIES:
        plan = solve(problem, Goal(float("inf")), granularity)
        assert check(problem, Goal(float("inf")), plan) == ()


@given(pipelines.problems(3, 3, 3))
def test_the_baseline_is_the_fastest_of_least_energy(problem: Problem) -> None:
    plan = baseline(problem)
    for option, options in zip(plan.clocks, problem.measured, strict=True):
        fastest_s = min(o.time_s for o in options)
        assert option.time_s == fastest_s
        assert option.energy_j == min(o.energy_j for o in options if o.time_s == fastest_s)
    assert check(problem, Goal(plan.iteration_time_s), plan) == ()


@pytest.mark.parametrize("transfers", ["overlapped", "synchronous"])
@pytest.mark.parametrize("power_w", [20.0, 80.0])
def test_transfers_beside_the_work_raise_no_bound(transfers: Transfers, power_w: float) -> None:
    """Sends that take longer in all than GPUs wait: their energy is not paid for waiting."""
    menu = tuple(
        ClockOption(mhz, 70.0 / mhz, 70.0 / mhz * (60.0 + 240.0 * (mhz / 1400) ** 3))
        for mhz in (1400, 1200, 1000, 900, 800)
    )
    options = {(stage, kind): menu for stage in range(2) for kind in KINDS}
    sends = {(stage, kind): (ClockOption(0, 0.03, 0.1),) for stage in range(2) for kind in SENDS}
    pipeline = Pipeline("gpipe", 2, 32, transfers=transfers)
    asked = build(pipeline, Profile(options | sends), power_w)
    cheapest = tuple(min(m, key=lambda o: o.effective_cost_j(power_w)) for m in asked.options)
    time_s, _ = makespan(asked, cheapest)
    for goal in (Goal(time_s), Goal(time_s, waits=True)):
        computation = Computation(asked)
        bound_j = computation.bound_j(goal, computation.relax(goal))
        assert 0.0 < bound_j <= energy(asked, cheapest, time_s) * (1 + 1e-9)
    assert floor_j(asked, baseline(asked).iteration_time_s) <= bound_j * (1 + 1e-9)


@settings(max_examples=25)
@given(
    pipelines.problems(3, 6, 5, same_clocks=True),
    st.sampled_from(GRANULARITIES),
    st.sampled_from([1.0, 1.02, 1.2]),
)
def test_more_search_never_costs_and_never_lowers_the_bound(
    problem: Problem, granularity: Granularity, factor: float
) -> None:
    solver = Solver(problem, granularity)
    goal = Goal(solver.fastest_s * factor)
    before = solver.solve(goal)
    for after in itertools.islice(solver.improvements(goal, before), 3):
        assert check(problem, goal, after) == ()
        assert after.energy_j <= before.energy_j
        assert after.lower_bound_j >= min(before.lower_bound_j, after.energy_j)
        before = after


def test_a_small_certificate_does_not_end_the_search() -> None:
    """At 8 x 12 and 2 % the first answer is within 0.1 % of its bound; better ones exist."""
    problem = pipelines.profiled("simulated a100", microbatches=12)
    solver = Solver(problem, "computation")
    goal = Goal(solver.fastest_s * 1.02)
    first = solver.solve(goal)
    *_, last = itertools.islice(solver.improvements(goal, first), 8)
    assert last.energy_j < first.energy_j


@pytest.mark.parametrize("name", ["a100", "a40", "simulated a100", "simulated a40"])
@pytest.mark.parametrize("slowdown", [0.0, 0.01, 0.05])
def test_profiles_of_sweeps_have_small_gaps(name: str, slowdown: float) -> None:
    problem = pipelines.profiled(name, microbatches=12)
    goal = Goal(baseline(problem).iteration_time_s * (1 + slowdown))
    assert solve(problem, goal, "computation").gap <= 0.006
