"""Bounds where two knobs meet: the steps of a program, and a power limit without clocks."""

import pytest

from joulecut_agent.limits import Asked, Bounds, judge

CLOCKS_MHZ = tuple(range(210, 1411, 15))


@pytest.mark.parametrize(
    ("low", "program", "wrong"),
    [
        (0, (900, 1200), 1200),
        (0, (1200,), 1200),
        (600, (900, 450), 450),
        (0, (900, 901), 901),
        (0, (900, 0), 0),
    ],
)
def test_a_step_outside_of_the_range_is_refused(
    low: int, program: tuple[int, ...], wrong: int
) -> None:
    asked = Asked((low, 1005, 0), (0, 1410, 0), CLOCKS_MHZ, program_mhz=program)
    (reason,) = judge(Bounds(), {"GPU-0": asked}, {}, 1, 0.0).values()
    assert f"{wrong} MHz" in reason


def test_steps_inside_of_it_are_fine() -> None:
    asked = Asked((600, 1005, 0), (0, 1410, 0), CLOCKS_MHZ, program_mhz=(600, 1005, 900))
    assert judge(Bounds(), {"GPU-0": asked}, {}, 1, 0.0) == {"GPU-0": ""}


@pytest.mark.parametrize(("power_mw", "lowers"), [(300_000, False), (200_000, True)])
def test_a_power_limit_alone_lowers_no_clock(power_mw: int, lowers: bool) -> None:
    asked = Asked((0, 0, power_mw), (0, 1410, 250_000), CLOCKS_MHZ, (100_000, 400_000))
    assert asked.lowers == lowers
