"""What a reconcile pass asks of the world: agents, a memory, the time.

Adapters (`fleet`, `store`) implement these; they cannot import each other, nor make plans.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from joulecut_controller.view import GpuView, NodeView, Window
from joulecut_wire.messages import Command, IterationReport, ReportFault, Result

# Estimates of agents before 0.2, which took the period of a GPU's power for an iteration.
RETIRED_SOURCE = "power"


@dataclass(frozen=True, slots=True)
class ArrivedReport:
    """A job report and when it reached us, on our monotonic clock."""

    report: IterationReport
    arrived_s: float
    span_s: float = 0.0  # its duration is a mean over so long; 0: of the one iteration

    @property
    def ended_s(self) -> float:
        """When the iteration had ended at the latest: a source that sends in batches is late."""
        return self.arrived_s - self.report.age_s


@dataclass(frozen=True, slots=True)
class RateSample:
    """Mean iteration time of a job over the last `span_s`, known since `arrived_s` (monotonic)."""

    job: str
    number: int
    duration_s: float
    span_s: float
    arrived_s: float
    source: str


class Rates(Protocol):
    """Iteration times of jobs that report none, from elsewhere."""

    def take(self) -> tuple[RateSample, ...]:
        """Samples since the last call, oldest first; bounded."""
        ...

    def faults(self, now_s: float) -> tuple[ReportFault, ...]:
        """Of each job whose rate is not to be had now: why."""
        ...


@dataclass(frozen=True, slots=True)
class FleetState:
    """Everything the agents said up to now."""

    nodes: tuple[NodeView, ...]
    gpus: tuple[GpuView, ...]


class Fleet(Protocol):
    """All agents. Never raises on a lost agent: its GPUs grow old, its commands are refused."""

    def observe(self, now_s: float, addresses: Collection[str] = ()) -> FleetState:
        """All agents and their GPUs, or only those at `addresses`."""
        ...

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        """Reports since the last call, oldest first; bounded, oldest dropped."""
        ...

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]: ...

    async def renew(
        self, address: str, epoch: int, job: str, generation: int, ttl_s: float
    ) -> tuple[Result, ...]: ...

    async def clear(
        self, address: str, epoch: int, job: str, uuids: Sequence[str], reason: str
    ) -> tuple[Result, ...]: ...


EventKind = Literal[
    "plan", "apply", "renew", "clear", "policy", "lead", "drift", "verify", "learn", "hold"
]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the audit trail. `detail` is JSON text."""

    at_unix_s: float
    kind: EventKind
    job: str
    generation: int
    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One thing worth keeping that has no table of its own: `topic` says what (`window`,
    `hold`), `content` is its JSON text, read only by the module that writes the topic.
    """

    at_unix_s: float
    topic: str
    job: str
    content: str


@dataclass(frozen=True, slots=True)
class StoredBaseline:
    """A job's baseline, and when default clocks were measured last; None: not known, or the job has
    changed since.
    """

    window: Window
    measured_unix_s: float | None = None


class Store(Protocol):
    """What must survive a restart. Raises joulecut_wire.errors.Unavailable where it cannot."""

    def next_epoch(self, at_least: int) -> int:
        """A term larger than any before and than `at_least`; durable before it returns."""
        ...

    def epoch(self) -> int:
        """The newest term given out, by whichever controller; 0 before the first."""
        ...

    def next_generation(self) -> int:
        """The next number of the one controller-wide counter; durable before it returns."""
        ...

    def record(self, *events: Event) -> None:
        """All of them or none."""
        ...

    def events(self, *, job: str = "", limit: int = 100) -> tuple[Event, ...]:
        """Newest first."""
        ...

    def keep_baseline(self, job: str, shape: str, kept: StoredBaseline) -> None: ...

    def baselines(self, job: str) -> Mapping[str, StoredBaseline]:
        """Those measured for this job, by shape (pipeline, GPUs, profile); the newest last."""
        ...

    def keep_learnt(self, name: str, content: str) -> None:
        """What an estimator knows, as text; raises ValueError where it is too long to keep."""
        ...

    def learnt(self, name: str) -> str:
        """The newest text kept under that name; empty where there is none."""
        ...

    def keep_record(
        self, *records: Record, kept_s: float | None = None, per_job: int | None = None
    ) -> None:
        """Adds records of one topic in one transaction. The oldest of the same topic and job go,
        once there are more than `per_job` (None: some thousands), and so do those of the topic, of
        whichever job, that are `kept_s` older than the last. None: no age, for topics whose newest
        record is a state.
        """
        ...

    def records(
        self, topic: str, *, job: str = "", since_unix_s: float = 0.0, limit: int = 1_000
    ) -> tuple[Record, ...]:
        """The newest `limit` of a topic since a time, newest first; of all jobs without `job`."""
        ...

    def close(self) -> None: ...
