"""Iteration times when times vary, and plans that still keep their deadlines."""

import pytest
from heavy_end import job
from hypothesis import given
from hypothesis import strategies as st
from pipelines import problems, profiled, run_times

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Granularity, Kind, Pipeline, Profile
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.jitter import Noise, Trials, judge_of
from joulecut_engine.optimize.jitter_margin import TOLERANCE, Statistic, assured, of
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver, solve

NOISES = st.builds(
    Noise,
    operation=st.sampled_from([0.0, 0.02, 0.2]),
    gpu=st.sampled_from([0.0, 0.05]),
    communication_s=st.sampled_from([0.0, 0.01]),
    siblings=st.integers(1, 4),
)


@given(problems())
def test_no_noise_is_the_exact_iteration_time(asked: Problem) -> None:
    clocks = baseline(asked).clocks
    times_s = Trials(asked, Noise(siblings=3), draws=4).times_s(clocks)
    assert times_s == pytest.approx(run_times(asked, clocks), rel=1e-12)


@given(problems(3, 3), NOISES)
def test_a_draw_is_the_longest_path_of_its_own_times(asked: Problem, noise: Noise) -> None:
    # Slower options under the same luck are never faster, and scale with the luck.
    fast = baseline(asked).clocks
    double = tuple(ClockOption(o.clock_mhz, 2 * o.time_s, o.energy_j) for o in fast)
    still = Noise(noise.operation, noise.gpu, 0.0, noise.siblings)
    trials = Trials(asked, still, draws=8)
    assert trials.times_s(double) == pytest.approx(2 * trials.times_s(fast), rel=1e-12)
    late = Trials(asked, noise, draws=8).times_s(fast)
    assert (late >= trials.times_s(fast) * (1 - 1e-12)).all()


def test_the_same_seed_gives_the_same_times_and_another_others() -> None:
    asked, noise = job(), Noise(operation=0.03, siblings=4)
    clocks = baseline(asked).clocks
    first = Trials(asked, noise, seed=1).times_s(clocks)
    assert (first == Trials(asked, noise, seed=1).times_s(clocks)).all()
    assert (first != Trials(asked, noise, seed=2).times_s(clocks)).any()


def test_a_factor_has_mean_1_and_the_deviation_asked_for() -> None:
    one = (ClockOption(1000, 1.0, 1.0),)
    menus: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {
        (0, "forward"): one,
        (0, "backward"): (ClockOption(1000, 1e-9, 1.0),),
    }
    asked = problem(Pipeline("1f1b", 1, 1), Profile(menus), 0.0)
    times_s = Trials(asked, Noise(operation=0.1), draws=20_000).times_s(baseline(asked).clocks)
    assert float(times_s.mean()) == pytest.approx(1.0, abs=0.004)
    assert float(times_s.std()) == pytest.approx(0.1, abs=0.004)
    assert (times_s > 0).all()


@pytest.mark.parametrize("granularity", ["computation", "gpu"])
@pytest.mark.parametrize("slowdown", [0.0, 0.03])
@pytest.mark.parametrize("statistic", ["p95", "mean"])
def test_a_plan_with_margin_keeps_its_deadline(
    granularity: Granularity, slowdown: float, statistic: Statistic
) -> None:
    asked = job()
    goal = Goal(baseline(asked).iteration_time_s * (1 + slowdown))
    trials = Trials(asked, Noise(operation=0.03, siblings=8), draws=100)
    found = assured(asked, Solver(asked, granularity), goal, trials, statistic=statistic)
    assert not check(asked, goal, found.plan)
    assert found.met
    assert of(found.spread, found.statistic) <= found.target_s
    assert found.spread == trials.spread(found.plan.clocks)
    granted = of(found.baseline_spread, found.statistic) * (1 + slowdown + TOLERANCE)
    assert found.target_s == pytest.approx(granted, rel=1e-12)
    assert found.given_up_j >= 0.0
    assert found.plan.energy_j <= baseline(asked).energy_j * (1 + 1e-12)


@pytest.mark.parametrize(("name", "share"), [("simulated a100", 0.75), ("simulated a40", 0.6)])
def test_at_no_slowdown_two_changes_save_and_nothing_is_measurably_slower(
    name: str, share: float
) -> None:
    """Judged by luck that neither the search nor its judge has seen."""
    asked, noise = profiled(name, microbatches=48), Noise(operation=0.01)
    start = baseline(asked)
    goal = Goal(start.iteration_time_s)
    solver = Solver(asked, "changes")
    found = assured(asked, solver, goal, Trials(asked, noise), judge=judge_of(asked, noise))
    assert not check(asked, goal, found.plan)
    assert found.met
    fresh = Trials(asked, noise, draws=1000, seed=99)
    late = fresh.spread(found.plan.clocks).p95_s / fresh.spread(start.clocks).p95_s - 1.0
    assert late <= TOLERANCE + 5e-4  # what 400 draws do not know
    possible_j = start.energy_j - solve(asked, goal, "computation").energy_j
    assert start.energy_j - found.plan.energy_j >= share * possible_j


@pytest.mark.parametrize("statistic", ["p95", "mean"])
def test_a_judge_of_other_luck_has_the_last_word(statistic: Statistic) -> None:
    """Few draws flatter a plan made for them; what is told is what others say."""
    asked, noise = job(), Noise(operation=0.05, siblings=4)
    goal = Goal(baseline(asked).iteration_time_s * 1.02)
    judge, solver = Trials(asked, noise, draws=300, seed=5), Solver(asked, "computation")
    flattered = 0
    for seed in range(4):
        few = Trials(asked, noise, draws=10, seed=seed)
        alone = assured(asked, solver, goal, few, statistic=statistic)
        found = assured(asked, solver, goal, few, statistic=statistic, judge=judge)
        flattered += of(judge.spread(alone.plan.clocks), statistic) > found.target_s
        assert found.met
        assert found.spread == judge.spread(found.plan.clocks)
        assert found.unassured_spread == judge.spread(found.unassured.clocks)
        assert of(found.spread, statistic) <= found.target_s
        assert found.plan.energy_j < baseline(asked).energy_j
        assert not check(asked, goal, found.plan)
    assert flattered > 0 or statistic == "mean"


def test_without_noise_no_margin_is_taken() -> None:
    asked = job()
    goal = Goal(baseline(asked).iteration_time_s * 1.05)
    found = assured(asked, Solver(asked, "computation"), goal, Trials(asked, Noise(), draws=2))
    assert found.given_up_j == 0.0
    assert found.plan == found.unassured


def test_an_impossible_target_gets_the_fastest_plan_and_says_so() -> None:
    asked = job()
    start_s = baseline(asked).iteration_time_s
    trials = Trials(asked, Noise(operation=0.1, siblings=8), draws=50)
    found = assured(asked, Solver(asked, "computation"), Goal(start_s), trials, target_s=start_s)
    assert not found.met
    assert found.plan.clocks == baseline(asked).clocks
