"""The frontier: from T_min to T_E, nothing dominated, every bound for its own time."""

import itertools
from dataclasses import replace

import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.graph.pipeline import GRANULARITIES, Granularity
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.frontier import undominated
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver, frontier, solve


@settings(max_examples=25)
@given(pipelines.problems(3, 3, 4, same_clocks=True), st.sampled_from(GRANULARITIES))
def test_it_descends_from_fastest_to_cheapest(problem: Problem, granularity: Granularity) -> None:
    points = frontier(problem, 7, granularity)
    times = [point.iteration_time_s for point in points]
    energies = [point.energy_j for point in points]
    assert 1 <= len(points) <= 7
    assert times == sorted(set(times))
    assert energies == sorted(set(energies), reverse=True)
    for point in points:
        assert check(problem, Goal(point.iteration_time_s), point) == ()


@settings(max_examples=15)
@given(pipelines.problems(2, 2, 3))
def test_each_bound_holds_at_its_own_time(problem: Problem) -> None:
    for point in frontier(problem, 5, "computation"):
        best = pipelines.brute_force(problem, Goal(point.iteration_time_s))
        assert point.lower_bound_j <= best * (1 + 1e-9)
        assert point.energy_j == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "granularity"),
    [("a40", "computation"), ("simulated a40", "gpu")],
)
def test_it_spans_the_useful_times_of_a_profile(name: str, granularity: Granularity) -> None:
    problem = pipelines.profiled(name, microbatches=4)
    points = frontier(problem, 8, granularity)
    assert points[0].iteration_time_s == pytest.approx(baseline(problem).iteration_time_s)
    endless = solve(problem, Goal(float("inf")), granularity)
    assert points[-1].energy_j <= endless.energy_j
    if granularity == "computation":
        assert all(point.gap <= 0.01 for point in points)
    middle = points[len(points) // 2]
    own = solve(problem, Goal(middle.iteration_time_s), "computation")
    assert middle.lower_bound_j >= own.lower_bound_j * (1 - 2e-4)
    assert (
        middle.lower_bound_j <= solve(problem, Goal(middle.iteration_time_s), granularity).energy_j
    )


@settings(max_examples=25)
@given(pipelines.problems(3, 3, 4, same_clocks=True), st.sampled_from(GRANULARITIES), st.data())
def test_more_time_never_gets_a_worse_plan(
    problem: Problem, granularity: Granularity, data: st.DataObject
) -> None:
    """Whatever was asked before, for a lone pipeline and for one that waits."""
    asked = Solver(problem, granularity)
    factors = data.draw(st.lists(st.sampled_from([1.0, 1.03, 1.1, 1.3, 2.0]), min_size=2))
    plans = []
    for factor in factors:
        goal = Goal(asked.fastest_s * factor, waits=data.draw(st.booleans()))
        plan = asked.at(goal)
        assert check(problem, goal, plan) == ()
        for shorter, known in plans:
            if shorter.waits == goal.waits and shorter.deadline_s <= goal.deadline_s:
                waited_j = (goal.deadline_s - shorter.deadline_s) * problem.time_price_w
                least_j = known.energy_j + (waited_j if goal.waits else 0.0)
                assert plan.energy_j <= least_j * (1 + 1e-9)
        plans.append((goal, plan))


@given(
    st.lists(
        st.tuples(st.floats(1.0, 2.0), st.floats(1.0, 9.0), st.floats(0.1, 1.0)),
        min_size=1,
        max_size=12,
    )
)
def test_a_bound_never_rises_with_time(drawn: list[tuple[float, float, float]]) -> None:
    """A bound for a longer time holds for a shorter one, also that of a dominated plan."""
    plan = baseline(pipelines.profiled("a40", microbatches=2))
    found = [
        replace(plan, iteration_time_s=t, energy_j=e, lower_bound_j=e * share)
        for t, e, share in drawn
    ]
    kept = undominated(found)
    for one, later in itertools.pairwise(kept):
        assert one.lower_bound_j >= later.lower_bound_j
    for one in kept:
        longer = [s.lower_bound_j for s in found if s.iteration_time_s >= one.iteration_time_s]
        assert one.lower_bound_j == min(max(longer), one.energy_j)


@settings(max_examples=4)
@given(
    pipelines.problems(3, 4, 4, same_clocks=True),
    st.lists(st.sampled_from([1.0, 1.02, 1.05, 1.1, 1.3]), min_size=2, max_size=3),
)
def test_a_point_of_a_small_job_is_never_dearer_than_a_single_question(
    problem: Problem, factors: list[float]
) -> None:
    """Whatever was asked before. It is asked as one up to 100 operations times changes."""
    asked = Solver(problem, "changes")
    for factor in factors:
        goal = Goal(asked.fastest_s * factor)
        assert asked.at(goal).energy_j <= solve(problem, goal, "changes").energy_j * (1 + 1e-9)


def test_a_point_is_as_cheap_as_a_single_question() -> None:
    """Up to 0.05 points of the baseline's energy: both search, and neither knows the best."""
    problem = pipelines.profiled("a40", microbatches=6)
    limit_j = 0.0005 * baseline(problem).energy_j
    for point in frontier(problem, 3, "changes"):
        alone = solve(problem, Goal(point.iteration_time_s), "changes")
        assert point.energy_j <= alone.energy_j + limit_j


def test_a_point_of_four_stages_is_no_dearer_than_a_single_question() -> None:
    """At 1 and 2 % it was up to 0.2 points of the baseline's energy dearer."""
    problem = pipelines.profiled("a100", microbatches=6, stages=4)
    asked, fastest_s = Solver(problem, "changes"), baseline(problem).iteration_time_s
    for slowdown in (0.01, 0.02):
        goal = Goal(fastest_s * (1 + slowdown))
        assert asked.at(goal).energy_j <= solve(problem, goal, "changes").energy_j * (1 + 1e-9)
