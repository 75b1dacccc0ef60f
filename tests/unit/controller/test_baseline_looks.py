"""Shifts of a job's pace, and the share of time that looks at default clocks take."""

import random
from dataclasses import replace

import pytest
from planning import case_of, seen, view_of
from worlds import World

from joulecut_controller.observe.iteration_stats import Measured
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.observe.pace_shift import NEWEST, PaceShift
from joulecut_controller.observe.placement import Placement
from joulecut_controller.plan.look import EVERY_S, SHARE_MAX, anchored, look_s
from joulecut_controller.plan.pace import Pace
from joulecut_controller.reconcile.baseline_looks import BaselineLooks
from joulecut_controller.view import BaselineDrift, JobView, Window

ITERATION_S = 1.0
WORLD = World(stages=2, microbatches=4)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_shift_and_a_jump_shows_within_a_few_iterations(seed: int) -> None:
    dice, pace = random.Random(f"pace {seed}"), PaceShift()
    assert {pace.take(dice.gauss(1.0, 0.01)) for _ in range(500)} == {1.0}
    ratios = [pace.take(dice.gauss(0.93, 0.01)) for _ in range(NEWEST[0])]
    assert ratios[-1] == pytest.approx(0.93, abs=0.03)


def test_a_creep_shows_once_it_has_added_up() -> None:
    pace = PaceShift()
    ratios = [pace.take(1.0 - 0.0005 * i) for i in range(80)]
    first = next(i for i, ratio in enumerate(ratios) if ratio != 1.0)
    assert ratios[first] == pytest.approx(0.98, abs=0.015)


def test_a_plan_faster_than_its_model_loosens_the_deadline_by_a_point_at_most() -> None:
    assert Pace(learned=0.9).ratio(1.0) == pytest.approx(0.99)
    assert Pace(learned=0.9).ratio(0.9) == pytest.approx(0.9)
    assert Pace(learned=1.1).ratio(1.0) == pytest.approx(1.1)


def looked(
    shift_ratio: float, seconds: int, *, wanted: bool = False, **changed: object
) -> list[bool]:
    """Second by second whether a look is open, of a job whose pace shifts all the time."""
    looks, view = BaselineLooks(), view_of(WORLD, 0.0)
    job = seen(WORLD, 0.05, baseline=Window(64, ITERATION_S, 0.01, None, None))
    since_s, held, found = 0.0, False, []
    for now_s in range(seconds):
        inputs = replace(
            case_of(job, replace(view, now_s=float(now_s))),
            running=dict.fromkeys(WORLD.uuids, 0 if held else 1200),
        )
        inputs = replace(inputs, **changed)  # type: ignore[arg-type]
        measured = Measured(
            baseline=job.baseline,
            current=job.baseline,
            current_iterations=int((now_s - since_s) / ITERATION_S),
            straggling=False,
            peer_iteration_time_s=None,
            loads=(),
            fresh=(),
            fresh_iterations=0,
            locks=inputs.running,
            at_default=held,
            settled=True,
            drift=BaselineDrift(measured_s=0.0, shift_ratio=shift_ratio),
        )
        observation = JobObservation(job, Placement(job.stages, 0.0, 5.0), measured, "shape")
        opened = bool(looks.step(inputs, observation, wanted=wanted))
        if opened != held:
            held, since_s = opened, float(now_s)
        found.append(held)
    return found


@pytest.mark.parametrize(("ratio", "wanted"), [(0.95, False), (1.05, False), (1.0, True)])
def test_a_shift_and_a_plan_that_waits_are_looked_at_and_looks_keep_their_share(
    ratio: float, *, wanted: bool
) -> None:
    found = looked(ratio, 7200, wanted=wanted)
    assert found[0]
    assert 0.02 * len(found) <= sum(found) <= 0.06 * len(found)  # with those saved at the start


def test_a_steady_job_is_looked_at_now_and_then() -> None:
    found = looked(1.0, 7200)
    assert not any(found[: int(EVERY_S)])
    assert found[int(EVERY_S)]


@pytest.mark.parametrize(
    "changed", [{"mode": "recommend"}, {"paused": "a pause"}, {"allotted_s": 1.2}]
)
def test_there_is_no_look_where_it_would_show_nothing(changed: dict[str, object]) -> None:
    assert not any(looked(0.95, 60, **changed))  # type: ignore[arg-type]


def is_anchored(now_s: float, lowered_s: float, **drift: object) -> bool:
    job: JobView = seen(WORLD, 0.05, baseline=Window(64, ITERATION_S, 0.01, None, None))
    made = BaselineDrift(measured_s=100.0, **drift)  # type: ignore[arg-type]
    inputs = case_of(replace(job, drift=made), view_of(WORLD, now_s))
    return anchored(replace(inputs, view=view_of(WORLD, now_s)), lowered_s)


def test_clocks_are_lowered_against_a_new_baseline_only() -> None:
    assert is_anchored(9999.0, 99.0), "measured since clocks were lowered"
    assert is_anchored(101.0 + look_s(ITERATION_S), 101.0), "a job that does not move"
    assert not is_anchored(101.0, 101.0, moving=True)
    assert not is_anchored(101.0 + look_s(ITERATION_S) / SHARE_MAX, 101.0)
