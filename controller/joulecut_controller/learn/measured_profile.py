"""Stage profile and blocking power of a running job, from the windows that probing measured.

A window has joules per iteration and GPU, iteration times and, where the job reports them, the busy
time of its operations. Power while working and while waiting are separated by the fit, and forward
and backward of one stage share it. Clocks that no window visited take their times from the fit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from joulecut_controller.learn.explorer import capped_mhz
from joulecut_controller.learn.iteration_form import LongestPaths
from joulecut_controller.learn.measurement_log import ProbedJob
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.regression import Floats
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Kind, Profile

# Of the clock of a stage: a window was at it; it lies between two such clocks; or only another
# stage on the same kind of GPU was lowered so far.
Origin = Literal["measured", "fitted", "extrapolated"]


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """A profile with the origin of each clock by stage. Power is that of one GPU.

    `detailed`: operation times at measured clocks were reported; else they are fitted to iteration
    times. `path_ratio` is the measured iteration time over that of the profile's longest path, both
    at default clocks.
    """

    profile: Profile
    origins: tuple[Mapping[int, Origin], ...]
    blocking_power_w: float
    blocking_known: bool
    detailed: bool
    path_ratio: float


def measured_profile(job: ProbedJob) -> MeasuredProfile:
    """The profile at each allowed clock that a GPU of the kind was measured at or above.

    Raises ValueError without measurements, or if the pipeline cannot be laid out.
    """
    if not job.measurements:
        raise ValueError("nothing was measured")
    constants, paths = job.constants, LongestPaths(job.constants.pipeline)
    default_mhz = capped_mhz(constants.default_mhz, job.measurements, job.alike)
    constants = replace(constants, default_mhz=default_mhz, prior=None)
    model = RateModel(constants, job.measurements, paths)
    visited = [
        {one.clocks_mhz[stage] for one in job.measurements}
        for stage in range(constants.pipeline.stages)
    ]
    options: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
    origins = []
    for stage, seen in enumerate(visited):
        alike = [visited[s] for s, kind in enumerate(job.alike) if kind == job.alike[stage]]
        floor_mhz = min(map(min, alike))
        clocks = sorted(
            {mhz for mhz in (*job.grids_mhz[stage], *seen) if floor_mhz <= mhz <= max(seen)}
        )
        rows = np.tile(np.array(constants.default_mhz, dtype=np.float64), (len(clocks), 1))
        rows[:, stage] = clocks
        times_s = model.operation_times_s(rows)[:, stage]
        power_w = model.working_power_w(rows)[:, stage]
        for row, mhz in enumerate(clocks):
            times_s[row] = _measured_s(job, stage, mhz, times_s[row])
        for at, kind in enumerate(KINDS):
            options[stage, kind] = tuple(
                ClockOption(mhz, float(times_s[row, at]), float(times_s[row, at] * power_w[row]))
                for row, mhz in enumerate(clocks)
            )
        origins.append({mhz: _origin(mhz, seen) for mhz in clocks})
    default_s = np.array(
        [
            [_at(options[stage, kind], job.constants.default_mhz[stage]).time_s for kind in KINDS]
            for stage in range(constants.pipeline.stages)
        ]
    )
    known = constants.blocking_power_w > 0.0
    return MeasuredProfile(
        profile=Profile(options, source="measured"),
        origins=tuple(origins),
        blocking_power_w=constants.blocking_power_w if known else model.blocking_power_w,
        blocking_known=known,
        detailed=model.detailed,
        path_ratio=_path_ratio(job, paths, default_s),
    )


def _measured_s(job: ProbedJob, stage: int, mhz: int, fitted_s: Floats) -> Floats:
    """Seconds by kind at one clock: the mean as reported there, else as fitted."""
    here = [one for one in job.measurements if one.clocks_mhz[stage] == mhz and one.busy_s]
    if not here:
        return fitted_s
    weights = [one.iterations for one in here]
    return np.average([one.busy_s[stage] for one in here], axis=0, weights=weights)


def _origin(mhz: int, seen: set[int]) -> Origin:
    if mhz in seen:
        return "measured"
    return "fitted" if mhz > min(seen) else "extrapolated"


def _at(options: tuple[ClockOption, ...], mhz: int) -> ClockOption:
    return next(option for option in options if option.clock_mhz == mhz)


def _path_ratio(job: ProbedJob, paths: LongestPaths, default_s: Floats) -> float:
    """The first measurement is the one at default clocks."""
    return float(job.measurements[0].time_s / paths.iteration_s(default_s[:, :, None])[0])
