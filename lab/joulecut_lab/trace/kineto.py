"""Traces of the PyTorch profiler (Kineto): Chrome's trace events, as JSON or gzipped.

The order of a stream is rebuilt from (device, stream, ts): launches may be recorded out of order,
and tools that follow the host's operators lose it. A kernel is joined to its launch by
`correlation`, and to its operator, for shapes, by `External id`. Waits between streams come from
`cuda_sync` events where the profiler recorded them, and are inferred from times elsewhere; where
the host has waited for the GPU, so has the kernel that it launches next.
"""

import gzip
import json
import math
import re
import zlib
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from joulecut_lab.trace.kernels import (
    Collective,
    Kernel,
    Recording,
    class_of,
    shapes,
    stamped,
)
from joulecut_wire import user_file
from joulecut_wire.errors import BadInput

BYTES_MAX = 4 << 30  # unpacked; a step of a large model has tens of megabytes
MICRO = 1e-6
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
SYNCS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")
# A kernel that starts this soon after another stream's kernel has waited for it.
HANDOVER_S = 10e-6
_STEP = re.compile(r"ProfilerStep#\d+")
_BYTES = {"float": 4, "float32": 4, "fp32": 4, "double": 8, "half": 2, "float16": 2, "c10::half": 2,
          "bfloat16": 2, "c10::bfloat16": 2, "int": 4, "long": 8, "long int": 8, "int8": 1,
          "byte": 1, "unsigned char": 1, "signed char": 1}  # fmt: skip


def read(path: Path) -> Recording:
    """One rank, 0 where the file does not say which. Raises BadInput."""
    data = _load(path)
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise BadInput(str(path), "no traceEvents", "a PyTorch profiler trace")
    told = data.get("distributedInfo") if isinstance(data, dict) else None
    rank = told.get("rank") if isinstance(told, dict) else None
    return recording(events, rank if isinstance(rank, int) else 0, str(path))


def recording(events: list[Any], rank: int, name: str) -> Recording:
    """The kernels of trace events. Raises BadInput where there are none."""
    complete = [e for e in events if isinstance(e, dict) and e.get("ph") == "X"]
    try:
        launches, operators, syncs, waits, steps = _host(complete)
        found = [
            _kernel(event, launches, operators) for event in complete if event.get("cat") in GPU
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"an event without its fields: {error}"
        raise BadInput(name, what, "events with name, ts, dur and args") from None
    if not found:
        allowed = "a trace recorded with ProfilerActivity.CUDA"
        raise BadInput(name, "no GPU kernels", allowed)
    wrong = next((k for k, _ in found if not _sane(k)), None)
    if wrong is not None:
        what = f"kernel {wrong.name:.40} from {wrong.start_s:g} s for {wrong.duration_s:g} s"
        raise BadInput(name, what, "times in microseconds, durations from 0")
    kept = stamped([(kernel.start_s, kernel.duration_s) for kernel, _ in found])
    dropped = len(found) - len(kept)
    found = [found[i] for i in kept]
    found.sort(key=lambda pair: (pair[0].start_s, pair[0].device, pair[0].stream))
    kernels = _with_waits(found, waits, syncs)
    resolution_s = _resolution_s(complete)
    return Recording(name, rank, kernels, steps, dropped=dropped, resolution_s=resolution_s)


def _resolution_s(events: list[dict[str, Any]]) -> float:
    """Step of the time stamps: of their written digits, or of a double as large as they are."""
    stamps = [value for e in events if e.get("cat") in GPU for value in (e["ts"], e["dur"])]
    digits = max(
        (len(str(one).partition(".")[2].rstrip("0")) if isinstance(one, float) else 0)
        for one in stamps
    )
    largest = max(abs(float(one)) for one in stamps)
    return max(10.0**-digits, math.ulp(largest)) * MICRO


def _sane(kernel: Kernel) -> bool:
    times = (kernel.start_s, kernel.duration_s, kernel.launch_s or 0.0)
    return all(map(math.isfinite, times)) and kernel.duration_s >= 0.0


def unpacked(path: Path) -> bytes:
    """A trace's bytes, gzipped or not. Raises BadInput."""
    try:
        with user_file.open_regular(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            raw = (gzip.GzipFile(fileobj=file) if packed else file).read(BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as error:
        what = getattr(error, "strerror", None) or "cannot be unpacked"
        raise BadInput(str(path), what, "a readable file") from None
    if len(raw) > BYTES_MAX:
        raise BadInput(str(path), "too large", f"at most {BYTES_MAX} bytes unpacked")
    return raw


def _load(path: Path) -> Any:
    try:
        return json.loads(unpacked(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(str(path), f"not JSON: {error}", "a PyTorch profiler trace") from None


_Launches = dict[int, float]
_Waits = list[tuple[float, int, int, int]]  # host time, waiting stream, stream, correlation


def _host(
    events: Iterable[dict[str, Any]],
) -> tuple[_Launches, dict[int, dict[str, Any]], list[float], _Waits, int]:
    """What the CPU side says: launches, operators, ends of the host's own waits, waits between
    streams, and the number of profiled steps.
    """
    launches: _Launches = {}
    operators: dict[int, dict[str, Any]] = {}
    syncs: list[float] = []
    waits: _Waits = []
    steps: set[str] = set()
    for event in events:
        category, args = event.get("cat"), event.get("args") or {}
        at_s = float(event.get("ts", 0.0)) * MICRO
        end_s = at_s + float(event.get("dur", 0.0)) * MICRO
        if category in {"cuda_runtime", "cuda_driver"}:
            if event.get("name") in SYNCS:
                syncs.append(end_s)
            elif "correlation" in args:
                launches[int(args["correlation"])] = end_s
        elif category == "cpu_op" and "External id" in args:
            operators[int(args["External id"])] = {**args, "name": str(event.get("name", ""))}
        elif category == "cuda_sync" and event.get("name") == "Stream Wait Event":
            waits.append((at_s, int(args.get("stream", -1)), int(args.get("wait_on_stream", -1)),
                          int(args.get("wait_on_cuda_event_record_corr_id", -1))))  # fmt: skip
        elif category == "user_annotation" and _STEP.match(str(event.get("name"))):
            steps.add(str(event["name"]))
    return launches, operators, syncs, waits, max(1, len(steps))


def _kernel(
    event: dict[str, Any], launches: _Launches, operators: dict[int, dict[str, Any]]
) -> tuple[Kernel, int]:
    args = event.get("args") or {}
    name, correlation = str(event["name"]), int(args.get("correlation", -1))
    operator = operators.get(int(args.get("External id", -1)), {})
    said = str(args.get("Collective name", ""))
    kind = "copy" if event["cat"] != "kernel" else class_of(name, said, operator.get("name", ""))
    start_s, launch_s = float(event["ts"]) * MICRO, launches.get(correlation)
    kernel = Kernel(
        name,
        kind,
        device=int(args.get("device", event.get("pid", 0))),
        stream=int(args.get("stream", event.get("tid", 0))),
        start_s=start_s,
        duration_s=float(event["dur"]) * MICRO,
        # A kernel may start before the call that launches it returns.
        launch_s=None if launch_s is None else min(launch_s, start_s),
        collective=_collective(args),
        dims=shapes(operator.get("Input Dims")),
        dtype=_first(operator.get("Input type")),
    )
    return kernel, correlation


def _collective(args: dict[str, Any]) -> Collective | None:
    if "Collective name" not in args:
        return None
    elements = max(int(args.get("In msg nelems", 0)), int(args.get("Out msg nelems", 0)))
    width = _BYTES.get(str(args.get("dtype", "")).lower(), 2)
    group = str(args.get("Process Group Ranks") or args.get("Process Group Name") or "")
    return Collective(elements * width, group, int(args.get("Group size", 0)))


def _first(given: object) -> str:
    return str(given[0]) if isinstance(given, list) and given else ""


def _with_waits(
    found: list[tuple[Kernel, int]], waits: _Waits, syncs: list[float]
) -> tuple[Kernel, ...]:
    kernels = [kernel for kernel, _ in found]
    recorded = _recorded(found, waits) if waits else _inferred(kernels)
    for i, ended in _after_syncs(kernels, syncs).items():
        recorded[i] = tuple(sorted({*recorded.get(i, ()), *ended}))
    return tuple(replace(k, waits_for=recorded.get(i, ())) for i, k in enumerate(kernels))


def _after_syncs(kernels: list[Kernel], syncs: list[float]) -> dict[int, tuple[int, ...]]:
    """By the first kernel launched after the host has waited: the last kernel of every stream that
    had ended by then.
    """
    launched = sorted((k.launch_s, i) for i, k in enumerate(kernels) if k.launch_s is not None)
    by_end = sorted(range(len(kernels)), key=lambda i: kernels[i].end_s)
    waiting: dict[int, tuple[int, ...]] = {}
    ended: dict[tuple[int, int], int] = {}
    at = 0
    for sync_s in sorted(syncs):
        while at < len(by_end) and kernels[by_end[at]].end_s <= sync_s:
            done = kernels[by_end[at]]
            ended[done.device, done.stream] = by_end[at]
            at += 1
        place = bisect_left(launched, (sync_s, -1))
        if place < len(launched):
            after = launched[place][1]
            waiting[after] = tuple(k for k in ended.values() if k < after)
    return waiting


def _recorded(found: list[tuple[Kernel, int]], waits: _Waits) -> dict[int, tuple[int, ...]]:
    """A stream's first kernel launched after a wait waits for the last one launched before the
    awaited event on the other stream. Correlations count host calls in order.
    """
    waiting: dict[int, tuple[int, ...]] = {}
    by_stream: dict[int, list[int]] = {}
    for i, (kernel, _) in enumerate(found):
        by_stream.setdefault(kernel.stream, []).append(i)
    for at_s, stream, other, record in waits:
        before = [i for i in by_stream.get(other, []) if 0 <= found[i][1] < record]
        after = next(
            (i for i in by_stream.get(stream, []) if (found[i][0].launch_s or 0.0) >= at_s), None
        )
        if before and after is not None and before[-1] < after:
            waiting[after] = (*waiting.get(after, ()), before[-1])
    return waiting


def _inferred(kernels: list[Kernel]) -> dict[int, tuple[int, ...]]:
    """A kernel that its own stream did not hold back, and that starts within HANDOVER_S of
    another stream's end, has waited for that one.
    """
    waiting: dict[int, tuple[int, ...]] = {}
    last: dict[tuple[int, int], int] = {}
    by_end = sorted(range(len(kernels)), key=lambda i: kernels[i].end_s)
    ended: dict[tuple[int, int], int] = {}
    at = 0
    for i, kernel in enumerate(kernels):
        while at < len(by_end) and kernels[by_end[at]].end_s <= kernel.start_s:
            done = kernels[by_end[at]]
            ended[done.device, done.stream] = by_end[at]
            at += 1
        own = last.get((kernel.device, kernel.stream))
        free_s = kernels[own].end_s if own is not None else -1.0
        others = [
            k
            for (device, stream), k in ended.items()
            if device == kernel.device
            and stream != kernel.stream
            and kernels[k].end_s > free_s
            and kernel.start_s - kernels[k].end_s <= HANDOVER_S
        ]
        if others:
            waiting[i] = (max(others, key=lambda k: kernels[k].end_s),)
        last[kernel.device, kernel.stream] = i
    return waiting
