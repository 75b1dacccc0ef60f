"""How long a job is left alone: twice as long each time, never longer than a person waits."""

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.reconcile.plan_rollout import RETRY_S_MAX, Backoff


@given(st.floats(0.1, 600.0), st.integers(1, 2000), st.floats(0.0, 1e9))
def test_each_failure_doubles_the_wait_up_to_a_limit(
    interval_s: float, failures: int, now_s: float
) -> None:
    backoff = Backoff(interval_s)
    for _ in range(failures):
        backoff.fail("refused", now_s)
    wait_s = min(interval_s * 2.0 ** min(failures, 40), RETRY_S_MAX)
    assert backoff.wait(now_s + wait_s * 1.001 + 1e-6) == ""
    assert backoff.wait(now_s + wait_s * 0.9).endswith("after: refused")


def test_after_forgiving_the_next_failure_counts_as_the_first() -> None:
    backoff = Backoff(1.0)
    for _ in range(5):
        backoff.fail("drift", 100.0)
    backoff.forgive()
    assert backoff.wait(110.0) == "backing off for 22 s after: drift"
    backoff.fail("refused", 200.0)
    for at_s in (201.0, 201.9):
        assert backoff.wait(at_s) == "backing off for 1 s after: refused"
    assert backoff.wait(202.0) == ""
