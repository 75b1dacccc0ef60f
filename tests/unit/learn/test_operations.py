"""A job that reports its operations: curves by stage, and what may be tried on them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulecut_controller.learn.advice import (
    FIRST_OVER_RATIO,
    OVER_RATIO,
    STEP_RATIO,
    Expected,
    ExplorerInput,
)
from joulecut_controller.learn.explorer import advise
from joulecut_controller.learn.longest_paths import LongestPaths
from joulecut_controller.learn.measurement_log import (
    JobConstants,
    Measurement,
    MeasurementLog,
    without_hiccups,
)
from joulecut_controller.observe.baseline import mature
from joulecut_controller.policy.policy import Slo
from joulecut_controller.view import Window
from joulecut_engine.estimate.clock_curves import ClockCurves, CurvePrior, CurveValues
from joulecut_engine.graph.pipeline import Pipeline

TOP, CLOCKS = 1410, tuple(range(900, 1411, 15))
MICROBATCHES = 8
PATHS = LongestPaths(Pipeline("1f1b", 4, MICROBATCHES))
PRIOR = CurvePrior(0.75, 0.25, 0.04, residual_sd=0.003, reach=0.05, noise=0.001)


def window(
    clocks: tuple[int, ...], share: float, work: tuple[float, ...], slower: float = 1.0
) -> Measurement:
    """An exact plant's; `slower` makes all of the window longer."""
    stages = len(clocks)
    times = [
        slower * w * (1.0 - share + share * TOP / mhz) for w, mhz in zip(work, clocks, strict=True)
    ]
    each = np.array([[t / 3, 2 * t / 3] for t in times])
    paths = LongestPaths(Pipeline("1f1b", stages, MICROBATCHES))
    time_s = float(paths.iteration_s(each[:, :, None])[0])
    energy = tuple(
        (50.0 + 250.0 * (mhz / TOP) ** 2.4) * t * MICROBATCHES + 80.0 * (time_s - t * MICROBATCHES)
        for mhz, t in zip(clocks, times, strict=True)
    )
    busy = tuple((float(forward), float(backward)) for forward, backward in each)
    return Measurement(clocks, 8, time_s, 0.02 * time_s, energy, busy, 0.0)


def facts(stages: int, now: tuple[int, ...], budget: float) -> ExplorerInput:
    pipeline = Pipeline("1f1b", stages, MICROBATCHES)
    constants = JobConstants(pipeline, (TOP,) * stages, TOP, 80.0)
    allowed = Slo(max_slowdown=budget).budget(1.0)
    return ExplorerInput(constants, (CLOCKS,) * stages, now, allowed, 8, (0,) * stages)


@settings(max_examples=25, deadline=None)
@given(
    work=st.lists(st.floats(0.85, 1.15), min_size=1, max_size=6).map(tuple),
    share=st.floats(0.0, 1.0),
    budget=st.sampled_from([0.01, 0.03, 0.05, 0.1]),
)
def test_whatever_the_card_does_every_window_is_near_the_evidence_and_in_time(
    work: tuple[float, ...], share: float, budget: float
) -> None:
    stages = len(work)
    log, at = MeasurementLog("walk"), facts(stages, (TOP,) * stages, budget)
    base_s = window(at.now_mhz, share, work).time_s
    for _ in range(25):
        seen = window(at.now_mhz, share, work)
        assert seen.time_s <= base_s * (1.0 + budget) * (1.0 + OVER_RATIO + 0.001)
        log, _ = log.add(seen)
        lowest = [min(m.clocks_mhz[s] for m in log.measurements) for s in range(stages)]
        advice = advise(at, log.measurements)
        if advice.verdict == "enough":
            break
        below = [s for s in range(stages) if advice.clocks_mhz[s] < lowest[s]]
        assert set(below) <= set(advice.stages)
        for s in below:
            assert advice.clocks_mhz[s] >= min(lowest[s] - STEP_RATIO * TOP, *lowest)
        at = replace(at, now_mhz=advice.clocks_mhz)


@settings(max_examples=25, deadline=None)
@given(
    work=st.lists(st.floats(0.85, 1.15), min_size=1, max_size=6).map(tuple),
    share=st.floats(0.0, 1.0),
    expected=st.floats(0.0, 1.0),
    budget=st.sampled_from([0.01, 0.03, 0.05, 0.1]),
)
@example((1.0,), 1.0, 0.0, 0.01)
def test_a_start_from_other_jobs_is_a_point_late_at_most_whatever_they_let_expect(
    work: tuple[float, ...], share: float, expected: float, budget: float
) -> None:
    stages = len(work)
    log = MeasurementLog("walk")
    grids = tuple(CLOCKS[stage % 2 :] for stage in range(stages))  # of different lengths
    begun = replace(
        facts(stages, (TOP,) * stages, budget),
        grids=grids,
        expected=Expected(expected, 0.05, -1.7, 0.05),
        first=True,
    )
    base_s = window(begun.now_mhz, share, work).time_s
    for late in (FIRST_OVER_RATIO, FIRST_OVER_RATIO):
        log, _ = log.add(window(begun.now_mhz, share, work))
        advice = advise(begun, log.measurements)
        begun = replace(begun, now_mhz=advice.clocks_mhz)
        seen = window(begun.now_mhz, share, work)
        assert seen.time_s <= base_s * (1.0 + budget) * (1.0 + late + 0.001)
    if budget >= 0.05:
        assert min(begun.now_mhz) < TOP, "padding of shorter grids is no clock"


def test_slow_hours_are_not_taken_for_the_effect_of_clocks() -> None:
    """Windows are up to 3 % slower or faster as a whole: the budget is used, and kept."""
    work, luck = (1.0, 0.95, 1.0, 1.07), np.random.default_rng(2)
    log, at = MeasurementLog("walk"), facts(4, (TOP,) * 4, 0.05)
    base_s = window(at.now_mhz, 0.8, work).time_s
    for _ in range(8):
        slower = float(np.clip(luck.normal(1.0, 0.015), 0.97, 1.03))
        log, _ = log.add(window(at.now_mhz, 0.8, work, slower))
        advice = advise(at, log.measurements)
        assert window(advice.clocks_mhz, 0.8, work).time_s <= base_s * 1.055
        at = replace(at, now_mhz=advice.clocks_mhz)
    assert window(at.now_mhz, 0.8, work).time_s >= base_s * 1.03


def test_a_baseline_that_moved_is_not_taken_for_the_effect_of_clocks() -> None:
    """Default clocks are 10 % slower once, and the log follows; later windows are as before."""
    work = (1.0, 0.95, 1.0, 1.07)

    def chosen(slower: float) -> tuple[int, ...]:
        log, at = MeasurementLog("walk"), facts(4, (TOP,) * 4, 0.05)
        for step in range(8):
            log, _ = log.add(window(at.now_mhz, 0.8, work))
            if step == 1:
                log, _ = log.add(window((TOP,) * 4, 0.8, work, slower))
            at = replace(at, now_mhz=advise(at, log.measurements).clocks_mhz)
        return at.now_mhz

    assert chosen(1.1) == chosen(1.0)


def test_default_clocks_that_are_faster_than_any_lock_are_not_a_slow_window() -> None:
    """Under a power cap: locks cost 1.5 % at once, and nothing more down to 1320 MHz."""
    luck, default = np.random.default_rng(4), (TOP,) * 4

    def seen(clocks: tuple[int, ...]) -> Measurement:
        one = window(tuple(min(mhz, 1320) for mhz in clocks), 0.8, (1.0, 0.97, 1.0, 1.03))
        busy_s = np.array(one.busy_s) * [[1.0 if mhz == TOP else 1.015] for mhz in clocks]
        time_s = PATHS.iteration_s(busy_s[:, :, None])[0]
        told = tuple((float(forward), float(backward)) for forward, backward in busy_s)
        return replace(one, clocks_mhz=clocks, time_s=float(time_s), busy_s=told)

    log, at, base_s = MeasurementLog("walk"), facts(4, default, 0.05), seen(default).time_s
    for _ in range(14):
        slower = float(np.clip(luck.normal(1.0, 0.01), 0.98, 1.02))
        log, _ = log.add(seen(at.now_mhz).scaled(slower))
        advice = advise(at, log.measurements)
        assert seen(advice.clocks_mhz).time_s <= base_s * 1.055
        at = replace(at, now_mhz=advice.clocks_mhz)
    assert max(at.now_mhz) < 1320
    assert seen(at.now_mhz).time_s >= base_s * 1.035


@pytest.mark.parametrize("together", [-0.03, 0.02])
def test_curves_that_were_not_lowered_show_what_a_window_has_in_common(together: float) -> None:
    fall = np.array([[0.0, 0.05], [0.0, 0.05], [0.0, 0.0]])
    values = np.array([[1.0], [2.0], [3.0]]) + 0.6 * fall + np.array([[0.0, together]])
    group, flat = np.zeros(3, dtype=np.int64), np.zeros(1)
    common_sd = np.array([0.02, 0.02])
    given = CurveValues(fall, values, group, common_sd, np.zeros((3, 2, 0)), np.zeros(0))
    curves = ClockCurves(given, PRIOR, flat)
    change, sd = curves.changes(np.full((3, 1), 0.05))
    assert change[:, 0] == pytest.approx(0.03, abs=0.002)
    assert (sd < 0.01).all()


def test_a_hiccup_is_no_usual_iteration() -> None:
    assert without_hiccups([7.0, 7.1, 6.9, 11.2, 7.05, 6.95]) == [7.0, 7.1, 6.9, 7.05, 6.95]
    assert without_hiccups([1.0, 1.0, 1.0, 2.0]) == [1.0, 1.0, 1.0, 2.0]


def test_a_job_that_becomes_slower_as_a_whole_is_not_learnt_again() -> None:
    work, log = (1.0, 1.05), MeasurementLog()
    for clocks, slower in (((TOP, TOP), 1.0), ((TOP, 1350), 1.0), ((TOP, 1350), 1.2)):
        log, complaint = log.add(window(clocks, 0.8, work, slower))
        assert not complaint
    assert len(log.measurements) == 2
    assert log.measurements[1] == window((TOP, 1350), 0.8, work, 1.2), "the newest counts alone"


def test_few_long_iterations_are_a_baseline() -> None:
    noisy = Window(10, 7.0, 0.2, None, None)
    assert mature(noisy)
    assert not mature(replace(noisy, iterations=7))
    assert not mature(replace(noisy, time_mean_s=0.2))
