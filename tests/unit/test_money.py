"""Money: worth and break-even of a plan, and the point of a frontier that costs least."""

import pytest
from hypothesis import strategies as st

from joulecut_engine.money import Iteration, Prices, usual_break_even, worth

positive = st.floats(0.01, 1e4)
prices = st.builds(
    Prices,
    gpu_hour=st.floats(0.01, 20.0),
    kwh=st.floats(0.01, 2.0),
    pue=st.floats(1.0, 2.0),
    host_power_w=st.floats(0.0, 500.0),
)
iterations = st.builds(Iteration, positive, st.floats(1.0, 1e6))


def test_ten_per_cent_of_an_h100_pay_for_a_third_of_a_per_cent_of_its_time() -> None:
    assert usual_break_even(Prices(gpu_hour=2.0, kwh=0.08, pue=1.2)) == pytest.approx(
        0.0031, rel=0.01
    )
    assert usual_break_even(Prices(gpu_hour=2.0, kwh=0.30, pue=1.2)) == pytest.approx(
        0.0117, rel=0.01
    )


def test_a_plan_by_hand() -> None:
    """Two GPUs, 3.6 s and 3.6 kJ; a tenth less energy, one per cent longer."""
    found = worth(
        Iteration(3.6, 3600.0),
        Iteration(3.636, 3240.0),
        2,
        Prices(gpu_hour=1.0, kwh=1.0, pue=1.0),
    )
    saved, lost = 360.0 / 3.6e6, 2 * 0.036 / 3600.0
    assert found.net_per_gpu_hour == pytest.approx((saved - lost) / (2 * 3.636 / 3600.0))
    assert found.net_per_year == pytest.approx(found.net_per_gpu_hour * 2 * 8760.0)
    assert found.break_even_slowdown == pytest.approx(saved / (2 * 3.6 / 3600.0))


def test_free_time_pays_for_any_slowdown_and_free_energy_for_none() -> None:
    default, plan = Iteration(1.0, 100.0), Iteration(1.0, 90.0)
    free_time, free_energy = Prices(gpu_hour=0.0), Prices(kwh=0.0)
    assert worth(default, plan, 1, free_time).as_json()["break_even_slowdown_ratio"] is None
    assert worth(default, plan, 1, free_energy).break_even_slowdown == 0.0
    assert free_energy.time_power_w == float("inf")


def test_what_differs_by_rounding_is_worth_nothing() -> None:
    """A rule that ends at default clocks adds their times in another order."""
    found = worth(Iteration(0.3, 100.0), Iteration(0.1 + 0.2, 100.0), 8, Prices())
    assert found.net_per_gpu_hour == 0.0
