"""Bounds where two knobs meet: the steps of a program, and a power limit without clocks."""

import pytest

from joulecut_agent.keeper.bounds import Bounds, Change, PowerLimits, WriteHistory, judge, record
from joulecut_agent.keeper.requests import ClockLimits

CLOCKS_MHZ = tuple(range(210, 1411, 15))


@pytest.mark.parametrize(
    ("low", "program", "wrong"),
    [
        (0, (900, 1200), 1200),
        (0, (1200,), 1200),
        (600, (900, 450), 450),
        (0, (900, 901), 901),
        (0, (900, 0), 0),
    ],
)
def test_a_step_outside_of_the_range_is_refused(
    low: int, program: tuple[int, ...], wrong: int
) -> None:
    change = Change(
        ClockLimits(low, 1005, 0), ClockLimits(0, 1410, 0), CLOCKS_MHZ, schedule_mhz=program
    )
    (reason,) = judge(Bounds(), {"GPU-0": change}, {}, 1, 0.0).values()
    assert f"{wrong} MHz" in reason


def test_steps_inside_of_it_are_fine() -> None:
    change = Change(
        ClockLimits(600, 1005, 0),
        ClockLimits(0, 1410, 0),
        CLOCKS_MHZ,
        schedule_mhz=(600, 1005, 900),
    )
    assert judge(Bounds(), {"GPU-0": change}, {}, 1, 0.0) == {"GPU-0": ""}


@pytest.mark.parametrize(("power_mw", "lowers"), [(300_000, False), (200_000, True)])
def test_a_power_limit_alone_lowers_no_clock(power_mw: int, lowers: bool) -> None:
    change = Change(
        ClockLimits(0, 0, power_mw),
        ClockLimits(0, 1410, 250_000),
        CLOCKS_MHZ,
        PowerLimits(100_000, 400_000),
    )
    assert change.lowers == lowers


def test_a_sites_power_range_is_no_word_on_orders_of_clocks_alone() -> None:
    bounds = Bounds(power_min_w=150.0, power_max_w=300.0)
    change = Change(
        ClockLimits(0, 900, 0),
        ClockLimits(0, 1410, 0),
        (600, 900, 1410),
        PowerLimits(100_000, 400_000),
    )
    assert judge(bounds, {"GPU-a": change}, {}, 1, 1000.0) == {"GPU-a": ""}


def test_a_lowest_clock_without_a_highest_is_no_order_whatever_comes_with_it() -> None:
    change = Change(
        ClockLimits(600, 0, 250_000),
        ClockLimits(0, 1410, 400_000),
        (600, 1410),
        PowerLimits(100_000, 400_000),
    )
    (reason,) = judge(Bounds(), {"GPU-a": change}, {}, 1, 1000.0).values()
    assert reason == "neither clocks nor a power limit are requested"


def test_the_dwell_names_how_long_ago_that_was() -> None:
    change = Change(ClockLimits(0, 900, 0), ClockLimits(0, 1410, 0), (900, 1410))
    past = {"GPU-a": WriteHistory(changed_s=999.75)}
    (reason,) = judge(Bounds(min_dwell_s=1.0), {"GPU-a": change}, past, 1, 1000.0).values()
    assert reason == "changed 0.25 s ago; dwell: 1 s"


def test_the_share_counts_those_that_were_lowered_within_the_minute() -> None:
    bounds = Bounds(min_dwell_s=0.0, changed_share_per_minute=0.5)
    change = Change(ClockLimits(0, 900, 0), ClockLimits(0, 1410, 0), (900, 1410))
    past = {u: record(WriteHistory(), lowers=True, now_s=1000.0) for u in ("GPU-a", "GPU-b")}

    def reason(now_s: float) -> str:
        return judge(bounds, {"GPU-c": change}, past, 4, now_s)["GPU-c"]

    assert reason(1059.9) == "3 of 4 GPUs lowered within a minute; allowed share: 0.5"
    assert reason(1060.0) == ""
