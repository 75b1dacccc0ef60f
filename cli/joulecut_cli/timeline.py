"""A plan as a trace for Perfetto and chrome://tracing: operations over time, with their clocks.

Chrome's trace event format (JSON): complete events, times in microseconds, one track per
stage. Colours follow the kind of operation, since a reserved name is all the format offers.
"""

import json
from pathlib import Path
from typing import Any

from joulecut_cli.outfile import checked, replacing
from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import SENDS, Operation
from joulecut_engine.optimize.problem import Problem, Solution
from joulecut_wire.errors import BadInput

_COLOURS = {"forward": "thread_state_running", "backward": "thread_state_iowait"}
MICRO = 1e6


def target(word: str | None) -> Path | None:
    """Checks a --timeline before anything is computed. Raises BadInput."""
    if word is None:
        return None
    path = Path(word)
    if path.suffix != ".json":
        raise BadInput("--timeline", f'"{word}" is no .json file', "a file that ends in .json")
    return checked("--timeline", path)


def write(path: Path, problem: Problem, plan: Solution, title: str) -> None:
    """Raises BadInput where the file cannot be written."""
    try:
        with replacing(path) as spare, spare.open("w", encoding="utf-8") as file:
            json.dump(trace(problem, plan, title), file, allow_nan=False)
            file.write("\n")
    except OSError as error:
        raise BadInput("--timeline", f"{path}: {error.strerror}", "a writable file") from None


def trace(problem: Problem, plan: Solution, title: str) -> dict[str, Any]:
    """The trace object: one process (the iteration), one thread per stage, and one
    more for what it sends meanwhile; as many as go on at once, since slices of a track may
    only lie within each other.

    Each operation's args carry microbatch, clock_mhz, power_w and energy_j; a counter track
    per stage shows the clock, so that changes are seen at a glance.
    """
    events: list[dict[str, Any]] = [_named("process_name", 0, title)]
    stages = len(problem.blocking_power_w)
    for stage in range(stages):
        events.append(_named("thread_name", stage, f"stage {stage}"))
        events.append(_sorted(stage, 2 * stage))
    lanes = _lanes(problem, plan)
    threads = {one: stages + k for k, one in enumerate(sorted(set(lanes.values())))}
    for (stage, lane), thread in threads.items():
        name = f"stage {stage} sends" + (f", {lane + 1}" if lane else "")
        events += [_named("thread_name", thread, name), _sorted(thread, 2 * stage + 1)]
    for i, (operation, option, start_s) in enumerate(
        zip(problem.graph.operations, plan.clocks, plan.start_s, strict=True)
    ):
        thread = threads[lanes[i]] if i in lanes else operation.stage
        events.append(_slice(operation, option, start_s, thread))
        if option.clock_mhz != ANY_CLOCK_MHZ:
            events.append(_clock(operation.stage, option.clock_mhz, start_s))
    # Perfetto sorts by itself; other readers of the format count time forwards.
    events.sort(key=lambda event: float(event.get("ts", -1.0)))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "iteration_time_s": plan.iteration_time_s,
            "energy_j": plan.energy_j,
            "granularity": plan.granularity,
            "basis": "predicted from the profile",
        },
    }


def _slice(
    operation: Operation, option: ClockOption, start_s: float, thread: int
) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": f"{operation.kind} {operation.microbatch}",
        "cat": operation.kind,
        "ph": "X",
        "pid": 0,
        "tid": thread,
        "ts": start_s * MICRO,
        "dur": option.time_s * MICRO,
        "args": {
            "microbatch": operation.microbatch,
            "clock_mhz": option.clock_mhz or None,
            "power_w": option.power_w,
            "energy_j": option.energy_j,
        },
    }
    colour = _COLOURS.get(operation.kind)
    return event if colour is None else event | {"cname": colour}


def _clock(stage: int, clock_mhz: int, start_s: float) -> dict[str, Any]:
    return {
        "name": f"stage {stage} clock, MHz",
        "ph": "C",
        "pid": 0,
        "ts": start_s * MICRO,
        "args": {"clock_mhz": clock_mhz},
    }


def _lanes(problem: Problem, plan: Solution) -> dict[int, tuple[int, int]]:
    """By index of a send: its stage, and the first of that stage's lanes that is free then."""
    ends_s: dict[int, list[float]] = {}
    found: dict[int, tuple[int, int]] = {}
    operations = problem.graph.operations
    sends = [i for i, operation in enumerate(operations) if operation.kind in SENDS]
    for i in sorted(sends, key=lambda i: plan.start_s[i]):
        busy_s = ends_s.setdefault(operations[i].stage, [])
        start_s, end_s = plan.start_s[i], plan.start_s[i] + plan.clocks[i].time_s
        lane = next((k for k, until_s in enumerate(busy_s) if until_s <= start_s), len(busy_s))
        busy_s[lane : lane + 1] = [end_s]
        found[i] = operations[i].stage, lane
    return found


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}


def _sorted(thread: int, place: int) -> dict[str, Any]:
    where = {"ph": "M", "pid": 0, "tid": thread}
    return {"name": "thread_sort_index", **where, "args": {"sort_index": place}}
