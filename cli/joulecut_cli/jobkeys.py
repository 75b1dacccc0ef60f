"""The keys of a job file, read one by one: shape, communication, collectives, optimizer.

What they mean together with a profile is judged in `jobfile`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from joulecut_controller.policy.quantity import Fault, choice, nearest, number, shown, whole
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
from joulecut_engine.optimize.straggler import Sync
from joulecut_wire.document import Document, KeyPath

OPERATIONS_MAX = 65_536  # a plan then takes minutes and a few GB; beyond that nobody waits
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

_Value = TypeVar("_Value")


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


def mapping(
    document: Document,
    path: KeyPath,
    given: object,
    keys: tuple[str, ...],
    optional: tuple[str, ...] = (),
) -> dict[str, object]:
    """A mapping with exactly these keys, and any of the optional ones."""
    known = (*keys, *optional)
    if not isinstance(given, dict):
        raise document.bad(path, "not a mapping", f"the keys {', '.join(known)}")
    for key in given:
        if key not in known:
            what = f"unknown key{nearest(key, known)}"
            raise document.bad((*path, key), what, ", ".join(known))
    for key in keys:
        if key not in given:
            raise document.bad(path, f"{key} is missing", f"the keys {', '.join(keys)}")
    return given


def value(
    document: Document, path: KeyPath, given: object, reader: Callable[[object], _Value]
) -> _Value:
    """One value, or BadInput at its place."""
    try:
        return reader(given)
    except Fault as fault:
        raise document.bad(path, fault.what, fault.allowed) from None
