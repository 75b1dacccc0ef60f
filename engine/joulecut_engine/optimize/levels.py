"""The graph as arrays, so that hundreds of schedules cost one pass of compiled code.

Longest paths are what every search here spends its time on. Operations are in the order of the
graph, where whatever one waits for comes before it.
"""

import itertools
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
    """Operation k waits for `before[begins[k]:begins[k + 1]]`; nothing waits for the `last`."""

    edges: Ints  # (edges, 2)
    begins: Ints  # (operations + 1,)
    before: Ints  # (edges,)
    last: Ints

    @property
    def size(self) -> int:
        return len(self.begins) - 1

    def iteration_times(self, duration_s: Floats) -> Floats:
        """The makespan of each schedule: (operations, K) gives (K,)."""
        duration_s = np.ascontiguousarray(duration_s)
        return _iteration_times(duration_s, self.begins, self.before, self.last)

    def around(self, duration_s: Floats) -> tuple[Floats, Floats]:
        """By operation: the longest path to its start, and from there to the end, in seconds."""
        starts_s, rests_s = _around(duration_s, self.begins, self.before)
        return starts_s, rests_s

    def critical(self, duration_s: Floats) -> tuple[float, Floats]:
        """The makespan of one schedule, and by operation 1 where one longest path takes it, else 0:
        of several that which leads over the first of equals.
        """
        taken = np.zeros(self.size)
        return _critical(duration_s, self.begins, self.before, taken), taken


def levels_of(graph: Graph) -> Levels:
    """Raises ValueError where an edge leaves the topological order."""
    count = len(graph.operations)
    flat = itertools.chain.from_iterable(graph.edges)  # a third of the time that np.array takes
    edges = np.fromiter(flat, np.int64, 2 * len(graph.edges)).reshape(-1, 2)
    first, second = edges.T
    for at in np.flatnonzero((first < 0) | (first >= second) | (second >= count)).tolist():
        raise ValueError(f"edge {graph.edges[at]} leaves the topological order")
    return Levels(
        edges=edges,
        begins=np.concatenate([[0], np.cumsum(np.bincount(second, minlength=count))]),
        before=np.ascontiguousarray(first[np.argsort(second, kind="stable")]),
        last=np.flatnonzero(np.bincount(first, minlength=count) == 0),
    )


@compiled
def _iteration_times(duration_s: Floats, begins: Ints, before: Ints, last: Ints) -> Floats:
    """Some schedules at a time, side by side, or the processor waits for each sum."""
    size, schedules = duration_s.shape
    ends, own = np.empty((size, LANES)), np.zeros((size, LANES))
    longest = np.zeros(schedules)
    for first in range(0, schedules, LANES):
        lanes = min(LANES, schedules - first)
        own[:, :lanes] = duration_s[:, first : first + lanes]
        for row in range(size):
            end, mine = ends[row], own[row]
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
def _critical(duration_s: Floats, begins: Ints, before: Ints, taken: Floats) -> float:
    ends = np.empty(len(duration_s))
    latest = 0
    for row in range(len(duration_s)):
        begin = 0.0
        for at in range(begins[row], begins[row + 1]):
            begin = max(begin, ends[before[at]])
        ends[row] = begin + duration_s[row]
        if ends[row] > ends[latest]:
            latest = row
    row = latest
    while row >= 0:
        taken[row] = 1.0
        slowest = -1
        for at in range(begins[row], begins[row + 1]):
            if slowest < 0 or ends[before[at]] > ends[slowest]:
                slowest = before[at]
        row = slowest
    return float(ends[latest])
