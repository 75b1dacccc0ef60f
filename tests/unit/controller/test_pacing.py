"""The relations between intervals that make a dead controller harmless."""

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.config import INTERVAL_S_MAX, INTERVAL_S_MIN
from joulecut_controller.reconcile.pacing import Pacing, renewal_s

INTERVALS = st.floats(INTERVAL_S_MIN, INTERVAL_S_MAX)


@given(interval_s=INTERVALS, ttl_max_s=st.floats(0.5, 3600.0))
def test_a_lease_lasts_three_intervals_within_what_agents_allow(
    interval_s: float, ttl_max_s: float
) -> None:
    ttl_s = Pacing(interval_s, 0.5).ttl_within_s(ttl_max_s)
    assert ttl_s == min(3.0 * interval_s, ttl_max_s)
    assert 3.0 * renewal_s(ttl_s) <= ttl_s * (1 + 1e-12)


def test_an_operators_own_ttl_is_not_bent() -> None:
    assert Pacing(5.0, 0.5, ttl_s=90.0).ttl_within_s(60.0) == 90.0


@given(interval_s=INTERVALS)
def test_a_hanging_pass_ends_the_heartbeat_after_three_intervals(interval_s: float) -> None:
    pacing = Pacing(interval_s, 0.5)
    assert pacing.dead_s == max(3.0 * interval_s, 5.0)
    assert pacing.stale_s >= 3.0 * interval_s
