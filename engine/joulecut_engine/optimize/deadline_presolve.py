"""A problem without the options that a deadline leaves no time for.

A relaxation mixes an option of a second with one of an hour where there is time for seconds
alone, and proves little then. What cannot be on time however fast all else is, is in no plan:
without it the bound holds for the same plans, and is nearer to them.
"""

from dataclasses import replace

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import Network
from joulecut_engine.optimize.problem import Problem

SURE = 1e-8  # of the deadline: what is so near to it stays; plans may be a tenth of that late


def fitting(problem: Problem, network: Network, deadline_s: float) -> Problem | None:
    """For plans that end by the deadline; None where the bound's options all have time."""
    heads_s, tails_s = windows(network)
    room_s = deadline_s * (1 + SURE) - heads_s - tails_s
    if (room_s >= network.cheapest / network.second).all():
        return None
    shared: dict[tuple[int, int], tuple[ClockOption, ...]] = {}
    menus = []
    for menu, most_s in zip(problem.options, room_s[network.row].tolist(), strict=True):
        count = max(1, sum(option.time_s <= most_s for option in menu))
        menus.append(shared.setdefault((id(menu), count), menu[:count]))
    return replace(problem, options=tuple(menus), measured=())


def windows(network: Network) -> tuple[Floats, Floats]:
    """By row: earliest start, and the least time from its end to the end of the iteration."""
    return _windows(network.heads, network.leaves, network.fastest / network.second)


@exact
def _windows(heads: Ints, leaves: Ints, shortest_s: Floats) -> tuple[Floats, Floats]:
    """The longest ways to each row and on from it, everything at its fastest."""
    rows = len(shortest_s)
    start_s, rest_s = np.zeros(rows + 1), np.zeros(rows)
    for i in range(rows):
        for link in range(leaves[i], leaves[i + 1]):
            start_s[heads[link]] = max(start_s[heads[link]], start_s[i] + shortest_s[i])
    for i in range(rows - 1, -1, -1):
        for link in range(leaves[i], leaves[i + 1]):
            after = heads[link]
            if after < rows:
                rest_s[i] = max(rest_s[i], rest_s[after] + shortest_s[after])
    return start_s[:rows], rest_s
