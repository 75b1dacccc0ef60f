"""Predicted time and energy of every operation of a job at every allowed clock.

Evidence and bounds meet here: no clock below the lowest measured one, below the operator's floor or
outside the site's range enters a problem, so no solver can choose it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.view import GpuView, JobView
from joulecut_engine.estimate.estimator import Estimator, Subject
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Operation, Pipeline, Profile
from joulecut_engine.graph.shape import kinds_of, part_of
from joulecut_engine.optimize.formulation import problem as build_problem
from joulecut_engine.optimize.problem import Problem

# Below these differences two predictions are the same for planning: a third of what the
# physics form itself misses by (0.5 % in time, 1 % in power on public sweeps), and chasing
# less would mean a new solve in every pass.
TIME_TOLERANCE = 0.002
ENERGY_TOLERANCE = 0.01

Table = Mapping[tuple[int, Kind], Mapping[int, ClockOption]]


@dataclass(frozen=True, slots=True)
class Costs:
    """Predicted costs of one GPU per stage (the slowest of its siblings in time, their mean
    in energy).

    `table[row, kind][clock_mhz]` covers every clock of `allowed_mhz[stage]` and the default
    clock `default_mhz[stage]`; a row is a stage, or a part of the model where the profile
    tells GPUs' chunks apart. `width` is the number of GPUs per stage. `digest`
    names the content.
    """

    table: Table
    allowed_mhz: tuple[tuple[int, ...], ...]
    default_mhz: tuple[int, ...]
    width: int
    inputs: tuple[object, ...]  # what else went in: pipeline, blocking and host power
    problem: Problem
    digest: str
    pipeline: Pipeline
    by_part: bool = False

    def option(self, operation: Operation, clock_mhz: int) -> ClockOption | None:
        """What an operation costs at a clock; None where that was not predicted."""
        row = _row(self.pipeline, operation.stage, operation.chunk, by_part=self.by_part)
        return self.table[row, operation.kind].get(clock_mhz)


@dataclass(frozen=True, slots=True)
class _Priced:
    """Costs before a problem is built of them, which is the dear part."""

    table: Table
    allowed_mhz: tuple[tuple[int, ...], ...]
    default_mhz: tuple[int, ...]
    width: int
    inputs: tuple[object, ...]


def price(
    job: JobView,
    gpus: Mapping[str, GpuView],
    estimator: Estimator,
    host_power_w: float,
    held: Costs | None = None,
) -> Costs | str:
    """Costs of a job on its GPUs, or why there are none.

    `host_power_w` is charged per GPU for the whole iteration. Where the costs say the same
    as `held` within tolerance, the answer is `held` itself.
    """
    policy, pipeline = job.policy, job.policy.pipeline
    if pipeline is None:
        return "the policy gives no pipeline for this job"
    priced = _price(job, gpus, estimator, (pipeline, policy.blocking_power_w, host_power_w))
    if isinstance(priced, str):
        return priced
    if held is not None and _same(held, priced):
        return held
    options = {key: tuple(by_clock.values()) for key, by_clock in priced.table.items()}
    return Costs(
        table=priced.table,
        allowed_mhz=priced.allowed_mhz,
        default_mhz=priced.default_mhz,
        width=priced.width,
        inputs=priced.inputs,
        problem=build_problem(
            pipeline,
            Profile(options=options, source="predicted"),
            policy.blocking_power_w,
            overhead_power_w=host_power_w * pipeline.stages,
        ),
        digest=hashlib.sha256(repr((priced.inputs, priced.table)).encode()).hexdigest()[:16],
        pipeline=pipeline,
        by_part=_by_part(job),
    )


def _price(
    job: JobView, gpus: Mapping[str, GpuView], estimator: Estimator, inputs: tuple[object, ...]
) -> _Priced | str:
    table: dict[tuple[int, Kind], dict[int, ClockOption]] = {}
    allowed: list[tuple[int, ...]] = []
    default: list[int] = []
    name, pipeline = job.policy.name, job.policy.pipeline
    assert pipeline is not None
    for stage, uuids in enumerate(job.stages):
        placed = [gpus[uuid] for uuid in uuids]
        default_mhz = _default_mhz(placed)
        keys = keys_of(pipeline, stage, by_part=_by_part(job))
        lowest = _lowest_known_mhz(name, keys, uuids, estimator)
        if lowest is None or default_mhz is None:
            return f"nothing is known of stage {stage} at other clocks: no profile, no change"
        grid = tuple(mhz for mhz in clocks_allowed_mhz(job.policy, placed) if mhz >= lowest)
        wanted = tuple(sorted({*grid, default_mhz}))
        for row, kind in keys:
            subjects = [Subject(name, uuid, row, kind) for uuid in uuids]
            by_clock = _price_siblings(subjects, wanted, estimator)
            if by_clock is None:
                return f"no prediction for {kind} of stage {stage}"
            table[row, kind] = by_clock
        allowed.append(grid)
        default.append(default_mhz)
    return _Priced(table, tuple(allowed), tuple(default), len(job.stages[0]), inputs)


def keys_of(pipeline: Pipeline, stage: int, *, by_part: bool) -> tuple[tuple[int, Kind], ...]:
    """The rows and kinds of a profile that say what the operations of a stage cost."""
    chunks = pipeline.chunks if by_part else 1
    rows = [_row(pipeline, stage, chunk, by_part=by_part) for chunk in range(chunks)]
    return tuple((row, kind) for row in rows for kind in kinds_of(pipeline))


def _row(pipeline: Pipeline, stage: int, chunk: int, *, by_part: bool) -> int:
    return part_of(pipeline, stage, chunk) if by_part else stage


def _by_part(job: JobView) -> bool:
    pipeline, profile = job.policy.pipeline, job.policy.profile
    return bool(pipeline and profile and profile.stages > pipeline.stages)


def _same(old: Costs, new: _Priced) -> bool:
    if (old.allowed_mhz, old.default_mhz, old.width, old.inputs) != (
        new.allowed_mhz,
        new.default_mhz,
        new.width,
        new.inputs,
    ):
        return False
    return all(
        abs(option.time_s - before.time_s) <= TIME_TOLERANCE * before.time_s
        and abs(option.energy_j - before.energy_j) <= ENERGY_TOLERANCE * before.energy_j
        for key, by_clock in new.table.items()
        for option, before in zip(by_clock.values(), old.table[key].values(), strict=True)
    )


def clocks_allowed_mhz(policy: JobPolicy, gpus: list[GpuView]) -> tuple[int, ...]:
    """Clocks that every one of these GPUs supports and that operator and site permit."""
    if not gpus:
        return ()
    shared = set(gpus[0].description.clocks_mhz)
    low, high = policy.clocks.min_mhz, float("inf")
    for gpu in gpus:
        if gpu.description.clocks_mhz != gpus[0].description.clocks_mhz:
            shared &= set(gpu.description.clocks_mhz)
        low = max(low, gpu.description.clock_min_mhz)
        high = min(high, gpu.description.clock_max_mhz or float("inf"))
    return tuple(sorted(clock for clock in shared if low <= clock <= high))


def _default_mhz(gpus: list[GpuView]) -> int | None:
    """The clock without a lock: the lowest of their highest clocks."""
    highest = [gpu.description.clocks_mhz[-1] for gpu in gpus if gpu.description.clocks_mhz]
    return min(highest) if highest and len(highest) == len(gpus) else None


def _lowest_known_mhz(
    workload: str,
    keys: tuple[tuple[int, Kind], ...],
    uuids: tuple[str, ...],
    estimator: Estimator,
) -> int | None:
    lowest = 0
    for uuid in uuids:
        for row, kind in keys:
            known = estimator.known_clocks_mhz(Subject(workload, uuid, row, kind))
            if not known:
                return None
            lowest = max(lowest, known[0])
    return lowest


def _price_siblings(
    subjects: list[Subject], clocks_mhz: tuple[int, ...], estimator: Estimator
) -> dict[int, ClockOption] | None:
    times, energies = [], []
    for subject in subjects:
        predicted = estimator.predict(subject, clocks_mhz)
        if predicted is None:
            return None
        times.append(predicted.time_s)
        energies.append(predicted.time_s * predicted.power_w)
    time_s = np.max(np.stack(times), axis=0)
    energy_j = np.mean(np.stack(energies), axis=0)
    if not (np.isfinite(time_s).all() and np.isfinite(energy_j).all() and (time_s > 0).all()):
        return None
    return {
        clock: ClockOption(clock, float(time_s[i]), float(energy_j[i]))
        for i, clock in enumerate(clocks_mhz)
    }
