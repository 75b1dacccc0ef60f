"""Keys of a job file: pipeline, communication, collectives, optimizer, jitter and switching.

```yaml
jitter: {operation: 3%, gpu: 1%, communication: 0.2ms, siblings: 16, hold: p95}
switching: {max_per_iteration: 4, latency_spread_s: 0.01, min_dwell_s: 0.5, cost_j: 0.2}
```
Each key is read on its own; `jobfile` checks them together with the profile.
"""

from dataclasses import dataclass, field

from joulecut_cli.granularity import CHANGES_MAX
from joulecut_controller.sources.yaml_keys import mapping, value
from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import (
    SCHEDULES_ALL,
    SENDS,
    Kind,
    Pipeline,
    Schedule,
    Transfers,
)
from joulecut_engine.graph.shape import (
    CHUNKS_MAX,
    MICROBATCHES_MAX,
    SCHEDULES_LATER,
    STAGES_MAX,
    chunks_of,
    kinds_of,
    misfit,
)
from joulecut_engine.optimize.change_timing import STRETCHES_MIN
from joulecut_engine.optimize.drawn_choices import Statistic
from joulecut_engine.optimize.jitter import Noise
from joulecut_engine.optimize.problem import TWO_CHANGES, ChangeLimits
from joulecut_engine.optimize.straggler import Sync
from joulecut_wire.document import Document, KeyPath
from joulecut_wire.quantity import (
    choice,
    duration,
    number,
    percentage,
    shown,
    whole,
)

OPERATIONS_MAX = 65_536  # a plan then takes minutes and a few GB; more is refused
TIME_S_MAX, ENERGY_J_MAX = 1e6, 1e12  # as in a profile

KEYS = ("pipeline", "profile", "blocking_power_w")
GRAPH_KEYS = ("graph", "blocking_power_w")
LATER_KEYS = ("weight_share", "communication", "collectives", "optimizer", "jitter", "switching")
_PIPELINE_KEYS = ("schedule", "stages", "microbatches")
_COMMUNICATION_KEYS = ("p2p_s",)
_COLLECTIVES: dict[str, tuple[Kind, ...]] = {
    "tensor": ("tensor-forward", "tensor-backward"),
    "data": ("collective",),
}
_MEASURED = "profile"  # the word for: as measured, at every clock


@dataclass(slots=True)
class Costs:
    """Which kinds of operations are added, and what those cost that have no clock."""

    transfers: Transfers = "free"
    kinds: set[Kind] = field(default_factory=set)
    fixed: dict[Kind, ClockOption] = field(default_factory=dict)


def read_pipeline(document: Document, given: object) -> Pipeline:
    """The shape. Raises BadInput, also where the schedule does not take it."""
    where = ("pipeline",)
    shape = mapping(document, where, given, _PIPELINE_KEYS, ("chunks", "sync"))
    schedule: Schedule = value(
        document,
        (*where, "schedule"),
        shape["schedule"],
        choice(*SCHEDULES_ALL, later=SCHEDULES_LATER),
    )
    if schedule not in SCHEDULES_ALL:
        what = f"schedule {schedule} is not available yet"
        raise document.bad((*where, "schedule"), what, " | ".join(SCHEDULES_ALL))
    stages = value(document, (*where, "stages"), shape["stages"], whole(1, STAGES_MAX))
    microbatches = value(
        document, (*where, "microbatches"), shape["microbatches"], whole(1, MICROBATCHES_MAX)
    )
    chunks = None
    if "chunks" in shape:
        chunks = value(document, (*where, "chunks"), shape["chunks"], whole(1, CHUNKS_MAX))
    sync = read_sync(document, (*where, "sync"), shape)
    pipeline = Pipeline(
        schedule, stages, microbatches, sync=sync, chunks=chunks_of(schedule, chunks)
    )
    complaint = misfit(pipeline)
    if complaint:
        raise document.bad((*where, complaint.key), complaint.what, complaint.allowed)
    return pipeline


def read_sync(document: Document, place: KeyPath, keys: dict[str, object]) -> Sync:
    """When data-parallel siblings wait for each other; a policy has the same key."""
    sync: Sync = value(document, place, keys.get("sync", "iteration"), choice("iteration", "layer"))
    return sync


def read_costs(document: Document, data: dict[str, object]) -> Costs:
    """What goes on beside the computation. Raises BadInput."""
    costs = Costs()
    if "communication" in data:
        _communication(document, data["communication"], costs)
    if "collectives" in data:
        place = ("collectives",)
        groups = mapping(document, place, data["collectives"], (), tuple(_COLLECTIVES))
        for word, given in groups.items():
            _cost(document, (*place, word), given, _COLLECTIVES[word], costs)
    if "optimizer" in data:
        _cost(document, ("optimizer",), data["optimizer"], ("optimizer",), costs)
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


def _communication(document: Document, given: object, costs: Costs) -> None:
    place = ("communication",)
    keys = mapping(document, place, given, _COMMUNICATION_KEYS, ("p2p_energy_j", "synchronous"))
    time_s = value(document, (*place, "p2p_s"), keys["p2p_s"], number(0.0, TIME_S_MAX, above=True))
    energy_j = value(
        document,
        (*place, "p2p_energy_j"),
        keys.get("p2p_energy_j", 0.0),
        number(0.0, ENERGY_J_MAX),
    )
    synchronous = keys.get("synchronous", False)
    if not isinstance(synchronous, bool):
        what = f"{shown(synchronous)} is neither"
        raise document.bad((*place, "synchronous"), what, "true | false")
    costs.transfers = "synchronous" if synchronous else "overlapped"
    for kind in SENDS:
        costs.fixed[kind] = ClockOption(ANY_CLOCK_MHZ, time_s, energy_j)


def _cost(
    document: Document, place: KeyPath, given: object, kinds: tuple[Kind, ...], costs: Costs
) -> None:
    """`profile`, or a mapping with a fixed time and energy."""
    costs.kinds.update(kinds)
    if given == _MEASURED:
        return
    if not isinstance(given, dict):
        allowed = f"{_MEASURED} (rows of {', '.join(kinds)}), or {{time_s: ..., energy_j: ...}}"
        raise document.bad(place, f"{shown(given)} is no cost", allowed)
    keys = mapping(document, place, given, ("time_s", "energy_j"))
    above = (number(0.0, TIME_S_MAX, above=True), number(0.0, ENERGY_J_MAX, above=True))
    option = ClockOption(
        ANY_CLOCK_MHZ,
        value(document, (*place, "time_s"), keys["time_s"], above[0]),
        value(document, (*place, "energy_j"), keys["energy_j"], above[1]),
    )
    costs.fixed.update(dict.fromkeys(kinds, option))


PERCENT_MAX = 100.0  # a standard deviation as large as the mean: no longer a training job
SIBLINGS_MAX = 4096  # more pipelines than anybody trains with; half a minute of draws
_JITTER_KEYS = ("operation", "gpu", "communication", "siblings", "hold")


@dataclass(frozen=True, slots=True)
class Jitter:
    """`hold` names what must meet the deadline: 95 of 100 iterations, or their mean."""

    noise: Noise
    hold: Statistic


def read_jitter(document: Document, data: dict[str, object]) -> Jitter | None:
    """None where the job file has no such key. Raises BadInput."""
    if "jitter" not in data:
        return None
    place = ("jitter",)
    keys = mapping(document, place, data["jitter"], (), _JITTER_KEYS)
    share, delay = percentage(PERCENT_MAX), duration(above_zero=False)
    hold: Statistic = value(
        document, (*place, "hold"), keys.get("hold", "p95"), choice("p95", "mean")
    )
    return Jitter(
        Noise(
            operation=value(document, (*place, "operation"), keys.get("operation", 0), share),
            gpu=value(document, (*place, "gpu"), keys.get("gpu", 0), share),
            communication_s=value(
                document, (*place, "communication"), keys.get("communication", 0), delay
            ),
            siblings=value(
                document, (*place, "siblings"), keys.get("siblings", 1), whole(1, SIBLINGS_MAX)
            ),
        ),
        hold,
    )


SECONDS_MAX, JOULES_MAX = 1e6, 1e12  # as for operations
CHANGES_ALL = 1_000_000  # more than any iteration has operations: no limit
_SWITCHING_KEYS = (
    "min_dwell_s",
    "max_per_iteration",
    "cost_s",
    "cost_j",
    "latency_s",
    "latency_spread_s",
    "start_jitter_s",
    "late",
)


def read_switching(document: Document, data: dict[str, object]) -> ChangeLimits | None:
    """The limits of granularity `changes`; None where the job file has no such key. Changes are
    sent ahead by the set latency, so only what varies counts: where its spread is not given, all
    of it. A stretch at one clock is at least twice as long. Raises BadInput."""
    if "switching" not in data:
        return None
    place = ("switching",)
    keys = mapping(document, place, data["switching"], (), _SWITCHING_KEYS)
    seconds, joules = number(0.0, SECONDS_MAX), number(0.0, JOULES_MAX)

    def amount(key: str, default: float = 0.0) -> float:
        reader = joules if key.endswith("_j") else seconds
        return value(document, (*place, key), keys.get(key, default), reader)

    most = TWO_CHANGES.per_iteration
    if "max_per_iteration" in keys:
        reader = whole(0, CHANGES_ALL)
        most = value(document, (*place, "max_per_iteration"), keys["max_per_iteration"], reader)
    # Of files of before: an operation that a late change catches. None does any more.
    value(document, (*place, "late"), keys.get("late", "next"), choice("next", "within"))
    uncertain_s = amount("latency_spread_s", amount("latency_s")) + amount("start_jitter_s")
    return ChangeLimits(
        per_iteration=min(most, CHANGES_MAX),
        min_dwell_s=max(amount("min_dwell_s"), STRETCHES_MIN * uncertain_s),
        cost_s=amount("cost_s"),
        cost_j=amount("cost_j"),
    )
