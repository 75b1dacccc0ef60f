"""When hold-outs run: their share of time, their spread, and that no restart moves them."""

import statistics
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from windows import is_drawn

from joulecut_controller.trust.switchback import (
    ITERATIONS_WANTED,
    NEIGHBOURS,
    WARM_UP_S,
    SwitchbackSchedule,
    slot_s,
)

NOON_UNIX_S = 1_767_268_800.0  # 2026-01-01 12:00:00 UTC
names = st.text("abcdefgh-0123", min_size=1, max_size=12)
shares = st.floats(0.001, 0.5)
lengths_s = st.floats(90.0, 7200.0)


def drawn_in(schedule: SwitchbackSchedule, count: int) -> list[int]:
    """The drawn slots among so many from noon on."""
    first = schedule.slot(NOON_UNIX_S)
    return [slot for slot in range(first, first + count) if is_drawn(schedule, slot)]


@given(names, shares, lengths_s)
def test_over_a_long_time_the_share_is_the_policys(job: str, share: float, length_s: float) -> None:
    schedule = SwitchbackSchedule(job, share, length_s)
    cycles = 12
    count = round(cycles / share)
    held = len(drawn_in(schedule, count))
    assert abs(held - cycles) <= 2  # the first cycle and the last are cut


@given(names, st.floats(0.001, 1 / 3), lengths_s)
def test_two_hold_outs_have_a_slot_under_the_plan_between_them(
    job: str, share: float, length_s: float
) -> None:
    drawn = drawn_in(SwitchbackSchedule(job, share, length_s), round(10 / share))
    assert all(b - a >= 2 for a, b in pairwise(drawn))


@given(names, shares, lengths_s, st.floats(0.0, 1e6))
def test_each_cycle_has_one_and_any_time_gives_the_same_answer(
    job: str, share: float, length_s: float, later_s: float
) -> None:
    schedule, again = (
        SwitchbackSchedule(job, share, length_s),
        SwitchbackSchedule(job, share, length_s),
    )
    unix_s = NOON_UNIX_S + later_s
    slot = schedule.slot(unix_s)
    cycle = schedule.cycle(slot)
    assert schedule.begins_unix_s(slot) <= unix_s + 1e-3
    assert unix_s - 1e-3 <= schedule.begins_unix_s(slot + 1)
    assert schedule.drawn(cycle) == again.drawn(cycle)
    assert schedule.cycle(schedule.drawn(cycle)) == cycle
    ahead = schedule.next_unix_s(unix_s)
    assert ahead > unix_s - 1e-3
    coming = schedule.slot(ahead + length_s / 2)
    assert is_drawn(schedule, coming)
    assert not any(is_drawn(schedule, between) for between in range(slot + 1, coming))


@given(names, shares, lengths_s)
def test_slots_beside_a_hold_out_are_measured_and_others_are_not(
    job: str, share: float, length_s: float
) -> None:
    schedule = SwitchbackSchedule(job, share, length_s)
    drawn = drawn_in(schedule, round(8 / share))
    middle = drawn[len(drawn) // 2]
    assert all(schedule.is_measured(middle + step) for step in range(-NEIGHBOURS, NEIGHBOURS + 1))
    gaps = [slot for slot in range(drawn[0], drawn[-1]) if not schedule.is_measured(slot)]
    assert all(min(abs(slot - d) for d in drawn) > NEIGHBOURS for slot in gaps)


def test_where_hold_outs_are_rare_the_plan_is_measured_four_times_a_day() -> None:
    schedule = SwitchbackSchedule("gpt3", 0.001, 330.0)
    first = schedule.slot(NOON_UNIX_S)
    measured = [slot for slot in range(first, first + 1309) if schedule.is_measured(slot)]
    assert all((b - a) * 330.0 <= 6.1 * 3600 for a, b in pairwise(measured))  # five days
    assert len(measured) < 40


def test_no_hour_of_the_day_is_favoured() -> None:
    schedule = SwitchbackSchedule("gpt3", 0.05, 330.0)
    hours = [
        schedule.begins_unix_s(slot) % 86_400 / 3600
        for slot in drawn_in(schedule, round(120 * 86_400 / 330))
    ]
    by_quarter = [sum(low <= hour < low + 6 for hour in hours) for low in (0, 6, 12, 18)]
    # 1,571 hold-outs: a quarter of them plus or minus four standard deviations.
    assert all(
        abs(count - len(hours) / 4) < 4 * (len(hours) * 3 / 16) ** 0.5 for count in by_quarter
    )


def test_jobs_draw_independently_so_that_they_seldom_meet() -> None:
    jobs = [SwitchbackSchedule(f"job-{n}", 0.1, 330.0) for n in range(40)]
    at_once = [
        sum(is_drawn(job, job.slot(NOON_UNIX_S + 100.0 * step)) for job in jobs)
        for step in range(600)
    ]
    assert 3.0 < statistics.fmean(at_once) < 5.0  # four on average
    assert max(at_once) < 14


@given(st.floats(60.0, 21_600.0), st.floats(0.01, 600.0), st.floats(0.0, 600.0))
def test_a_slot_fits_its_iterations_and_its_dwell(
    window_s: float, iteration_s: float, dwell_s: float
) -> None:
    length_s = slot_s(window_s, iteration_s, dwell_s)
    assert length_s >= WARM_UP_S + ITERATIONS_WANTED * iteration_s
    assert length_s >= dwell_s
    assert length_s >= WARM_UP_S + window_s
    needed_s = max(WARM_UP_S + ITERATIONS_WANTED * iteration_s, dwell_s)
    assert length_s < 2 * max(WARM_UP_S + window_s, needed_s) * (1 + 1e-9)
