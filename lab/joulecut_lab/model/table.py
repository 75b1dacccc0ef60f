"""Ideal table of a schedule: workers by slots, every phase one slot, nothing between GPUs.

A forward, the gradient of an input, and the gradient of weights take one slot each, a whole
backward two. The table shows what a schedule is worth before costs are known; the iteration time
follows from its share of idle slots.
"""

from dataclasses import dataclass, replace

import numpy as np

from joulecut_engine.graph import Graph, build
from joulecut_engine.graph.pipeline import Operation
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.estimate import Estimate
from joulecut_lab.model.formula import assemble, held_stages, pipe_of
from joulecut_lab.model.run import Run
from joulecut_lab.model.runs import Runs
from joulecut_lab.model.system import System

SLOTS = {"forward": 1, "backward": 2, "input": 1, "weight": 1}


@dataclass(frozen=True, slots=True)
class Table:
    """`cells[worker][slot]` is the operation of that slot, None where the worker waits."""

    cells: tuple[tuple[Operation | None, ...], ...]

    @property
    def slots(self) -> int:
        return len(self.cells[0])

    @property
    def bubble(self) -> float:
        """Idle slots over busy slots, of the worker whose first and last slot are farthest apart.

        Workers that start later also end later in schedules without a common optimizer step.
        """
        busy = [sum(cell is not None for cell in row) for row in self.cells]
        return max(self.spans) / max(busy) - 1.0

    @property
    def spans(self) -> tuple[int, ...]:
        """Slots from the first to the last operation of every worker."""
        taken = [[s for s, cell in enumerate(row) if cell is not None] for row in self.cells]
        return tuple(row[-1] - row[0] + 1 for row in taken)


def table_of(run: Run) -> Table:
    """Raises ValueError if the shape does not fit its schedule."""
    shape = replace(run.shape(), transfers="free", data_collective=False, optimizer=False)
    graph = build(shape)
    slots = [SLOTS[operation.kind] for operation in graph.operations]
    start = starts(graph, [float(count) for count in slots])
    length = int(max(begin + count for begin, count in zip(start, slots, strict=True)))
    cells: list[list[Operation | None]] = [[None] * length for _ in range(run.pipeline)]
    for operation, begin, count in zip(graph.operations, start, slots, strict=True):
        for slot in range(int(begin), int(begin) + count):
            cells[operation.stage][slot] = operation
    return Table(tuple(map(tuple, cells)))


def starts(graph: Graph, time_s: list[float]) -> list[float]:
    """Earliest start of every operation."""
    start_s = [0.0] * len(time_s)
    for first, second in graph.edges:  # sorted: what `first` waits for came before
        end_s = start_s[first] + time_s[first]
        start_s[second] = max(start_s[second], end_s)
    return start_s


def estimate_by_table(architecture: Architecture, system: System, run: Run) -> Estimate:
    """The run with the bubble of its table and without transfers."""
    asked, stages, clock_mhz = held_stages(architecture, system, Runs.of([run]))
    work_s = pipe_of(stages).slowest.seconds * run.microbatches
    bubble = work_s * table_of(run).bubble if run.pipeline > 1 else 0.0 * work_s
    found = assemble(stages, asked, clock_mhz, bubble, np.zeros(1))
    return replace(found.estimate(0), level="table")
