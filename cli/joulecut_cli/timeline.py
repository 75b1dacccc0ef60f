"""Traces for Perfetto and chrome://tracing: work over time, on tracks.

Chrome's trace event format (JSON): complete events, times in microseconds. Colours follow the kind
of operation, since a reserved name is all the format offers.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecut_cli import outfile
from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ
from joulecut_engine.graph.pipeline import SENDS
from joulecut_wire.errors import BadInput

if TYPE_CHECKING:
    from joulecut_engine.optimize.problem import Problem, Solution

_COLOURS = {"forward": "thread_state_running", "backward": "thread_state_iowait"}
MICRO = 1e6

Event = dict[str, Any]


def target(word: str | None) -> Path | None:
    """Checks the path of `--timeline` before anything is computed. Raises BadInput."""
    if word is None:
        return None
    path = Path(word)
    if path.suffix != ".json":
        raise BadInput("--timeline", f'"{word}" is no .json file', "a file that ends in .json")
    return outfile.checked("--timeline", path)


def write(path: Path, events: list[Event], about: Event) -> None:
    """Raises BadInput where the file cannot be written."""
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
    outfile.write("--timeline", path, json.dumps(trace, allow_nan=False) + "\n")


def process(number: int, name: str) -> Event:
    return {"name": "process_name", "ph": "M", "pid": number, "args": {"name": name}}


def track(process: int, number: int, name: str, place: int | None = None) -> list[Event]:
    """A named row of a process; `place` is its place among the rows, where it has one."""
    where = {"ph": "M", "pid": process, "tid": number}
    sort = {"name": "thread_sort_index", **where, "args": {"sort_index": place}}
    named = {"name": "thread_name", **where, "args": {"name": name}}
    return [named] if place is None else [named, sort]


def stretch(
    where: tuple[int, int], what: tuple[str, str], start_s: float, time_s: float, **args: Any
) -> Event:
    """Work on a track (process, number), by name and kind."""
    return {
        "name": what[0], "cat": what[1], "ph": "X", "pid": where[0], "tid": where[1],
        "ts": start_s * MICRO, "dur": time_s * MICRO, "args": args,
    }  # fmt: skip


def of_plan(problem: "Problem", plan: "Solution", title: str) -> tuple[list[Event], Event]:
    """One process (the iteration), one track per stage, and one more for what it sends meanwhile;
    as many as go on at once, since slices of a track may only lie within each other.

    Each operation's args carry microbatch, clock_mhz, power_w and energy_j; a counter track
    per stage shows the clock, so that changes are seen at a glance.
    """
    events = [process(0, title)]
    stages = len(problem.blocking_power_w)
    for stage in range(stages):
        events += track(0, stage, f"stage {stage}", 2 * stage)
    lanes = _lanes(problem, plan)
    threads = {one: stages + k for k, one in enumerate(sorted(set(lanes.values())))}
    for (stage, lane), thread in threads.items():
        name = f"stage {stage} sends" + (f", {lane + 1}" if lane else "")
        events += track(0, thread, name, 2 * stage + 1)
    for i, (operation, option, start_s) in enumerate(
        zip(problem.graph.operations, plan.clocks, plan.start_s, strict=True)
    ):
        thread = threads[lanes[i]] if i in lanes else operation.stage
        event = stretch(
            (0, thread), (f"{operation.kind} {operation.microbatch}", operation.kind),
            start_s, option.time_s, microbatch=operation.microbatch,
            clock_mhz=option.clock_mhz or None, power_w=option.power_w, energy_j=option.energy_j,
        )  # fmt: skip
        colour = _COLOURS.get(operation.kind)
        events.append(event if colour is None else event | {"cname": colour})
        if option.clock_mhz != ANY_CLOCK_MHZ:
            events.append(_clock(operation.stage, option.clock_mhz, start_s))
    # Perfetto sorts by itself; other readers of the format count time forwards.
    events.sort(key=lambda event: float(event.get("ts", -1.0)))
    about = {
        "iteration_time_s": plan.iteration_time_s,
        "energy_j": plan.energy_j,
        "granularity": plan.granularity,
        "basis": "predicted from the profile",
    }
    return events, about


def _clock(stage: int, clock_mhz: int, start_s: float) -> Event:
    args = {"clock_mhz": clock_mhz}
    name = f"stage {stage} clock, MHz"
    return {"name": name, "ph": "C", "pid": 0, "ts": start_s * MICRO, "args": args}


def _lanes(problem: "Problem", plan: "Solution") -> dict[int, tuple[int, int]]:
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
