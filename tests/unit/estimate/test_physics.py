"""The fitted form: it finds what is there, needs few clocks, and never says nonsense."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulecut_engine.estimate.fitting import MISFIT, fit
from joulecut_engine.estimate.physics import Physics, Sweep

CLOCKS = np.arange(855.0, 1411.0, 15.0)


@st.composite
def physics(draw: st.DrawFn) -> Physics:
    """Parameters of the ranges seen on V100 to H200 (Physics of one GPU, one kind of work)."""
    return Physics(
        clock_max_mhz=1410.0,
        time_fmax_s=draw(st.floats(1e-4, 10.0)),
        clock_share=draw(st.floats(0.0, 1.0)),
        power_static_w=draw(st.floats(20.0, 120.0)),
        power_w_per_ghz=draw(st.floats(40.0, 300.0)),
        voltage_slope_per_ghz=draw(st.floats(0.3, 1.5)),
        clock_knee_mhz=draw(st.floats(900.0, 1300.0)),
        clock_cap_mhz=draw(st.one_of(st.just(float("inf")), st.floats(1200.0, 1380.0))),
    )


def _sweep(truth: Physics, clocks: np.ndarray = CLOCKS) -> Sweep:
    return Sweep(clocks, truth.time_s(clocks), truth.power_w(clocks))


def _worst(fitted: Physics, truth: Physics) -> tuple[float, float]:
    return (
        float(np.abs(fitted.time_s(CLOCKS) / truth.time_s(CLOCKS) - 1.0).max()),
        float(np.abs(fitted.power_w(CLOCKS) / truth.power_w(CLOCKS) - 1.0).max()),
    )


@settings(max_examples=40)
@given(truth=physics())
def test_a_curve_of_this_form_is_found_again(truth: Physics) -> None:
    """Its numbers trade off against each other, so the curve is compared and not they.

    The worst power seen was 2.002 % off at one clock, where the slope drawn is steepest and the
    power is capped; why it is there and not less has not been looked into.
    """
    (fitted,) = fit([_sweep(truth)])
    time_error, power_error = _worst(fitted, truth)
    assert time_error < 0.01
    assert power_error < 0.03


@settings(max_examples=40)
@given(truth=physics(), points=st.integers(1, 8), seed=st.integers(0, 2**32 - 1))
def test_any_number_of_clocks_gives_a_sensible_curve(
    truth: Physics, points: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    clocks = np.sort(generator.choice(CLOCKS, points, replace=False))
    exact = _sweep(truth, clocks)
    noisy = Sweep(clocks, exact.time_s * generator.lognormal(0.0, 0.01, points), exact.power_w)
    (fitted,) = fit([noisy])
    time_s, power_w = fitted.time_s(CLOCKS), fitted.power_w(CLOCKS)
    assert np.isfinite(time_s).all()
    assert np.isfinite(power_w).all()
    assert (time_s > 0.0).all()
    assert (power_w > 0.0).all()
    assert (np.diff(time_s) <= 1e-12 * time_s[:-1]).all()  # a higher clock is never slower
    assert (np.diff(power_w) >= -1e-12 * power_w[:-1]).all()  # nor does it draw less


def test_a_power_cap_is_recognised_by_flat_time_and_power() -> None:
    truth = Physics(1740.0, 0.11, 0.6, 94.0, 98.0, 0.5, 1120.0, 1450.0)
    clocks = np.arange(855.0, 1741.0, 15.0)
    (capped,) = fit([_sweep(truth, clocks)])
    assert capped.clock_cap_mhz == pytest.approx(1450.0, abs=10.0)
    free = Physics(1740.0, 0.11, 0.6, 94.0, 98.0, 0.5, 1120.0)
    (uncapped,) = fit([_sweep(free, clocks)])
    assert uncapped.clock_cap_mhz == float("inf")


@pytest.mark.parametrize("lead", [0.0, 0.015, 0.03])
def test_power_may_rise_where_the_time_no_longer_falls(lead: float) -> None:
    """Held back in its hungriest kernels only; the knee must not move for it."""
    truth = Physics(1410.0, 0.05, 0.85, 55.0, 200.0, 0.8, 1107.0, 1350.0, lead)
    (fitted,) = fit([_sweep(truth)])
    time_error, power_error = _worst(fitted, truth)
    assert time_error < 0.002
    assert power_error < 0.01
    assert fitted.clock_cap_mhz == pytest.approx(1350.0, abs=5.0)
    assert fitted.power_cap_mhz == pytest.approx(1350.0 * np.exp(lead), abs=10.0)


def test_three_clocks_find_a_cap_that_shows_in_the_time() -> None:
    clocks = CLOCKS[[0, 19, 37]]
    truth = Physics(1410.0, 0.05, 0.85, 60.0, 200.0, 0.6, 1090.0, 1330.0)
    (capped,) = fit([_sweep(truth, clocks)])
    assert capped.clock_cap_mhz == pytest.approx(1330.0, abs=25.0)
    assert _worst(capped, truth)[0] < 0.01


@pytest.mark.parametrize("static_w", [60.0, 120.0])
def test_three_clocks_find_no_cap_by_power_alone(static_w: float) -> None:
    """Work for memory: flat time and little dynamic power look like a cap, and are none."""
    truth = Physics(1410.0, 0.05, 0.0, static_w, 70.0, 0.6, 1090.0)
    (fitted,) = fit([_sweep(truth, CLOCKS[[0, 19, 37]])])
    assert fitted.clock_cap_mhz == float("inf")


def test_time_that_flattens_for_memory_is_no_cap_of_the_power() -> None:
    """A roofline: nothing below the ridge is bought by the clocks above it but power."""
    power = Physics(1410.0, 0.05, 0.8, 60.0, 150.0, 0.7, 1090.0)
    time = replace(power, clock_cap_mhz=1100.0)
    (fitted,) = fit([Sweep(CLOCKS, time.time_s(CLOCKS), power.power_w(CLOCKS))])
    assert np.abs(fitted.time_s(CLOCKS) / time.time_s(CLOCKS) - 1.0).max() < 0.005
    assert np.abs(fitted.power_w(CLOCKS) / power.power_w(CLOCKS) - 1.0).max() < 0.02


def test_one_wild_measurement_does_not_bend_the_curve() -> None:
    truth = Physics(1410.0, 0.05, 0.8, 52.0, 200.0, 0.76, 1107.0)
    exact = _sweep(truth)
    time_s, power_w = exact.time_s.copy(), exact.power_w.copy()
    time_s[5] *= 0.8
    power_w[20] *= 1.3
    (fitted,) = fit([Sweep(CLOCKS, time_s, power_w)])
    time_error, power_error = _worst(fitted, truth)
    assert time_error < 0.005
    assert power_error < 0.01


@pytest.mark.parametrize(
    ("clocks", "time_s", "power_w"),
    [
        ([], [], []),
        ([1000.0], [0.1, 0.2], [100.0]),
        ([1000.0], [float("nan")], [100.0]),
        ([1000.0], [0.1], [float("inf")]),
        ([0.0], [0.1], [100.0]),
        ([1000.0], [-0.1], [100.0]),
    ],
)
def test_a_sweep_of_nonsense_is_refused(
    clocks: list[float], time_s: list[float], power_w: list[float]
) -> None:
    with pytest.raises(ValueError, match=r"one length|finite"):
        Sweep(np.array(clocks), np.array(time_s), np.array(power_w))


@settings(max_examples=10)
@given(truths=st.lists(physics(), min_size=2, max_size=4), seed=st.integers(0, 2**32 - 1))
@example(
    truths=[
        Physics(1410.0, 1.0, 0.0, 20.0, 40.0, 1.0, 900.0),
        Physics(1410.0, 10.0, 1.0, 20.0, 300.0, 1.0, 900.0),
    ],
    seed=13,
)
def test_sweeps_of_other_clocks_are_fitted_beside_each_other(
    truths: list[Physics], seed: int
) -> None:
    """Each at clocks of its own, few or all: padding of the shorter ones bends no curve.

    Without caps, which few clocks may leave open. Priors pull the power of unusual cards (a static
    share of 2 %) by up to 0.3 %, less than the misfit that the fit allows for.
    """
    random = np.random.default_rng(seed)
    card = {"clock_knee_mhz": 1107.0, "voltage_slope_per_ghz": 0.76, "clock_cap_mhz": float("inf")}
    sweeps = [_sweep(replace(truths[0], **card))]
    for truth in truths[1:]:
        inner = random.choice(CLOCKS[1:-1], size=int(random.integers(3, 20)), replace=False)
        clocks = np.sort(np.append(inner, CLOCKS[[0, -1]]))
        sweeps.append(_sweep(replace(truth, **card), clocks))
    for truth, fitted in zip(truths, fit(sweeps), strict=True):
        assert max(_worst(fitted, replace(truth, **card))) < MISFIT
