"""Keys of a job file: pipeline, communication, collectives, optimizer, jitter and switching.

```yaml
jitter: {operation: 3%, gpu: 1%, communication: 0.2ms, siblings: 16, hold: mean}
switching: {max_per_iteration: 4, latency_spread_s: 0.01, min_dwell_s: 0.5, cost_j: 0.2}
```
Each key is read on its own; `jobfile` checks them together with the profile.
"""

from dataclasses import dataclass, field
from typing import Literal

from joulecut_cli.granularity import CHANGES_MAX
from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import SCHEDULES_ALL, SENDS, Kind, Pipeline, Schedule, Transfers
from joulecut_engine.graph.shape import (
    CHUNKS_MAX,
    MICROBATCHES_MAX,
    STAGES_MAX,
    chunks_of,
    kinds_of,
    misfit,
)
from joulecut_engine.optimize.change_timing import STRETCHES_MIN
from joulecut_engine.optimize.drawn_choices import Statistic
from joulecut_engine.optimize.jitter import Noise
from joulecut_engine.optimize.problem import TWO_CHANGES, ChangeLimits, Sync
from joulecut_wire.command import retired
from joulecut_wire.document import Document
from joulecut_wire.quantity import (
    POWER_W_MAX,
    WAITING_W_MAX,
    Fault,
    choice,
    duration,
    flag,
    number,
    percentage,
    shown,
    text,
    whole,
)
from joulecut_wire.section import Either, Listed, key

OPERATIONS_MAX = 65_536  # a plan then takes minutes and a few GB; more is refused
TIME_S_MAX, ENERGY_J_MAX = 1e6, 1e12  # as in a profile
PERCENT_MAX = 100.0  # a standard deviation as large as the mean: no longer a training job
MEMBERS_MAX = 64  # GPUs of one tensor-parallel group; published ones have 8
SIBLINGS_MAX = 4096  # more pipelines than anybody trains with; half a minute of draws
CHANGES_ALL = 1_000_000  # more than any iteration has operations: no limit
# Below a hundredth neither half would be worth an operation of its own.
SHARE_MIN, SHARE_MAX = 0.01, 0.99

MEASURED = "profile"  # the word for: as measured, at every clock
_PATH = text(4096, "a path")
_PATHS = Either(Listed(_PATH), _PATH)  # one, or one per GPU of a tensor-parallel group
_SECONDS, _JOULES = number(0.0, TIME_S_MAX), number(0.0, ENERGY_J_MAX)
_SHARE = percentage(PERCENT_MAX)


def _measured(value: object) -> str:
    if value != MEASURED:
        allowed = f"{MEASURED} (its rows), or {{time_s: ..., energy_j: ...}}"
        raise Fault(f"{shown(value)} is no cost", allowed)
    return MEASURED


@dataclass(frozen=True, slots=True)
class FixedCost:
    """An operation without a clock."""

    time_s: float = key(number(0.0, TIME_S_MAX, above=True))
    energy_j: float = key(number(0.0, ENERGY_J_MAX, above=True))


_COST = Either(FixedCost, _measured)
Given = FixedCost | str | None


@dataclass(frozen=True, slots=True)
class CommunicationKeys:
    p2p_s: float = key(number(0.0, TIME_S_MAX, above=True))
    p2p_energy_j: float = key(_JOULES, 0.0)
    synchronous: bool = key(flag, False)


@dataclass(frozen=True, slots=True)
class CollectiveKeys:
    tensor: Given = key(_COST, None)
    data: Given = key(_COST, None)


@dataclass(frozen=True, slots=True)
class PipelineKeys:
    schedule: Schedule = key(choice(*SCHEDULES_ALL))
    stages: int = key(whole(1, STAGES_MAX))
    microbatches: int = key(whole(1, MICROBATCHES_MAX))
    chunks: int | None = key(whole(1, CHUNKS_MAX), None)
    sync: Sync = key(choice("iteration", "layer"), "iteration")


@dataclass(frozen=True, slots=True)
class Jitter:
    """`hold` names what must meet the deadline: the mean iteration, or 95 of 100."""

    noise: Noise
    hold: Statistic


@dataclass(frozen=True, slots=True)
class JitterKeys:
    operation: float = key(_SHARE, 0.0)
    gpu: float = key(_SHARE, 0.0)
    communication_s: float = key(duration(above_zero=False), 0.0, name="communication")
    siblings: int = key(whole(1, SIBLINGS_MAX), 1)
    hold: Statistic = key(choice("mean", "p95"), "mean")

    def jitter(self) -> Jitter:
        noise = Noise(
            operation=self.operation,
            gpu=self.gpu,
            communication_s=self.communication_s,
            siblings=self.siblings,
        )
        return Jitter(noise, self.hold)


@dataclass(frozen=True, slots=True)
class SwitchingKeys:
    """The limits of granularity `changes`. Changes are sent ahead by the set latency, so only what
    varies counts: where its spread is not given, all of it. A clock is held at least twice as long.
    """

    min_dwell_s: float = key(_SECONDS, 0.0)
    max_per_iteration: int = key(whole(0, CHANGES_ALL), TWO_CHANGES.per_iteration)
    cost_s: float = key(_SECONDS, 0.0)
    cost_j: float = key(_JOULES, 0.0)
    latency_s: float = key(_SECONDS, 0.0)
    latency_spread_s: float | None = key(_SECONDS, None)
    start_jitter_s: float = key(_SECONDS, 0.0)
    late: Literal["next", "within"] | None = key(choice("next", "within"), None)

    def limits(self) -> ChangeLimits:
        if self.late is not None:
            retired("switching.late", "has no effect: changes are sent ahead, and none is late")
        spread_s = self.latency_s if self.latency_spread_s is None else self.latency_spread_s
        least_s = STRETCHES_MIN * (spread_s + self.start_jitter_s)
        return ChangeLimits(
            per_iteration=min(self.max_per_iteration, CHANGES_MAX),
            min_dwell_s=max(self.min_dwell_s, least_s),
            cost_s=self.cost_s,
            cost_j=self.cost_j,
        )


@dataclass(frozen=True, slots=True)
class JobKeys:
    """A pipeline with a named schedule."""

    pipeline: PipelineKeys = key(PipelineKeys)
    profile: str | tuple[str, ...] = key(_PATHS)
    blocking_power_w: float = key(number(0.0, WAITING_W_MAX))
    power_limit_w: float | None = key(number(0.0, POWER_W_MAX, above=True), None)
    weight_share: float | None = key(number(SHARE_MIN, SHARE_MAX), None)
    communication: CommunicationKeys | None = key(CommunicationKeys, None)
    collectives: CollectiveKeys | None = key(CollectiveKeys, None)
    optimizer: Given = key(_COST, None)
    jitter: JitterKeys | None = key(JitterKeys, None)
    switching: SwitchingKeys | None = key(SwitchingKeys, None)


@dataclass(frozen=True, slots=True)
class GraphJobKeys:
    """A job whose graph is a file; it needs a profile only where costs refer to one."""

    graph: str = key(_PATH)
    blocking_power_w: float = key(number(0.0, WAITING_W_MAX))
    profile: str | tuple[str, ...] = key(_PATHS, "")
    power_limit_w: float | None = key(number(0.0, POWER_W_MAX, above=True), None)
    sync: Sync = key(choice("iteration", "layer"), "iteration")
    jitter: JitterKeys | None = key(JitterKeys, None)
    switching: SwitchingKeys | None = key(SwitchingKeys, None)


@dataclass(slots=True)
class Costs:
    """Which kinds of operations are added, and what those cost that have no clock."""

    transfers: Transfers = "free"
    kinds: set[Kind] = field(default_factory=set)
    fixed: dict[Kind, ClockOption] = field(default_factory=dict)

    def add(self, given: Given, *kinds: Kind) -> None:
        """`profile`, a fixed time and energy, or nothing."""
        if given is None:
            return
        self.kinds.update(kinds)
        if isinstance(given, FixedCost):
            option = ClockOption(ANY_CLOCK_MHZ, given.time_s, given.energy_j)
            self.fixed.update(dict.fromkeys(kinds, option))


def read_pipeline(document: Document, keys: PipelineKeys) -> Pipeline:
    """The shape. Raises BadInput where the schedule does not take it."""
    where = ("pipeline",)
    chunks = chunks_of(keys.schedule, keys.chunks)
    pipeline = Pipeline(
        keys.schedule, keys.stages, keys.microbatches, sync=keys.sync, chunks=chunks
    )
    complaint = misfit(pipeline)
    if complaint:
        raise document.bad((*where, complaint.key), complaint.what, complaint.allowed)
    return pipeline


def costs_of(keys: JobKeys) -> Costs:
    """What goes on beside the computation."""
    costs, sends = Costs(), keys.communication
    if sends is not None:
        costs.transfers = "synchronous" if sends.synchronous else "overlapped"
        option = ClockOption(ANY_CLOCK_MHZ, sends.p2p_s, sends.p2p_energy_j)
        costs.fixed.update(dict.fromkeys(SENDS, option))
    if keys.collectives is not None:
        costs.add(keys.collectives.tensor, "tensor-forward", "tensor-backward")
        costs.add(keys.collectives.data, "collective")
    costs.add(keys.optimizer, "optimizer")
    return costs


def must_be_bounded(document: Document, pipeline: Pipeline) -> None:
    """Raises BadInput where an iteration has more operations than anybody waits for."""
    kinds = kinds_of(pipeline)
    each = 3 if "weight" in kinds else 2
    each += 2 * pipeline.tensor_collective + 2 * (pipeline.transfers != "free")
    each *= pipeline.chunks
    stages, microbatches = pipeline.stages, pipeline.microbatches
    if each * stages * microbatches > OPERATIONS_MAX:
        what = f"{stages} stages x {microbatches} microbatches x {each} operations"
        allowed = f"at most {OPERATIONS_MAX} operations"
        raise document.bad(("pipeline", "microbatches"), what, allowed)
