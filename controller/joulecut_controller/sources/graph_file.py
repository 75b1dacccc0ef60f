"""An iteration as a list of operations, for pipelines without a named schedule.

YAML (`operations:` with one mapping each) or CSV with the same names as columns. Every
field is checked; the first fault names its place.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from joulecut_controller.sources import csv_file
from joulecut_engine.graph import Circular, Graph, graph_of
from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import KINDS_ALL, SENDS, Kind, Operation
from joulecut_wire import document
from joulecut_wire.errors import BadInput

KEYS = ("id", "stage", "kind", "after", "microbatch", "chunk", "row", "time_s", "energy_j")
REQUIRED = ("id", "stage", "kind")

FILE_BYTES_MAX = 16 << 20  # 65,536 operations with long ids
OPERATIONS_MAX = 65_536  # a plan then takes minutes and a few GB
STAGE_MAX = 255  # as many as a profile may have
COUNT_MAX = 65_535  # of microbatches and chunks: no more than operations
TIME_S = (1e-9, 1e6)  # as in a profile: values outside have another unit
ENERGY_J = (0.0, 1e12)  # a send may cost nothing on top

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}", re.ASCII)
_WHOLE = re.compile(r"[0-9]{1,6}", re.ASCII)
_NUMBER = re.compile(r"\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)


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


@dataclass(frozen=True, slots=True)
class _Entry:
    """One operation as written; `where` is its place, `fields` hold text only."""

    where: str
    fields: dict[str, str]
    after: tuple[str, ...]

    def bad(self, key: str, what: str, allowed: str) -> BadInput:
        return BadInput(f"{self.where}: {key}", what, allowed)


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
            first = entries[index[operation.name]].where
            raise entry.bad("id", f"{operation.name} again, first in {first}", "one of each")
        index[operation.name] = len(operations)
        operations.append(operation)
        costs[operation.name] = _cost(entry, operation)
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
    name, kind = entry.fields["id"], entry.fields["kind"]
    if not _ID.fullmatch(name):
        allowed = "up to 64 letters, digits and . _ : / - after a letter or digit"
        raise entry.bad("id", f"{csv_file.shown(name)} does not fit", allowed)
    if kind not in KINDS_ALL:
        raise entry.bad("kind", f"{csv_file.shown(kind)} is not a kind", ", ".join(KINDS_ALL))
    return Operation(
        stage=_whole(entry, "stage", STAGE_MAX),
        microbatch=_whole(entry, "microbatch", COUNT_MAX),
        kind=kind,
        chunk=_whole(entry, "chunk", COUNT_MAX),
        name=name,
    )


def _cost(entry: _Entry, operation: Operation) -> Cost:
    fields = entry.fields
    row = _whole(entry, "row", STAGE_MAX) if "row" in fields else operation.stage
    given = [key for key in ("time_s", "energy_j") if key in fields]
    if not given:
        if operation.kind in SENDS:
            raise entry.bad("time_s", f"missing for a {operation.kind}", "time_s and energy_j")
        return Cost(row, operation.kind)
    if len(given) == 1:
        raise entry.bad(given[0], "given alone", "time_s and energy_j together, or neither")
    if "row" in fields:
        raise entry.bad("row", "contradicts time_s", "a row of the profile or a fixed cost")
    time_s, energy_j = _number(entry, "time_s", TIME_S), _number(entry, "energy_j", ENERGY_J)
    if not energy_j and operation.kind not in SENDS:
        raise entry.bad("energy_j", "0 for an operation that runs on a GPU", "joules above 0")
    return Cost(row, operation.kind, ClockOption(ANY_CLOCK_MHZ, time_s, energy_j))


def _edges(
    entries: list[_Entry], operations: list[Operation], index: dict[str, int]
) -> set[tuple[int, int]]:
    edges: set[tuple[int, int]] = set()
    last: dict[int, int] = {}
    for i, (entry, operation) in enumerate(zip(entries, operations, strict=True)):
        for name in entry.after:
            if name not in index:
                raise entry.bad(
                    "after", f"{csv_file.shown(name)} is not an operation", "ids of this file"
                )
            if index[name] == i:
                raise entry.bad("after", f"{name} waits for itself", "other operations")
            if (index[name], i) in edges and entry.after.count(name) > 1:
                raise entry.bad("after", f"{name} twice", "each once")
            edges.add((index[name], i))
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
    data = loaded.data
    if not isinstance(data, dict) or set(data) != {"operations"}:
        raise loaded.bad((), "not a graph", "the key operations, and nothing else")
    if not isinstance(data["operations"], list):
        raise loaded.bad(("operations",), "not a list", "one mapping per operation")
    for number, item in enumerate(data["operations"]):
        place = ("operations", number)
        if not isinstance(item, dict):
            raise loaded.bad(place, "not a mapping", ", ".join(KEYS))
        for key in item:
            if key not in KEYS:
                raise loaded.bad((*place, key), "unknown key", ", ".join(KEYS))
        after = item.get("after", [])
        if isinstance(after, str):
            after = after.split()
        if not isinstance(after, list):
            raise loaded.bad((*place, "after"), "not a list", "a list of ids")
        fields = {key: str(value) for key, value in item.items() if key != "after"}
        yield _complete(loaded.where(place), fields, tuple(map(str, after)))


def _from_csv(path: Path) -> Iterator[_Entry]:
    columns: list[str] = []
    for line, fields in csv_file.rows(
        csv_file.read(path, FILE_BYTES_MAX), str(path), FILE_BYTES_MAX
    ):
        where = f"{path}:{line}"
        if not columns:
            columns = csv_file.header(where, fields, KEYS, REQUIRED)
            continue
        csv_file.check_width(where, fields, columns)
        given = {k: v for k, v in zip(columns, fields, strict=True) if v}
        after = tuple(given.pop("after", "").split())
        yield _complete(where, given, after)


def _complete(where: str, fields: dict[str, str], after: tuple[str, ...]) -> _Entry:
    for key in REQUIRED:
        if key not in fields:
            raise BadInput(where, f"{key} is missing", ", ".join(REQUIRED))
    return _Entry(where, fields, after)


def _whole(entry: _Entry, key: str, high: int) -> int:
    field = entry.fields.get(key, "0")
    if not _WHOLE.fullmatch(field):
        raise entry.bad(key, f"{csv_file.shown(field)} is not a whole number", f"from 0 to {high}")
    if int(field) > high:
        raise entry.bad(key, f"{csv_file.shown(field)} is out of range", f"from 0 to {high}")
    return int(field)


def _number(entry: _Entry, key: str, span: tuple[float, float]) -> float:
    field, (low, high) = entry.fields[key], span
    unit = "seconds" if key.endswith("_s") else "joules"
    allowed = f"{unit} from {low:g} to {high:g}"
    if not _NUMBER.fullmatch(field):
        raise entry.bad(key, f"{csv_file.shown(field)} is not a number from 0 up", allowed)
    if not low <= float(field) <= high:
        raise entry.bad(key, f"{csv_file.shown(field)} is out of range", allowed)
    return float(field)
