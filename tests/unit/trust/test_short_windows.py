"""Shifts of a job's pace, and the share of time that short default windows take."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_states import changed
from planning import case_of, seen
from worlds import World

from joulecut_controller.observe.pace_shift import NEWEST, PaceShift
from joulecut_controller.plan.pace import Pace
from joulecut_controller.policy.policy import JobPolicy, Slo, Verify
from joulecut_controller.trust.default_windows import (
    CROWD_RATIO,
    FIRST_S,
    OVERDRAWN,
    DefaultWindows,
)
from joulecut_controller.trust.seen import JobSeen, PlanInForce
from joulecut_controller.trust.short_window import (
    EVERY_S,
    SHARE_MAX,
    SPREAD_RATIO,
    every_s,
    length_s,
)
from joulecut_controller.trust.window import MeasuredWindow
from joulecut_controller.view import BaselineDrift, JobState, View, Window

ITERATION_S = 1.0
WORLD = World(stages=2, microbatches=4)
PASS_S = 20.0


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_shift_and_a_jump_shows_within_a_few_iterations(seed: int) -> None:
    dice, pace = random.Random(f"pace {seed}"), PaceShift()
    assert {pace.take(dice.gauss(1.0, 0.01), correlated=False) for _ in range(500)} == {1.0}
    ratios = [pace.take(dice.gauss(0.93, 0.01), correlated=False) for _ in range(NEWEST[0])]
    assert ratios[-1] == pytest.approx(0.93, abs=0.03)


def test_neighbours_that_resemble_each_other_are_less_often_a_shift() -> None:
    def shifts(*, correlated: bool) -> int:
        """Of 50 jobs within 200 iterations."""
        found = 0
        for seed in range(50):
            dice, pace, wave = random.Random(f"waves {seed}"), PaceShift(), 0.0
            for _ in range(200):
                wave = 0.5 * wave + dice.gauss(0.0, 0.03)
                if pace.take(1.0 + wave, correlated=correlated) != 1.0:
                    found += 1
                    break
        return found

    assert shifts(correlated=True) <= 0.6 * shifts(correlated=False)


def test_a_creep_shows_once_it_has_added_up() -> None:
    pace = PaceShift()
    ratios = [pace.take(1.0 - 0.0005 * i, correlated=False) for i in range(80)]
    first = next(i for i, ratio in enumerate(ratios) if ratio != 1.0)
    assert ratios[first] == pytest.approx(0.98, abs=0.015)


def test_a_plan_faster_than_its_model_loosens_the_deadline_by_a_point_at_most() -> None:
    assert Pace(learned=0.9).ratio(1.0) == pytest.approx(0.99)
    assert Pace(learned=0.9).ratio(0.9) == pytest.approx(0.9)
    assert Pace(learned=1.1).ratio(1.0) == pytest.approx(1.1)


class Nowhere:
    """A book that takes everything and keeps nothing."""

    def keep(self, window: MeasuredWindow) -> bool:
        del window
        return True

    def note(self, job: str, text: str, generation: int) -> bool:
        del job, text, generation
        return True

    def windows(self, job: str, since_unix_s: float) -> tuple[MeasuredWindow, ...]:
        del job, since_unix_s
        return ()


class Job:
    """One job step by step: `held` while a default window runs."""

    def __init__(self, name: str = "job", iteration_s: float = ITERATION_S, gpus: int = 2) -> None:
        self.name, self.iteration_s = name, iteration_s
        self.uuids = [f"GPU-{i}" for i in range(gpus)]
        self.held, self.since_s, self.measured_s = False, 0.0, 0.0

    def step(
        self,
        windows: DefaultWindows,
        now_s: float,
        *,
        shift_ratio: float = 1.0,
        **changed: object,
    ) -> bool:
        """Whether a default window runs after this step."""
        seen = JobSeen(
            job=self.name,
            now_s=now_s,
            unix_s=now_s,
            verify=Verify(),
            shape="shape",
            phase="",
            gpus={},
            locks=dict.fromkeys(self.uuids, 0 if self.held else 1200),
            ended=(),
            since_s=self.since_s,
            iterations=int((now_s - self.since_s) / self.iteration_s),
            iteration_s=min(self.iteration_s, 1e6),
            powered=True,
            drift=BaselineDrift(measured_s=self.measured_s, shift_ratio=shift_ratio),
            dwell_s=0.0,
            plan=None if self.held else PlanInForce(1),
            lowered=not self.held,
            as_asked=True,
            at_default=self.held,
            settled=True,
        )
        opened = bool(windows.step(replace(seen, **changed)))  # type: ignore[arg-type]
        if opened != self.held:
            if self.held:
                self.measured_s = now_s
            self.held, self.since_s = opened, now_s
        return opened


def windows_of(*jobs: Job) -> DefaultWindows:
    made = DefaultWindows(Nowhere(), lag_s=0.4)
    made.keep_only(
        {job.name: JobPolicy(job.name, "enforce", Slo(max_slowdown=0.05)) for job in jobs}
    )
    return made


def looked(shift_ratio: float, seconds: int, **changed: object) -> list[bool]:
    """Second by second whether a window runs, of a job whose pace shifts all the time."""
    job = Job()
    windows = windows_of(job)
    return [
        job.step(windows, float(now_s), shift_ratio=shift_ratio, **changed)
        for now_s in range(seconds)
    ]


@pytest.mark.parametrize(
    ("ratio", "asked"),
    [(0.95, {}), (1.05, {}), (1.0, {"wanted": True}), (1.0, {"suspected": "1.1 s an iteration"})],
)  # fmt: skip
def test_whoever_asks_short_windows_keep_their_share(
    ratio: float, asked: dict[str, object]
) -> None:
    found = looked(ratio, 7200, **asked)
    assert found.index(True) == 0
    assert 0.02 * len(found) <= sum(found) <= 0.06 * len(found)  # with those saved at the start


def test_a_job_that_outruns_its_baseline_is_measured_at_once_a_few_windows_ahead() -> None:
    """Clocks that were chosen for a slower phase slow it by more than its budget."""
    job = Job()
    windows = windows_of(job)
    spent = [job.step(windows, float(now_s), suspected="1.1 s") for now_s in range(1200)]
    assert not spent[-1], "its share is used up"
    outrun = BaselineDrift(measured_s=0.0, outrun=True)
    found = [job.step(windows, 1200.0 + now_s, drift=outrun) for now_s in range(7200)]
    assert found[0]
    assert sum(found) <= 0.06 * len(found) + OVERDRAWN * length_s(ITERATION_S)


def test_a_steady_job_is_looked_at_now_and_then() -> None:
    found = looked(1.0, 7200)
    assert found.index(True) == math.ceil(every_s("job"))
    assert (1.0 - SPREAD_RATIO) * EVERY_S <= every_s("job") <= EVERY_S


@settings(max_examples=12, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.floats(1.0, 6.0), st.integers(1, 64)), min_size=1, max_size=14),
    ages_s=st.none() | st.lists(st.floats(0.0, 3.0 * EVERY_S), min_size=14, max_size=14),
    new_leader=st.integers(0, 80),
)
def test_jobs_take_turns_and_none_waits_long(
    jobs: list[tuple[float, int]], ages_s: list[float] | None, new_leader: int
) -> None:
    """However old their baselines are at first, and whenever another controller takes over."""
    running = [Job(f"job{i}", iteration_s, gpus) for i, (iteration_s, gpus) in enumerate(jobs)]
    looks = windows_of(*running)
    for job, age_s in zip(running, ages_s or [], strict=False):
        job.measured_s = -age_s
    sizes = [len(job.uuids) for job in running]
    longest_s = max(length_s(job.iteration_s) for job in running) + 2.0 * PASS_S
    waits_s = longest_s / (CROWD_RATIO * SHARE_MAX) + FIRST_S
    for turn in range(160):
        now_s = turn * PASS_S
        if turn == new_leader:
            looks = windows_of(*running)
            for job in running:
                job.held = False
        for job in running:
            due_s = max(0.0, job.measured_s + every_s(job.name))
            was_held, opened = job.held, job.step(looks, now_s)
            begun = opened and not was_held
            assert not begun or now_s >= due_s, "sooner than needed"
            late_s = now_s - max(due_s, new_leader * PASS_S if turn >= new_leader else 0.0)
            assert opened or was_held or late_s <= waits_s, "it never has a turn"
        together = sum(size for job, size in zip(running, sizes, strict=True) if job.held)
        assert together < CROWD_RATIO * SHARE_MAX * sum(sizes) + max(sizes)
        assert len(running) == 1 or together < sum(sizes), "all at once"


def test_a_window_that_lasts_takes_no_turn_from_others() -> None:
    stuck, other = Job("stuck"), Job("other")
    windows = windows_of(stuck, other)
    stuck.iteration_s = math.inf  # it is silent, say
    begun_s = [
        float(now_s)
        for now_s in range(int(EVERY_S) + 200)
        if (stuck.step(windows, now_s, iteration_s=ITERATION_S), other.step(windows, now_s))[1]
    ]
    assert stuck.held
    assert begun_s


@pytest.mark.parametrize(
    "changed", [{"enforced": False}, {"straggling": True}, {"steered": True}, {"lowered": False}]
)
def test_there_is_no_short_window_where_it_would_show_nothing(changed: dict[str, object]) -> None:
    assert not any(looked(0.95, 60, **changed))  # type: ignore[arg-type]


def is_anchored(now_s: float, lowered_s: float, **drift: object) -> bool:
    job: JobState = seen(WORLD, 0.05, baseline=Window(64, ITERATION_S, 0.01, None, None))
    made = BaselineDrift(measured_s=100.0, **drift)  # type: ignore[arg-type]
    return case_of(changed(job, drift=made), View(now_s)).anchored(lowered_s)


def test_clocks_are_lowered_against_a_new_baseline_only() -> None:
    assert is_anchored(9999.0, 99.0), "measured since clocks were lowered"
    assert is_anchored(101.0 + length_s(ITERATION_S), 101.0), "a job that does not move"
    assert not is_anchored(101.0, 101.0, moving=True)
    assert not is_anchored(101.0 + length_s(ITERATION_S) / SHARE_MAX, 101.0)
