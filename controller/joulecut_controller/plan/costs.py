"""Predicted time and energy of every operation of a job at every allowed clock.

Evidence and bounds meet here: no clock below the lowest measured one, below the operator's floor or
outside the site's range enters a problem, so no solver can choose it.
"""

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.view import DEFAULT_CLOCK_STEP, GpuView, JobState, Stages
from joulecut_engine.estimate.estimator import Estimator, Subject
from joulecut_engine.graph import build
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Operation, Pipeline
from joulecut_engine.graph.power_limit import held as under_limit
from joulecut_engine.graph.shape import kinds_of, part_of
from joulecut_engine.optimize.formulation import priced
from joulecut_engine.optimize.problem import Problem

# Below these differences two predictions are the same for planning: a third of what the
# physics form itself misses by (0.5 % in time, 1 % in power on public sweeps), and chasing
# less would mean a new solve in every pass.
TIME_TOLERANCE = 0.002
ENERGY_TOLERANCE = 0.01
# A GPU that turns out slower than its own clock assumes is late; one that turns out faster only
# wastes a little.
FASTER_TOLERANCE = 0.01

# One step below the lowest measured clock: 60 MHz on A100, 75 on A40. Power changes by 5-8 % and
# time by up to 4 % within it, which some fifty iterations resolve.
STEP_RATIO = 0.045

# A clock step is 1 % on most cards: a GPU that is faster by less has nothing to gain.
FASTER_RATIO_MIN = 0.01
ROUNDING = 1e-9  # a GPU exactly at the pace keeps it

Floats = NDArray[np.float64]
Key = TypeVar("Key")
Rows = tuple[tuple[int, Kind], ...]
Table = Mapping[tuple[int, Kind], Mapping[int, ClockOption]]


@dataclass(frozen=True)
class Costs:
    """Predicted costs of one GPU per stage (the slowest of its siblings in time, their mean
    in energy).

    `table[row, kind][clock_mhz]` covers every clock of `allowed_mhz[stage]` and the default
    clock `default_mhz[stage]`; a row is a stage, or a part of the model where the profile
    tells GPUs' chunks apart. `width` is the number of GPUs per stage of the job. `problem`, which
    is dear to build, and `digest`, which names the content, are made when first asked for.

    A GPU faster than the slowest of its stage (`ratios`, times over the slowest's of all replicas;
    empty unless measured) has a clock of its own for every clock of the stage, in `own_mhz`.
    `uniform` has the costs with one clock for all.
    """

    pipeline: Pipeline
    blocking_power_w: float
    host_power_w: float
    table: Table
    uniform: Table
    own_mhz: Mapping[str, Mapping[int, int]]
    ratios: Mapping[str, float]
    allowed_mhz: tuple[tuple[int, ...], ...]
    default_mhz: tuple[int, ...]
    width: int
    gpus: Stages
    by_part: bool

    @cached_property
    def problem(self) -> Problem:
        graph = build(self.pipeline)
        operations = graph.operations
        rows = (_row(self.pipeline, o.stage, o.chunk, by_part=self.by_part) for o in operations)
        menus = {key: tuple(by_clock.values()) for key, by_clock in self.table.items()}
        return priced(
            graph,
            [menus[row, o.kind] for row, o in zip(rows, operations, strict=True)],
            [self.blocking_power_w] * self.pipeline.stages,
            overhead_power_w=self.host_power_w * self.pipeline.stages,
        )

    @cached_property
    def digest(self) -> str:
        content = (self.pipeline, self.blocking_power_w, self.host_power_w, self.table)
        return hashlib.sha256(repr(content).encode()).hexdigest()[:16]

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

    def asked_mhz(self, clocks: Sequence[int]) -> dict[str, int]:
        """The highest clock that each GPU needs within an iteration; `clocks` are by operation."""
        asked: dict[str, int] = {}
        for stage, uuids in enumerate(self.gpus):
            stage_mhz = max(clocks[i] for i in self.problem.graph.order[stage])
            asked |= {uuid: self.clock_of(uuid, stage_mhz) for uuid in uuids}
        return asked


def price(
    job: JobState,
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
    name, blocking_w = job.workload, policy.blocking_power_w
    by_part = policy.profile is not None and policy.profile.stages > pipeline.stages
    stages: list[_Predicted] = []
    ratios: dict[str, float] = {}
    for stage, uuids in enumerate(job.placement.stages):
        placed = [gpus[uuid] for uuid in uuids]
        keys = keys_of(pipeline, stage, by_part=by_part)
        default_mhz = _default_mhz(job, placed, keys)
        lowest = _lowest_known_mhz(name, keys, uuids, estimator)
        if lowest is None or default_mhz is None:
            return f"nothing is known of stage {stage} at other clocks: no profile, no change"
        least_mhz = max(lowest, *(reach_mhz(job, gpu) for gpu in placed))
        allowed = clocks_allowed_mhz(job.policy, placed)
        grid = tuple(mhz for mhz in allowed if least_mhz <= mhz <= default_mhz)
        limits_w = {gpu.uuid: gpu.limit_of_others_w for gpu in placed}
        predicted = _Predicted(grid, default_mhz, uuids, limits_w)
        for row, kind in keys:
            subjects = [Subject(name, uuid, row, kind) for uuid in uuids]
            if not predicted.add((row, kind), subjects, estimator):
                return f"no prediction for {kind} of stage {stage}"
        stages.append(predicted)
        ratios |= predicted.follow(job.measured.time_ratios) if job.measured.time_ratios else {}
    table: dict[tuple[int, Kind], dict[int, ClockOption]] = {}
    uniform: dict[tuple[int, Kind], dict[int, ClockOption]] = {}
    own_mhz: dict[str, Mapping[int, int]] = {}
    for predicted in stages:
        uniform |= predicted.uniform(blocking_w)
        own = predicted.own(ratios, blocking_w)
        if own is not None:
            table |= own[0]
            own_mhz |= own[1]
    made = Costs(
        pipeline=pipeline,
        blocking_power_w=blocking_w,
        host_power_w=host_power_w,
        table={**uniform, **table},
        uniform=uniform,
        own_mhz=own_mhz,
        ratios=ratios,
        allowed_mhz=tuple(one.allowed_mhz for one in stages),
        default_mhz=tuple(one.default_mhz for one in stages),
        width=len(job.placement.stages[0]),
        gpus=job.placement.stages,
        by_part=by_part,
    )
    return held if held is not None and _same(held, made) else made


def keys_of(pipeline: Pipeline, stage: int, *, by_part: bool) -> Rows:
    """The rows and kinds of a profile that say what the operations of a stage cost."""
    chunks = pipeline.chunks if by_part else 1
    rows = [_row(pipeline, stage, chunk, by_part=by_part) for chunk in range(chunks)]
    return tuple((row, kind) for row in rows for kind in kinds_of(pipeline))


def _row(pipeline: Pipeline, stage: int, chunk: int, *, by_part: bool) -> int:
    return part_of(pipeline, stage, chunk) if by_part else stage


def _same(old: Costs, new: Costs) -> bool:
    predicted = {name: getattr(old, name) for name in ("table", "uniform", "own_mhz", "ratios")}
    if replace(new, **predicted) != old:
        return False
    moved = (ratio - old.ratios.get(uuid, 1.0) for uuid, ratio in new.ratios.items())
    if not all(-FASTER_TOLERANCE <= one <= TIME_TOLERANCE for one in moved):
        return False
    pairs = [
        (option, before)
        for key, by_clock in new.uniform.items()
        for option, before in zip(by_clock.values(), old.uniform[key].values(), strict=True)
    ]
    # What all operations have in common is work, and clocks are chosen alike for any.
    work = statistics.median(option.time_s / before.time_s for option, before in pairs)
    return all(
        abs(option.time_s / work - before.time_s) <= TIME_TOLERANCE * before.time_s
        and abs(option.energy_j / work - before.energy_j) <= ENERGY_TOLERANCE * before.energy_j
        for option, before in pairs
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


def reach_mhz(job: JobState, gpu: GpuView) -> float:
    """The lowest clock that a predicted profile may ask of a GPU: a step below the lowest that
    iterations ran at; 0 before any did, and of a measured profile.
    """
    profile, clocks_mhz = job.policy.profile, gpu.description.clocks_mhz
    ran_mhz = job.measured.lowest_mhz.get(gpu.uuid)
    if profile is None or not profile.predicted or ran_mhz is None or not clocks_mhz:
        return 0.0
    return ran_mhz - STEP_RATIO * clocks_mhz[-1]


def _default_mhz(job: JobState, gpus: list[GpuView], keys: Rows) -> int | None:
    """The clock without a lock: the lowest of their highest clocks, as far as heat has moved it. A
    predicted profile is of the default clock that was measured then, moved or not.
    """
    tables = [gpu.description.clocks_mhz for gpu in gpus if gpu.description.clocks_mhz]
    if not tables or len(tables) < len(gpus):
        return None
    table = sorted(min(tables, key=max))
    now_mhz, profile = min(1.0, job.measured.default_clock_ratio) * table[-1], job.policy.profile
    if profile is not None and profile.predicted:
        options = [one for key in keys for one in profile.options.get(key, ())]
        top_mhz = max((one.clock_mhz for one in options), default=table[-1])
        seen_mhz = job.measured.default_clock_mhz
        moved = 0.0 < seen_mhz < (1.0 - DEFAULT_CLOCK_STEP) * top_mhz
        now_mhz = seen_mhz if moved else top_mhz
    return next((mhz for mhz in table if mhz >= now_mhz), table[-1])


def _lowest_known_mhz(
    workload: str,
    keys: Rows,
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
    """Times and powers of some GPUs of one stage, (GPUs, clocks) by row and kind."""

    def __init__(
        self,
        allowed_mhz: tuple[int, ...],
        default_mhz: int,
        uuids: tuple[str, ...],
        limits_w: Mapping[str, float | None],
    ) -> None:
        self.allowed_mhz, self.default_mhz, self.uuids = allowed_mhz, default_mhz, uuids
        self._limits_w = limits_w
        self._clocks_mhz = tuple(sorted({*allowed_mhz, default_mhz}))
        self._time_s: dict[tuple[int, Kind], Floats] = {}
        self._power_w: dict[tuple[int, Kind], Floats] = {}
        self._pace_s: dict[tuple[int, Kind], Floats] = {}  # (clocks,): of the slowest

    def add(self, key: tuple[int, Kind], subjects: list[Subject], estimator: Estimator) -> bool:
        """False where nothing usable is predicted."""
        times, powers = [], []
        for subject in subjects:
            predicted = estimator.predict(subject, self._clocks_mhz)
            if predicted is None:
                return False
            curve = predicted.time_s, predicted.power_w
            if (limit_w := self._limits_w[subject.uuid]) is not None:
                seconds, watts = curve[0].tolist(), curve[1].tolist()
                at_limit = under_limit(self._clocks_mhz, seconds, watts, limit_w)
                curve = np.array(at_limit[0]), np.array(at_limit[1])
            times.append(curve[0])
            powers.append(curve[1])
        time_s, power_w = np.stack(times), np.stack(powers)
        if not (np.isfinite(time_s).all() and np.isfinite(power_w).all() and (time_s > 0).all()):
            return False
        self._time_s[key], self._power_w[key] = time_s, power_w
        self._pace_s[key] = time_s.max(axis=0)
        return True

    def follow(self, measured: Mapping[str, float]) -> dict[str, float]:
        """By GPU, its time over the slowest's: as measured at default clocks, unless the estimator
        has learnt since that it is slower. Nothing measured means no GPU is faster.

        The estimator learns of one GPU after the other: the slowest takes no less than the others
        say by their measured ratios.
        """
        known = np.array([measured.get(uuid, 1.0) for uuid in self.uuids])
        at, worst = self._clocks_mhz.index(self.default_mhz), known
        for key, time_s in self._time_s.items():
            by_others_s = (time_s / known[:, None]).mean(axis=0)
            self._pace_s[key] = np.maximum(time_s.max(axis=0), by_others_s)
            worst = np.maximum(worst, time_s[:, at] / self._pace_s[key][at])
        return dict(zip(self.uuids, worst.tolist(), strict=True))

    def uniform(self, blocking_power_w: float) -> dict[tuple[int, Kind], dict[int, ClockOption]]:
        """The costs at one clock for all: the slowest sets the time, the others wait for it."""
        made = {}
        for key, pace_s in self._pace_s.items():
            time_s = self._time_s[key]
            energy_j = self._power_w[key] * time_s + blocking_power_w * (pace_s - time_s)
            made[key] = self._options(pace_s, energy_j.mean(axis=0))
        return made

    def own(
        self, ratios: Mapping[str, float], blocking_power_w: float
    ) -> tuple[dict[tuple[int, Kind], dict[int, ClockOption]], dict[str, Mapping[int, int]]] | None:
        """The costs where GPUs faster than the slowest have allowed clocks of their own, and these
        clocks; None where none is faster."""
        seen = np.array([ratios.get(uuid, 1.0) for uuid in self.uuids])
        if seen.min() >= seen.max() * (1.0 - FASTER_RATIO_MIN):
            return None
        found = own_clocks(
            self._clocks_mhz,
            [mhz in self.allowed_mhz for mhz in self._clocks_mhz],
            self._pace_s,
            self._power_w,
            ratios=seen / seen.max(),
            blocking_power_w=blocking_power_w,
        )
        table = {key: self._options(s, found.energy_j[key]) for key, s in self._pace_s.items()}
        return table, {u: mhz for u, mhz in zip(self.uuids, found.mhz, strict=True) if mhz}

    def _options(self, time_s: Floats, energy_j: Floats) -> dict[int, ClockOption]:
        rows = zip(self._clocks_mhz, time_s.tolist(), energy_j.tolist(), strict=True)
        return {clock: ClockOption(clock, seconds, joules) for clock, seconds, joules in rows}


@dataclass(frozen=True, slots=True)
class Own:
    """`mhz[i]` maps clocks of the stage to that of GPU i, empty where they are the same;
    `energy_j` are joules of one operation by key and clock of the stage, a mean over the GPUs.
    """

    mhz: tuple[Mapping[int, int], ...]
    energy_j: Mapping[object, Floats]


def own_clocks(
    clocks_mhz: Sequence[int],
    allowed: Sequence[bool],
    pace_s: Mapping[Key, Floats],
    power_w: Mapping[Key, Floats],
    *,
    ratios: Floats,
    blocking_power_w: float,
) -> Own:
    """The clocks of the GPUs of one stage, which works at the pace of its slowest: at a lower clock
    of its own a faster one ends just in time, and draws less.

    By key, an operation takes `pace_s` (clocks,) at the slowest GPU and draws `power_w`
    (GPUs, clocks); GPU i takes `ratios[i]` of that time and may have the clocks `allowed`. Keys
    count alike, since a GPU runs as many backwards as forwards.
    """
    faster = ratios < 1.0 - FASTER_RATIO_MIN
    count = len(clocks_mhz)
    at = np.broadcast_to(np.arange(count), (len(ratios), count)).copy()
    for i in np.flatnonzero(faster):
        # Rows: the clock of the stage; columns: that of the GPU.
        in_time = np.tril(np.broadcast_to(np.asarray(allowed, dtype=bool), (count, count)))
        cost_j = np.zeros(count)
        for key, stage_s in pace_s.items():
            own_s = ratios[i] * stage_s
            in_time = in_time & (own_s[None, :] <= stage_s[:, None] * (1.0 + ROUNDING))
            cost_j += (power_w[key][i] - blocking_power_w) * own_s
        best = np.where(in_time, cost_j[None, :], np.inf)
        at[i] = np.where(in_time.any(axis=1), best.argmin(axis=1), np.arange(count))
    rows = np.arange(len(ratios))[:, None]
    energy_j: dict[object, Floats] = {}
    for key, stage_s in pace_s.items():
        own_s = np.where(faster, ratios, 1.0)[:, None] * stage_s[at]
        working_j = power_w[key][rows, at] * own_s
        energy_j[key] = (working_j + blocking_power_w * (stage_s - own_s)).mean(axis=0)
    mhz = tuple(
        {clocks_mhz[j]: clocks_mhz[k] for j, k in enumerate(row)} if faster[i] else {}
        for i, row in enumerate(at)
    )
    return Own(mhz, energy_j)
