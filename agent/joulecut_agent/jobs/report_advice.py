"""Likely mistakes in reports that are well-formed, so that they are not lost in silence.

Such a report is accepted: a job may know better. Its owner gets one line with the words to change.
"""

from collections import OrderedDict
from dataclasses import dataclass

from joulecut_wire.messages import IterationReport

# Other spellings of the kinds of operation that plans know.
SPELLINGS = {
    "fwd": "forward", "fw": "forward", "f": "forward", "forwards": "forward",
    "bwd": "backward", "bw": "backward", "b": "backward", "backwards": "backward",
    "dgrad": "input", "wgrad": "weight",
}  # fmt: skip
KINDS = "forward, backward, input, weight"
# A duration this many times the time between two reports is in other units; a lost report or two
# makes no such factor. Three in a row: the first after a pause may be late.
UNITS_RATIO, UNITS_IN_ROW = 50.0, 3
GPUS_MAX = 64


@dataclass(slots=True)
class _Pace:
    iteration: int
    arrived_s: float
    too_long: int = 0


class ReportAdvice:
    """Follows the reports of each job and GPU. Not thread-safe."""

    def __init__(self) -> None:
        self._paces: OrderedDict[tuple[str, str], _Pace] = OrderedDict()

    def of(self, report: IterationReport, arrived_s: float) -> str:
        """One line, or "" where nothing is odd."""
        return _spelling(report) or _counts(report) or self._units(report, arrived_s)

    def _units(self, report: IterationReport, arrived_s: float) -> str:
        key = (report.job, report.uuid)
        before = self._paces.get(key)
        now = self._paces[key] = _Pace(report.iteration, arrived_s)
        self._paces.move_to_end(key)
        if len(self._paces) > GPUS_MAX:
            self._paces.popitem(last=False)
        if before is None or report.iteration <= before.iteration or report.age_s:
            return ""
        each_s = (arrived_s - before.arrived_s) / (report.iteration - before.iteration)
        if report.duration_s <= UNITS_RATIO * each_s:
            return ""
        now.too_long = before.too_long + 1
        if now.too_long < UNITS_IN_ROW:
            return ""
        return (
            f"duration_s is {report.duration_s:g}, but an iteration is reported every "
            f"{each_s:.3g} s; allowed: seconds, not milliseconds"
        )


def _spelling(report: IterationReport) -> str:
    for operation in report.operations:
        if right := SPELLINGS.get(operation.kind.lower()):
            return (
                f"ops has kind {operation.kind!r}, which no plan knows; allowed: {right} ({KINDS})"
            )
    return ""


def _counts(report: IterationReport) -> str:
    counts = {operation.kind: operation.count for operation in report.operations}
    forward = counts.get("forward")
    backward = counts.get("backward", counts.get("input"))
    if forward is None or backward is None or forward == backward:
        return ""
    return (
        f"ops count {forward} forwards and {backward} backwards; allowed: one of each for a "
        "microbatch"
    )
