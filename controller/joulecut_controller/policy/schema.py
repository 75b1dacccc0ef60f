"""Sections of the policy file whose keys become other values than they are written as.

Shapes only: `validation` checks keys against each other. Pure.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

from joulecut_controller.policy.policy import (
    SLOWDOWN,
    TOLERANCE_RATIO,
    ClockPolicy,
    Cost,
    FoundJobsPolicy,
    GpuRef,
    IdlePolicy,
    Mode,
    PodMatch,
    PredictPolicy,
    Ranks,
    Slo,
    SlurmJobMatch,
    Verify,
)
from joulecut_controller.policy.rate_query import RateQuery, read_rate
from joulecut_engine.graph.pipeline import SCHEDULES_ALL, Pipeline, Schedule
from joulecut_engine.graph.shape import CHUNKS_MAX, MICROBATCHES_MAX, STAGES_MAX, chunks_of
from joulecut_wire.quantity import (
    POWER_W_MAX,
    WAITING_W_MAX,
    Fault,
    choice,
    duration,
    flag,
    name,
    number,
    percentage,
    shown,
    text,
    whole,
)
from joulecut_wire.section import Listed, key

API_VERSION = "joulecut/v1"
KIND = "Policy"

TARGETS = ("max_slowdown", "min_rate", "max_iteration_time")
RANK_ORDER = "tp-cp-ep-dp-pp"  # the first changes fastest (Megatron-LM's default)
RATE_UNITS_S = {"iterations/s": 1.0, "iterations/min": 60.0, "iterations/h": 3600.0}

TOLERANCE_PERCENT_MAX = 5.0
WEIGHT_MAX = 1e6  # one job that counts as much as a million others

GPUS_ALLOWED = "NODE/INDICES, like node1/0-7, node1/0 or (quoted between brackets) 'node1/0,2,4'"
GPU_INDEX_MAX = 63  # NVML numbers the GPUs of a node; no node has more of them

# A node's name as a DNS name, or as Slurm has it.
_REFERENCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,252})/([0-9,-]{1,253})")
_INDICES = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")

_MODE = choice("recommend", "enforce", "off")
_PARALLEL = whole(1, 65_536)
_PATH = text(4096, "a path")


def _anything(value: object) -> object:
    """A key that went; what it holds is not read."""
    return value


def references(value: object) -> tuple[GpuRef, ...]:
    """The GPUs that one entry of `match.gpus` names, in its order. Raises Fault."""
    if isinstance(value, int) and not isinstance(value, bool):
        # What YAML makes of [node1/0,2,4]: three entries.
        raise Fault(f"{value} names no node", GPUS_ALLOWED)
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if not match:
        raise Fault(f"{shown(value)} names no GPU", GPUS_ALLOWED)
    node = match[1]
    indices: list[int] = []
    for part in match[2].split(","):
        bounds = _INDICES.fullmatch(part)
        if not bounds:
            raise Fault(f"{shown(value)}: {shown(part)} is neither index nor range", GPUS_ALLOWED)
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        if last < first:
            raise Fault(f"{shown(value)}: {part} runs backwards", GPUS_ALLOWED)
        if last > GPU_INDEX_MAX:
            raise Fault(f"{shown(value)}: index {last}", f"indices 0 to {GPU_INDEX_MAX}")
        indices += range(first, last + 1)
    return tuple(GpuRef(node, index) for index in indices)


_GROUPS = "([groups](#lock-step-groups-and-replicas))"


@dataclass(frozen=True, slots=True)
class Except:
    """Running jobs that the entry leaves out: exactly one of the two."""

    kubernetes: PodMatch | None = key(
        PodMatch,
        None,
        takes="`{namespace: train, labels: {app: gpt3}}`",
        meaning="GPUs of the pods in this namespace that carry all these labels; both may be "
        "patterns with `*` and `?`",
    )
    slurm: SlurmJobMatch | None = key(
        SlurmJobMatch,
        None,
        takes='`{job_id: "4711"}`, or some of '
        "`{job_name: gpt3, user: alice, account: bio, partition: gpu}`",
        meaning="GPUs of this Slurm job; words but the id may be patterns with `*` and `?`",
    )


@dataclass(frozen=True, slots=True)
class Match(Except):
    """The running job of this entry: exactly one of the three, or no match at all."""

    gpus: tuple[tuple[GpuRef, ...], ...] | None = key(
        Listed(references), None, takes="list of GPUs", meaning="these GPUs, each in one job only"
    )

    @property
    def listed(self) -> tuple[GpuRef, ...]:
        """The GPUs of `gpus`, in the operator's order."""
        return tuple(gpu for entry in self.gpus or () for gpu in entry)


@dataclass(frozen=True, slots=True)
class MinRate:
    """The least iterations per second, minute or hour."""

    value: float = key(number(0.0, 1e6, above=True))
    unit: str = key(choice(*RATE_UNITS_S))

    @property
    def iteration_time_s(self) -> float:
        return RATE_UNITS_S[self.unit] / self.value


@dataclass(frozen=True, slots=True)
class SloKeys:
    """The throughput target: exactly one of the three, or `least_cost`."""

    max_slowdown: float | None = key(
        SLOWDOWN,
        None,
        default="",
        meaning="longest iteration, relative to the job's own at default clocks",
    )
    least_cost: bool = key(
        flag,
        False,
        meaning="the slowdown where GPU time and energy cost least at the prices of "
        "`cluster.cost`, never above `max_slowdown` where both are given "
        "([below](#the-slowdown-that-costs-least))",
    )
    min_rate: MinRate | None = key(
        MinRate,
        None,
        default="",
        takes="`{value: 3.2, unit: iterations/s}`",
        meaning="the same as a rate; also `iterations/min`, `iterations/h`",
    )
    max_iteration_time: float | None = key(
        duration(above_zero=True), None, default="", meaning="longest iteration"
    )
    statistic: Literal["mean", "p95"] = key(
        choice("mean", "p95"),
        "mean",
        default="-",
        meaning="without effect, read until 0.3: targets are of the mean iteration",
    )
    tolerance: float = key(
        percentage(TOLERANCE_PERCENT_MAX),
        TOLERANCE_RATIO,
        default="0.3%",
        meaning="a `max_slowdown` below it means: not measurably slower, by at most so much. No "
        "job's pace is known better than to 0.25 %",
    )
    rate: str | RateQuery = key(
        read_rate,
        "hook",
        takes="`hook`, `{promql: EXPRESSION}`",
        meaning="source of the rate: the job's own reports, or a "
        "[Prometheus](integrations.md#a-rate-from-prometheus)",
    )

    @property
    def targets(self) -> list[str]:
        """The targets that are given."""
        return [key for key in TARGETS if getattr(self, key) is not None]

    def target(self) -> Slo:
        if self.min_rate is not None:
            time_s = self.min_rate.iteration_time_s
            return Slo(None, time_s, "min_rate")
        if self.max_iteration_time is not None:
            return Slo(None, self.max_iteration_time, "max_iteration_time")
        # Without a target the mode is off, and nothing is planned.
        slo = Slo(self.max_slowdown or 0.0, tolerance=self.tolerance)
        if not self.least_cost:
            return slo
        bound = self.max_slowdown
        return replace(slo, max_slowdown=0.0, given_as="least_cost", least_cost=True, bound=bound)


@dataclass(frozen=True, slots=True)
class PipelineKeys:
    """Shape of one iteration, and its costs."""

    schedule: Schedule = key(
        choice(*SCHEDULES_ALL),
        meaning="order of operations; the profile must have every kind of operation in it",
    )
    stages: int = key(whole(1, STAGES_MAX), meaning="stages of the pipeline")
    microbatches: int = key(whole(1, MICROBATCHES_MAX), meaning="of an iteration")
    chunks: int | None = key(
        whole(1, CHUNKS_MAX),
        None,
        default="2 where the schedule has chunks, else 1",
        meaning="parts of the model per GPU; the profile numbers stages, or these parts",
    )
    tensor_parallel: int = key(
        _PARALLEL, 1, meaning=f"GPUs of one stage that share every operation {_GROUPS}"
    )
    context_parallel: int = key(
        _PARALLEL,
        1,
        meaning="GPUs of one stage that share every sequence; such a group works in lock-step as "
        "well",
    )
    expert_parallel: int = key(
        _PARALLEL,
        1,
        meaning="GPUs of one stage that exchange tokens between experts in every layer; divides "
        "`context_parallel` x `data_parallel`, and joins their GPUs to one lock-step group",
    )
    data_parallel: int = key(
        _PARALLEL,
        1,
        meaning="parallel pipelines, which meet once per iteration "
        "([replicas](#lock-step-groups-and-replicas))",
    )
    sync: Literal["iteration", "layer"] = key(
        choice("iteration", "layer"),
        "iteration",
        meaning="when the pipelines wait for each other. Only with `iteration` may a pipeline slow "
        "down to a straggler's time",
    )
    profile: str | None = key(
        _PATH,
        None,
        meaning="CSV `stage,instruction,frequency,time,energy`, relative to this file. Without it "
        "one is predicted from other jobs, and corrected as the job runs "
        "([jobs without a profile](predictors.md#jobs-without-a-profile))",
    )
    blocking_power_w: float | None = key(
        number(0.0, WAITING_W_MAX, unit="watts"),
        None,
        meaning="power of a GPU while it waits for its neighbours; required with `profile`",
    )

    def shape(self) -> Pipeline:
        """The pipeline that the keys describe, whether it can be laid out or not."""
        return Pipeline(
            schedule=self.schedule,
            stages=self.stages,
            microbatches=self.microbatches,
            tensor_parallel=self.tensor_parallel,
            context_parallel=self.context_parallel,
            expert_parallel=self.expert_parallel,
            data_parallel=self.data_parallel,
            sync=self.sync,
            chunks=chunks_of(self.schedule, self.chunks),
        )


@dataclass(frozen=True, slots=True)
class RankKeys:
    """Source of the stage of each GPU."""

    order: str = key(
        name(
            r"(?!.*(tp|cp|ep|dp|pp).*\1)(tp|cp|ep|dp|pp)(-(tp|cp|ep|dp|pp)){4}",
            14,
            f"tp, cp, ep, dp and pp, each once, with dashes, like {RANK_ORDER}",
        ),
        RANK_ORDER,
        meaning="order of the parallel dimensions in counted ranks: the first changes fastest",
    )
    source: Ranks = key(
        choice("hook", "list", "completion-index"),
        "hook",
        meaning="source of the stage of each GPU: the job's reports, the order of `match.gpus`, or "
        "the index of its pods; see below",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKeys:
    """One job."""

    name: str = key(
        name(
            r"[A-Za-z0-9][A-Za-z0-9._:-]*",
            253,  # as long as a job may call itself in its reports
            "up to 253 letters, digits and . _ : - after a letter or digit",
        ),
        meaning="unique in the file. The job reports under this name, unless `match.kubernetes` or "
        "`match.slurm` finds it",
    )
    match: Match | None = key(
        Match,
        None,
        takes="one of the next three",
        meaning="the job's GPUs; see below. Default: all GPUs that report this job",
    )
    slo: SloKeys = key(
        SloKeys, SloKeys(), default="required, but with `mode: off`",
        meaning="exactly one of the next three",
    )  # fmt: skip
    clocks: ClockPolicy = key(ClockPolicy, ClockPolicy())
    power_limit_w: float = key(
        number(0.0, POWER_W_MAX, above=True, unit="watts"),
        0.0,
        default="none",
        meaning="a fixed power limit of each of the job's GPUs, in place of a plan: "
        "[fixed clocks and power limits](#fixed-clocks-and-power-limits)",
    )
    pipeline: PipelineKeys | None = key(PipelineKeys, None)
    ranks: RankKeys = key(RankKeys, RankKeys())
    weight: float = key(
        number(0.0, WEIGHT_MAX, above=True),
        1.0,
        meaning="weight of the job's relative throughput under a power budget",
    )
    mode: Mode | None = key(
        _MODE,
        None,
        default="that of the file",
        meaning="`recommend` shows plans and sends no command; `enforce` sets clocks under leases; "
        "`off` plans nothing",
    )
    verify: Verify = key(Verify, Verify())
    tenant: str = key(
        text(253, "a name"),
        "",
        default="none",
        meaning="a team, for [reports](savings.md). Default: the job's Kubernetes namespace or "
        "Slurm account",
    )
    each: bool = key(
        flag,
        False,
        meaning="whether every running job that matches has an entry of its own: "
        "[classes of jobs](#classes-of-jobs)",
    )
    excluded: tuple[Except, ...] = key(
        Listed(Except),
        (),
        name="except",
        default="none",
        takes="list of matches",
        meaning="running jobs that the entry leaves out, as `kubernetes` or `slurm` of `match`",
    )
    opt_in: object = key(
        _anything,
        None,
        default="-",
        takes="anything",
        meaning="without effect, read until 0.3: `each` and `match` say the same",
    )


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """Keys for all jobs together."""

    power_budget_w: float | None = key(
        number(0.0, 1e9, above=True, unit="watts"),
        None,
        meaning="limit on the power of all GPUs together, with hosts if `host_power_w` is given; "
        "see below",
    )
    node_power_w: float | None = key(
        number(0.0, 1e6, above=True, unit="watts"),
        None,
        meaning="what the power limits of a node can sum to: no agent takes more from others. "
        "Default: 1,400 W per GPU",
    )
    cost: Cost = key(Cost, Cost())


@dataclass(frozen=True, slots=True)
class PolicyKeys:
    """The whole file."""

    api_version: str = key(choice(API_VERSION), name="apiVersion", takes="`joulecut/v1`")
    kind: str = key(choice(KIND), takes="`Policy`")
    mode: Mode = key(
        _MODE,
        "recommend",
        meaning="default for jobs without a mode. `off` here switches off all jobs, whatever their "
        "mode",
    )
    cluster: ClusterKeys = key(ClusterKeys, ClusterKeys())
    found_jobs: FoundJobsPolicy = key(FoundJobsPolicy, FoundJobsPolicy())
    predict: PredictPolicy = key(PredictPolicy, PredictPolicy())
    idle: IdlePolicy = key(IdlePolicy, IdlePolicy())
    jobs: tuple[JobKeys, ...] = key(
        Listed(JobKeys),
        (),
        default="empty",
        takes="list",
        meaning="an empty list is allowed: everything is only measured",
    )
