"""Moments that many operations share: what waits for the same may begin at the same time.

Rows with the same successors are done for these when the last of them is; rows with the same
predecessors may begin when the last of those is done. In a steady pipeline both are one moment:
two neighbouring stages meet, one hands activations on and the other gradients back. Written in
such moments the problem is a small graph whose arcs are operations, and a plan is nothing but
a time for every moment. The fewer moments, the more a plan changes when one is moved.
"""

from dataclasses import dataclass

import numpy as np

from joulecut_engine.optimize.levels import Ints
from joulecut_engine.optimize.network import Network


@dataclass(frozen=True, slots=True)
class Events:
    """`begin[i]` is the event from which row i may run, `done[i]` the one it helps to bring
    about; two rows in a row share theirs where nothing else comes between."""

    begin: Ints
    done: Ints
    count: int


def events_of(network: Network) -> Events:
    """A row begins when the last of those before it is done: where these all lead to the same
    rows that is their event, else one of its own. And what all that follows a row waits for anyway
    is when the row has to be done: nothing comes between."""
    after = _neighbours(network.heads, network.leaves)
    before = _neighbours(network.tails[network.entering], network.enters[: network.size + 1])
    event: dict[tuple[int, ...], int] = {}
    done = [event.setdefault(rows, len(event)) for rows in after]
    begins: dict[tuple[int, ...], int] = {}
    for rows in before:
        if rows not in begins:
            alike = {done[row] if row >= 0 else -1 for row in rows}
            shared = len(alike) == 1 and -1 not in alike
            begins[rows] = alike.pop() if shared else len(event) + len(begins)
    begin = [begins[rows] for rows in before]
    for rows, own in event.items():
        needed = {begin[row] if row < network.size else own for row in rows}
        event[rows] = needed.pop() if len(needed) == 1 else own
    names, numbers = np.unique([*begin, *(event[rows] for rows in after)], return_inverse=True)
    return Events(numbers[: network.size], numbers[network.size :], len(names))


def _neighbours(ends: Ints, starts: Ints) -> list[tuple[int, ...]]:
    """Ascending, by row."""
    each = np.split(ends[: starts[-1]], starts[1:-1])
    return [tuple(sorted(rows.tolist())) for rows in each]
