"""Likely mistakes in well-formed reports get one line; usual reports get none."""

from joulecut_agent.jobs.report_advice import advice
from joulecut_wire.messages import IterationReport, OperationReport


def _report(*operations: tuple[str, int]) -> IterationReport:
    each = tuple(OperationReport(kind, count, 0.1) for kind, count in operations)
    return IterationReport("demo", "GPU-a", 0, 1, 1.0, each)


def test_spellings_and_counts() -> None:
    assert "allowed: forward" in advice(_report(("fwd", 4), ("bwd", 4)))
    assert "4 forwards and 3" in advice(_report(("forward", 4), ("backward", 3)))
    assert advice(_report(("forward", 4), ("input", 4), ("weight", 4))) == ""
    assert advice(_report(("optimizer", 1))) == ""
