"""What a pipeline does while a sibling is late."""

import pytest
from heavy_end import job
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import brute_force, problems

from joulecut_engine.optimize.problem import Goal, Infeasible, Problem
from joulecut_engine.optimize.schedule import baseline, energy
from joulecut_engine.optimize.solver import prepared
from joulecut_engine.optimize.straggler import Kept, time_s


@given(st.floats(1.0, 9.0), st.floats(1.0, 9.0), st.floats(1.0, 9.0))
def test_the_iteration_takes_what_the_slowest_takes(
    deadline_s: float, cheapest_s: float, straggler_s: float
) -> None:
    taken_s = time_s(deadline_s, cheapest_s, straggler_s, "iteration")
    assert taken_s == max(straggler_s, min(deadline_s, cheapest_s))
    assert time_s(deadline_s, cheapest_s, straggler_s, "layer") == min(deadline_s, cheapest_s)


@settings(max_examples=20, deadline=None)
@given(problems(2, 2, 3), st.sampled_from([1.0, 1.1, 1.5, 3.0]), st.sampled_from([0.9, 1.2, 2.0]))
def test_a_kept_answer_is_right_and_its_bound_holds(
    asked: Problem, deadline: float, straggler: float
) -> None:
    frontier = prepared(asked, "computation")
    fastest_s = frontier.fastest_s
    found = Kept(frontier, points=12).answer(deadline * fastest_s, straggler * fastest_s)
    until_s = found.iteration_time_s
    assert found.plan.iteration_time_s <= until_s * (1 + 1e-9)
    assert found.energy_j == pytest.approx(energy(asked, found.plan.clocks, until_s), rel=1e-9)
    best_j = brute_force(asked, Goal(until_s, waits=True))
    assert best_j is not None
    assert found.lower_bound_j <= best_j * (1 + 1e-9)
    assert best_j <= found.energy_j * (1 + 1e-9)


def test_a_straggler_faster_than_the_deadline_changes_nothing() -> None:
    kept = Kept(prepared(job(), "computation"))
    deadline_s = kept.fastest_s * 1.05
    alone = kept.answer(deadline_s)
    assert kept.answer(deadline_s, kept.fastest_s * 0.9) == alone
    assert alone.iteration_time_s == alone.plan.iteration_time_s <= deadline_s * (1 + 1e-9)


def test_waiting_is_used_up_to_the_cheapest_plan_and_no_further() -> None:
    frontier = prepared(job(), "computation")
    kept = Kept(frontier)
    deadline_s = kept.fastest_s
    costs = []
    for factor in (1.05, 1.1, 1.2, 3.0, 4.0):
        found = kept.answer(deadline_s, factor * kept.fastest_s)
        assert found.iteration_time_s == factor * kept.fastest_s
        costs.append(energy(job(), found.plan.clocks, 0.0))
    assert costs == sorted(costs, reverse=True)
    # Beyond T_c there is nothing to gain: the slowest plan that pays, and then waiting.
    assert costs[-1] == costs[-2]
    assert kept.plans[-1].iteration_time_s <= frontier.cheapest_s * (1 + 1e-9)


def test_a_lone_pipeline_gets_the_plan_of_least_energy() -> None:
    kept = Kept(prepared(job(), "computation"))
    found = kept.answer(1e6)
    assert found.iteration_time_s == kept.cheapest_s
    price_w = job().time_price_w
    for plan in kept.plans:
        total_j = energy(job(), plan.clocks, 0.0) + price_w * plan.iteration_time_s
        assert found.energy_j <= total_j * (1 + 1e-12)


def test_a_synchronisation_per_layer_gets_no_credit() -> None:
    kept = Kept(prepared(job(), "computation"))
    deadline_s = kept.fastest_s * 1.02
    assert kept.answer(deadline_s, 2 * deadline_s, "layer") == kept.answer(deadline_s)
    assert kept.answer(deadline_s, 2 * deadline_s).energy_j > 0


def test_a_straggler_saves_more_than_the_baseline_waiting() -> None:
    kept = Kept(prepared(job(), "computation"))
    late_s = 1.2 * kept.fastest_s
    found = kept.answer(kept.fastest_s, late_s)
    waiting_j = energy(job(), baseline(job()).clocks, late_s)
    assert found.energy_j < 0.9 * waiting_j


def test_a_deadline_below_the_fastest_time_is_refused() -> None:
    kept = Kept(prepared(job(), "computation"), points=4)
    with pytest.raises(Infeasible):
        kept.answer(kept.fastest_s * 0.99)
    with pytest.raises(ValueError, match="at least 2"):
        Kept(prepared(job(), "computation"), points=1)
