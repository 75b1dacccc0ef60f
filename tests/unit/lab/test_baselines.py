"""Other people's rules: each keeps its own promise, none beats the bound."""

import itertools

import pytest
from heavy_end import job
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import brute_force, problems, run_times

from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import baseline, energy, makespan
from joulecut_lab.compare import baselines
from joulecut_lab.compare.perseus import Perseus


def test_under_a_cap_nothing_draws_more_and_nothing_could_run_higher() -> None:
    """A held operation draws the cap; one that draws less runs at its highest clock."""
    asked = job()
    *capped, last = baselines.power_cap(asked)
    assert last == baselines.all_max(asked)
    for clocks in capped:
        cap_w = max(option.power_w for option in clocks)
        for option, highest in zip(clocks, last, strict=True):
            assert option.power_w <= cap_w * (1 + 1e-9)
            assert option == highest or option.power_w == pytest.approx(cap_w)


def test_a_cap_of_each_stage_saves_no_less_than_one_for_all() -> None:
    asked = job()
    one, each = (
        baselines.timed(asked, rule(asked))
        for rule in (baselines.power_cap, baselines.cap_per_stage)
    )
    for slowdown in (0.0, 0.01, 0.05, 0.1):
        deadline_s = baseline(asked).iteration_time_s * (1.0 + slowdown)
        cheapest_j = [
            min(plan.energy_j for plan in plans if plan.time_s <= deadline_s * (1 + 1e-9))
            for plans in (each, one)
        ]
        assert cheapest_j[0] <= cheapest_j[1] * 1.001  # limits are tried on a grid


@settings(max_examples=40)
@given(problems(2, 2, 3, same_clocks=True), st.sampled_from([1.0, 1.1, 1.5]))
def test_no_rule_beats_brute_force(asked: Problem, slower: float) -> None:
    deadline_s = baseline(asked).iteration_time_s * slower
    best_j = brute_force(asked, Goal(deadline_s))
    assert best_j is not None
    for rule in (baselines.one_clock, baselines.clock_per_stage):
        clocks = baselines.cheapest_within(baselines.timed(asked, rule(asked)), deadline_s)
        if clocks is not None:
            time_s = run_times(asked, clocks)
            assert time_s <= deadline_s * (1 + 1e-8)
            assert energy(asked, clocks, time_s) >= best_j * (1 - 1e-9)


def brute_units(asked: Problem, solver: Perseus, units: int) -> float:
    """Least fitted cost over all whole durations, one number per stage and kind excepted."""
    fitted = solver.fitted
    ranges = [range(int(f.units[0]), int(f.units[-1]) + 1) for f in fitted]
    best = float("inf")
    for durations in itertools.product(*ranges):
        end = [0] * len(durations)
        for first, second in asked.graph.edges:
            end[second] = max(end[second], end[first] + durations[first])
        if max(a + b for a, b in zip(end, durations, strict=True)) <= units:
            best = min(best, sum(f.fitted_j(d) for f, d in zip(fitted, durations, strict=True)))
    return best


@settings(max_examples=15)
@given(problems(2, 1, 3), st.sampled_from([0.0, 0.3, 0.7, 1.0]))
def test_perseus_finds_the_optimum_of_its_own_problem(asked: Problem, share: float) -> None:
    solver = Perseus(asked, unit_s=0.05)
    deadline_s = solver.fastest_s + share * (solver.slowest_s - solver.fastest_s)
    claim = solver.within(deadline_s)
    units = round(claim.iteration_time_s / 0.05)
    assert claim.iteration_time_s <= max(deadline_s, solver.fastest_s) * (1 + 1e-9)
    assert claim.effective_j == pytest.approx(brute_units(asked, solver, units), abs=1e-6)


def test_perseus_is_late_by_less_than_a_unit_per_operation() -> None:
    asked, unit_s = job(), 1e-3
    claim = Perseus(asked, unit_s).within(0.0)
    late_s = makespan(asked, claim.clocks)[0] - claim.iteration_time_s
    assert 0.0 < late_s < unit_s * len(asked.graph.operations)


def test_perseus_has_a_point_of_least_energy() -> None:
    asked = job()
    solver = Perseus(asked)
    best = solver.cheapest()

    def total_j(deadline_s: float) -> float:
        claim = solver.within(deadline_s)
        return claim.effective_j + asked.time_price_w * claim.iteration_time_s

    best_j = best.effective_j + asked.time_price_w * best.iteration_time_s
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        deadline_s = solver.fastest_s + share * (solver.slowest_s - solver.fastest_s)
        assert best_j <= total_j(deadline_s) * (1 + 1e-9)
    with pytest.raises(ValueError, match="unit"):
        Perseus(asked, 0.0)
