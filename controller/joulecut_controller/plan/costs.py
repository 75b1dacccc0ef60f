"""Predicted time and energy of every operation of a job at every allowed clock.

Evidence and bounds meet here: no clock below the lowest measured one, below the operator's floor or
outside the site's range enters a problem, so no solver can choose it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_controller.plan.own_clocks import FASTER_RATIO_MIN, Floats, own_clocks
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
# A GPU that turns out slower than its own clock assumes is late; one that turns out faster only
# wastes a little.
FASTER_TOLERANCE = 0.01

Table = Mapping[tuple[int, Kind], Mapping[int, ClockOption]]


@dataclass(frozen=True, slots=True)
class Costs:
    """Predicted costs of one GPU per stage (the slowest of its siblings in time, their mean
    in energy).

    `table[row, kind][clock_mhz]` covers every clock of `allowed_mhz[stage]` and the default
    clock `default_mhz[stage]`; a row is a stage, or a part of the model where the profile
    tells GPUs' chunks apart. `width` is the number of GPUs per stage. `digest`
    names the content.

    A GPU faster than the slowest of its stage (`ratios`, times over the slowest's; empty unless
    measured) has a clock of its own for every clock of the stage, in `own_mhz`. `uniform` has the
    costs with one clock for all.
    """

    table: Table
    uniform: Table
    own_mhz: Mapping[str, Mapping[int, int]]
    ratios: Mapping[str, float]
    allowed_mhz: tuple[tuple[int, ...], ...]
    default_mhz: tuple[int, ...]
    width: int
    inputs: tuple[object, ...]  # what else went in: pipeline, blocking and host power
    problem: Problem
    digest: str
    pipeline: Pipeline
    by_part: bool = False

    def option(
        self, operation: Operation, clock_mhz: int, *, uniform: bool = False
    ) -> ClockOption | None:
        """What an operation costs at a clock of its stage; None where that was not predicted."""
        row = _row(self.pipeline, operation.stage, operation.chunk, by_part=self.by_part)
        table = self.uniform if uniform else self.table
        return table[row, operation.kind].get(clock_mhz)

    def clock_of(self, uuid: str, stage_mhz: int) -> int:
        """The clock of a GPU while its stage works at this one."""
        own = self.own_mhz.get(uuid)
        return own.get(stage_mhz, stage_mhz) if own else stage_mhz

    def asked_mhz(self, stages: Sequence[Sequence[str]], clocks: Sequence[int]) -> dict[str, int]:
        """The highest clock that each GPU needs within an iteration; `clocks` are by operation."""
        asked: dict[str, int] = {}
        for stage, uuids in enumerate(stages):
            stage_mhz = max(clocks[i] for i in self.problem.graph.order[stage])
            asked |= {uuid: self.clock_of(uuid, stage_mhz) for uuid in uuids}
        return asked


@dataclass(frozen=True, slots=True)
class _Priced:
    """Costs before a problem is built of them, which is the dear part."""

    table: Table
    uniform: Table
    own_mhz: Mapping[str, Mapping[int, int]]
    ratios: Mapping[str, float]
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
        uniform=priced.uniform,
        own_mhz=priced.own_mhz,
        ratios=priced.ratios,
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
    uniform: dict[tuple[int, Kind], dict[int, ClockOption]] = {}
    own_mhz: dict[str, Mapping[int, int]] = {}
    ratios: dict[str, float] = {}
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
        predicted = _Predicted(wanted, uuids)
        for row, kind in keys:
            subjects = [Subject(name, uuid, row, kind) for uuid in uuids]
            if not predicted.add((row, kind), subjects, estimator):
                return f"no prediction for {kind} of stage {stage}"
        uniform |= predicted.uniform(job.policy.blocking_power_w)
        mine = predicted.ratios(job.time_ratios, default_mhz) if job.time_ratios else {}
        if min(mine.values(), default=1.0) < 1.0 - FASTER_RATIO_MIN:
            priced, own = predicted.own(mine, grid, job.policy.blocking_power_w)
            table |= priced
            own_mhz |= own
        ratios |= mine
        allowed.append(grid)
        default.append(default_mhz)
    return _Priced(
        {**uniform, **table},
        uniform,
        own_mhz,
        ratios,
        tuple(allowed),
        tuple(default),
        len(job.stages[0]),
        inputs,
    )


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
    if any(
        not -FASTER_TOLERANCE <= ratio - old.ratios.get(uuid, 1.0) <= TIME_TOLERANCE
        for uuid, ratio in new.ratios.items()
    ):
        return False
    return all(
        abs(option.time_s - before.time_s) <= TIME_TOLERANCE * before.time_s
        and abs(option.energy_j - before.energy_j) <= ENERGY_TOLERANCE * before.energy_j
        for key, by_clock in new.uniform.items()
        for option, before in zip(by_clock.values(), old.uniform[key].values(), strict=True)
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


class _Predicted:
    """Times and powers of the GPUs of one stage, (GPUs, clocks) by row and kind."""

    def __init__(self, clocks_mhz: tuple[int, ...], uuids: tuple[str, ...]) -> None:
        self._clocks_mhz, self._uuids = clocks_mhz, uuids
        self._time_s: dict[tuple[int, Kind], Floats] = {}
        self._power_w: dict[tuple[int, Kind], Floats] = {}

    def add(self, key: tuple[int, Kind], subjects: list[Subject], estimator: Estimator) -> bool:
        """False where nothing usable is predicted."""
        times, powers = [], []
        for subject in subjects:
            predicted = estimator.predict(subject, self._clocks_mhz)
            if predicted is None:
                return False
            times.append(predicted.time_s)
            powers.append(predicted.power_w)
        time_s, power_w = np.stack(times), np.stack(powers)
        if not (np.isfinite(time_s).all() and np.isfinite(power_w).all() and (time_s > 0).all()):
            return False
        self._time_s[key], self._power_w[key] = time_s, power_w
        return True

    def uniform(self, blocking_power_w: float) -> dict[tuple[int, Kind], dict[int, ClockOption]]:
        """The costs at one clock for all: the slowest sets the time, the others wait for it."""
        made = {}
        for key, time_s in self._time_s.items():
            pace_s = time_s.max(axis=0)
            energy_j = self._power_w[key] * time_s + blocking_power_w * (pace_s - time_s)
            made[key] = self._options(pace_s, energy_j.mean(axis=0))
        return made

    def ratios(self, measured: Mapping[str, float], default_mhz: int) -> dict[str, float]:
        """By GPU, its time over the slowest's: as measured at default clocks, unless the
        estimator has learnt since that it is slower. Nothing measured means no GPU is faster.
        """
        at = self._clocks_mhz.index(default_mhz)
        learnt = [t[:, at] / t[:, at].max() for t in self._time_s.values()]
        worst = np.max(np.stack(learnt), axis=0)
        return {
            uuid: max(measured.get(uuid, 1.0), float(ratio))
            for uuid, ratio in zip(self._uuids, worst, strict=True)
        }

    def own(
        self, ratios: Mapping[str, float], grid: tuple[int, ...], blocking_power_w: float
    ) -> tuple[dict[tuple[int, Kind], dict[int, ClockOption]], dict[str, Mapping[int, int]]]:
        """The costs where faster GPUs have clocks of their own out of `grid`, and these clocks."""
        pace_s = {key: time_s.max(axis=0) for key, time_s in self._time_s.items()}
        found = own_clocks(
            self._clocks_mhz,
            [mhz in grid for mhz in self._clocks_mhz],
            pace_s,
            self._power_w,
            ratios=np.array([ratios[uuid] for uuid in self._uuids]),
            blocking_power_w=blocking_power_w,
        )
        table = {key: self._options(s, found.energy_j[key]) for key, s in pace_s.items()}
        return table, {u: mhz for u, mhz in zip(self._uuids, found.mhz, strict=True) if mhz}

    def _options(self, time_s: Floats, energy_j: Floats) -> dict[int, ClockOption]:
        return {
            clock: ClockOption(clock, float(time_s[i]), float(energy_j[i]))
            for i, clock in enumerate(self._clocks_mhz)
        }
