"""What to measure next on a running job without a profile, and when there is nothing to learn.

First the job at default clocks, then the clocks in use; then operations decide where the job
reports them (`operation_advice`), else one clock for all GPUs (`common_clock`). Every measurement
runs in production: a window is late by half a point at most, and never two in a row.
"""

from joulecut_controller.learn.advice import Advice
from joulecut_controller.learn.common_clock import common_clock
from joulecut_controller.learn.evidence import ExplorerInput, lowest_of, measurement_at
from joulecut_controller.learn.longest_paths import LongestPaths
from joulecut_controller.learn.measurement_log import Measurement, MeasurementLog
from joulecut_controller.learn.operation_advice import operation_advice
from joulecut_engine.graph.pipeline import Pipeline


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
        return common_clock(facts, measurements)

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
