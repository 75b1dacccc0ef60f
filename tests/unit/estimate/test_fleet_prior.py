"""Shares of a job from its windows, and what finished jobs say of the next one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.estimate.fitting import KNEE_PRIOR_RATIO, SLOPE_PRIOR_PER_GHZ
from joulecut_engine.estimate.fleet_prior import (
    PHYSICS,
    CurveShares,
    FinishedJob,
    Shown,
    errors,
    measured_shares,
    predictions,
)
from joulecut_engine.estimate.physics import Physics

TOP_MHZ = 1410.0


@given(
    time=st.floats(0.0, 1.0),
    power=st.floats(0.0, 0.99),  # at 1 nothing follows the clock, and the swing has no scale
    ratios=st.lists(st.floats(0.5, 0.94), min_size=1, max_size=8),
)
def test_shares_are_those_of_the_curve(time: float, power: float, ratios: list[float]) -> None:
    curve = Physics(
        TOP_MHZ,
        1.0,
        time,
        power_static_w=power,
        power_w_per_ghz=1.0 - power,
        voltage_slope_per_ghz=SLOPE_PRIOR_PER_GHZ,
        clock_knee_mhz=KNEE_PRIOR_RATIO * TOP_MHZ,
    )
    clocks = TOP_MHZ * np.array(ratios)
    static_w = curve.power_static_w
    swing = (curve.power_w(clocks) - static_w) / (curve.power_w(np.array([TOP_MHZ])) - static_w)
    found = measured_shares(
        np.array(ratios)[:, None],
        curve.time_s(clocks),
        power + (1.0 - power) * swing,
        TOP_MHZ,
    )
    assert found is not None
    assert found.time == pytest.approx(time, abs=1e-9)
    assert found.power == pytest.approx(power, abs=1e-9)


def test_a_job_that_was_never_lowered_has_no_shares() -> None:
    assert measured_shares(np.array([[0.99]]), np.array([1.01]), np.array([0.97]), TOP_MHZ) is None


def test_a_forest_tells_jobs_apart_that_the_mean_does_not() -> None:
    dice = np.random.default_rng(1)
    fleet = [
        FinishedJob(
            Shown("NVIDIA A40", 1.0, 0.9 - 0.3 * memory, None, 1.0, memory),
            CurveShares(1.0 - memory, 0.2 + 0.3 * memory),
        )
        for memory in dice.uniform(0.1, 0.8, 40)
    ]
    scored = []
    for i, one in enumerate(fleet):
        others = [*fleet[:i], *fleet[i + 1 :]]
        if i < 6:
            scored.append((predictions(others, one.shown), one.shares))
    found = errors(scored)
    assert found["forest"].time < 0.3 * found["mean"].time
    assert found["forest"].power < 0.3 * found["mean"].power


def test_a_small_fleet_has_physics_alone() -> None:
    shown = Shown("no such card", 1.0, 0.9)
    assert predictions([], shown) == {"physics": PHYSICS}
    assert errors([]) == {}
