"""Timed clock schedules in virtual time: jobs whose iterations jitter, pause and go unreported."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from draws import SAFE
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.control.iteration_clock import IterationClock
from joulecut_agent.control.timed_schedule import (
    TIMED_STEPS_MAX,
    SetLatencies,
    TimedSchedule,
    refuse_timed_steps,
    refuse_uncertainty,
    shortest_stretch_s,
)
from joulecut_wire.messages import ScheduleStep, Setting, TimedStep

REST, LOW, MIDDLE = 1410, 900, 1200
LATENCY = SetLatencies(0.01, 0.03)


def _setting(*steps: tuple[float, int], period_s: float = 10.0) -> Setting:
    timed = tuple(TimedStep(*step) for step in steps)
    return Setting("GPU-a", REST, timed_steps=timed, iteration_time_s=period_s)


INSIDE = _setting((0.5, LOW), (9.0, REST))  # low within an iteration
ACROSS = _setting((1.0, REST), (2.0, MIDDLE), (6.0, LOW))  # and from one into the next


@dataclass
class Run:
    """One GPU: what its schedule commanded, and the clock that followed."""

    setting: Setting
    latency: SetLatencies = LATENCY
    seed: int = 1
    starts_s: list[float] = field(default_factory=list)  # true ones
    clocks: list[tuple[float, int]] = field(default_factory=lambda: [(-math.inf, REST)])

    def follow(self, periods_s: list[float], seen: list[float | None]) -> "Run":
        """Iterations of these durations; `seen`: how late each start is known, None: never."""
        rng, schedule, clock = (
            random.Random(self.seed),
            TimedSchedule(self.setting),
            IterationClock(),
        )
        clock.paces_s.append(self.setting.iteration_time_s)
        self.starts_s, now_s = [1000.0], 1000.0
        for period_s in periods_s:
            self.starts_s.append(self.starts_s[-1] + period_s)
        arrivals = sorted(
            (start_s + late_s, number)
            for number, (start_s, late_s) in enumerate(zip(self.starts_s, seen, strict=False))
            if late_s is not None
        )
        next_s, at_mhz = self.starts_s[-1], REST
        while now_s < self.starts_s[-1]:
            if arrivals and arrivals[0][0] <= next_s:
                now_s, number = arrivals.pop(0)
                clock.seen(now_s, number, now_s)
            else:
                now_s = next_s
            due = schedule.due(clock.prediction(), self.latency, now_s)
            assert due.next_s > now_s
            next_s = min(due.next_s, self.starts_s[-1])
            if due.clock_mhz != at_mhz:
                at_mhz = due.clock_mhz
                takes_s = rng.uniform(self.latency.p5_s, self.latency.p95_s)
                self.clocks.append((max(now_s + takes_s, self.clocks[-1][0]), at_mhz))
        return self

    def slowed_s(self) -> list[float]:
        """By iteration: for how long the clock was below the schedule's at its true place."""
        return [self._compared(number, lambda is_, wanted: is_ < wanted) for number in self._all]

    def saved_s(self) -> list[float]:
        """By iteration: for how long the clock was below the highest."""
        return [self._compared(number, lambda is_, _: is_ < REST) for number in self._all]

    @property
    def _all(self) -> range:
        return range(len(self.starts_s) - 1)

    def _compared(self, number: int, matters: Callable[[int, int], bool]) -> float:
        start_s, end_s = self.starts_s[number], self.starts_s[number + 1]
        steps = self.setting.timed_steps
        places = [(start_s, steps[-1].clock_max_mhz)]
        places += [(start_s + step.offset_s, step.clock_max_mhz) for step in steps]
        cuts = sorted({start_s, end_s, *[at for at, _ in (*places, *self.clocks)]})
        cuts = [at for at in cuts if start_s <= at <= end_s]
        total_s = 0.0
        for begin_s, until_s in pairwise(cuts):
            wanted = [mhz for at_s, mhz in places if at_s <= begin_s][-1]
            is_ = [mhz for at_s, mhz in self.clocks if at_s <= begin_s][-1]
            total_s += (until_s - begin_s) * matters(is_, wanted)
        return total_s


jitters = st.floats(-0.02, 0.02)


@SAFE
@given(
    st.sampled_from([INSIDE, ACROSS]),
    st.lists(jitters, min_size=12, max_size=40),
    st.lists(st.integers(0, 9), min_size=41, max_size=41),
    st.integers(0, 99),
)
def test_a_clock_is_never_low_outside_its_stretch(
    setting: Setting, jitters_s: list[float], lost: list[int], seed: int
) -> None:
    """Iterations jitter, and one start in ten is lost."""
    periods_s = [10.0 + jitter_s for jitter_s in jitters_s]
    run = Run(setting, seed=seed).follow(periods_s, [0.0 if n else None for n in lost])
    # Places before a start is seen are known to the jitter of one iteration, or of two after a
    # lost one; tolerance is at least 1 %.
    assert max(run.slowed_s()) <= LATENCY.spread_s + 0.1


def test_a_missed_start_means_the_highest_clock_until_the_next_good_one() -> None:
    seen: list[float | None] = [0.0] * 20
    seen[10] = None
    saved_s = Run(INSIDE).follow([10.0] * 20, seen).saved_s()
    assert saved_s[10] < 0.1
    assert saved_s[11] > 8.0


@pytest.mark.parametrize("setting", [INSIDE, ACROSS])
@pytest.mark.parametrize("pause_s", [0.2, 3.0, 13.7, 300.0])
def test_a_pause_is_spent_at_the_highest_clock(setting: Setting, pause_s: float) -> None:
    periods_s = [10.0] * 20
    periods_s[10] += pause_s
    run = Run(setting).follow(periods_s, [0.0] * 20)
    late_s = run.starts_s[10] + 10.0 + 0.2
    assert [mhz for at_s, mhz in run.clocks if at_s <= late_s][-1] == REST
    assert all(mhz == REST for at_s, mhz in run.clocks if late_s <= at_s < run.starts_s[11])
    assert run.saved_s()[12] > 8.0 or pause_s > 100.0
    assert run.saved_s()[18] > 8.0


def test_another_period_is_learnt_and_a_workload_that_does_not_fit_rests() -> None:
    planned = [10.0] * 10 + [10.2] * 10
    saved_s = Run(INSIDE).follow(planned, [0.0] * 20).saved_s()
    assert min(saved_s[16:]) > 8.0
    for other_s in (8.0, 12.0):
        run = Run(INSIDE).follow([10.0] * 8 + [other_s] * 8, [0.0] * 16)
        assert max(run.saved_s()[12:]) < 0.1


def test_a_plan_that_slows_a_job_as_expected_is_followed_from_the_first_iteration() -> None:
    setting = _setting((0.5, LOW), (9.0, REST), period_s=10.2)
    run = Run(setting).follow([10.0] * 8 + [10.2] * 8, [0.0] * 16)
    assert min(run.saved_s()[6:]) > 8.0


def test_steps_of_a_faster_run_are_not_late_and_of_a_slower_one_not_early() -> None:
    for period_s in (9.7, 10.3):
        run = Run(INSIDE).follow([period_s] * 20, [0.0] * 20)
        fast = period_s / 10.0
        for number in range(8, 20):
            start_s = run.starts_s[number]
            inside = [c for c in run.clocks if start_s <= c[0] < start_s + period_s]
            assert [mhz for _, mhz in inside] == [LOW, REST]
            assert inside[0][0] >= start_s + 0.5 + max(0.0, period_s - 10.0) - 1e-9
            assert inside[1][0] <= start_s + 9.0 * min(1.0, fast) + 1e-9


def test_starts_that_are_known_late_but_exactly_time_the_rest_of_their_iteration() -> None:
    """As spans that are exported every few seconds."""
    setting, clock, schedule = INSIDE, IterationClock(), TimedSchedule(INSIDE)
    for number in range(12):
        clock.seen(1000.0 + 10.0 * number, number, 1000.0 + 10.0 * number + 2.0)
    starts = clock.prediction()
    assert starts is not None
    assert schedule.due(starts, LATENCY, 1115.0).clock_mhz == LOW
    assert schedule.due(starts, LATENCY, 1121.5).clock_mhz == LOW, "as long as the next is awaited"
    assert schedule.due(starts, LATENCY, 1122.2).clock_mhz == REST
    assert setting.timed_steps[0].offset_s == 0.5


@given(st.integers(2, 8), st.floats(0.0, 0.05))
def test_reports_in_batches_are_no_starts(batch: int, within_s: float) -> None:
    clock, schedule, now_s = IterationClock(), TimedSchedule(INSIDE), 1000.0
    for _ in range(6):
        for n in range(batch):
            clock.seen(now_s + n * within_s, None, now_s + n * within_s)
            at_s = now_s + n * within_s
            for later_s in (0.01, 1.0, 5.0):
                assert schedule.due(clock.prediction(), LATENCY, at_s + later_s).clock_mhz == REST
        now_s += 10.0 * batch


def test_a_restarted_job_and_repeated_starts_move_no_phase() -> None:
    clock = IterationClock()
    for number in range(10):
        assert clock.seen(1000.0 + number, number, 1000.0 + number)
        assert not clock.seen(1000.4 + number, number, 1000.4 + number), "the same once more"
    assert not clock.seen(1004.5, 99, 1010.0), "out of order"
    assert not clock.seen(1020.0, 10, 1010.0), "later than now"
    starts = clock.prediction()
    assert (starts.period_s, starts.good, clock.missed_ratio) == (1.0, True, 0.0)
    assert clock.seen(1010.2, 0, 1010.2)
    assert clock.prediction() is None, "another run: its phase and period are not known yet"


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (INSIDE, ""),
        (ACROSS, ""),
        (_setting((0.0, REST)), ""),
        (_setting((0.0, REST), (0.0, LOW)), "ascending offsets from 0 to 10 s"),
        (_setting((-0.1, LOW)), "ascending"),
        (_setting((10.0, LOW)), "ascending"),
        (_setting((math.nan, LOW)), "ascending"),
        (_setting((1.0, REST + 15)), "above 1410 MHz"),
        (_setting((1.0, LOW), period_s=0.0), "iteration time of the timed steps is not known"),
        (_setting((1.0, LOW), period_s=math.inf), "is not known"),
        (
            _setting(*((0.1 * n, LOW) for n in range(TIMED_STEPS_MAX + 1)), period_s=99.0),
            "up to 64",
        ),
    ],
)
def test_what_makes_no_schedule_is_refused(setting: Setting, reason: str) -> None:
    found = refuse_timed_steps(setting)
    assert (reason in found) if reason else not found
    both = Setting(
        "GPU-a", REST, clock_schedule=(ScheduleStep("forward", LOW),),
        timed_steps=setting.timed_steps, iteration_time_s=10.0,
    )  # fmt: skip
    assert "allowed: one of them" in refuse_timed_steps(both)


def test_changes_that_cannot_be_placed_within_half_of_the_shortest_stretch_are_refused() -> None:
    assert shortest_stretch_s(INSIDE) == 1.5
    assert shortest_stretch_s(_setting((0.0, REST), (0.5, LOW), (9.9, REST))) == pytest.approx(0.6)
    assert shortest_stretch_s(_setting((0.0, LOW), (0.5, LOW))) == 10.0, "no change at all"
    assert refuse_uncertainty(1.5, 0.25, 0.5) == ""
    assert "takes 1.5 s; allowed: twice 0.76 s" in refuse_uncertainty(1.5, 0.26, 0.5)
    assert "allowed: 0.1 s" in refuse_uncertainty(0.09, 0.0, 0.0)
    assert refuse_uncertainty(math.nan, 0.0, 0.0)
    rough = [10.0 + 0.9 * (-1) ** n for n in range(20)]
    assert max(Run(INSIDE).follow(rough, [0.0] * 20).saved_s()) < 0.1, "nor while it runs"
