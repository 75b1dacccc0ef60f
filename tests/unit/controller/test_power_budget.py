"""Who is slowed for a power limit, and what is said where that is not enough. That no other shares
are better is shown of `optimize.budget`.
"""

import pytest

from joulecut_controller.power.budget import NEAR, Demand, Point, Shares, _offered, shares


def claim(
    name: str = "a", weight: float = 1.0, own_s: float = 1.0, power_w: float = 100.0
) -> Demand:
    """A job whose energy falls by 2 J for each of nine steps of 1 % in time."""
    energy_j = power_w
    points = tuple(
        Point(1.0 + step / 100, (energy_j - 2 * step) / (1.0 + step / 100)) for step in range(10)
    )
    return Demand(name, weight, own_s, points)


def powers(found: Shares, claims: list[Demand]) -> float:
    """Watts of the plans asked for, read off the frontiers."""
    total = 0.0
    for one in claims:
        wanted = found.deadline_s.get(one.name, one.own_s)
        total += min(p.power_w for p in _offered(one) if p.iteration_time_s <= wanted * (1 + NEAR))
    return total


def test_a_limit_that_is_wide_enough_slows_nobody() -> None:
    found = shares(1000.0, [claim("a"), claim("b")], 50.0)
    assert found.deadline_s == {}
    assert found.complaint == ""
    assert found.power_w == pytest.approx(250.0)


def test_own_targets_are_never_made_faster() -> None:
    slow = claim(own_s=1.05)
    found = shares(1000.0, [slow], 0.0)
    assert found.deadline_s == {}
    assert found.power_w == pytest.approx(90.0 / 1.05)


def test_weights_decide_who_pays() -> None:
    claims = [claim("dear", weight=10.0), claim("cheap")]
    found = shares(195.0, claims, 0.0)
    assert set(found.deadline_s) == {"cheap"}
    assert powers(found, claims) <= 195.0
    assert found.deadline_s["cheap"] > 1.0


def test_what_cannot_be_kept_is_said_once_and_clearly() -> None:
    found = shares(100.0, [claim("a")], 40.0)
    assert found.complaint == (
        "no plans keep the power budget of 100 W: 115.229 W is the least that they need, "
        "40 W of it for what cannot be slowed; equal power limits keep it"
    )
    assert found.deadline_s == {}, "no clocks slow a job that the limits slow"


def test_nobody_to_slow_is_a_complaint_only_above_the_limit() -> None:
    assert shares(100.0, [], 99.5, margin_w=1.0).complaint == "", "limits alone keep it"
    assert "no plans keep" in shares(100.0, [], 101.0).complaint
