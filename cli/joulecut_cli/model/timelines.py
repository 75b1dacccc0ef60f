"""The operations of a predicted iteration as a trace for Perfetto and chrome://tracing."""

import json
from pathlib import Path
from typing import Any

from joulecut_cli.outfile import replacing
from joulecut_engine.graph.pipeline import SENDS
from joulecut_engine.model.graph_level import Timeline
from joulecut_wire.errors import BadInput

MICRO = 1e6


def write(path: Path, title: str, timeline: Timeline) -> None:
    """Raises BadInput where the file cannot be written."""
    try:
        with replacing(path) as spare:
            spare.write_text(json.dumps(trace(title, timeline)) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput("--timeline", f"{path}: {error.strerror}", "a writable file") from None


def trace(title: str, timeline: Timeline) -> dict[str, Any]:
    """One process, and per stage a track of work and one per direction of its sends."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": title}}
    ]
    tracks: dict[tuple[int, str], int] = {}
    for operation, start_s, time_s in zip(
        timeline.graph.operations, timeline.start_s, timeline.time_s, strict=True
    ):
        lane = (operation.stage, operation.kind if operation.kind in SENDS else "")
        if lane not in tracks:
            tracks[lane] = len(tracks)
            name = f"stage {lane[0]} {lane[1]}".strip()
            events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": tracks[lane],
                           "args": {"name": name}})  # fmt: skip
            events.append({"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": tracks[lane],
                           "args": {"sort_index": 3 * lane[0] + bool(lane[1])}})  # fmt: skip
        events.append({
            "name": f"{operation.kind} {operation.microbatch}", "cat": operation.kind, "ph": "X",
            "pid": 0, "tid": tracks[lane], "ts": start_s * MICRO, "dur": time_s * MICRO,
            "args": {"microbatch": operation.microbatch, "chunk": operation.chunk},
        })  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"basis": "predicted"}}
