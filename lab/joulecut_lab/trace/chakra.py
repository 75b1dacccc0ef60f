"""Chakra execution traces (`.et`, gzipped or not): kernels of one rank, and back.

Host operators are left out; a kernel waits for the kernels among its data dependencies. Control
dependencies are the host's call order, in place of which kernels follow their stream. Traces
without times (of generators) keep the order of their dependencies, and their
recording is not timed. On writing, energy and clock travel as attributes, for which the schema
leaves room.
"""

import ast
import io
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from pathlib import Path

from google.protobuf.message import DecodeError
from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed

from joulecut_lab.trace.kernels import (
    NETWORK,
    Collective,
    Kernel,
    KernelClass,
    Recording,
    class_of,
    shapes,
    stamped,
)
from joulecut_lab.trace.kineto import unpacked
from joulecut_wire.chakra.et_def_pb2 import (
    COMM_COLL_NODE,
    COMM_RECV_NODE,
    COMM_SEND_NODE,
    COMP_NODE,
    AttributeProto,
    CollectiveCommType,
    GlobalMetadata,
    Node,
)
from joulecut_wire.errors import BadInput

VERSION = "0.0.4"
MICRO = 1e-6
ON_GPU = {COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE}

Value = float | int | bool | str | bytes
Attributes = dict[str, Value]


def read(path: Path, rank: int) -> Recording:
    """Raises BadInput."""
    try:
        nodes = list(decoded(unpacked(path)))
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(str(path), f"no Chakra trace: {error}", "a Chakra .et file") from None
    return recording(nodes, rank, str(path))


def decoded(raw: bytes) -> Iterator[Node]:
    """The nodes of a trace in file order: messages after their lengths, of which the first tells of
    the file. Raises ValueError.
    """
    file = io.BytesIO(raw)
    try:
        parse_length_prefixed(GlobalMetadata, file)
        while (node := parse_length_prefixed(Node, file)) is not None:
            yield node
    except (DecodeError, EOFError, OverflowError) as error:  # the last: a length above 2**63
        raise ValueError(str(error) or "a message is cut off") from None


def attributes(node: Node) -> Attributes:
    """What the schema leaves open, by name; lists are not read."""
    found = {one.name: (one, one.WhichOneof("value") or "_list") for one in node.attr}
    return {name: getattr(one, kind) for name, (one, kind) in found.items() if "_list" not in kind}


def recording(nodes: Sequence[Node], rank: int, name: str) -> Recording:
    """The kernels among the nodes. Raises BadInput where there are none or they wait in a ring."""
    pairs = [(n, attributes(n)) for n in nodes if n.type in ON_GPU]
    facts = {n.id: each for n, each in pairs if not each.get("is_cpu_op", False)}
    on_gpu = [n for n, each in pairs if not each.get("is_cpu_op", False)]
    if not on_gpu:
        raise BadInput(name, "no GPU kernels", "a trace linked with its Kineto trace")
    numbers = {n.id for n in on_gpu}
    if len(numbers) < len(on_gpu):
        raise BadInput(name, "two nodes have one number", "one rank per file")
    timed = any(node.duration_micros for node in on_gpu)
    waits = {n.id: {k for k in n.data_deps if k in numbers and k != n.id} for n in on_gpu}
    ordered = _topological(on_gpu, waits, name)
    with_times = any(node.start_time_micros for node in on_gpu)
    kept = stamped([(n.start_time_micros, n.duration_micros) for n in on_gpu])
    dropped = len(on_gpu) - len(kept)
    numbers = {on_gpu[i].id for i in kept}
    waits = {number: waits[number] & numbers for number in numbers}
    if with_times:
        ordered = sorted((on_gpu[i] for i in kept), key=lambda n: (n.start_time_micros, n.id))
    place = {node.id: i for i, node in enumerate(ordered)}
    lanes = [_stream(node, facts[node.id]) for node in ordered]
    starts = _starts(ordered, lanes, waits, recorded=with_times)
    kernels = []
    for i, (node, lane, start_s) in enumerate(zip(ordered, lanes, starts, strict=True)):
        before = sorted(place[n] for n in waits[node.id] if place[n] < i)
        kernels.append(_kernel(node, facts[node.id], lane, start_s, tuple(before)))
    return Recording(name, rank, tuple(kernels), timed=timed, dropped=dropped, resolution_s=MICRO)


def _topological(kernels: Sequence[Node], waits: Mapping[int, set[int]], name: str) -> list[Node]:
    """After what they wait for, and by number among those that may go: the recorded order."""
    sorter = TopologicalSorter(waits)
    try:
        sorter.prepare()
    except CycleError as error:
        what = f"node {error.args[1][0]} and others wait for each other"
        raise BadInput(name, what, "dependencies without a ring") from None
    ready: list[int] = []
    order: list[int] = []
    while sorter.is_active():
        for number in sorter.get_ready():
            heappush(ready, number)
        order.append(heappop(ready))
        sorter.done(order[-1])
    by_number = {node.id: node for node in kernels}
    return [by_number[number] for number in order]


def _starts(
    ordered: Sequence[Node], lanes: Sequence[int], waits: Mapping[int, set[int]], *, recorded: bool
) -> list[float]:
    """As recorded, or as soon as stream and dependencies allow."""
    if recorded:
        return [node.start_time_micros * MICRO for node in ordered]
    ends_s: dict[int, float] = {}
    free_s: dict[int, float] = {}
    starts = []
    for node, lane in zip(ordered, lanes, strict=True):
        ready_s = max((ends_s[n] for n in waits[node.id] if n in ends_s), default=0.0)
        start_s = max(free_s.get(lane, 0.0), ready_s)
        starts.append(start_s)
        ends_s[node.id] = free_s[lane] = start_s + node.duration_micros * MICRO
    return starts


def _stream(node: Node, attributes: Attributes) -> int:
    """Traces of PyTorch name it; generators use one lane per kind of operation."""
    named = (value for key in ("stream", "tid") if isinstance(value := attributes.get(key), int))
    return int(next(named, node.type))


def _kernel(
    node: Node, attributes: Attributes, lane: int, start_s: float, waits_for: tuple[int, ...]
) -> Kernel:
    size, device = attributes.get("comm_size"), attributes.get("device")
    collective = None
    if node.type != COMP_NODE:
        size_bytes = int(size) if isinstance(size, int) else 0
        collective = Collective(size_bytes, str(attributes.get("pg_name", "")))
    return Kernel(
        node.name,
        _class(node, attributes.get("comm_type", -1)),
        device=device if isinstance(device, int) else 0,
        stream=lane,
        start_s=start_s,
        duration_s=node.duration_micros * MICRO,
        waits_for=waits_for,
        collective=collective,
        dims=_dims(node.inputs.shapes),
    )


def _class(node: Node, number: Value) -> KernelClass:
    if node.type in {COMM_SEND_NODE, COMM_RECV_NODE}:
        return "send-recv"
    if node.type == COMM_COLL_NODE and number in CollectiveCommType.values():
        name = _word(CollectiveCommType.Name(int(number)))  # type: ignore[arg-type]
        return next((kind for kind in NETWORK if kind == name), class_of(node.name))
    return class_of(node.name)


def _word(name: str) -> str:
    return name.lower().replace("_", "-")


def _dims(text: str) -> tuple[tuple[int, ...], ...]:
    try:
        return shapes(ast.literal_eval(text) if len(text) < 10_000 else None)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()


def written(
    recording: Recording,
    start_s: Sequence[float],
    duration_s: Sequence[float],
    extra: Sequence[Mapping[str, Value]],
) -> bytes:
    """A trace of these kernels, with their times and such attributes as energy_j, clock_mhz.

    The order of a stream is a data dependency, so that a simulator keeps it.
    """
    last: dict[tuple[int, int], int] = {}
    begins_s = min(start_s)
    file = io.BytesIO()
    serialize_length_prefixed(GlobalMetadata(version=VERSION), file)
    for i, (kernel, at_s, time_s, more) in enumerate(
        zip(recording.kernels, start_s, duration_s, extra, strict=True)
    ):
        lane = (kernel.device, kernel.stream)
        waits = sorted({*kernel.waits_for, *((last[lane],) if lane in last else ())})
        last[lane] = i
        attributes: Attributes = {
            "is_cpu_op": False,
            "device": kernel.device,
            "stream": kernel.stream,
            "kernel_class": kernel.kind,
            **more,
        }
        # A send and its receive are one kernel of NCCL; without a peer it is replayed as work.
        number = _COLLECTIVES.get(kernel.kind)
        if number is not None:
            attributes["comm_type"] = number
            attributes["comm_size"] = kernel.collective.size_bytes if kernel.collective else 0
            if kernel.collective and kernel.collective.group:
                attributes["pg_name"] = kernel.collective.group
        node = Node(
            id=i,
            name=kernel.name,
            type=COMP_NODE if number is None else COMM_COLL_NODE,
            data_deps=waits,
            start_time_micros=1 + round((at_s - begins_s) / MICRO),
            duration_micros=max(1, round(time_s / MICRO)),
            attr=[_attribute(name, value) for name, value in attributes.items()],
        )
        serialize_length_prefixed(node, file)
    return file.getvalue()


_COLLECTIVES = {_word(name): number for name, number in CollectiveCommType.items()}
_FIELDS = {bool: "bool_val", int: "int64_val", float: "double_val", str: "string_val"}


def _attribute(name: str, value: Value) -> AttributeProto:
    return AttributeProto(name=name, **{_FIELDS[type(value)]: value})  # type: ignore[arg-type]
