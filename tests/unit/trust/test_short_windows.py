"""Short default windows: who asks for them, and the share of time that they take."""

from dataclasses import replace

import pytest

from joulecut_controller.policy.policy import JobPolicy, Slo
from joulecut_controller.trust.default_windows import (
    FIRST_S,
    OVERDRAWN,
    DefaultWindows,
)
from joulecut_controller.trust.job_step import JobStep, PlanInForce
from joulecut_controller.trust.short_window import SHARE_MAX, length_s
from joulecut_controller.trust.window import MeasuredWindow
from joulecut_controller.view import BaselineDrift, GpuShift, JobState, Measured, Placement, Window

ITERATION_S = 1.0
DOUBT = "they are known to 0.9 %"


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
        self.silent = False

    def step(
        self,
        windows: DefaultWindows,
        now_s: float,
        *,
        shift_ratio: float = 1.0,
        **changed: object,
    ) -> bool:
        """Whether a default window runs after this step. `changed` are fields of what was seen or
        measured.
        """
        baseline = Window(64, self.iteration_s, 0.01, None, None)
        lasts_s = 0.0 if self.silent else now_s - self.since_s
        measured = Measured(
            baseline=baseline,
            current=baseline,
            current_iterations=int(lasts_s / self.iteration_s),
            locks=dict.fromkeys(self.uuids, 0 if self.held else 1200),
            at_default=self.held,
            settled=True,
            since_s=self.since_s,
            drift=BaselineDrift(measured_s=self.measured_s, shift_ratio=shift_ratio),
        )
        own = {name: changed.pop(name) for name in list(changed) if hasattr(measured, name)}
        measured = replace(measured, **own)
        policy = JobPolicy(self.name, "enforce", Slo(max_slowdown=0.05))
        step = JobStep(
            job=JobState(policy, Placement((), 0.0, 5.0), measured),
            shape="shape",
            now_s=now_s,
            unix_s=now_s,
            gpus={},
            chunk=None,
            dwell_s=0.0,
            plan=None if self.held else PlanInForce(1),
            lowered=not self.held,
            as_asked=True,
        )
        opened = bool(windows.step(replace(step, **changed)))
        if opened != self.held:
            if self.held:
                self.measured_s = now_s
            self.held, self.since_s = opened, now_s
        return opened


def looked(shift_ratio: float, seconds: int, **changed: object) -> list[bool]:
    """Second by second whether a window runs, of a job whose pace shifts all the time."""
    job = Job()
    windows = DefaultWindows(Nowhere(), job.name)
    return [
        job.step(windows, float(now_s), shift_ratio=shift_ratio, **changed)
        for now_s in range(seconds)
    ]


# Of a window, at the full share.
EVERY_S = length_s(ITERATION_S) / SHARE_MAX


@pytest.mark.parametrize(
    ("ratio", "asked", "first_s"),
    [
        (0.95, {}, 0.0),
        (1.05, {}, 0.0),
        (1.0, {"doubt": DOUBT}, EVERY_S),
        (1.0, {"suspected": "1.1 s an iteration"}, 0.0),
    ],
)
def test_short_windows_keep_their_share_of_time_for_every_reason(
    ratio: float, asked: dict[str, object], first_s: float
) -> None:
    found = looked(ratio, 7200, **asked)
    assert first_s <= found.index(True) <= first_s + 2.0
    assert 0.02 * len(found) <= sum(found) <= 0.06 * len(found)  # with the one of the start


def test_doubt_of_old_measurements_is_answered_once_the_plan_has_begun() -> None:
    job = Job()
    job.measured_s = -EVERY_S
    windows = DefaultWindows(Nowhere(), job.name)
    found = [job.step(windows, float(now_s), doubt=DOUBT) for now_s in range(200)]
    assert FIRST_S <= found.index(True) <= FIRST_S + 2.0


def test_doubt_leaves_a_window_for_a_shift() -> None:
    job = Job()
    windows = DefaultWindows(Nowhere(), job.name)
    now_s = 0.0
    while not job.step(windows, now_s, doubt=DOUBT):
        now_s += 1.0
    while job.step(windows, now_s, doubt=DOUBT):
        now_s += 1.0
    assert not job.step(windows, now_s + 1.0, doubt=DOUBT)
    assert job.step(windows, now_s + 30.0, shift_ratio=1.05)


def test_clocks_that_slow_the_others_are_given_back_at_once_a_few_windows_ahead() -> None:
    """A GPU that recovers is one that the others need not wait for."""
    job = Job()
    windows = DefaultWindows(Nowhere(), job.name)
    spent = [job.step(windows, float(now_s), suspected="1.1 s") for now_s in range(1200)]
    assert not spent[-1], "its share is used up"
    recovered = BaselineDrift(measured_s=0.0, gpu_shift=GpuShift(("GPU-0",), 0.9))
    found = [job.step(windows, 1200.0 + now_s, drift=recovered) for now_s in range(7200)]
    assert found[0]
    assert sum(found) <= 0.06 * len(found) + OVERDRAWN * length_s(ITERATION_S)


def test_a_job_without_doubt_is_left_alone() -> None:
    assert not any(looked(1.0, 7200))


@pytest.mark.parametrize(
    "changed",
    [{"enforced": False}, {"peer_iteration_time_s": 1.0}, {"steered": True}, {"lowered": False}],
)
def test_there_is_no_short_window_where_it_would_show_nothing(changed: dict[str, object]) -> None:
    assert not any(looked(0.95, 60, **changed))
