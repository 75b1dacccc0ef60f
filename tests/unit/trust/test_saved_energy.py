"""Saved joules against default windows: the truth, whatever moves, or nothing."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_controller.trust.level import Level, Point
from joulecut_controller.trust.measured_windows import Mark, TimedWindow
from joulecut_controller.trust.measurement import WindowMeans
from joulecut_controller.trust.saved_energy import SavedEnergy
from joulecut_controller.trust.seen import PlanInForce
from joulecut_controller.trust.window import Arm

SPAN_S = 300.0
LOCKS = {"GPU-0": 1200}


def window(
    at_s: float,
    arm: Arm = "plan",
    *,
    energy_j: float | None = 1000.0,
    time_s: float = 1.0,
    work: float = 1.0,
    phase: str = "",
    noise: float = 0.01,
    count: int = 0,
    span_s: float = SPAN_S,
) -> TimedWindow:
    """A window of iterations one after the other from `at_s` on."""
    mark = Mark(arm, "shape", phase, at_s, 1, (0, True))
    ran = count or round(span_s / time_s)
    means = WindowMeans(
        at_s, at_s + span_s, ran, 0, time_s, noise * time_s, work, ran * work, energy_j, None
    )
    return TimedWindow(mark, means, LOCKS if arm == "plan" else {})


def saved(*windows: TimedWindow, controlled_s: float = 0.0) -> tuple[float, float, float] | None:
    made = SavedEnergy()
    made.controlled_s = controlled_s
    for one in windows:
        made.see(one)
    return made.measured()


def test_joules_are_those_of_the_work_between_two_default_windows() -> None:
    day = [window(0.0, "default"), *(window(s, energy_j=850.0) for s in (300.0, 600.0, 900.0))]
    found = saved(*day, window(1200.0, "default"), controlled_s=1000.0)
    assert found[0] == pytest.approx(3 * 300 * 150.0, rel=1e-3)
    assert found[2] == pytest.approx(0.9)


def test_a_plan_that_costs_energy_lowers_the_sum() -> None:
    found = saved(window(0.0, "default"), window(300.0, energy_j=1100.0))
    assert found[0] == pytest.approx(-300 * 100.0, rel=1e-3)


def test_what_is_not_paired_is_unknown_and_not_zero() -> None:
    assert saved(window(0.0), window(300.0)) is None, "no default window"
    assert saved(window(0.0, "default")) is None, "no plan"
    assert saved(window(0.0, "default", energy_j=None), window(300.0)) is None, "no counter"
    assert saved(window(0.0, "default", phase="a"), window(300.0, phase="b")) is None


def test_a_default_window_to_come_pairs_what_ran_before_it() -> None:
    found = saved(window(300.0, energy_j=900.0), window(600.0, "default"))
    assert found[0] == pytest.approx(300 * 100.0, rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(
    drift=st.floats(-0.2, 0.2),
    works=st.lists(st.sampled_from([4.0, 8.0, 24.0]), min_size=6, max_size=6),
    ratio=st.floats(0.7, 1.1),
)
def test_neither_drift_nor_work_that_varies_moves_the_sum(
    drift: float, works: list[float], ratio: float
) -> None:
    """A job whose energy per work drifts by `drift` over the hours, and whose iterations hold
    more or less work: the sum is that of the work done, at default clocks of its own time.
    """

    def level_j(at_s: float) -> float:
        return 50.0 * math.exp(drift * (at_s + SPAN_S / 2.0) / 20_000.0)

    windows, truth_j = [], 0.0
    for number in range(61):
        at_s, work = number * 330.0, works[number % len(works)]
        default = number % 20 == 0
        energy_j = work * level_j(at_s) * (1.0 if default else ratio)
        windows.append(window(at_s, "default" if default else "plan", energy_j=energy_j, work=work))
        if not default:
            truth_j += 300 * work * level_j(at_s) * (1.0 - ratio)
    found = saved(*windows)
    assert found[0] == pytest.approx(truth_j, rel=0.05, abs=0.002 * 60 * 300 * 12 * 50.0)


def test_noisy_default_windows_are_averaged_and_precise_ones_are_not() -> None:
    chance = random.Random(5)
    noisy = [Point(600.0 * n, chance.gauss(0.0, 0.02), 0.02**2) for n in range(40)]
    assert abs(Level(noisy).at(12_000.0).value) < 0.01
    moved = [Point(0.0, 0.0, 1e-7), Point(3600.0, 0.04, 1e-7)]
    assert Level(moved).at(1800.0).value == pytest.approx(0.02, abs=1e-4)
    assert Level(moved).at(9000.0).value == pytest.approx(0.04, abs=1e-4)


@given(st.lists(st.tuples(st.floats(-1.0, 1.0), st.floats(1e-8, 1.0)), min_size=1, max_size=20))
def test_a_level_lies_between_its_measurements(drawn: list[tuple[float, float]]) -> None:
    points = [Point(10.0 * n, value, variance) for n, (value, variance) in enumerate(drawn)]
    values = [value for value, _ in drawn]
    for at_s in (-5.0, 0.0, 33.0, 1e6):
        found = Level(points).at(at_s)
        assert min(values) - 1e-9 <= found.value <= max(values) + 1e-9
        assert found.variance > 0.0


def test_promises_are_kept_apart() -> None:
    made = SavedEnergy()
    made.promise(PlanInForce(1, energy_j=80.0, default_energy_j=100.0), 5)
    made.promise(PlanInForce(2), 5)
    assert (made.predicted_j, made.measured()) == (100.0, None)


def test_promises_of_the_measured_windows_are_told_beside_them() -> None:
    """Others, of which nothing was paired, have no part in it."""
    plan = PlanInForce(1, energy_j=880.0, default_energy_j=1000.0)
    paired, alone = window(300.0, energy_j=900.0), window(900.0, energy_j=900.0, phase="b")
    made = saved(window(0.0, "default"), *(replace(one, plan=plan) for one in (paired, alone)))
    assert made[0] == pytest.approx(300 * 100.0, rel=1e-3)
    assert made[1] == pytest.approx(300 * 120.0)


def test_windows_are_bounded_and_their_joules_stay() -> None:
    made, each = SavedEnergy(), 300 * 100.0
    for number in range(1000):
        made.see(window(1000.0 * number, "default", phase=f"{number}"))
        made.see(window(1000.0 * number + 300.0, energy_j=900.0, phase=f"{number}"))
    found = made.measured()
    assert found[0] == pytest.approx(1000 * each, rel=1e-3)
    assert len(made._plans) + len(made._defaults) < 700


def test_a_window_without_energy_gives_no_reference() -> None:
    """A counter that a driver began again can leave nothing."""
    day = [window(0.0, "default"), window(300.0, energy_j=850.0), window(600.0, "default")]
    assert saved(*day, window(900.0, "default", energy_j=0.0)) == saved(*day)
    assert saved(window(0.0, "default", energy_j=0.0)) is None
