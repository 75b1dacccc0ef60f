"""Saved joules against default windows: the truth, whatever moves, or nothing."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_controller.trust.saved_energy import SavedEnergy
from joulecut_controller.trust.window import Arm, MeasuredWindow

SPAN_S = 300.0


def window(
    at_s: float,
    arm: Arm = "plan",
    *,
    energy_j: float = 1000.0,
    time_s: float = 1.0,
    phase: str = "",
    noise: float = 0.01,
    count: int = 0,
    span_s: float = SPAN_S,
) -> MeasuredWindow:
    """A window of iterations one after the other from `at_s` on."""
    ran = count or round(span_s / time_s)
    return MeasuredWindow(
        job="j",
        shape="shape",
        arm=arm,
        generation=1,
        begun_unix_s=at_s,
        ended_unix_s=at_s + span_s,
        gpus=1,
        iterations=ran,
        time_mean_s=time_s,
        time_sd_s=noise * time_s,
        energy_j=energy_j,
        phase=phase,
        ran=ran,
    )


def saved(*windows: MeasuredWindow, controlled_s: float = 0.0) -> tuple[float, float, float] | None:
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


def test_what_is_not_paired_is_unknown_and_not_zero() -> None:
    assert saved(window(0.0), window(300.0)) is None, "no default window"
    assert saved(window(0.0, "default")) is None, "no plan"
    assert saved(window(0.0, "default", energy_j=0.0), window(300.0)) is None, "no counter"
    assert saved(window(0.0, "default", phase="a"), window(300.0, phase="b")) is None


def test_a_default_window_to_come_pairs_what_ran_before_it() -> None:
    found = saved(window(300.0, energy_j=900.0), window(600.0, "default"))
    assert found[0] == pytest.approx(300 * 100.0, rel=1e-3)


@settings(max_examples=40)
@given(drift=st.floats(-0.2, 0.2), ratio=st.floats(0.7, 1.1))
def test_drift_does_not_move_the_sum(drift: float, ratio: float) -> None:
    """Of a job whose energy drifts by `drift` over the hours: the sum is that of default clocks of
    its own time.
    """

    def level_j(at_s: float) -> float:
        return 50.0 * math.exp(drift * (at_s + SPAN_S / 2.0) / 20_000.0)

    windows, truth_j = [], 0.0
    for number in range(61):
        at_s, default = number * 330.0, number % 20 == 0
        energy_j = level_j(at_s) * (1.0 if default else ratio)
        windows.append(window(at_s, "default" if default else "plan", energy_j=energy_j))
        if not default:
            truth_j += 300 * level_j(at_s) * (1.0 - ratio)
    found = saved(*windows)
    assert found[0] == pytest.approx(truth_j, rel=0.05, abs=0.002 * 60 * 300 * 50.0)


def test_the_noise_of_default_windows_averages_out_before_joules_are_shown() -> None:
    """One window of a job that varies by 12 % says nothing; of many the sum is right."""
    chance = random.Random(5)
    windows, truth_j = [], 0.0
    for number in range(120):
        default_s = 600.0 * number
        noisy_j = 100.0 * chance.gauss(1.0, 0.12 / 12**0.5)
        windows.append(window(default_s, "default", energy_j=noisy_j, noise=0.12, span_s=12.0))
        windows.append(window(default_s + 20.0, energy_j=85.0))
        truth_j += 300 * 15.0
        if number == 0:
            assert saved(*windows) is None
    assert saved(*windows)[0] == pytest.approx(truth_j, rel=0.05)


def test_promises_of_the_measured_windows_are_told_beside_them() -> None:
    """Others, of which nothing was paired, have no part in it."""
    paired, alone = window(300.0, energy_j=900.0), window(900.0, energy_j=900.0, phase="b")
    made = saved(
        window(0.0, "default"), *(replace(one, promised_j=120.0) for one in (paired, alone))
    )
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
