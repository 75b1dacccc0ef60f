"""One iteration operation by operation, on the graph that the solver plans on.

Operations of a part take their own time; sends travel beside them, one after the other on each
link and direction. Gradients and optimizer follow a stage's last operation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecut_engine.graph import Graph, build
from joulecut_engine.graph.pipeline import SENDS, Kind
from joulecut_engine.graph.shape import part_of
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.estimate import Estimate
from joulecut_lab.model.formula import assemble, held_pipe
from joulecut_lab.model.memory import memory_of
from joulecut_lab.model.run import Run
from joulecut_lab.model.runs import Runs
from joulecut_lab.model.stages import Stages
from joulecut_lab.model.system import System

STAGGERED = ("zb-h1", "zb-h2", "zb-v")  # with post-validation of the optimizer


@dataclass(frozen=True, slots=True)
class Timeline:
    """When every operation of one pipeline runs, in seconds."""

    graph: Graph
    start_s: tuple[float, ...]
    time_s: tuple[float, ...]

    @property
    def end_s(self) -> float:
        return max(a + b for a, b in zip(self.start_s, self.time_s, strict=True))

    @property
    def span_s(self) -> float:
        """The longest time between a stage's first and last operation."""
        first, last = [math.inf] * len(self.graph.order), [0.0] * len(self.graph.order)
        for operation, start_s, time_s in zip(
            self.graph.operations, self.start_s, self.time_s, strict=True
        ):
            if operation.kind not in SENDS:
                first[operation.stage] = min(first[operation.stage], start_s)
                last[operation.stage] = max(last[operation.stage], start_s + time_s)
        return max(end_s - start_s for start_s, end_s in zip(first, last, strict=True))


def laid_out(graph: Graph, time_s: Sequence[float]) -> Timeline:
    """Every operation as early as its edges allow."""
    start_s = [0.0] * len(time_s)
    for first, second in graph.edges:  # sorted: what `first` waits for came before
        start_s[second] = max(start_s[second], start_s[first] + time_s[first])
    return Timeline(graph, tuple(start_s), tuple(time_s))


def simulate(architecture: Architecture, system: System, run: Run) -> tuple[Estimate, Timeline]:
    """The run at graph level. Raises ValueError if the shape does not fit its schedule."""
    asked, pipe, clock_mhz = held_pipe(architecture, system, Runs.of([run]))
    work = pipe.slowest.seconds * run.microbatches
    shape = replace(run.shape(), data_collective=False, optimizer=False)
    graph = _with_links(build(shape))
    part_s = part_times(pipe.stages, run)
    costs = [
        part_s[part_of(shape, o.stage, o.chunk), o.kind] if o.kind not in SENDS else None
        for o in graph.operations
    ]
    send_s = float(pipe.stages.send_s[0])
    ends = []
    for each_s in (0.0, send_s):
        time_s = [each_s if cost is None else cost for cost in costs]
        timeline = laid_out(graph, time_s)
        # Without a common optimizer step the next iteration follows stage by stage.
        ends.append(timeline.span_s if run.order in STAGGERED else timeline.end_s)
    bubble = np.maximum(0.0, ends[0] - work)
    waits = np.array([ends[1] - ends[0]])
    memory = memory_of(architecture, asked)
    found = assemble(pipe, asked, clock_mhz, memory, bubble=bubble, transfers=waits)
    return replace(found.estimate(0), level="graph"), timeline


def part_times(stages: Stages, run: Run) -> dict[tuple[int, Kind], float]:
    """Seconds of every computing operation of one microbatch, by part and kind."""
    found: dict[tuple[int, Kind], float] = {}
    for part, phases in enumerate(stages.every_part(run)):
        inputs, weight = float(phases.input_s[0]), float(phases.weight_s[0])
        found[part, "forward"], found[part, "input"] = float(phases.forward_s[0]), inputs
        found[part, "weight"], found[part, "backward"] = weight, inputs + weight
    return found


def _with_links(graph: Graph) -> Graph:
    """The graph with sends of one link and direction in the order of the work they follow."""
    last: dict[tuple[int, Kind], int] = {}
    chained = []
    for index, operation in enumerate(graph.operations):
        if operation.kind in SENDS:
            key = operation.stage, operation.kind
            if key in last:
                chained.append((last[key], index))
            last[key] = index
    return replace(graph, edges=tuple(sorted([*graph.edges, *chained]))) if chained else graph
