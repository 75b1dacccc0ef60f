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
# A duration this many times the time between two reports is in other units. Judged over some
# seconds and reports: those that wait while the agent is busy arrive together.
UNITS_RATIO, UNITS_S_MIN, UNITS_REPORTS_MIN = 50.0, 10.0, 3
GPUS_MAX = 64


@dataclass(slots=True)
class _Streak:
    """Reports in a row whose durations are too long for the pace at which they come."""

    iteration: int
    began_s: float
    reports: int = 0


class ReportAdvice:
    """Follows the reports of each job and GPU. Not thread-safe."""

    def __init__(self) -> None:
        self._streaks: OrderedDict[tuple[str, str], _Streak] = OrderedDict()

    def of(self, report: IterationReport, arrived_s: float) -> str:
        """One line, or "" where nothing is odd."""
        return _spelling(report) or _counts(report) or self._units(report, arrived_s)

    def _units(self, report: IterationReport, arrived_s: float) -> str:
        key = (report.job, report.uuid)
        streak = self._streaks.setdefault(key, _Streak(report.iteration, arrived_s))
        self._streaks.move_to_end(key)
        if len(self._streaks) > GPUS_MAX:
            self._streaks.popitem(last=False)
        iterations, took_s = report.iteration - streak.iteration, arrived_s - streak.began_s
        each_s = took_s / iterations if iterations > 0 else 0.0
        if iterations <= 0 or report.age_s or report.duration_s <= UNITS_RATIO * each_s:
            self._streaks[key] = _Streak(report.iteration, arrived_s)
            return ""
        streak.reports += 1
        if streak.reports < UNITS_REPORTS_MIN or took_s < UNITS_S_MIN:
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
