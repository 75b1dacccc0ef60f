"""The graph as arrays, a wave at a time, so that hundreds of schedules cost one numpy pass.

Longest paths are what every search here spends its time on. Rows are operations sorted by
wave (all predecessors in earlier waves); an array of shape (rows, K) holds K schedules, and
one pass over the waves times all of them.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.graph import Graph

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wave:
    """Rows `first` to `last` (exclusive), none of which waits for another.

    `before` and `after` are row numbers of neighbours, padded with the row after the last,
    which stands for nobody; the links are the numbers of those edges, padded likewise.
    """

    first: int
    last: int
    before: Ints  # (rows of the wave, most predecessors)
    after: Ints  # (rows of the wave, most successors)
    links_before: Ints
    links_after: Ints

    @property
    def rows(self) -> slice:
        return slice(self.first, self.last)


@dataclass(frozen=True, slots=True)
class Waves:
    """`operation[k]` is the graph's index of row k; `edges` are in row numbers."""

    operation: Ints
    waves: tuple[Wave, ...]
    edges: Ints  # (edges, 2)

    @property
    def size(self) -> int:
        return len(self.operation)

    def ends(self, duration_s: Floats) -> Floats:
        """Earliest end of each row, same shape as `duration_s`: (rows,) or (rows, K)."""
        end = np.zeros((self.size + 1, *duration_s.shape[1:]))
        for wave in self.waves:
            end[wave.rows] = end[wave.before].max(axis=1) + duration_s[wave.rows]
        return end[:-1]

    def iteration_times(self, duration_s: Floats) -> Floats:
        """The makespan of each schedule: (rows, K) gives (K,)."""
        times: Floats = self.ends(duration_s).max(axis=0)
        return times

    def mirrored(self) -> "Waves":
        """Time runs backwards: ends in the mirror are the longest ways to the end here."""
        waves = tuple(
            Wave(w.first, w.last, w.after, w.before, w.links_after, w.links_before)
            for w in reversed(self.waves)
        )
        return Waves(self.operation, waves, self.edges[:, ::-1])


def waves_of(graph: Graph) -> Waves:
    """Raises ValueError where an edge leaves the topological order."""
    count, edges = len(graph.operations), len(graph.edges)
    before: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    after: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    depth = [0] * count
    for link, (first, second) in sorted(enumerate(graph.edges), key=lambda item: item[1][1]):
        if not 0 <= first < second < count:
            raise ValueError(f"edge ({first}, {second}) leaves the topological order")
        before[second].append((first, link))
        after[first].append((second, link))
        depth[second] = max(depth[second], depth[first] + 1)
    operation = sorted(range(count), key=lambda i: (depth[i], i))
    row = [0] * count
    for k, i in enumerate(operation):
        row[i] = k

    def wave(first: int, last: int) -> Wave:
        ins = [before[i] for i in operation[first:last]]
        outs = [after[i] for i in operation[first:last]]
        return Wave(
            first,
            last,
            _padded([[row[j] for j, _ in edge] for edge in ins], count),
            _padded([[row[j] for j, _ in edge] for edge in outs], count),
            _padded([[link for _, link in edge] for edge in ins], edges),
            _padded([[link for _, link in edge] for edge in outs], edges),
        )

    runs = _runs([depth[i] for i in operation])
    in_rows = np.array([(row[a], row[b]) for a, b in graph.edges], dtype=np.int64)
    return Waves(
        np.array(operation, dtype=np.int64),
        tuple(wave(first, last) for first, last in runs),
        in_rows.reshape(-1, 2),
    )


def _runs(values: list[int]) -> list[tuple[int, int]]:
    """Where equal neighbours begin and end."""
    starts = [i for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
    return list(zip(starts, [*starts[1:], len(values)], strict=True))


def _padded(lists: list[list[int]], filler: int) -> Ints:
    width = max(1, *map(len, lists))
    rows = [row + [filler] * (width - len(row)) for row in lists]
    return np.array(rows, dtype=np.int64)


def combinations(sizes: list[int]) -> Ints:
    """Every choice of one of `sizes[k]` for each k: (len(sizes), product of sizes).

    numpy counts in at most 64 dimensions; what leaves nothing to choose needs none.
    """
    count = math.prod(sizes)
    free = [k for k, size in enumerate(sizes) if size > 1]
    every = np.zeros((len(sizes), count), dtype=np.int64)
    if free:
        every[free] = np.unravel_index(np.arange(count), [sizes[k] for k in free])
    return every
