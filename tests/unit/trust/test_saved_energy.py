"""Saved joules: iterations under plans, times what hold-outs say of one of them, or nothing."""

import pytest

from joulecut_controller.trust.interval import Interval
from joulecut_controller.trust.saved_energy import KINDS_MAX, SETTLED_S, SavedEnergy
from joulecut_controller.trust.saving import Saving

KIND = ("shape", "train")


def measured(each_j: float | None, kind: tuple[str, str] = KIND) -> Saving:
    """Hold-outs by which an iteration saves so much of 1000 J; None: too few of them."""
    bare = ("job", kind[0], 4, 0.0, 1.0, 3, 3)
    if each_j is None:
        return Saving(*bare, phase=kind[1], default_energy_j=1000.0, plan_energy_j=800.0)
    return Saving(
        *bare,
        phase=kind[1],
        saved_ratio=Interval(each_j / 1000.0, 0.0, 0.2),
        default_energy_j=1000.0,
        plan_energy_j=1000.0 - each_j,
    )


def test_iterations_before_the_first_interval_count_once_it_is_there() -> None:
    made = SavedEnergy()
    made.add(KIND, 0.0, 100.0, 90, 9_900.0)
    assert made.measured() is None, "no hold-out, and not zero"
    made.learn([measured(None)], 10.0)
    assert made.measured() is None, "no interval"
    made.learn([measured(100.0)], 20.0)
    assert made.measured() == (9_000.0, 9_900.0, 1.0)
    made.add(KIND, 30.0, 100.0, 10, 1_100.0)
    assert made.measured() == (10_000.0, 11_000.0, 1.0)
    made.learn([measured(-10.0)], 40.0)
    assert made.measured()[0] == -1_000.0, "a plan that costs energy"


def test_what_no_hold_out_stands_for_is_promised_and_not_measured() -> None:
    made = SavedEnergy()
    made.add(KIND, 0.0, 75.0, 10, 1_100.0)
    made.add(("shape", "evaluate"), 0.0, 25.0, 10, 500.0)
    made.learn([measured(100.0), measured(50.0, ("other", "train"))], 10.0)
    assert made.measured() == (1_000.0, 1_100.0, 0.75)
    assert made.predicted_j == 1_600.0


def test_later_hold_outs_leave_the_joules_of_past_days() -> None:
    made = SavedEnergy()
    made.add(KIND, 0.0, 100.0, 10, 0.0)
    made.learn([measured(100.0)], SETTLED_S)
    made.add(KIND, SETTLED_S, 100.0, 10, 0.0)
    made.learn([measured(50.0)], SETTLED_S + 1.0)
    assert made.measured()[0] == pytest.approx(10 * 100.0 + 10 * 50.0)


def test_kinds_are_bounded_and_their_joules_stay() -> None:
    made = SavedEnergy()
    for number in range(3 * KINDS_MAX):
        kind = (f"shape {number}", "")
        made.add(kind, 0.0, 1.0, 1, 0.0)
        made.learn([measured(100.0, kind)], 1.0)
    assert made.measured()[0] == pytest.approx(3 * KINDS_MAX * 100.0)
    assert len(made._ran) <= KINDS_MAX
