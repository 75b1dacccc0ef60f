"""What to measure next on a running job without a profile, and when there is nothing to learn.

First the job at default clocks, then the clocks in use; then operations decide where the job
reports them (`operation_advice`), else the rate alone (`ladder`). Every measurement runs in
production: a window is late by half a point at most, and never two in a row.
"""

from joulecut_controller.learn.advice import Advice
from joulecut_controller.learn.evidence import ExplorerInput, lowest_of, measurement_at
from joulecut_controller.learn.ladder import Ladder
from joulecut_controller.learn.longest_paths import LongestPaths
from joulecut_controller.learn.measurement_log import Measurement, MeasurementLog
from joulecut_controller.learn.operation_advice import operation_advice
from joulecut_controller.learn.power_pace import with_power
from joulecut_engine.graph.pipeline import Pipeline

# At the rate alone the deadline is a ratio of the baseline, whose error every later window shares:
# at most this standard error, or so many windows, or so many seconds: from then on a margin of the
# error costs less than waiting.
BASELINE_ENOUGH = ((0.0003, 8), (0.001, 16))
BASELINE_ENOUGH_S = 160.0


class Explorer:
    """Turns a measurement log into advice, and keeps the last one. Not thread-safe."""

    def __init__(self) -> None:
        self._paths: tuple[Pipeline, LongestPaths] | None = None
        self._advised: tuple[object, Advice] | None = None

    def advise(self, facts: ExplorerInput, log: MeasurementLog) -> Advice:
        """Raises ValueError if the pipeline of a job that reports operations cannot be laid out."""
        asked = (facts, log.measurements)
        if self._advised is None or self._advised[0] != asked:
            self._advised = (asked, self._advise(facts, log.measurements))
        return self._advised[1]

    def _advise(self, facts: ExplorerInput, measurements: tuple[Measurement, ...]) -> Advice:
        waits = _unmeasured(facts, measurements)
        if waits is not None:
            return waits
        constants = facts.constants
        if all(measurement.busy_s for measurement in measurements):
            return operation_advice(facts, measurements, self._longest(constants.pipeline))
        seen = with_power(measurements, constants.blocking_power_w, facts.alike)
        return Ladder(facts, seen).advice()

    def _longest(self, pipeline: Pipeline) -> LongestPaths:
        if self._paths is None or self._paths[0] != pipeline:
            self._paths = (pipeline, LongestPaths(pipeline))
        return self._paths[1]


def _unmeasured(facts: ExplorerInput, measurements: tuple[Measurement, ...]) -> Advice | None:
    """What has to be measured before anything else, if anything has."""
    default = measurement_at(measurements, facts.constants.default_mhz)
    if default is None and facts.now_mhz != facts.constants.default_mhz:
        reason = "the baseline has to be measured again"
        return Advice("raise", reason, facts.constants.default_mhz)
    if default is None:
        return _measure(
            facts, measurements, "no window at default clocks yet: measuring the baseline"
        )
    rough = any(
        default.stderr_ratio > enough and default.iterations < windows * facts.window_iterations
        for enough, windows in BASELINE_ENOUGH
    )
    brief = default.iterations * default.time_s < BASELINE_ENOUGH_S
    if rough and brief and len(measurements) == 1 and not default.busy_s:
        known = f"±{default.stderr_ratio:.2%} after {default.iterations} iterations"
        return _measure(facts, measurements, f"measuring the baseline more closely: {known}")
    if measurement_at(measurements, facts.now_mhz) is None:
        now = "/".join(map(str, facts.now_mhz))
        reason = f"measuring {now} MHz over {facts.window_iterations} iterations"
        return _measure(facts, measurements, reason)
    return None


def _measure(facts: ExplorerInput, measurements: tuple[Measurement, ...], reason: str) -> Advice:
    return Advice(
        "measure",
        reason,
        facts.now_mhz,
        lowest_mhz=lowest_of(measurements) if measurements else (),
        measurements=len(measurements),
    )
