"""What to measure next on a running job without a profile, and when there is nothing to learn.

First the job at default clocks, then the clocks in use; then operations decide where the job
reports them (`operation_advice`), else one clock for all GPUs (`common_clock`). Every measurement
runs in production: a window is late by half a point at most, and never two in a row.
"""

from functools import lru_cache

from joulecut_controller.learn.advice import Advice, ExplorerInput, lowest_of, measurement_at
from joulecut_controller.learn.common_clock import common_clock
from joulecut_controller.learn.longest_paths import LongestPaths
from joulecut_controller.learn.measurement_log import Measurement
from joulecut_controller.learn.operation_advice import operation_advice

_paths = lru_cache(maxsize=16)(LongestPaths)  # of the jobs that are learnt now


def advise(facts: ExplorerInput, measurements: tuple[Measurement, ...]) -> Advice:
    """Raises ValueError if the pipeline of a job that reports operations cannot be laid out."""
    waits = _unmeasured(facts, measurements)
    if waits is not None:
        return waits
    if all(measurement.busy_s for measurement in measurements):
        return operation_advice(facts, measurements, _paths(facts.constants.pipeline))
    return common_clock(facts, measurements)


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
