"""Energy under plans, what it makes of a ratio, and what that is worth at the wall."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.policy.policy import Cost
from joulecut_controller.savings.job_saving import (
    Usage,
    job_saving,
    longer_s,
    plan_times,
    saved_j,
    total,
)
from joulecut_controller.savings.wall import at_the_wall, sum_of
from joulecut_controller.trust.interval import Interval
from joulecut_controller.trust.paired_difference import usable_windows
from joulecut_controller.trust.window import MeasuredWindow
from joulecut_engine.money import Iteration, worth

HOUR_S = 3600.0


def window(
    begun_s: float, *, arm: str = "plan", generation: int = 7, iterations: int = 60
) -> MeasuredWindow:
    """300 s; 60 iterations of 5 s and 1000 J each unless said otherwise."""
    return MeasuredWindow(
        job="j",
        shape="a",
        arm="plan" if arm == "plan" else "default",
        generation=generation if arm == "plan" else 0,
        begun_unix_s=begun_s,
        ended_unix_s=begun_s + 300.0,
        gpus=2,
        iterations=iterations,
        time_mean_s=5.0,
        time_sd_s=0.1,
        energy_j=1000.0,
    )


def plan_time(windows: list[MeasuredWindow]) -> Usage:
    return plan_times(usable_windows(windows)).get(("a", ""), Usage())


def test_windows_are_measured_and_the_time_between_them_is_like_them() -> None:
    time = plan_time([window(0.0), window(1200.0, iterations=30)])
    # 600 s in windows and 900 s between: half at 0.2 iterations a second, half at 0.1
    assert time.time_s == pytest.approx(1500.0)
    assert time.iterations == pytest.approx(90 + 450.0 * 0.2 + 450.0 * 0.1)
    assert time.energy_j == pytest.approx(90_000.0 + 135_000.0)
    assert time.measured_j == pytest.approx(90_000.0), "the rest is assumed"


@pytest.mark.parametrize(
    "later",
    [
        window(1200.0, generation=8),  # another plan: who knows what was between
        window(1200.0, arm="default"),
        window(90_000.0),  # more than a day
        replace(window(1200.0), phase="evaluate"),
    ],
)
def test_time_that_nobody_vouches_for_is_not_counted(later: MeasuredWindow) -> None:
    both = plan_times(usable_windows([window(0.0), later])).values()
    assert sum(one.time_s for one in both) == 300.0 * (1 + (later.arm == "plan"))


@given(st.lists(st.tuples(st.floats(0, 1e5), st.booleans(), st.integers(1, 3)), max_size=30))
def test_time_under_plans_never_exceeds_the_time_there_was(
    drawn: list[tuple[float, bool, int]],
) -> None:
    made = [window(at, arm="plan" if plan else "default", generation=g) for at, plan, g in drawn]
    time = plan_time(made)
    if made:
        span_s = max(w.ended_unix_s for w in made) - min(w.begun_unix_s for w in made)
        assert -1e-6 <= time.time_s <= span_s + 1e-6
        assert time.energy_j == pytest.approx(time.iterations * 1000.0)


def test_a_ratio_is_of_what_default_clocks_would_have_taken() -> None:
    spent = Usage(energy_j=800.0, iterating_s=102.0)
    saved = saved_j(Interval(0.2, 0.1, 0.5), spent.energy_j)
    assert saved == Interval(pytest.approx(200.0), pytest.approx(800.0 / 9.0), 800.0)
    longer = longer_s(Interval(0.02, 0.0, 0.02), spent)
    assert longer == Interval(pytest.approx(2.0), 0.0, pytest.approx(2.0))


def test_independent_jobs_add_in_squares() -> None:
    whole = total([Interval(10.0, 7.0, 13.0), Interval(20.0, 16.0, 24.0)])
    assert whole == Interval(30.0, pytest.approx(25.0), pytest.approx(35.0))


PRICES = Cost(gpu_hour=2.0, kwh=0.10, host_power_w=100.0, pue=1.5, co2_g_per_kwh=400.0)


def test_the_wall_by_hand() -> None:
    """3 kWh at two GPUs that took half an hour longer each: 1.5 * (3 - 0.1) kWh."""
    exact = Interval(3.0 * 3.6e6, 3.0 * 3.6e6, 3.0 * 3.6e6)
    longer = Interval(HOUR_S, HOUR_S, HOUR_S)
    wall = at_the_wall(exact, longer, PRICES)
    assert wall.saved_kwh.mid == pytest.approx(4.35)
    assert wall.gpu_hours_longer.mid == pytest.approx(1.0)
    assert wall.energy_money.mid == pytest.approx(0.435)
    assert wall.net_money.mid == pytest.approx(0.435 - 2.0)
    assert wall.co2_kg.mid == pytest.approx(4.35 * 0.4)


def test_what_has_no_price_is_unknown_and_never_free() -> None:
    wall = at_the_wall(Interval(1e6, 0.0, 2e6), Interval(60.0, 0.0, 90.0), Cost(kwh=0.1))
    assert wall.energy_money is not None
    assert wall.time_money is wall.net_money is wall.co2_kg is None


@given(
    saved=st.floats(-0.5, 0.9),
    pue=st.floats(1.0, 2.0),
    host_w=st.floats(0.0, 500.0),
    hour=st.floats(0.01, 10.0),
)
def test_at_the_break_even_nothing_is_won_or_lost(
    saved: float, pue: float, host_w: float, hour: float
) -> None:
    given_prices = Cost(gpu_hour=hour, kwh=0.2, host_power_w=host_w, pue=pue)
    default_j, plan_j, default_s, gpus = 5000.0, 5000.0 * (1.0 - saved), 3.0, 4
    plan = Iteration(default_s, plan_j)
    prices = given_prices.prices()
    slowdown = worth(Iteration(default_s, default_j), plan, gpus, prices).break_even_slowdown
    won = default_j - plan_j
    longer = gpus * default_s * slowdown
    wall = at_the_wall(Interval(won, won, won), Interval(longer, longer, longer), given_prices)
    assert wall.net_money.mid == pytest.approx(0.0, abs=1e-12)


def test_bounds_hold_both_measurements_at_their_worst() -> None:
    wall = at_the_wall(Interval(5e6, 4e6, 6e6), Interval(900.0, 600.0, 1200.0), PRICES)
    worst = at_the_wall(Interval(4e6, 4e6, 4e6), Interval(1200.0, 1200.0, 1200.0), PRICES).net_money
    assert wall.net_money.low == pytest.approx(worst.mid)
    assert wall.net_money.low < wall.net_money.mid < wall.net_money.high


def test_jobs_add_up_and_what_is_not_known_is_counted() -> None:
    jobs = {}
    for job, saved in (("a", 0.2), ("b", 0.1), ("c", 0.3)):
        made = []
        for number in range(5 if job != "c" else 2):
            for place, arm in enumerate(("plan", "default", "plan")):
                one = window(7200.0 * number + 400.0 * place, arm=arm)
                energy_j = 1000.0 * (1.0 - saved) if arm == "plan" else 1000.0
                made.append(replace(one, job=job, energy_j=energy_j))
        jobs[job] = job_saving(made)
    a, b, c = jobs.values()
    # twelve minutes of windows and the time between the last of one group and the next
    assert a.saved_j.mid == pytest.approx(a.usage.energy_j * 0.25)
    assert a.usage.time_s > 10 * 300.0
    both = sum_of([a, b, c, job_saving([])], PRICES)
    assert both.saved_j.mid == pytest.approx(a.saved_j.mid + b.saved_j.mid)
    assert both.wall.saved_kwh.mid == pytest.approx(PRICES.pue * both.saved_j.mid / 3.6e6)
    assert (both.jobs, both.unknown) == (4, 2)
    assert c.saved_j is None
    assert c.uncounted_j > 0.0
    assert sum_of([c], PRICES).saved_j is None
