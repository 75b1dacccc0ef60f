"""Messages between agent and controller, as plain immutable values.

`codec` converts them to protobuf and back, so that the core of neither side knows gRPC. Absence is
`None`: a field that the device cannot give is never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# Labels of a pod that name its job: a user's object before the objects made from it.
JOB_LABELS = (
    "jobset.sigs.k8s.io/jobset-name",
    "ray.io/originated-from-cr-name",
    "ray.io/cluster",
    "volcano.sh/job-name",
    "training.kubeflow.org/job-name",
    "kueue.x-k8s.io/pod-group-name",
    "scheduling.k8s.io/group-name",
    "batch.kubernetes.io/job-name",
    "job-name",  # what batch Jobs carried before Kubernetes 1.27
)


NO_KEEPER = "no keeper"  # why a GPU is not controllable where an agent's configuration has none


@dataclass(frozen=True, slots=True)
class GpuDescription:
    """Properties of a GPU that do not change while a driver is loaded."""

    uuid: str
    index: int
    model: str
    clocks_mhz: tuple[int, ...]  # SM clocks the device supports, ascending
    clock_min_mhz: int = 0  # the site's bounds; 0: the device's own
    clock_max_mhz: int = 0
    power_limit_default_w: float = 0.0
    power_limit_min_w: float = 0.0
    power_limit_max_w: float = 0.0
    controllable: bool = False
    reason: str = ""  # why it is not controllable, or ""
    min_dwell_s: float = 0.0
    power_controllable: bool = False
    set_latency_p95_s: float = 0.0  # from command to clock seen, measured; 0: unknown
    set_latency_spread_s: float = 0.0  # its P95 less its P5; 0: unknown
    energy_scope: str = ""  # of its energy counter: gpu, module or other; "": unknown
    # Not on the wire: what measured facts of a card are bound to.
    driver: str = ""
    vbios: str = ""


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node as its agent describes it, once per connection."""

    node: str
    agent_version: str
    boot_id: str
    epoch_seen: int
    ttl_max_s: float
    gpus: tuple[GpuDescription, ...]
    stopped: str = ""  # why no command is taken on this node now
    roles: tuple[str, ...] = ()  # of the caller on this node
    schedule_steps_max: int = 0  # of a setting's clock schedule; 0: not supported
    keeps_power_limits: bool = False  # whether `Setting.keep_power_limit` is understood
    limits_above_kept: bool = False  # and `Setting.above_kept_limit`
    timed_steps_max: int = 0  # of a setting; 0: not supported
    lowers_unused: bool = False  # whether `Setting.unused_clock_mhz` is understood


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to hold a GPU's clocks until it expires."""

    job: str
    epoch: int
    generation: int
    clock_min_mhz: int
    clock_max_mhz: int
    expires_in_s: float
    power_limit_w: float | None = None
    clock_lowest_mhz: int = 0  # the lowest of its clock schedule; 0 without one


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """One GPU at one moment. `energy_j` counts since driver load and may fall back to 0. It is
    absent where the counter counts more than the GPU; then the agent integrates its power.
    """

    uuid: str
    power_average_w: float | None = None
    power_instant_w: float | None = None
    energy_j: float | None = None
    clock_sm_mhz: int | None = None
    clock_memory_mhz: int | None = None
    temperature_celsius: float | None = None
    utilization_gpu_ratio: float | None = None
    utilization_memory_ratio: float | None = None
    memory_used_bytes: int | None = None
    power_limit_enforced_w: float | None = None
    event_reasons: tuple[str, ...] = ()
    lease: Lease | None = None
    drift: str = ""  # cause, while the device does not show what was set
    backoff_s: float = 0.0  # commands are refused for so long: an external writer sets the clocks
    slow_reason: str = ""  # why it is slower than we asked
    power_limit_kept_w: float = 0.0  # outlives the lease it was set under; 0: none
    energy_integrated_j: float | None = None
    persistence: bool | None = None  # the driver's persistence mode; stays on the node
    process_ids: tuple[int, ...] = ()  # of compute processes; stays on the node
    mig_uuids: tuple[str, ...] = ()  # of its MIG instances; stays on the node
    power_profiles: tuple[str, ...] = ()  # workload power profiles in force; stays on the node


# Before the name of a workload power profile in force, among the event reasons on the wire.
POWER_PROFILE = "power_profile:"


def with_profiles(gpu: GpuSnapshot) -> GpuSnapshot:
    """The GPU as controllers see it: a workload power profile is one of its event reasons."""
    names = tuple(POWER_PROFILE + name for name in gpu.power_profiles)
    return replace(gpu, event_reasons=(*gpu.event_reasons, *names)) if names else gpu


def profile_of(gpu: GpuSnapshot) -> str:
    """The vendor's power profile that a GPU's agent named; empty without one."""
    named = (one for one in gpu.event_reasons if one.startswith(POWER_PROFILE))
    return ", ".join(one.removeprefix(POWER_PROFILE) for one in named)


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """All GPUs of a node at one sampling tick; `taken_at_s` is the agent's monotonic time."""

    sequence: int
    taken_at_s: float
    gpus: tuple[GpuSnapshot, ...]


@dataclass(frozen=True, slots=True)
class OperationReport:
    """Count and total time of one kind of operation in an iteration."""

    kind: str
    count: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """The pipeline of a running job, as its own processes show it.

    `schedule` is a name of the policy, "" if not known; `microbatches` 0 if not known.
    """

    schedule: str
    stages: int
    microbatches: int
    tensor_parallel: int = 1
    data_parallel: int = 1


@dataclass(frozen=True, slots=True)
class IterationReport:
    """One iteration of a job on one GPU, as the job reported it."""

    job: str
    uuid: str
    stage: int
    iteration: int
    duration_s: float
    operations: tuple[OperationReport, ...] = ()
    peer_iteration_time_s: float | None = None
    source: str = ""  # report or log, of older agents otlp, nccl or power as well; "": report
    age_s: float = 0.0  # how long ago it had ended when the agent learnt of it
    shape: PipelineShape | None = None
    replica: int | None = None  # which of the data-parallel pipelines


@dataclass(frozen=True, slots=True)
class IterationTiming:
    """How well the iterations of a job on one GPU are timed, as its agent measures it."""

    job: str
    uuid: str
    source: str  # of starts: mark, report or log, of older agents others as well
    iteration_time_s: float
    start_jitter_s: float  # P95 of the distance between predicted and seen starts
    starts_per_minute: float
    missed_ratio: float  # share of the predicted starts that did not come
    change_error_s: float = 0.0  # P95 of asked against seen time of a change; 0: unknown
    marked: bool = False  # marks of its operations come as well


@dataclass(frozen=True, slots=True)
class ReportFault:
    """The newest report of a sender that its agent could not use. `job` is the owner of the GPUs
    that the sender belongs to, "" if not known.
    """

    job: str
    uuids: tuple[str, ...]
    source: str
    text: str  # what is wrong, and what is allowed
    count: int
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Allocation:
    """Owner of a GPU. `labels` are those of its pod or job, for a policy to match."""

    uuid: str
    job: str
    namespace: str = ""
    pod: str = ""
    source: str = ""  # kubernetes, slurm, process or report
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """The newest command that an agent has carried out, the how manyth since it began."""

    epoch: int
    generation: int
    number: int


@dataclass(frozen=True, slots=True)
class Watcher:
    """A controller that watches the agent, by its store; `host` is where it calls from."""

    store: str
    host: str


@dataclass(frozen=True, slots=True)
class WatchTick:
    """One message of the `Watch` stream: the GPUs, their age, and the reports since the last."""

    sequence: int
    age_s: float
    gpus: tuple[GpuSnapshot, ...]
    reports: tuple[IterationReport, ...] = ()
    reports_dropped: int = 0
    allocations: tuple[Allocation, ...] = ()
    stopped: str = ""  # why no command is taken on this node now
    timings: tuple[IterationTiming, ...] = ()
    faults: tuple[ReportFault, ...] = ()
    carried_out: CarriedOut | None = None  # None: of an agent that does not number commands
    watchers: tuple[Watcher, ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """The clock from an operation mark on; `microbatch` None: of every microbatch."""

    kind: str
    clock_max_mhz: int
    microbatch: int | None = None
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class TimedStep:
    """The clock from a time after the start of an iteration on."""

    offset_s: float
    clock_max_mhz: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A clock range asked for one GPU; `clock_min_mhz` 0 means the device's lowest.

    A range and not a point, so that an idle GPU may still fall to idle clocks.
    `clock_max_mhz` 0 leaves the clocks alone, `power_limit_w` None the power limit.
    `clock_schedule` lowers the clock on the job's marks, at least `shortest_step_s` apart.
    `timed_steps` do so at ascending offsets from the start of each iteration, in a cycle of about
    `iteration_time_s`. `unused_clock_mhz` is the clock while nothing uses the GPU: at the first
    work the agent ends the lease. A setting has one of the three, or none.
    With `keep_power_limit` the limit stays when the lease ends, however it ends; with
    `above_kept_limit` the one kept before is in force again then.
    """

    uuid: str
    clock_max_mhz: int
    clock_min_mhz: int = 0
    power_limit_w: float | None = None
    clock_schedule: tuple[ScheduleStep, ...] = ()
    shortest_step_s: float = 0.0
    keep_power_limit: bool = False
    above_kept_limit: bool = False
    timed_steps: tuple[TimedStep, ...] = ()
    iteration_time_s: float = 0.0
    unused_clock_mhz: int = 0


@dataclass(frozen=True, slots=True)
class Command:
    """One `Apply`: settings that take effect together or not at all."""

    epoch: int
    job: str
    generation: int
    ttl_s: float
    settings: tuple[Setting, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one setting; a refusal is a value, with its reason."""

    uuid: str
    accepted: bool
    reason: str = ""
