"""The site's bounds: what they refuse, and what they must never hold up."""

import math

import pytest
from draws import SAFE
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.keeper import bounds
from joulecut_agent.keeper.bounds import Bounds, Change, PowerLimits, WriteHistory, judge
from joulecut_agent.keeper.requests import ClockLimits

CLOCKS = (210, 600, 900, 1200, 1410)
TOP = ClockLimits(0, 1410, 0)
clock_ranges = st.builds(
    ClockLimits, st.sampled_from((0, *CLOCKS)), st.sampled_from(CLOCKS), st.just(0)
)
TIGHT = Bounds(min_dwell_s=10.0, writes_per_minute=2, changed_share_per_minute=0.5)


def _one(site: Bounds, wanted: ClockLimits, before: ClockLimits = TOP) -> str:
    return bounds.judge(site, {"a": Change(wanted, before, CLOCKS)}, {}, 8, 0.0)["a"]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (ClockLimits(0, 1201), "1201 MHz is not a supported clock"),
        (ClockLimits(211, 900), "211 MHz is not a supported clock"),
        (ClockLimits(0, 600), "600 MHz is below the site's 900 MHz"),
        (ClockLimits(0, 1410), "1410 MHz is above the site's 1200 MHz"),
        (ClockLimits(600, 1200), "600 MHz is below the site's 900 MHz"),
        (ClockLimits(1200, 900), "900 MHz is outside 1200 to 900 MHz"),
        (ClockLimits(0, 900), ""),
        (ClockLimits(900, 1200), ""),
    ],
)
def test_out_of_range_is_refused_and_never_clamped(wanted: ClockLimits, reason: str) -> None:
    assert _one(Bounds(clock_min_mhz=900, clock_max_mhz=1200), wanted) == reason


@pytest.mark.parametrize(
    ("power_mw", "reason"),
    [
        (99_999, "power limit 99.999 W; allowed: 150 to 350 W"),
        (149_999, "power limit 149.999 W; allowed: 150 to 350 W"),
        (350_001, "power limit 350.001 W; allowed: 150 to 350 W"),
        (150_000, ""),
        (350_000, ""),
    ],
)
def test_a_power_limit_out_of_range_is_refused(power_mw: int, reason: str) -> None:
    change = Change(
        ClockLimits(0, 0, power_mw),
        ClockLimits(0, 1410, 400_000),
        CLOCKS,
        PowerLimits(100_000, 400_000),
    )
    site = Bounds(power_min_w=150.0, power_max_w=350.0)
    assert bounds.judge(site, {"a": change}, {}, 8, 0.0)["a"] == reason
    assert change.lowers, "it has to wait like a lower clock"
    nothing = Change(
        ClockLimits(0, 0, 0), ClockLimits(0, 1410, 400_000), CLOCKS, PowerLimits(100_000, 400_000)
    )
    assert "neither" in bounds.judge(site, {"a": nothing}, {}, 8, 0.0)["a"]
    unable = Change(ClockLimits(0, 0, 200_000), ClockLimits(0, 1410, 0), CLOCKS)
    assert "allowed" in bounds.judge(Bounds(), {"a": unable}, {}, 8, 0.0)["a"]


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, 60.0001, math.inf, -math.inf, math.nan])
def test_a_ttl_that_is_none_is_refused(ttl_s: float) -> None:
    assert bounds.refuse_ttl(Bounds(), ttl_s)


@SAFE
@given(clock_ranges, clock_ranges, st.floats(0.0, 60.0), st.lists(st.floats(0.0, 60.0), max_size=9))
def test_the_way_up_never_waits(
    before: ClockLimits, wanted: ClockLimits, changed_s: float, lowered_s: list[float]
) -> None:
    change = Change(wanted, before, CLOCKS)
    if wanted[0] > wanted[1] or change.lowers:
        return
    writes = {
        "a": WriteHistory(changed_s, tuple(sorted(lowered_s))),
        **{str(n): WriteHistory(60.0, (60.0,)) for n in range(8)},
    }
    assert bounds.judge(TIGHT, {"a": change}, writes, 8, 60.0)["a"] == ""


def test_a_lower_minimum_is_a_lowering() -> None:
    assert Change(ClockLimits(0, 900, 0), ClockLimits(600, 900, 0), CLOCKS).lowers
    assert not Change(ClockLimits(600, 900, 0), ClockLimits(600, 900, 0), CLOCKS).lowers


def test_dwell_and_rate_hold_lowering_back() -> None:
    down = {"a": Change(ClockLimits(0, 900, 0), TOP, CLOCKS)}
    past = WriteHistory()
    assert bounds.judge(TIGHT, down, {"a": past}, 8, 0.0)["a"] == ""
    past = bounds.record(past, True, 0.0)
    assert "dwell: 10 s" in bounds.judge(TIGHT, down, {"a": past}, 8, 9.99)["a"]
    past = bounds.record(past, True, 10.0)
    assert "2 times" in bounds.judge(TIGHT, down, {"a": past}, 8, 25.0)["a"]
    assert bounds.judge(TIGHT, down, {"a": past}, 8, 60.0)["a"] == "", "the first is a minute old"


def test_the_share_counts_gpus_and_not_writes() -> None:
    quick = Bounds(min_dwell_s=0.0, changed_share_per_minute=0.5)
    writes = {name: WriteHistory(0.0, (0.0, 1.0, 2.0)) for name in ("a", "b", "c")}
    down = {"d": Change(ClockLimits(0, 900, 0), TOP, CLOCKS)}
    assert bounds.judge(quick, down, writes, 8, 5.0)["d"] == ""
    more = {**down, "e": Change(ClockLimits(0, 900, 0), TOP, CLOCKS)}
    assert "5 of 8" in bounds.judge(quick, more, writes, 8, 5.0)["d"]
    again = {"a": Change(ClockLimits(0, 600, 0), ClockLimits(0, 900, 0), CLOCKS)}
    assert bounds.judge(quick, again, writes, 8, 5.0)["a"] == ""


def test_the_defaults_let_a_small_node_change_as_one_and_soon_again() -> None:
    node = [f"g{n}" for n in range(4)]
    writes: dict[str, WriteHistory] = {}
    for turn in range(40):
        now_s = 2.0 * turn
        low, middle = ClockLimits(0, 600), ClockLimits(0, 900)
        wanted, before = (middle, TOP) if turn % 2 else (low, middle)
        group = {name: Change(wanted, before, CLOCKS) for name in node}
        assert not any(bounds.judge(Bounds(), group, writes, 4, now_s).values()), now_s
        writes = {
            name: bounds.record(writes.get(name, WriteHistory()), True, now_s) for name in node
        }


@given(st.lists(st.floats(0.0, 30.0), max_size=200))
def test_a_history_stays_short(gaps_s: list[float]) -> None:
    past, now_s = WriteHistory(), 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        past = bounds.record(past, True, now_s)
        assert all(now_s - moment_s < bounds.WINDOW_S for moment_s in past.lowered_s)


CLOCKS_MHZ = tuple(range(210, 1411, 15))


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
