"""The graph as arrays, so that hundreds of schedules cost one pass of compiled code.

Longest paths are what every search here spends its time on. Rows are operations sorted by
level: all predecessors of one are in earlier levels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.graph import Graph
from joulecut_engine.optimize.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LANES = 16  # schedules side by side: 8 take as long for each, 32 a third longer


@dataclass(frozen=True, slots=True)
class Levels:
    """`operation[k]` is the graph's index of row k; `edges` are in row numbers.

    Row k waits for `before[begins[k]:begins[k + 1]]`; nothing waits for the `last`.
    """

    operation: Ints
    edges: Ints  # (edges, 2)
    begins: Ints  # (rows + 1,)
    before: Ints  # (edges,)
    last: Ints

    @property
    def size(self) -> int:
        return len(self.operation)

    def iteration_times(self, duration_s: Floats, which: Ints) -> Floats:
        """The makespan of each schedule: (classes, K) gives (K,). `which` is each row's class."""
        duration_s = np.ascontiguousarray(duration_s)
        return _iteration_times(duration_s, which, self.begins, self.before, self.last)

    def around(self, duration_s: Floats) -> tuple[Floats, Floats]:
        """By operation: the longest path to its start, and from there to the end, in seconds."""
        found = np.empty((2, self.size))
        found[:, self.operation] = _around(duration_s[self.operation], self.begins, self.before)
        return found[0], found[1]

    def critical(self, duration_s: Floats, which: Ints) -> tuple[float, Floats]:
        """The makespan of one schedule (classes,), and how many rows of each class one longest
        path takes: of several that which leads over the first of equals.
        """
        counts = np.zeros(len(duration_s))
        return _critical(duration_s, which, self.begins, self.before, counts), counts


def levels_of(graph: Graph) -> Levels:
    """Raises ValueError where an edge leaves the topological order."""
    count = len(graph.operations)
    depth = [0] * count
    for first, second in sorted(graph.edges, key=lambda edge: edge[1]):
        if not 0 <= first < second < count:
            raise ValueError(f"edge ({first}, {second}) leaves the topological order")
        depth[second] = max(depth[second], depth[first] + 1)
    operation = np.array(sorted(range(count), key=lambda i: (depth[i], i)), dtype=np.int64)
    row = np.argsort(operation)
    edges = row[np.array(graph.edges, dtype=np.int64).reshape(-1, 2)]
    waiting = np.bincount(edges[:, 1], minlength=count)
    return Levels(
        operation=operation,
        edges=edges,
        begins=np.concatenate([[0], np.cumsum(waiting)]),
        before=np.ascontiguousarray(edges[np.argsort(edges[:, 1], kind="stable"), 0]),
        last=np.setdiff1d(np.arange(count), edges[:, 0]),
    )


@compiled
def _iteration_times(
    duration_s: Floats, which: Ints, begins: Ints, before: Ints, last: Ints
) -> Floats:
    """Some schedules at a time, side by side, or the processor waits for each sum."""
    schedules = duration_s.shape[1]
    ends, own = np.empty((len(which), LANES)), np.zeros((len(duration_s), LANES))
    longest = np.zeros(schedules)
    for first in range(0, schedules, LANES):
        lanes = min(LANES, schedules - first)
        own[:, :lanes] = duration_s[:, first : first + lanes]
        for row in range(len(which)):
            end, mine = ends[row], own[which[row]]
            for lane in range(LANES):
                end[lane] = 0.0
            for at in range(begins[row], begins[row + 1]):
                done = ends[before[at]]
                for lane in range(LANES):
                    one, other = done[lane], end[lane]
                    end[lane] = one if one > other else other  # noqa: FURB136 (twice as slow)
            for lane in range(LANES):
                end[lane] += mine[lane]
        for row in last:
            for lane in range(lanes):
                longest[first + lane] = max(longest[first + lane], ends[row, lane])
    return longest


@compiled
def _around(seconds: Floats, begins: Ints, before: Ints) -> Floats:
    around_s = np.zeros((2, len(seconds)))
    starts_s, rests_s = around_s
    for row in range(len(seconds)):
        for at in range(begins[row], begins[row + 1]):
            starts_s[row] = max(starts_s[row], starts_s[before[at]] + seconds[before[at]])
    for row in range(len(seconds) - 1, -1, -1):
        rests_s[row] += seconds[row]
        for at in range(begins[row], begins[row + 1]):
            rests_s[before[at]] = max(rests_s[before[at]], rests_s[row])
    return around_s


@compiled
def _critical(duration_s: Floats, which: Ints, begins: Ints, before: Ints, counts: Floats) -> float:
    """Adds to `counts`, by class."""
    ends = np.empty(len(which))
    latest = 0
    for row in range(len(which)):
        begin = 0.0
        for at in range(begins[row], begins[row + 1]):
            begin = max(begin, ends[before[at]])
        ends[row] = begin + duration_s[which[row]]
        if ends[row] > ends[latest]:
            latest = row
    row = latest
    while row >= 0:
        counts[which[row]] += 1.0
        slowest = -1
        for at in range(begins[row], begins[row + 1]):
            if slowest < 0 or ends[before[at]] > ends[slowest]:
                slowest = before[at]
        row = slowest
    return float(ends[latest])
