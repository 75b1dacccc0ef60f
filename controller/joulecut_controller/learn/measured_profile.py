"""Stage profile and blocking power of a running job, from the windows that probing measured.

A window has joules per iteration and GPU, iteration times and the busy time of operations. A rate
alone does not tell single operations. Power while working and while waiting are separated by the
fit, and forward and backward of one stage share it. Clocks that no window visited take their times
from the fit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from joulecut_controller.learn.longest_paths import LongestPaths
from joulecut_controller.learn.measurement_log import ProbedJob
from joulecut_controller.learn.operation_model import OperationModel
from joulecut_engine.estimate.clock_curves import Floats
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile

# Of the clock of a stage: a window was at it; it lies between two such clocks; or only another
# stage on the same kind of GPU was lowered so far.
Origin = Literal["measured", "fitted", "extrapolated"]
Clocks = tuple[int, ...]  # MHz


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """A profile with the origin of each clock by stage. Power is that of one GPU.

    Operation times are as reported at measured clocks, else fitted. `path_ratio` is the measured
    iteration time over that of the profile's longest path, both at default clocks.
    """

    profile: Profile
    origins: tuple[Mapping[int, Origin], ...]
    blocking_power_w: float
    blocking_known: bool
    path_ratio: float


def measured_profile(job: ProbedJob) -> MeasuredProfile:
    """The profile at each allowed clock that a GPU of the kind was measured at or above.

    Raises ValueError without measurements, of a job that reports its rate alone, or if the pipeline
    cannot be laid out.
    """
    if not job.measurements:
        raise ValueError("nothing was measured")
    if not all(one.busy_s for one in job.measurements):
        raise ValueError("it reports its rate alone, so times of single operations are not known")
    paths = LongestPaths(job.constants.pipeline)
    visited = [
        {one.clocks_mhz[stage] for one in job.measurements}
        for stage in range(job.constants.pipeline.stages)
    ]
    clocks = tuple(_clocks(job, stage, visited) for stage in range(len(visited)))
    model = OperationModel(job.constants, clocks, job.alike, job.measurements, paths)
    times_s = [model.mean_s[stage, :, -len(own) :].T for stage, own in enumerate(clocks)]
    power_w = [model.power_w[stage, -len(own) :] for stage, own in enumerate(clocks)]
    options: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
    for stage, own in enumerate(clocks):
        each_s = [
            _measured_s(job, stage, mhz, fitted_s)
            for mhz, fitted_s in zip(own, times_s[stage], strict=True)
        ]
        for at, kind in enumerate(paths.kinds):
            options[stage, kind] = tuple(
                ClockOption(mhz, float(seconds[at]), float(seconds[at] * watts))
                for mhz, seconds, watts in zip(own, each_s, power_w[stage], strict=True)
            )
    default_s = np.array(
        [
            [one.time_s for kind in paths.kinds for one in options[s, kind] if one.clock_mhz == mhz]
            for s, mhz in enumerate(job.constants.default_mhz)
        ]
    )
    path_s = paths.iteration_s(default_s[:, :, None])[0]
    known = job.constants.blocking_power_w > 0.0
    return MeasuredProfile(
        profile=Profile(options, source="measured"),
        origins=tuple(
            {mhz: _origin(mhz, seen) for mhz in own}
            for own, seen in zip(clocks, visited, strict=True)
        ),
        blocking_power_w=job.constants.blocking_power_w if known else model.waiting_w,
        blocking_known=known,
        path_ratio=float(job.measurements[0].time_s / path_s),
    )


def _clocks(job: ProbedJob, stage: int, visited: Sequence[set[int]]) -> Clocks:
    """Allowed or measured clocks within those of the stage and of GPUs of its kind."""
    alike = [visited[s] for s, kind in enumerate(job.alike) if kind == job.alike[stage]]
    floor_mhz, seen = min(map(min, alike)), visited[stage]
    every = {*job.grids_mhz[stage], *seen}
    return tuple(sorted(mhz for mhz in every if floor_mhz <= mhz <= max(seen)))


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
