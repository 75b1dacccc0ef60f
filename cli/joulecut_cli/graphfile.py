"""An iteration as a list of operations, for pipelines without a named schedule.

YAML (`operations:` with one mapping each) or CSV with the same names as columns. Every
field is checked; the first fault names its place.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joulecut_controller.sources import csv_file
from joulecut_engine.graph import Circular, Graph, graph_of
from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import KINDS_ALL, SENDS, Kind, Operation
from joulecut_wire import document, flags, section
from joulecut_wire.document import Document, KeyPath
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import Fault, choice, name, number, shown, whole
from joulecut_wire.section import Key, Section, key

FILE_BYTES_MAX = 16 << 20  # 65,536 operations with long ids
OPERATIONS_MAX = 65_536  # a plan then takes minutes and a few GB
STAGE_MAX = 255  # as many as a profile may have
COUNT_MAX = 65_535  # of microbatches and chunks: no more than operations
TIME_S = (1e-9, 1e6)  # as in a profile: values outside have another unit
ENERGY_J = (0.0, 1e12)  # a send may cost nothing on top

_ID = name(
    r"[A-Za-z0-9][A-Za-z0-9._:/-]*",
    64,
    "up to 64 letters, digits and . _ : / - after a letter or digit",
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one operation costs: a row and kind of the profile, or one fixed option."""

    row: int
    kind: Kind
    fixed: ClockOption | None = None


@dataclass(frozen=True, slots=True)
class GraphFile:
    """The graph and, by its operations' indices, where each one's cost comes from."""

    graph: Graph
    costs: tuple[Cost, ...]


def _id(value: object) -> str:
    """A word; YAML reads some as whole numbers."""
    given = str(value) if type(value) is int else value
    return _ID(given)


def _ids(value: object) -> tuple[str, ...]:
    given = value.split() if isinstance(value, str) else value
    if not isinstance(given, list):
        raise Fault(f"{shown(value)} is not a list", "a list of ids")
    return tuple(map(_id, given))


@dataclass(frozen=True, slots=True)
class _Entry:
    """One operation as written, and its place."""

    id: str = key(_id)
    stage: int = key(whole(0, STAGE_MAX))
    kind: Kind = key(choice(*KINDS_ALL))
    after: tuple[str, ...] = key(_ids, ())
    microbatch: int = key(whole(0, COUNT_MAX), 0)
    chunk: int = key(whole(0, COUNT_MAX), 0)
    row: int | None = key(whole(0, STAGE_MAX), None)
    time_s: float | None = key(number(*TIME_S, unit="seconds"), None)
    energy_j: float | None = key(number(*ENERGY_J, unit="joules"), None)
    document: Document = field(default_factory=lambda: Document("", None, {}))
    path: KeyPath = ()

    def bad(self, key: str, what: str, allowed: str) -> BadInput:
        return self.document.bad((*self.path, key), what, allowed)


def _of_cell(one: Key) -> Key:
    """The same key, of a cell: a number where it is none of the texts."""
    take: Any = one.take
    texts = one.field in {"id", "kind", "after"}
    return one if texts else replace(one, take=lambda cell: take(flags.plain(str(cell))))


_KEYS = section.section_of(_Entry).keys
_CELLS = Section(_Entry, {name: _of_cell(one) for name, one in _KEYS.items()})


def read(path: Path) -> GraphFile:
    """Reads a graph. Raises BadInput with the place of the first fault.

    Operations of a stage run in the order in which they are listed; sends run beside them.
    """
    entries = list(_from_csv(path) if path.suffix.lower() == ".csv" else _from_yaml(path))
    if not entries:
        raise BadInput(str(path), "no operations", "at least one")
    if len(entries) > OPERATIONS_MAX:
        raise BadInput(str(path), f"{len(entries)} operations", f"at most {OPERATIONS_MAX}")
    index: dict[str, int] = {}
    operations: list[Operation] = []
    costs: dict[str, Cost] = {}
    for entry in entries:
        operation = _operation(entry)
        if operation.name in index:
            before = entries[index[operation.name]]
            first = before.document.where(before.path)
            raise entry.bad("id", f"{operation.name} again, first in {first}", "one of each")
        index[operation.name] = len(operations)
        operations.append(operation)
        costs[operation.name] = _cost(entry)
    edges = _edges(entries, operations, index)
    stages = _stages(path, operations)
    _connected(path, operations, edges)
    try:
        graph = graph_of(operations, edges, stages)
    except Circular as error:
        allowed = "no operation that waits for itself (a stage works in the order of the list)"
        raise BadInput(str(path), str(error), allowed) from None
    return GraphFile(graph, tuple(costs[operation.name] for operation in graph.operations))


def _operation(entry: _Entry) -> Operation:
    return Operation(
        stage=entry.stage,
        microbatch=entry.microbatch,
        kind=entry.kind,
        chunk=entry.chunk,
        name=entry.id,
    )


def _cost(entry: _Entry) -> Cost:
    time_s, energy_j, kind = entry.time_s, entry.energy_j, entry.kind
    if time_s is None or energy_j is None:
        if time_s is not None or energy_j is not None:
            given = "energy_j" if time_s is None else "time_s"
            raise entry.bad(given, "given alone", "time_s and energy_j together, or neither")
        if kind in SENDS:
            raise entry.bad("time_s", f"missing for a {kind}", "time_s and energy_j")
        return Cost(entry.stage if entry.row is None else entry.row, kind)
    if entry.row is not None:
        raise entry.bad("row", "contradicts time_s", "a row of the profile or a fixed cost")
    if not energy_j and kind not in SENDS:
        raise entry.bad("energy_j", "0 for an operation that runs on a GPU", "joules above 0")
    return Cost(entry.stage, kind, ClockOption(ANY_CLOCK_MHZ, time_s, energy_j))


def _edges(
    entries: list[_Entry], operations: list[Operation], index: dict[str, int]
) -> set[tuple[int, int]]:
    edges: set[tuple[int, int]] = set()
    last: dict[int, int] = {}
    for i, (entry, operation) in enumerate(zip(entries, operations, strict=True)):
        for other in entry.after:
            if other not in index:
                raise entry.bad("after", f"{shown(other)} is not an operation", "ids of this file")
            if index[other] == i:
                raise entry.bad("after", f"{other} waits for itself", "other operations")
            if (index[other], i) in edges and entry.after.count(other) > 1:
                raise entry.bad("after", f"{other} twice", "each once")
            edges.add((index[other], i))
        if operation.kind not in SENDS:
            if operation.stage in last:
                edges.add((last[operation.stage], i))
            last[operation.stage] = i
    return edges


def _stages(path: Path, operations: list[Operation]) -> int:
    working = {o.stage for o in operations if o.kind not in SENDS}
    stages = 1 + max(operation.stage for operation in operations)
    idle = sorted(set(range(stages)) - working)
    if idle:
        what = f"nothing to do for stage {idle[0]}"
        raise BadInput(f"{path}: stage", what, f"operations for every stage from 0 to {stages - 1}")
    return stages


def _connected(path: Path, operations: list[Operation], edges: set[tuple[int, int]]) -> None:
    """Raises BadInput where the graph is not connected."""
    beside: list[list[int]] = [[] for _ in operations]
    for first, second in edges:
        beside[first].append(second)
        beside[second].append(first)
    reached, ahead = {0}, [0]
    while ahead:
        for i in beside[ahead.pop()]:
            if i not in reached:
                reached.add(i)
                ahead.append(i)
    if len(reached) < len(operations):
        apart = next(i for i in range(len(operations)) if i not in reached)
        what = (
            f"disconnected: {operations[apart]} and {operations[0]} never wait for each other, "
            f"{len(operations) - len(reached)} of {len(operations)} operations are apart"
        )
        raise BadInput(str(path), what, "one iteration, tied together by after")


def _from_yaml(path: Path) -> Iterator[_Entry]:
    loaded = document.load(path)
    listed = section.flat(dict, required=True, operations=section.Listed(_Entry))
    entries = section.read(loaded, listed, loaded.data)["operations"]
    for place, entry in enumerate(entries):
        yield replace(entry, document=loaded, path=("operations", place))


def _from_csv(path: Path) -> Iterator[_Entry]:
    lines = csv_file.lines(path, FILE_BYTES_MAX)
    for line, entry in csv_file.table(lines, str(path), _CELLS):
        yield replace(entry, document=Document(f"{path}:{line}", None, {}))
