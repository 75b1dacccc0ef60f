"""Which schedules are optimal for the relaxation: all with the same tight links and ranges.

The interior point tells for each arc whether its flow or its slack is what vanishes, so an
operation's duration is known up to one hull segment and a link is tight or free. The
earliest and the latest schedule that keep to this are corners: most operations sit on real
options there, where the interior point itself has nearly all of them between two.
"""

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.solve.compiled import exact
from joulecut_controller.solve.interior import Point, Shape
from joulecut_controller.solve.network import Network
from joulecut_controller.solve.waves import Floats, Ints

# A dozen reach a fixed point except at the very fastest deadline, where which flows vanish is
# blurred; limits need not be exact there, rounding meets the horizon anyway.
SWEEPS_MAX = 12
STILL = 1e-12  # of the fastest iteration time


def ends(network: Network, shape: Shape, slot: Ints, point: Point) -> tuple[Floats, Floats]:
    """Ends by row of the earliest and of the latest optimal schedule, in time units."""
    rows = network.size
    shortest, longest = _ranges(network, shape, slot, point)
    tight = point.open_flow[rows:-1] > point.open_slack[rows:-1]
    horizon = float(point.start[rows])
    _, early = _least(
        network.tails, network.heads, network.leaves, network.enters, network.entering,
        shortest, longest, tight, horizon,
    )  # fmt: skip
    tails, heads, leaves, enters, entering, order = _mirrored(network)
    mirrored, _ = _least(
        tails, heads, leaves, enters, entering,
        shortest[::-1].copy(), longest[::-1].copy(), tight[order], horizon,
    )  # fmt: skip
    return early, horizon - mirrored[::-1]


def _ranges(network: Network, shape: Shape, slot: Ints, point: Point) -> tuple[Floats, Floats]:
    row = shape.row[slot]
    shortest = network.fastest.copy()
    longest = np.full(network.size, np.inf)
    used = point.flow / shape.room > point.under / shape.knee
    left = point.spare / shape.room > point.over / shape.knee
    np.maximum.at(shortest, row[left], shape.knee[left])
    np.minimum.at(longest, row[used], shape.knee[used])
    fast = point.open_flow[: network.size] > point.open_slack[: network.size]
    longest[fast] = network.fastest[fast]
    return shortest, np.maximum(longest, shortest)


def _mirrored(network: Network) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    """Time runs backwards: the last row is the first."""
    rows = network.size
    tails = np.where(network.heads == rows, -1, rows - 1 - network.heads)
    heads = np.where(network.tails < 0, rows, rows - 1 - network.tails)
    key = np.where(tails < 0, rows, tails)
    order = np.lexsort((heads, key))
    tails, heads, key = tails[order], heads[order], key[order]
    entering = np.argsort(heads, kind="stable")
    return (
        tails,
        heads,
        np.searchsorted(key, np.arange(rows + 1)),
        np.searchsorted(heads[entering], np.arange(rows + 2)),
        entering,
        order,
    )


@exact
def _least(
    tails: Ints,
    heads: Ints,
    leaves: Ints,
    enters: Ints,
    entering: Ints,
    shortest: Floats,
    longest: Floats,
    tight: NDArray[np.bool_],
    horizon: float,
) -> tuple[Floats, Floats]:
    """Least starts and ends: forward sweeps push, backward sweeps pull along tight links."""
    rows = len(shortest)
    start, end = np.zeros(rows), np.zeros(rows)
    for _ in range(SWEEPS_MAX):
        moved, last = 0.0, horizon
        for i in range(rows):
            begin = start[i]
            for e in range(enters[i], enters[i + 1]):
                before = tails[entering[e]]
                if before >= 0:
                    begin = max(begin, end[before])
            until = max(end[i], begin + shortest[i])
            moved = max(moved, begin - start[i], until - end[i])
            start[i], end[i] = begin, until
            last = max(last, until)
        for i in range(rows - 1, -1, -1):
            until = end[i]
            for link in range(leaves[i], leaves[i + 1]):
                if tight[link]:
                    until = max(until, start[heads[link]] if heads[link] < rows else last)
            begin = max(start[i], until - longest[i])
            moved = max(moved, begin - start[i], until - end[i])
            start[i], end[i] = begin, until
        if moved <= STILL:
            break
    return start, end
