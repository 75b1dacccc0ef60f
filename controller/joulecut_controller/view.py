"""One immutable picture of the cluster, with the age of every part.

A pass observes once, at its start, and every later step uses this value. The observer computes the
ages, from one monotonic clock. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from joulecut_controller.policy.owner import Instance
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.reference.reference import Answer
from joulecut_engine.graph.pipeline import EVALUATION
from joulecut_wire.messages import (
    Allocation,
    GpuDescription,
    GpuSnapshot,
    IterationTiming,
    ReportFault,
)

Stages = tuple[tuple[str, ...], ...]  # GPUs of one pipeline, by stage

# In leases: the job of a power limit on a GPU without clocks of ours. No policy can name a job so.
BUDGET_JOB = "(power budget)"
NOT_REPORTED = "the job has not reported yet"  # a complaint that may only mean: it does not run
POWER_SLACK_W = 1.0  # limits are whole watts on some boards
DEFAULT_CLOCK_STEP = 0.015  # default clocks vary by a step of the table


@dataclass(frozen=True, slots=True)
class NodeView:
    """One agent. `address` is host:port; `node` is empty until it has described itself."""

    address: str
    node: str
    connected: bool
    epoch_seen: int = 0
    ttl_max_s: float = 0.0
    agent_version: str = ""
    error: str = ""
    stopped: str = ""  # why it takes no command now, in its own words
    roles: tuple[str, ...] = ()  # what we may do there; empty where it does not say
    keeps_power_limits: bool = False  # whether a power limit can outlive its lease there
    limits_above_kept: bool = False  # whether one can stand above a kept one as long as its lease
    timed_steps_max: int = 0  # clock changes per iteration that its agent can time; 0: none
    lowers_unused: bool = False  # whether it ends the lease of an unused GPU at its first work
    faults: tuple[ReportFault, ...] = ()  # reports that it refused
    other_term: int = 0  # the newest it has followed, where no controller of our store began it
    other_hosts: tuple[str, ...] = ()  # where controllers of other stores watch it from
    quarantine: str = ""  # why nothing of it is believed
    conflict: str = ""  # GPUs that it shows and another agent owns
    claimed: tuple[str, ...] = ()  # their UUIDs

    @property
    def is_shared(self) -> bool:
        """Whether a controller of another store watches it, or has commanded it."""
        return bool(self.other_term or self.other_hosts)

    @property
    def hindrance(self) -> str:
        """Why no GPU of this node can be set now; empty where they can."""
        if self.quarantine:
            return f"its agent is quarantined: {self.quarantine}"
        if self.stopped:
            return f"its agent takes no commands: {self.stopped}"
        if self.roles and "apply" not in self.roles:
            return f"its agent lets this controller only {', '.join(self.roles)}"
        return ""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU; `snapshot` is None where nothing fresh is known."""

    description: GpuDescription
    address: str
    node: str
    snapshot: GpuSnapshot | None
    age_s: float  # of the snapshot; infinite without one
    allocation: Allocation | None = None  # its owner; None where it has none, or is unknown
    timing: IterationTiming | None = None  # of the iterations on it; None without their starts
    conflict: str = ""  # why it cannot be told whose it is
    # The snapshot was made before our newest command there: it can contradict no plan.
    behind: bool = False
    every_s: float = 0.0  # between readings, where other controllers watch its agent

    @property
    def uuid(self) -> str:
        return self.description.uuid

    @property
    def place(self) -> str:
        """As an operator names it: `node1/0`."""
        return f"{self.node}/{self.description.index}"

    @property
    def power_limited(self) -> bool:
        """Whether a power limit below the card's own is in force."""
        limit_w = self.snapshot.power_limit_enforced_w if self.snapshot else None
        default_w = self.description.power_limit_default_w
        return limit_w is not None and limit_w < default_w - POWER_SLACK_W

    @property
    def limit_of_others_w(self) -> float | None:
        """A power limit below the card's own that is not ours: this GPU holds lower clocks by it.

        Under our own limit a plan weighs clocks as if there were none: it sets the limit.
        """
        shown = self.snapshot
        if shown is None or not self.power_limited:
            return None
        ours = shown.lease is not None and shown.lease.power_limit_w is not None
        return None if ours or shown.power_limit_kept_w else shown.power_limit_enforced_w

    @property
    def hindrance(self) -> str:
        """Why it should not be set now, whatever the job; empty where it may be."""
        shown = self.snapshot
        if self.conflict:
            return self.conflict
        if not self.description.controllable:
            return f"not controllable: {self.description.reason or 'no reason given'}"
        if shown is not None and shown.drift:
            return f"its agent sees drift ({shown.drift})"
        if shown is not None and shown.backoff_s > 0.0:
            return "its agent backs off: another writer sets its clocks"
        return ""


PhaseKind = Literal["train", "evaluate"]


@dataclass(frozen=True, slots=True)
class Phase:
    """Iterations of one shape: `shape` counts the operations of one GPU by kind, and names the
    phase among those of its job; empty where a job reports none. Training has backwards.
    """

    kind: PhaseKind = "train"
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """Measured iterations of a job in one phase, under one set of clocks (one plan generation, or
    default).

    Times in seconds, energy in joules of all the job's GPUs per iteration, from their energy
    counters. `energy_j` is None while too few counter steps were seen. `operation_sd_ratio` and
    `gpu_sd_ratio` are relative standard deviations: of a single operation, and of all that one GPU
    does in an iteration; None where no operations were reported, or it was not kept.
    `work_sd_ratio` is that of inferred work (`observe.phases`), 0 where it is not known.
    """

    iterations: int
    time_mean_s: float
    time_sd_s: float
    energy_j: float | None
    power_w: float | None
    operation_sd_ratio: float | None = None
    gpu_sd_ratio: float | None = None
    work_sd_ratio: float = 0.0

    @property
    def stderr_ratio(self) -> float:
        """Relative standard error of `time_mean_s`."""
        return self.time_sd_s / self.time_mean_s / math.sqrt(max(1, self.iterations))


@dataclass(frozen=True, slots=True)
class GpuShift:
    """GPUs whose operations take longer or less than before, beside those of the others. The first
    one's take `ratio` times as long, which is most.
    """

    uuids: tuple[str, ...]
    ratio: float

    @property
    def recovered(self) -> bool:
        """Whether the GPU became faster. Then the lowest clocks and the predicted profile of before
        rest on a slow GPU and are dropped. After a slowdown those of other GPUs stay valid.
        """
        return self.ratio < 1.0

    def text(self, places: Sequence[str]) -> str:
        than = "longer" if self.ratio > 1.0 else "less"
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        ratio = abs(self.ratio - 1.0)
        return f"operations of GPU {places[0]}{more} take {ratio:.0%} {than} than before"


@dataclass(frozen=True, slots=True)
class Delay:
    """GPUs of one stage whose operations take `factor` times those of the others, their median, at
    default clocks. `reason` is why they are slow, where they say so themselves.
    """

    stage: int
    places: tuple[str, ...]
    factor: float
    reason: str = ""

    @property
    def delay_ratio(self) -> float:
        """The part of their time that is beyond that of the others."""
        return 1.0 - 1.0 / self.factor

    @property
    def cause(self) -> str:
        return "throttle" if self.reason else "compute"

    @property
    def text(self) -> str:
        """One sentence, without its full stop."""
        where = f"stage {self.stage} (GPU {', '.join(self.places[:4])})"
        why = f"; throttled: {self.reason}" if self.reason else ""
        return f"{where}: operations take {self.factor:.2f} x those of other replicas{why}"


@dataclass(frozen=True, slots=True)
class BaselineDrift:
    """How the pace of a job has moved since default clocks were measured last (`measured_s`,
    monotonic): `shift_ratio` is that of iteration times at the same clocks, 1 where nothing moved.
    `gpu_shift` are the GPUs whose operations take another time than then.
    """

    measured_s: float = math.inf
    shift_ratio: float = 1.0
    gpu_shift: GpuShift | None = None


@dataclass(frozen=True, slots=True)
class StageLoad:
    """One GPU's reported work: mean busy seconds per operation, by kind, at one clock."""

    uuid: str
    stage: int
    clock_mhz: int
    busy_s: Mapping[str, float]
    samples: int
    power_w: float | None  # mean over whole iterations, waiting included


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job runs. `stages[s]` are the UUIDs of stage s, sorted; empty with a complaint
    that keeps even that from being known. `groups[s]` are the same GPUs by lock-step group, one
    group per replica; empty where the groups are unknown.
    """

    stages: tuple[tuple[str, ...], ...]
    report_age_s: float
    silence_limit_s: float
    complaint: str = ""
    doubt: str = ""  # why counted ranks may be wrong
    groups: tuple[tuple[tuple[str, ...], ...], ...] = ()
    source: str = ""  # of the newest report; empty: the job's own datagrams, or none
    ignored: str = ""  # a GPU that reports the job and is none of its own

    @property
    def silent(self) -> bool:
        return self.report_age_s > self.silence_limit_s

    @property
    def uuids(self) -> frozenset[str]:
        return frozenset(uuid for stage in self.stages for uuid in stage)


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a job in its present phase, by the clocks its iterations ran under.

    `baseline` was measured at default clocks; `current` under the clocks in force now. `locks` maps
    every GPU of the job to the clock its lease allows, 0 for default clocks. `time_ratios` are the
    times of GPUs over those of the slowest of their stage, as measured at default clocks; empty
    unless known of all. `peer_iteration_time_s` is set while a sibling pipeline is waited for.
    """

    baseline: Window | None = None
    current: Window | None = None
    current_iterations: int = 0
    peer_iteration_time_s: float | None = None
    loads: tuple[StageLoad, ...] = ()
    locks: Mapping[str, int] = field(default_factory=dict)
    at_default: bool = False
    settled: bool = False  # the clocks in force have been so for several passes
    since_s: float = -math.inf  # another one means that clocks or counters changed
    external_lock: str = ""  # why default clocks are not measured: another writer's lock
    refused: tuple[tuple[str, int], ...] = ()  # reports out of their turn, so far, by reason
    # Whether the job has reported operations in this shape; None before its first report.
    operations_reported: bool | None = None
    # The lowest clock of each GPU that iterations ran at; empty before any ran at lower clocks.
    lowest_mhz: Mapping[str, int] = field(default_factory=dict)
    default_clock_ratio: float = 1.0  # default clocks now over those at first: heat lowers them
    default_clock_mhz: float = 0.0  # the median of them as last measured; 0 before
    time_ratios: Mapping[str, float] = field(default_factory=dict)
    drift: BaselineDrift = field(default_factory=BaselineDrift)
    reference: Answer | None = None  # of the present phase, and the clocks in force
    phase: Phase = field(default_factory=Phase)
    phases_s: tuple[tuple[str, float], ...] = ()  # seconds of iterations by kind of phase

    @property
    def straggling(self) -> bool:
        """Whether a sibling pipeline is waited for."""
        return self.peer_iteration_time_s is not None


@dataclass(frozen=True, slots=True)
class JobState:
    """One job of the policy, as it runs now: its policy, where it runs, and what was measured.

    `policy` is as far as it can be kept now: with the pipeline that runs, and in mode recommend
    under a reservation. `generation_running` is the one whose clocks all the job's GPUs hold; 0 is
    default.
    """

    policy: JobPolicy
    placement: Placement
    measured: Measured
    generation_running: int = 0
    running: Instance | None = None  # the running job that all its GPUs belong to, where known
    reservation: str = ""  # why a job in mode enforce is only recommended for now
    hindrance: str = ""  # why no command could be sent for the job now, whatever its mode

    @property
    def workload(self) -> str:
        """The name of its work among the estimator's: an evaluation is other work."""
        pipeline = self.policy.pipeline
        evaluates = pipeline is not None and pipeline.schedule == EVALUATION
        return f"{self.policy.name}/evaluation" if evaluates else self.policy.name

    @property
    def deadline_s(self) -> float | None:
        """What the mean iteration must not exceed by the policy; None before a baseline."""
        baseline, slo = self.measured.baseline, self.policy.slo
        return slo.deadline_s(baseline.time_mean_s) if baseline else None


@dataclass(frozen=True, slots=True)
class View:
    """Everything one pass may know."""

    now_s: float  # monotonic
    nodes: tuple[NodeView, ...] = ()
    gpus: Mapping[str, GpuView] = field(default_factory=dict)
    jobs: tuple[JobState, ...] = ()
    rate_faults: tuple[ReportFault, ...] = ()  # why rates of jobs are not to be had
    node_at: Mapping[str, NodeView] = field(init=False, compare=False, repr=False)  # by address

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_at", {node.address: node for node in self.nodes})
