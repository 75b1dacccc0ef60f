"""Likely mistakes in well-formed reports get one line; usual reports get none."""

from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.jobs.report_advice import ReportAdvice
from joulecut_wire.messages import IterationReport, OperationReport


def _report(
    number: int, duration_s: float, *operations: tuple[str, int], age_s: float = 0.0
) -> IterationReport:
    each = tuple(OperationReport(kind, count, 0.1) for kind, count in operations)
    return IterationReport("demo", "GPU-a", 0, number, duration_s, each, age_s=age_s)


def test_spellings_and_counts() -> None:
    advice = ReportAdvice()
    assert "allowed: forward" in advice.of(_report(1, 1.0, ("fwd", 4), ("bwd", 4)), 1.0)
    assert "4 forwards and 3" in advice.of(_report(2, 1.0, ("forward", 4), ("backward", 3)), 2.0)
    assert advice.of(_report(3, 1.0, ("forward", 4), ("input", 4), ("weight", 4)), 3.0) == ""
    assert advice.of(_report(4, 1.0, ("optimizer", 1)), 4.0) == ""


def test_milliseconds_for_seconds() -> None:
    advice = ReportAdvice()
    lines = [advice.of(_report(n, 6870.0), 6.87 * n) for n in range(1, 6)]
    assert lines[:3] == ["", "", ""]
    assert all("not milliseconds" in line for line in lines[3:])


@given(
    duration_s=st.floats(0.01, 1000.0),
    lost=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    noise=st.floats(0.5, 2.0),
)
def test_a_job_in_seconds_gets_no_line(duration_s: float, lost: list[int], noise: float) -> None:
    """Reports may be lost, and come in bursts after a stall."""
    advice, number, at_s = ReportAdvice(), 0, 0.0
    for step in lost:
        number, at_s = number + step, at_s + step * duration_s * noise
        assert advice.of(_report(number, duration_s), at_s) == ""
    for burst in range(1, 100):
        assert advice.of(_report(number + burst, duration_s), at_s + 1e-6 * burst) == ""
