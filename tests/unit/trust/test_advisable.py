"""Whether enforcing is advisable: one line with a figure for each thing that has to be right."""

import pytest

from joulecut_controller.trust.advisable import verdict
from joulecut_controller.trust.interval import Interval

GOOD = {
    "planned": True,
    "slack": 0.004,
    "baseline": True,
    "time_error": 0.005,
    "power_error": 0.011,
}


def test_what_nothing_speaks_against_is_advisable() -> None:
    found = verdict(**GOOD)
    assert found.yes
    assert found.text == (
        "advisable: time error 0.5 % at the clocks that run; power error 1.1 %; SLO slack 0.4 %; "
        "ranks reported by the job"
    )
    assert not found.missing


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"planned": False}, ""),
        ({"doubt": "its agent backs off"}, "its agent backs off"),
        ({"baseline": False}, "baseline not steady"),
        ({"time_error": None}, "no prediction was compared with a measurement yet"),
        ({"time_error": 0.021}, "time error 2.1 % at the clocks that run"),
        ({"power_error": 0.06}, "power error 6.0 %"),
        ({"slack": -0.001}, "SLO slack -0.1 %"),
        ({"saved": Interval(-0.01, -0.02, 0.0)}, "-1.0 % ± 1.0 % saved in 0 hold-outs"),
    ],
)
def test_each_thing_alone_speaks_against_it(change: dict[str, object], missing: str) -> None:
    found = verdict(**(GOOD | change))
    assert not found.yes
    assert found.missing == missing


def test_what_plans_saved_before_is_told() -> None:
    found = verdict(**GOOD, saved=Interval(0.12, 0.11, 0.13), holdouts=14)
    assert found.yes
    assert found.scores == 14
    assert "12.0 % ± 1.0 % saved in 14 hold-outs" in found.text
