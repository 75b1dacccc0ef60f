"""The activity network as flat arrays, for the relaxation and for rounding.

Times are in units of the fastest iteration time and prices in units of the mean first slope,
so that every number is near 1 whatever the job. Rows are operations in time order; a link is
a dependency, with one from the start of the iteration to each row without a predecessor and
one from each row without a successor to its end (node `size`).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulecut_engine.graph.pipeline import SENDS
from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.curves import Curves, curves_of
from joulecut_engine.optimize.levels import Floats, Ints, Levels, levels_of
from joulecut_engine.optimize.problem import Problem


class Envelope(NamedTuple):
    """Where a symmetric matrix whose entries lie near the diagonal is kept (Jennings 1966).

    Row i is stored from its first entry to the diagonal, and factorisation fills nothing
    outside: entry (i, j), first[i] <= j <= i, is at `at[i] + j` of a flat array of `size`.
    An operation touches only what runs about the same time, so a factorisation is linear in the
    number of microbatches.
    """

    first: Ints
    at: Ints
    size: int


@dataclass(frozen=True, slots=True)
class ActivityNetwork:
    levels: Levels
    operation: Ints  # by row: index into the graph's operations
    row: Ints  # by operation
    curve: Ints  # by row
    curves: Curves
    tails: Ints  # by link: the row it leaves, sorted; -1 for the start of the iteration
    heads: Ints  # by link: the row it enters; `size` for the end of the iteration
    leaves: Ints  # links of row i are leaves[i] to leaves[i + 1]; those of the start come last
    enters: Ints  # likewise, an index into `entering`; size + 2 long, the end included
    entering: Ints  # links by head
    fastest: Floats  # by row, in time units
    cheapest: Floats
    envelope: Envelope
    second: float  # time units per second
    watt: float  # price units per watt
    joule: float
    cheapest_j: float
    fastest_s: float
    cheapest_s: float

    @property
    def size(self) -> int:
        return len(self.operation)

    def around(self, duration: Floats) -> tuple[Floats, Floats]:
        """By row: the longest path to its start, and from there to the end."""
        starts, rests = self.levels.around(duration[self.row])
        return starts[self.operation], rests[self.operation]


def activity_network(problem: Problem) -> ActivityNetwork:
    curves = curves_of(problem)
    count = len(problem.graph.operations)
    hull_s = [c.hull_s for c in curves.distinct]
    fastest_s = np.array([h[0] for h in hull_s])[curves.curve]
    cheapest_s = np.array([h[-1] for h in hull_s])[curves.curve]
    levels, middle_s = levels_of(problem.graph), (fastest_s + cheapest_s) / 2
    edges = _needed(problem, levels.edges)
    # Any order in time keeps the envelope narrow; starts, so that neighbours meet early.
    operation = np.argsort(levels.around(middle_s)[0], kind="stable")
    row = np.empty(count, dtype=np.int64)
    row[operation] = np.arange(count)
    tails, heads = row[edges[:, 0]], row[edges[:, 1]]
    lasts = np.flatnonzero(np.bincount(tails, minlength=count) == 0)
    firsts = np.flatnonzero(np.bincount(heads, minlength=count) == 0)
    # Links of the start sort last.
    tails = np.concatenate([tails, lasts, np.full(len(firsts), count)])
    heads = np.concatenate([heads, np.full(len(lasts), count), firsts])
    order = np.argsort(tails * (count + 1) + heads)
    tails, heads = tails[order], heads[order]
    leaves = np.searchsorted(tails, np.arange(count + 1))
    tails[leaves[count] :] = -1
    entering = np.argsort(heads, kind="stable")
    enters = np.searchsorted(heads[entering], np.arange(count + 2))
    curve = curves.curve[operation]
    slopes = np.array([c.saved_w[0] if len(c.saved_w) else 0.0 for c in curves.distinct])[curve]
    mean_w = float(slopes.mean()) or 1.0
    times = [float((levels.around(d)[0] + d).max()) for d in (fastest_s, cheapest_s)]
    second = 1.0 / times[0]
    return ActivityNetwork(
        levels=levels,
        operation=operation,
        row=row,
        curve=curve,
        curves=curves,
        tails=tails,
        heads=heads,
        leaves=leaves,
        enters=enters,
        entering=entering,
        fastest=fastest_s[operation] * second,
        cheapest=cheapest_s[operation] * second,
        envelope=_envelope(_first(heads, leaves)),
        second=second,
        watt=1.0 / mean_w,
        joule=second / mean_w,
        cheapest_j=float(np.array([c.cost_j[c.cheapest] for c in curves.distinct])[curve].sum()),
        fastest_s=times[0],
        cheapest_s=times[1],
    )


def _envelope(first: Ints) -> Envelope:
    width = np.arange(len(first)) - first + 1
    last = np.cumsum(width)
    return Envelope(first, last - width - first, int(last[-1]))


def _needed(problem: Problem, edges: Ints) -> Ints:
    """Edges, without those that a chain of a stage's own edges implies: they would widen the
    envelope (GPipe: a stage's first forward and its first backward are an iteration apart)."""
    graph, count = problem.graph, len(problem.graph.operations)
    sends = np.array([operation.kind in SENDS for operation in graph.operations])
    orders = [np.array(indices, dtype=np.int64) for indices in graph.order]
    line = np.concatenate([order[~sends[order]] for order in orders])
    at = np.full(count, -1)
    at[line] = np.arange(len(line))
    linked = np.zeros(len(line) + 1, dtype=bool)  # to the one before in line
    follows = (at[edges] >= 0).all(axis=1) & (at[edges[:, 1]] == at[edges[:, 0]] + 1)
    linked[at[edges[follows, 1]]] = True
    chain = np.cumsum(~linked)[at]
    implied = (at[edges] >= 0).all(axis=1) & (chain[edges[:, 0]] == chain[edges[:, 1]])
    kept: Ints = edges[~implied | follows]
    return kept


@compiled
def _first(heads: Ints, leaves: Ints) -> Ints:
    """First column of each row once the ends of operations are eliminated: an operation
    meets its successors, and these meet each other."""
    size = len(leaves) - 1
    first = np.arange(size + 1)
    for i in range(size):
        least = i
        for link in range(leaves[i], leaves[i + 1]):
            least = min(least, heads[link])
        for link in range(leaves[i], leaves[i + 1]):
            first[heads[link]] = min(first[heads[link]], least)
        first[i] = min(first[i], least)
    return first
