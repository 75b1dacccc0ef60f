"""A fit that is sure of the wrong job: it may decide over a part of what windows leave open."""

import numpy as np
import pytest

from joulecut_controller.learn.evidence import OVER_RATIO, Evidence, ExplorerInput
from joulecut_controller.learn.iteration_form import LongestPaths
from joulecut_controller.learn.measurement_log import JobConstants, Measurement
from joulecut_controller.learn.probes import Probes
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.time_bounds import CEILING_PART, floor_s
from joulecut_controller.policy.policy import Slo
from joulecut_engine.graph.pipeline import Pipeline

TOP, CLOCKS = 1830, tuple(range(900, 1831, 15))
PIPELINE = Pipeline("1f1b", 4, 24)
PATHS = LongestPaths(PIPELINE)
CONSTANTS = JobConstants(PIPELINE, (TOP,) * 4, TOP, 100.0)
# Three stages that wait for the fourth, lowered ever further: an iteration takes 0.7 % longer in
# the end. Either little follows the clock, or the fourth has more work.
WINDOWS = (
    (1830, 1830, 1830, 1830),
    (1830, 1800, 1800, 1830),
    (1800, 1770, 1770, 1830),
    (1755, 1725, 1725, 1830),
    (1725, 1695, 1695, 1830),
    (1695, 1665, 1665, 1830),
)
HEAVY, ALIKE = (1.085, 1.07, 0.937, 1.213), (1.0, 1.0, 1.0, 1.0)


def taken_s(clocks: tuple[int, ...], work: tuple[float, ...], share: float) -> float:
    each = np.array(work) * (1.0 - share + share * TOP / np.array(clocks)) * 0.005
    return float(PATHS.iteration_s(np.stack([each / 3, each / 1.5], axis=1)[:, :, None])[0])


def measurement(clocks: tuple[int, ...], work: tuple[float, ...], share: float) -> Measurement:
    time_s = taken_s(clocks, work, share)
    energy_j = tuple(time_s * (100.0 + 200.0 * (mhz / TOP) ** 2.4) for mhz in clocks)
    return Measurement(clocks, 50, time_s, 0.001 * time_s, energy_j)


def known(model: RateModel, measurements: tuple[Measurement, ...], budget: float) -> Evidence:
    slo = Slo(max_slowdown=budget)
    facts = ExplorerInput(CONSTANTS, (CLOCKS,) * 4, measurements[-1].clocks_mhz, slo, 50, (0,) * 4)
    return Evidence(facts, measurements, model)


def test_the_job_with_the_heavy_stage_is_found_though_a_lesser_hollow_comes_first() -> None:
    measurements = tuple(measurement(clocks, HEAVY, 0.7) for clocks in WINDOWS)
    model = RateModel(CONSTANTS, measurements, PATHS)
    assert model.clock_share[0] == pytest.approx(0.7, abs=0.15)
    asked = (1620, 1725, 1590, 1710)
    slower = float(model.time_s(np.array([asked], dtype=np.float64))[0]) / measurements[0].time_s
    assert slower == pytest.approx(taken_s(asked, HEAVY, 0.7) / measurements[0].time_s, abs=0.01)


def test_jobs_that_are_not_denied_are_kept_the_true_one_within_them() -> None:
    measurements = tuple(measurement(clocks, HEAVY, 0.7) for clocks in WINDOWS)
    model = RateModel(CONSTANTS, measurements, PATHS)
    measured = np.array(WINDOWS, dtype=np.float64)
    told_s = np.array([one.time_s for one in measurements])
    assert model.ensemble_times_s(measured) == pytest.approx(
        np.repeat(told_s[:, None], model.ensemble_times_s(measured).shape[1], axis=1), rel=0.01
    )
    asked = (1755, 1725, 1725, 1755)
    rivals_s = model.ensemble_times_s(np.array([asked], dtype=np.float64))[0]
    assert rivals_s.min() < taken_s(asked, HEAVY, 0.7) < rivals_s.max()


def test_the_same_readings_give_the_same_rivals() -> None:
    measurements = tuple(measurement(clocks, HEAVY, 0.7) for clocks in WINDOWS)
    rows = np.array([(1620, 1725, 1590, 1710)], dtype=np.float64)
    one, other = (
        RateModel(CONSTANTS, measurements, PATHS).ensemble_times_s(rows) for _ in range(2)
    )
    assert (one == other).all()


def test_a_wrong_fit_decides_over_a_part_of_what_windows_leave_open() -> None:
    budget = 0.03
    measurements = tuple(measurement(clocks, HEAVY, 0.7) for clocks in WINDOWS)
    wrong = RateModel(
        CONSTANTS, tuple(measurement(clocks, ALIKE, 0.1) for clocks in WINDOWS), PATHS
    )
    told = known(wrong, measurements, budget)
    rows = np.random.default_rng(3).choice(CLOCKS[-20:], (400, 4)).astype(np.float64)
    limit_s = told.deadline_s * (1.0 + OVER_RATIO)
    dared = rows[told.affordable(rows)]
    measured = np.array(WINDOWS, dtype=np.float64)
    told_s = np.array([one.time_s for one in measurements])
    least_s = floor_s(np.minimum(told_s, wrong.time_s(measured)), measured, dared)
    open_s = told.proven_s(dared) - least_s
    assert (least_s + CEILING_PART * open_s <= limit_s * (1.0 + 1e-3)).all()
    true_s = np.array([taken_s(tuple(map(int, row)), HEAVY, 0.7) for row in dared])
    assert (true_s <= limit_s + (1.0 - CEILING_PART) * open_s).all()
    refused = rows[~told.affordable(rows)]
    quick = wrong.time_s(refused) < measurements[0].time_s * (1.0 + budget / 2)
    assert quick.sum() > 10, "the fit alone would have dared them"


def test_of_a_stage_that_was_never_lowered_fits_decide_nothing() -> None:
    """However sure they are that it waits: all may wait for it, and no window has asked."""
    measurements = tuple(measurement(clocks, HEAVY, 0.7) for clocks in WINDOWS)
    size = taken_s(WINDOWS[0], HEAVY, 0.7) / taken_s(WINDOWS[0], ALIKE, 0.1)
    alike = tuple(size * work for work in ALIKE)
    wrong = RateModel(
        CONSTANTS, tuple(measurement(clocks, alike, 0.1) for clocks in WINDOWS), PATHS
    )
    told = known(wrong, measurements, 0.03)
    rows = np.array([(1695, 1665, 1665, mhz) for mhz in CLOCKS[-12:-1]], dtype=np.float64)
    limit_s = told.deadline_s * (1.0 + OVER_RATIO)
    assert (told.affordable(rows) == (told.proven_s(rows) <= limit_s)).all()
    assert 0 < told.affordable(rows).sum() < len(rows)
    quick = wrong.time_s(rows) < limit_s
    assert quick.sum() > told.affordable(rows).sum(), "the fit alone would have dared more"


def test_what_windows_show_to_be_in_time_may_be_run_only_to_learn() -> None:
    measurements = tuple(measurement(clocks, HEAVY, 0.7) for clocks in (WINDOWS[0], (1800,) * 4))
    model = RateModel(CONSTANTS, measurements, PATHS)
    told = known(
        model, measurements, measurements[1].time_s / measurements[0].time_s - 1.0 + 0.0005
    )
    rows = np.array([(1800, 1800, 1830, 1800), (1785, 1800, 1830, 1800)], dtype=np.float64)
    limit_s = told.deadline_s * (1.0 + told.early)
    assert limit_s < told.worst_s(rows)[0] < told.deadline_s
    assert told.acceptable(rows, told.early).tolist() == [True, False]


def test_where_all_that_is_near_was_measured_nothing_within_is_left_to_try() -> None:
    pipeline = Pipeline("1f1b", 1, 8)
    constants = JobConstants(pipeline, (TOP,), TOP, 100.0)
    measurements = (
        Measurement((1830,), 50, 0.1, 1e-4, (40.0,)),
        Measurement((1815,), 50, 0.1003, 1e-4, (38.0,)),
    )
    model = RateModel(constants, measurements, LongestPaths(pipeline))
    slo = Slo(max_slowdown=0.05)
    told = Evidence(
        ExplorerInput(constants, ((1815, 1830),), (1830,), slo, 50, (0,)), measurements, model
    )
    assert Probes(told).inside() is None
