"""Chakra execution traces (`.et`, gzipped or not): kernels of one rank, and back.

Host operators are left out; a kernel waits for the kernels among its data dependencies. Control
dependencies are the host's call order, in place of which kernels follow their stream. Traces
without times (of generators) keep the order of their dependencies, and their
recording is not timed. On writing, energy and clock travel as attributes, for which the schema
leaves room.
"""

import ast
import gzip
import zlib
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from pathlib import Path

from joulecut_cli.trace.chakra_wire import (
    COLLECTIVE,
    COLLECTIVES,
    COMP,
    RECV,
    SEND,
    Node,
    Value,
    decode,
    encode,
)
from joulecut_cli.trace.kernels import (
    NETWORK,
    Collective,
    Kernel,
    KernelClass,
    Recording,
    class_of,
)
from joulecut_wire import user_file
from joulecut_wire.errors import BadInput

BYTES_MAX = 4 << 30
VERSION = "0.0.4"
MICRO = 1e-6
_KINDS: Mapping[str, KernelClass] = {kind: kind for kind in NETWORK}


def read(path: Path, rank: int) -> Recording:
    """Raises BadInput."""
    try:
        with user_file.open_regular(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            raw = gzip.GzipFile(fileobj=file).read(BYTES_MAX + 1) if packed else file.read()
        nodes = list(decode(raw))
    except OSError as error:
        raise BadInput(str(path), error.strerror or "cannot be read", "a readable file") from None
    except (ValueError, EOFError, zlib.error) as error:
        raise BadInput(str(path), f"no Chakra trace: {error}", "a Chakra .et file") from None
    return recording(nodes, rank, str(path))


def recording(nodes: Sequence[Node], rank: int, name: str) -> Recording:
    """The kernels among the nodes. Raises BadInput where there are none or they wait in a ring."""
    on_gpu = [n for n in nodes if n.kind in {COMP, SEND, RECV, COLLECTIVE} and not _host(n)]
    if not on_gpu:
        raise BadInput(name, "no GPU kernels", "a trace linked with its Kineto trace")
    numbers = {n.number for n in on_gpu}
    if len(numbers) < len(on_gpu):
        raise BadInput(name, "two nodes have one number", "one rank per file")
    timed = any(node.duration_us for node in on_gpu)
    stamped = any(node.start_us for node in on_gpu)
    waits = {n.number: {k for k in n.data if k in numbers and k != n.number} for n in on_gpu}
    ordered = _topological(on_gpu, waits, name)
    if stamped:
        ordered = sorted(on_gpu, key=lambda n: (n.start_us, n.number))
    place = {node.number: i for i, node in enumerate(ordered)}
    starts = _starts(ordered, waits, stamped=stamped)
    kernels = [
        _kernel(node, start_s, tuple(sorted(place[n] for n in waits[node.number])))
        for node, start_s in zip(ordered, starts, strict=True)
    ]
    return Recording(name, rank, tuple(kernels), timed=timed)


def _host(node: Node) -> bool:
    return bool(node.attributes.get("is_cpu_op", False))


def _topological(kernels: Sequence[Node], waits: Mapping[int, set[int]], name: str) -> list[Node]:
    """After what they wait for, and by number among those that may go: the recorded order."""
    followers: dict[int, list[int]] = {}
    open_waits = {number: len(wanted) for number, wanted in waits.items()}
    for number, wanted in waits.items():
        for before in wanted:
            followers.setdefault(before, []).append(number)
    ready = [number for number, count in open_waits.items() if not count]
    heapify(ready)
    order = []
    while ready:
        number = heappop(ready)
        order.append(number)
        for follower in followers.get(number, []):
            open_waits[follower] -= 1
            if not open_waits[follower]:
                heappush(ready, follower)
    if len(order) < len(kernels):
        ring = next(number for number, count in open_waits.items() if count)
        what = f"node {ring} and others wait for each other"
        raise BadInput(name, what, "dependencies without a ring")
    by_number = {node.number: node for node in kernels}
    return [by_number[number] for number in order]


def _starts(
    ordered: Sequence[Node], waits: Mapping[int, set[int]], *, stamped: bool
) -> list[float]:
    """As recorded, or as soon as stream and dependencies allow."""
    if stamped:
        return [node.start_us * MICRO for node in ordered]
    ends_s: dict[int, float] = {}
    free_s: dict[int, float] = {}
    starts = []
    for node in ordered:
        ready_s = max((ends_s[n] for n in waits[node.number] if n in ends_s), default=0.0)
        start_s = max(free_s.get(_stream(node), 0.0), ready_s)
        starts.append(start_s)
        ends_s[node.number] = free_s[_stream(node)] = start_s + node.duration_us * MICRO
    return starts


def _stream(node: Node) -> int:
    """Traces of PyTorch name it; generators use one lane per kind of operation."""
    for key in ("stream", "tid"):
        value = node.attributes.get(key)
        if isinstance(value, int):
            return value
    return node.kind


def _kernel(node: Node, start_s: float, waits_for: tuple[int, ...]) -> Kernel:
    size = node.attributes.get("comm_size")
    collective = None
    if node.kind != COMP:
        group = str(node.attributes.get("pg_name", ""))
        collective = Collective(int(size) if isinstance(size, int) else 0, group)
    device = node.attributes.get("device", 0)
    return Kernel(
        node.name,
        _class(node),
        device=device if isinstance(device, int) else 0,
        stream=_stream(node),
        start_s=start_s,
        duration_s=node.duration_us * MICRO,
        waits_for=waits_for,
        collective=collective,
        dims=_dims(node.shapes),
    )


def _class(node: Node) -> KernelClass:
    if node.kind in {SEND, RECV}:
        return "send-recv"
    if node.kind == COLLECTIVE:
        number = node.attributes.get("comm_type", -1)
        known = isinstance(number, int) and 0 <= number < len(COLLECTIVES)
        return _KINDS.get(COLLECTIVES[int(number)] if known else "", class_of(node.name))
    return class_of(node.name)


def _dims(text: str) -> tuple[tuple[int, ...], ...]:
    try:
        given = ast.literal_eval(text) if len(text) < 10_000 else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    if not isinstance(given, list):
        return ()
    return tuple(
        tuple(s) for s in given if isinstance(s, list) and all(isinstance(e, int) for e in s)
    )


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
    nodes = []
    begins_s = min(start_s)
    for i, (kernel, at_s, time_s, more) in enumerate(
        zip(recording.kernels, start_s, duration_s, extra, strict=True)
    ):
        lane = (kernel.device, kernel.stream)
        waits = sorted({*kernel.waits_for, *((last[lane],) if lane in last else ())})
        last[lane] = i
        attributes: dict[str, Value] = {
            "is_cpu_op": False,
            "device": kernel.device,
            "stream": kernel.stream,
            "kernel_class": kernel.kind,
            **more,
        }
        kind = _node_kind(kernel)
        if kind == COLLECTIVE:
            attributes["comm_type"] = COLLECTIVES.index(kernel.kind)
        if kind != COMP:
            size = kernel.collective.size_bytes if kernel.collective else 0
            attributes["comm_size"] = size
            if kernel.collective and kernel.collective.group:
                attributes["pg_name"] = kernel.collective.group
        nodes.append(
            Node(i, kernel.name, kind, [], waits, 1 + round((at_s - begins_s) / MICRO),
                 max(1, round(time_s / MICRO)), "", attributes)
        )  # fmt: skip
    return encode(nodes, VERSION)


def _node_kind(kernel: Kernel) -> int:
    """A send and its receive are one kernel of NCCL; without a peer it is replayed as work."""
    return COLLECTIVE if kernel.kind in COLLECTIVES else COMP
