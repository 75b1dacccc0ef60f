"""Moments that many operations share: what waits for the same may begin at the same time.

Rows with the same successors are done for these when the last of them is; rows with the same
predecessors may begin when the last of those is done. In a steady pipeline both are one moment:
two neighbouring stages meet, one hands activations on and the other gradients back. Written in
such moments the problem is a small graph whose arcs are operations, and a plan is nothing but
a time for every moment.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from joulecut_controller.solve.network import Network
from joulecut_controller.solve.waves import Ints


@dataclass(frozen=True, slots=True)
class Events:
    """`begin[i]` is the event from which row i may run, `done[i]` the one it helps to bring
    about; two rows in a row share theirs where nothing else comes between."""

    begin: Ints
    done: Ints
    count: int


def events_of(network: Network) -> Events:
    after = _neighbours(network.heads, network.leaves)
    before = _neighbours(network.tails[network.entering], network.enters[: network.size + 1])
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, rows in enumerate(after):
        alike[rows].append(row)
    event = {rows: k for k, rows in enumerate(alike)}
    done = [event[rows] for rows in after]
    count = len(event)
    begins: dict[tuple[int, ...], int] = {}
    for rows in before:
        if rows in begins:
            continue
        shared = rows[0] >= 0 and tuple(alike[after[rows[0]]]) == rows
        heads = after[rows[0]] if shared else ()
        if shared and all(j < network.size and before[j] == rows for j in heads):
            begins[rows] = done[rows[0]]
        else:
            begins[rows] = count
            count += 1
    return Events(np.array([begins[rows] for rows in before]), np.array(done), count)


def _neighbours(ends: Ints, starts: Ints) -> list[tuple[int, ...]]:
    """Ascending, by row."""
    each = np.split(ends[: starts[-1]], starts[1:-1])
    return [tuple(sorted(rows.tolist())) for rows in each]
