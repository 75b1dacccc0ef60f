"""Likely mistakes in reports that are well-formed, so that they are not lost in silence.

Such a report is accepted: a job may know better. Its owner gets one line with the words to change.
"""

from joulecut_wire.messages import IterationReport

# Other spellings of the kinds of operation that plans know.
SPELLINGS = {
    "fwd": "forward", "fw": "forward", "f": "forward", "forwards": "forward",
    "bwd": "backward", "bw": "backward", "b": "backward", "backwards": "backward",
    "dgrad": "input", "wgrad": "weight",
}  # fmt: skip
KINDS = "forward, backward, input, weight"


def advice(report: IterationReport) -> str:
    """One line, or "" where nothing is odd."""
    return _spelling(report) or _counts(report)


def _spelling(report: IterationReport) -> str:
    for operation in report.operations:
        if right := SPELLINGS.get(operation.kind.lower()):
            what = f"ops has kind {operation.kind!r}, which no plan knows"
            return f"{what}; allowed: {right} ({KINDS})"
    return ""


def _counts(report: IterationReport) -> str:
    counts = {operation.kind: operation.count for operation in report.operations}
    forward = counts.get("forward")
    backward = counts.get("backward", counts.get("input"))
    if forward is None or backward is None or forward == backward:
        return ""
    what = f"ops count {forward} forwards and {backward} backwards"
    return f"{what}; allowed: one of each for a microbatch"
