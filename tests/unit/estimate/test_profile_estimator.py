"""Physics bent towards measurements: by how much, and how wide the band is."""

import numpy as np
import pytest

from joulecut_engine.estimate.physics import Physics, Sweep
from joulecut_engine.estimate.profile_estimator import BAND_MIN, BAND_ONE, curve_of

CLOCKS = np.arange(855.0, 1411.0, 15.0)
TRUTH = Physics(1410.0, 0.05, 0.8, 52.0, 200.0, 0.76, 1107.0)


def _bent(time_factor: np.ndarray, clocks: np.ndarray = CLOCKS):  # type: ignore[no-untyped-def]
    sweep = Sweep(clocks, TRUTH.time_s(clocks) * time_factor, TRUTH.power_w(clocks))
    return curve_of(TRUTH, sweep)


def _factor(clocks: np.ndarray, *, at: int, by: float) -> np.ndarray:
    factor = np.ones_like(clocks)
    factor[at] = by
    return factor


def test_in_a_dense_sweep_a_lucky_measurement_keeps_a_quarter_of_its_luck() -> None:
    curve = _bent(_factor(CLOCKS, at=20, by=0.9))
    seen = float(curve.time_s(CLOCKS)[20] / TRUTH.time_s(CLOCKS)[20])
    assert 0.9**0.3 < seen < 0.9**0.2


def test_a_lone_measurement_keeps_two_thirds_of_it() -> None:
    clocks = np.array([855.0, 1035.0, 1230.0, 1410.0])
    curve = _bent(_factor(clocks, at=1, by=0.9), clocks)
    seen = np.log(curve.time_s(clocks)[1] / TRUTH.time_s(clocks)[1]) / np.log(0.9)
    assert 0.55 < seen < 0.7


def test_what_whole_neighbourhoods_say_is_believed() -> None:
    """A regime that the form cannot express (another kernel above some clock)."""
    curve = _bent(np.where(CLOCKS > 1100.0, 1.08, 1.0))
    ratio = curve.time_s(CLOCKS) / TRUTH.time_s(CLOCKS)
    assert ratio[CLOCKS > 1180.0] == pytest.approx(1.08, abs=0.015)  # a ninth is shrunk away
    assert ratio[CLOCKS < 1020.0] == pytest.approx(1.0, abs=0.002)


def test_power_bends_like_time() -> None:
    sweep = Sweep(CLOCKS, TRUTH.time_s(CLOCKS), TRUTH.power_w(CLOCKS) * 1.1)
    assert curve_of(TRUTH, sweep).power_w(CLOCKS)[10] == pytest.approx(
        TRUTH.power_w(CLOCKS)[10] * 1.1, rel=0.02
    )


def test_the_band_covers_what_it_says() -> None:
    """About nine in ten left-out measurements, at several noise levels."""
    for noise in (0.005, 0.02, 0.05):
        inside = []
        for seed in range(20):
            generator = np.random.default_rng(seed)
            curve = _bent(generator.lognormal(0.0, noise, CLOCKS.size))
            low_s, high_s = curve.grid(CLOCKS).band_s(0.0)
            fresh_s = TRUTH.time_s(CLOCKS) * generator.lognormal(0.0, noise, CLOCKS.size)
            inside.append(np.mean((low_s <= fresh_s) & (fresh_s <= high_s)))
        assert 0.85 < np.mean(inside) < 0.97


def test_a_perfect_sweep_still_has_a_band() -> None:
    assert _bent(np.ones_like(CLOCKS)).band == BAND_MIN


def test_one_clock_says_little() -> None:
    assert _bent(np.ones(1), np.array([1410.0])).band == BAND_ONE


def test_outside_the_measured_clocks_the_band_opens_to_all_or_nothing() -> None:
    curve = _bent(np.ones_like(CLOCKS))
    edge_s = float(TRUTH.time_s(np.array([855.0]))[0])
    low_s, high_s = curve.grid(np.array([427.5])).band_s(0.0)
    assert low_s[0] <= edge_s  # the work might not follow the clock at all
    assert high_s[0] >= 2.0 * edge_s  # or wholly
    low_s, high_s = curve.grid(np.array([2820.0])).band_s(0.0)
    edge_s = float(TRUTH.time_s(np.array([1410.0]))[0])
    assert low_s[0] <= edge_s / 2.0
    assert high_s[0] >= edge_s
