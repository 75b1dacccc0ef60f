"""What agent and controller tell each other, as plain immutable values.

`codec` turns them into protobuf and back, so that neither side's core knows
about gRPC. Absence is `None`: a field the device cannot give is never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuDescription:
    """What does not change while a driver is loaded."""

    uuid: str
    index: int
    model: str
    clocks_mhz: tuple[int, ...]  # SM clocks the device supports, ascending
    clock_min_mhz: int = 0  # the site's bounds on what may be asked; 0 is the device's own
    clock_max_mhz: int = 0
    power_limit_default_w: float = 0.0
    power_limit_min_w: float = 0.0
    power_limit_max_w: float = 0.0
    controllable: bool = False
    reason: str = ""  # why it is not controllable; empty where it is
    min_dwell_s: float = 0.0
    power_controllable: bool = False
    set_latency_p95_s: float = 0.0  # from order to clock seen, measured; 0 where not known


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node as its agent describes it, once a connection."""

    node: str
    agent_version: str
    boot_id: str
    epoch_seen: int
    ttl_max_s: float
    gpus: tuple[GpuDescription, ...]
    stopped: str = ""  # why no command is taken on this node now
    roles: tuple[str, ...] = ()  # what the caller may do here
    program_steps_max: int = 0  # of a setting's program; 0 where none is understood


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to hold a GPU's clock, as the keeper sees it now."""

    job: str
    epoch: int
    generation: int
    clock_min_mhz: int
    clock_max_mhz: int
    expires_in_s: float
    power_limit_w: float | None = None
    clock_lowest_mhz: int = 0  # to which its program steps down; 0 without one


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """One GPU at one moment. `energy_j` counts since driver load and may fall back to 0."""

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
    drift: str = ""  # why the device does not show what was asked
    stands_back_s: float = 0.0  # no command is taken so long: somebody else sets the clocks
    slow_reason: str = ""  # why it is slow without our doing
    persistence: bool | None = None  # the driver's persistence mode; stays on the node
    process_ids: tuple[int, ...] = ()  # of compute processes; stays on the node
    mig_uuids: tuple[str, ...] = ()  # of its MIG instances; stays on the node
    power_profiles: tuple[str, ...] = ()  # workload power profiles in force; stays on the node


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """All GPUs of a node at one sampling tick; `taken_at_s` is the agent's monotonic time."""

    sequence: int
    taken_at_s: float
    gpus: tuple[GpuSnapshot, ...]


@dataclass(frozen=True, slots=True)
class OperationReport:
    """How often one kind of operation ran in an iteration, and how long in sum."""

    kind: str
    count: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class IterationReport:
    """One iteration of a job on one GPU, as the job told its agent."""

    job: str
    uuid: str
    stage: int
    iteration: int
    duration_s: float
    operations: tuple[OperationReport, ...] = ()
    peer_iteration_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """Whose a GPU is. `labels` are those of its pod or job, for a policy to match."""

    uuid: str
    job: str
    namespace: str = ""
    pod: str = ""
    source: str = ""  # kubernetes, slurm, process or report
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WatchTick:
    """One message of the `Watch` stream: a snapshot's age, its GPUs, the reports since."""

    sequence: int
    age_s: float
    gpus: tuple[GpuSnapshot, ...]
    reports: tuple[IterationReport, ...] = ()
    reports_dropped: int = 0
    allocations: tuple[Allocation, ...] = ()
    stopped: str = ""  # why no command is taken on this node now


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """The clock from a mark of the job on; `microbatch` None is every one."""

    kind: str
    clock_max_mhz: int
    microbatch: int | None = None
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """A clock range asked for one GPU; `clock_min_mhz` 0 means the device's lowest.

    A range and not a point: a GPU that has nothing to do may then still fall to idle clocks.
    `clock_max_mhz` 0 leaves the clocks alone, `power_limit_w` None the power limit. A `program`
    steps to lower clocks on the job's marks, at least `shortest_step_s` apart.
    """

    uuid: str
    clock_max_mhz: int
    clock_min_mhz: int = 0
    power_limit_w: float | None = None
    program: tuple[ProgramStep, ...] = ()
    shortest_step_s: float = 0.0


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
    """What became of one setting; a refusal is a value, with its reason."""

    uuid: str
    accepted: bool
    reason: str = ""
