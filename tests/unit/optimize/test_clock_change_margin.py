"""Plans under switching when times vary: the timeline with luck, and margin for it."""

from dataclasses import replace

import numpy as np
import pipelines
import pytest
from heavy_end import job
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize import clock_change_margin
from joulecut_engine.optimize.clock_change_check import check
from joulecut_engine.optimize.clock_change_margin import SwitchTrials
from joulecut_engine.optimize.clock_change_moves import realise
from joulecut_engine.optimize.clock_change_search import ClockChangeSearch
from joulecut_engine.optimize.clock_changes import (
    Switching,
    columns_of,
    limits_of,
    run_of,
    track_of,
)
from joulecut_engine.optimize.jitter import Noise, Trials
from joulecut_engine.optimize.jitter_margin import Statistic, of
from joulecut_engine.optimize.levels import Ints
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import baseline

NOISE = Noise(operation=0.1, gpu=0.05, communication_s=0.01, siblings=3)
LATE = Switching(latency_s=0.02, cost_s=0.001, cost_j=0.1)


def asked_of(problem: Problem, seed: int) -> tuple[Ints, list[int]]:
    """Clocks at random, as columns and as MHz."""
    dice = np.random.default_rng(seed)
    mhz = [menu[dice.integers(len(menu))].clock_mhz for menu in problem.options]
    asked = columns_of(track_of(problem), mhz)
    assert asked is not None
    return asked, mhz


@given(pipelines.problems(3, 3), st.integers(0, 9))
@settings(max_examples=30)
def test_where_clocks_change_at_once_it_is_the_free_plan_with_the_same_luck(
    problem: Problem, seed: int
) -> None:
    dice = np.random.default_rng(seed)
    clocks = tuple(menu[dice.integers(len(menu))] for menu in problem.options)
    asked = columns_of(track_of(problem), [option.clock_mhz for option in clocks])
    assert asked is not None
    trials = Trials(problem, NOISE, draws=6)
    times_s = SwitchTrials(trials, Switching()).times_s(asked)
    assert times_s == pytest.approx(trials.times_s(clocks), rel=1e-12)


@pytest.mark.parametrize("late", ["next", "within"])
def test_a_draw_is_the_timeline_of_operations_that_take_so_long(late: str) -> None:
    """One draw against the same timeline of a problem whose options are scaled by its luck."""
    asked_problem = job(6)
    switching = replace(LATE, late="next" if late == "next" else "within")
    trials = Trials(asked_problem, Noise(operation=0.2), draws=5)
    row = trials.row
    ((factor, _),) = trials.luck()
    for seed in range(4):
        asked, _ = asked_of(asked_problem, seed)
        times_s = SwitchTrials(trials, switching).times_s(asked)
        for draw in range(5):
            menus = tuple(
                tuple(replace(o, time_s=o.time_s * factor[0, draw, row[i]]) for o in menu)
                for i, menu in enumerate(asked_problem.options)
            )
            lucky = replace(asked_problem, options=menus, measured=menus)
            track = track_of(lucky)
            seconds, _, _ = realise(track, limits_of(switching), asked, run_of(track))
            assert times_s[draw] == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("statistic", "granularity", "slowdown"), [("p95", "computation", 0.03), ("mean", "edge", 0.0)]
)
def test_a_plan_with_margin_keeps_deadline_and_limits(
    statistic: Statistic, granularity: Granularity, slowdown: float
) -> None:
    problem = job()
    switching = replace(LATE, latency_s=0.005, max_per_iteration=2)
    noise = Noise(operation=0.03, siblings=4)
    goal = Goal(baseline(problem).iteration_time_s * (1 + slowdown))
    trials, judge = Trials(problem, noise, draws=60), Trials(problem, noise, draws=100, seed=5)
    search = ClockChangeSearch(problem, switching, granularity)
    told = clock_change_margin.assured(search, goal, trials, judge, statistic=statistic)
    found = told.assured
    assert not check(problem, goal, switching, told.found)
    assert found.plan == told.found.plan
    assert found.met
    assert of(found.spread, statistic) <= found.target_s
    assert found.spread == SwitchTrials(judge, switching).spread(search.asked(told.found))
    assert found.plan.energy_j <= baseline(problem).energy_j * (1 + 1e-9)
    assert found.given_up_j >= 0.0
    if granularity == "computation":
        assert of(found.unassured_spread, statistic) > found.target_s, "no margin was needed"
        assert found.plan.energy_j < 0.99 * baseline(problem).energy_j


def test_what_cannot_be_met_gets_the_fastest_plan_and_says_so() -> None:
    problem = job(4)
    start_s = baseline(problem).iteration_time_s
    trials = Trials(problem, Noise(operation=0.1, siblings=8), draws=30)
    search = ClockChangeSearch(problem, replace(LATE, max_per_iteration=0))
    told = clock_change_margin.assured(search, Goal(start_s), trials, trials, target_s=start_s)
    assert not told.assured.met
    assert told.assured.plan.iteration_time_s == pytest.approx(start_s, rel=1e-9)
