"""Which schedules are optimal for the relaxation: all with the same tight links and ranges.

The interior point tells for each arc whether its flow or its slack is what vanishes, so an
operation's duration is known up to one hull segment and a link is tight or free. The
earliest and the latest schedule that keep to this are corners: most operations sit on real
options there, where the interior point itself has nearly all of them between two.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.interior import Point
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import Network

# A dozen reach a fixed point except at the very fastest deadline, where which flows vanish is
# blurred; limits need not be exact there, rounding meets the horizon anyway.
SWEEPS_MAX = 12
STILL = 1e-12  # of the fastest iteration time


def ends(network: Network, point: Point, ranges: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Ends by row of the earliest and of the latest optimal schedule, in time units, where
    durations keep to `ranges`: the shortest and the longest by row."""
    rows = network.size
    shortest, longest = ranges
    tight = point.open_flow[rows:-1] > point.open_slack[rows:-1]
    horizon = float(point.start[rows])
    links = Links(network.tails, network.heads, network.leaves, network.enters, network.entering)
    _, early = _least(links, shortest, longest, tight, horizon, True)
    mirrored, _ = _least(links, shortest, longest, tight, horizon, False)
    return early, horizon - mirrored


class Links(NamedTuple):
    """As in `Network`."""

    tails: Ints
    heads: Ints
    leaves: Ints
    enters: Ints
    entering: Ints


@exact
def _least(
    links: Links,
    shortest: Floats,
    longest: Floats,
    tight: NDArray[np.bool_],
    horizon: float,
    forwards: bool,
) -> tuple[Floats, Floats]:
    """Least starts and ends: one way sweeps push, the other way they pull along tight links.
    Where time runs backwards, an operation starts where it really ends, counted from the end."""
    start, end = np.zeros(len(shortest)), np.zeros(len(shortest))
    for _ in range(SWEEPS_MAX):
        moved, last = _push(links, start, end, shortest, forwards)
        moved = max(moved, _pull(links, start, end, longest, tight, max(horizon, last), forwards))
        if moved <= STILL:
            break
    return start, end


@exact
def _push(
    links: Links, start: Floats, end: Floats, shortest: Floats, forwards: bool
) -> tuple[float, float]:
    """How far anything moved, and the last end."""
    rows, moved, last = len(start), 0.0, 0.0
    for k in range(rows):
        i = k if forwards else rows - 1 - k
        begin = start[i]
        if forwards:
            for e in range(links.enters[i], links.enters[i + 1]):
                before = links.tails[links.entering[e]]
                if before >= 0:
                    begin = max(begin, end[before])
        else:
            for link in range(links.leaves[i], links.leaves[i + 1]):
                if links.heads[link] < rows:
                    begin = max(begin, end[links.heads[link]])
        until = max(end[i], begin + shortest[i])
        moved = max(moved, begin - start[i], until - end[i])
        start[i], end[i] = begin, until
        last = max(last, until)
    return moved, last


@exact
def _pull(
    links: Links,
    start: Floats,
    end: Floats,
    longest: Floats,
    tight: NDArray[np.bool_],
    last: float,
    forwards: bool,
) -> float:
    rows, moved = len(start), 0.0
    for k in range(rows):
        i = rows - 1 - k if forwards else k
        until = end[i]
        if forwards:
            for link in range(links.leaves[i], links.leaves[i + 1]):
                if tight[link]:
                    after = links.heads[link]
                    until = max(until, start[after] if after < rows else last)
        else:
            for e in range(links.enters[i], links.enters[i + 1]):
                if tight[links.entering[e]]:
                    after = links.tails[links.entering[e]]
                    until = max(until, start[after] if after >= 0 else last)
        begin = max(start[i], until - longest[i])
        moved = max(moved, begin - start[i], until - end[i])
        start[i], end[i] = begin, until
    return moved
