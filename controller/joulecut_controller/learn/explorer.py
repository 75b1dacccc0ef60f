"""What to measure next on a running job without a profile, and when there is nothing to learn.

First the job at default clocks, then the clocks in use; then its curves decide
(`operation_advice`). A job that reports its rate alone is one operation of one stage: nothing says
which GPU the others wait for, so all have one clock. Every measurement runs in production: a window
is late by half a point at most, and never two in a row.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from joulecut_controller.learn.advice import Advice, ExplorerInput, lowest_of, measurement_at
from joulecut_controller.learn.longest_paths import LongestPaths
from joulecut_controller.learn.measurement_log import Measurement
from joulecut_controller.learn.operation_advice import operation_advice
from joulecut_engine.graph.pipeline import EVALUATION, Pipeline

_paths = lru_cache(maxsize=16)(LongestPaths)  # of the jobs that are learnt now
WHOLE = Pipeline(EVALUATION, 1, 1)  # an iteration as one operation
RATE_ALONE = (
    "one clock for all GPUs: a clock for each needs the times of operations (the job's hook or its "
    "traces report them)"
)


def advise(facts: ExplorerInput, measurements: tuple[Measurement, ...]) -> Advice:
    """Raises ValueError if the pipeline of a job that reports operations cannot be laid out."""
    waits = _unmeasured(facts, measurements)
    if waits is not None:
        return waits
    if all(measurement.busy_s for measurement in measurements):
        return operation_advice(facts, measurements, _paths(facts.constants.pipeline))
    whole = tuple(_whole(one, facts, measurements[0].time_s) for one in measurements)
    return _of_all(facts, operation_advice(_as_one(facts), whole, _paths(WHOLE)), measurements)


def _as_one(facts: ExplorerInput) -> ExplorerInput:
    """The job as one stage, whose clock is that of the first."""
    constants = replace(
        facts.constants,
        pipeline=WHOLE,
        default_mhz=facts.constants.default_mhz[:1],
        blocking_power_w=0.0,
    )
    return replace(
        facts,
        constants=constants,
        grids=facts.grids[:1],
        now_mhz=facts.now_mhz[:1],
        alike=(0,),
        host_power_w=len(facts.grids) * facts.host_power_w,
        slowdown=None,
        first=False,
        margin=0.0,
    )


def _whole(one: Measurement, facts: ExplorerInput, base_s: float) -> Measurement:
    """With one operation. The reference says more of the clocks in force than their windows."""
    seen = facts.slowdown if one.clocks_mhz == facts.now_mhz else None
    if seen is not None:
        one = one.scaled(base_s * math.exp(seen.mean) / one.time_s)
    sd = one.stderr_ratio if seen is None else seen.sd
    return replace(
        one,
        clocks_mhz=one.clocks_mhz[:1],
        energy_j=(math.fsum(one.energy_j),),
        busy_s=((one.time_s,),),
        operation_sd_ratio=0.0,
        gpu_sd_ratio=sd * math.sqrt(one.iterations),
    )


def _of_all(facts: ExplorerInput, advice: Advice, measurements: Sequence[Measurement]) -> Advice:
    """Advice on the clock of the first stage for all: none falls further."""
    fall = math.log(facts.constants.default_mhz[0] / advice.clocks_mhz[0])
    pairs = zip(facts.grids, facts.constants.default_mhz, strict=True)
    clocks = tuple(
        next(mhz for mhz in grid if mhz >= top * math.exp(-fall) - 1e-6 or mhz == grid[-1])
        for grid, top in pairs
    )
    if advice.verdict == "enough":
        clocks = facts.now_mhz
    lowest = lowest_of(measurements)
    return replace(
        advice,
        reason=f"{advice.reason}; {RATE_ALONE}",
        clocks_mhz=clocks,
        stages=tuple(s for s, low in enumerate(lowest) if clocks[s] < low),
        operations=None,
        lowest_mhz=lowest,
    )


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
