"""Other prices than the relaxation's, where those prove more about whole choices.

Any balanced flow bounds every plan (`dual`), and what strips lose at its prices adds to that;
the sum is concave in the flow. The relaxation's own flow is best for the first part alone. In a
steady pipeline all that matters is how much flows through each stage: so flow is moved onto or
off a path through one stage after another, in steps that double where they help and are halved
where neither way does. On the A40 profile that doubles what the strips add at 8 x 96 and 2 %.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import Network

STEP = 0.15  # of the mean flow through an operation
HALVINGS_MAX = 8
LIFT = 10.0  # of the largest flow: what a second costs then, no plan can afford
ROUND_OFF = 1e-12  # of the largest term, as for the relaxation


def through(network: Network, link_w: Floats) -> Floats:
    """What flows through each row; a price per second that it runs."""
    arrives_w: Floats = np.bincount(network.heads, link_w, network.size + 1).astype(np.float64)
    return arrives_w[: network.size]


def dual(
    network: Network, link_w: Floats, time_price_w: float, deadline_s: float
) -> tuple[float, float]:
    """A bound on sum cost + time_price * T for every plan within the deadline, from a balanced
    flow by link; and how much it falls per second of deadline, in watts."""
    through_w = np.bincount(network.heads, link_w, network.size + 1)
    least_j = largest_j = 0.0
    for number, curve in enumerate(network.curves.distinct):
        own_w = through_w[: network.size][network.curve == number]
        priced_j = (curve.cost_j + own_w[:, None] * curve.time_s).min(axis=1)
        least_j += float(priced_j.sum())
        largest_j += float(np.abs(priced_j).sum())
    back_w = float(through_w[network.size]) - time_price_w
    # What arrives beyond the time price is charged for the deadline; where less arrives, the
    # rest is paid for the iteration, which is never shorter than the fastest.
    charged_j = back_w * (deadline_s if back_w > 0.0 else network.fastest_s)
    bound_j = least_j - charged_j - ROUND_OFF * (largest_j + abs(charged_j))
    return bound_j, max(0.0, back_w)


def paths_of(network: Network, lines: Sequence[Ints], link_w: Floats) -> list[Ints]:
    """Links from start to end through all rows of a line, by the links of most flow before
    and after it; none for a line whose rows are not linked one to the next."""
    ends = zip(network.tails.tolist(), network.heads.tolist(), strict=True)
    links = {pair: k for k, pair in enumerate(ends)}
    found = []
    for line in lines:
        rows = line.tolist()
        inner = [links.get(pair, -1) for pair in pairwise(rows)]
        if -1 not in inner:
            outer = [*_back(network, rows[0], link_w), *_on(network, rows[-1], link_w)]
            found.append(np.array([*inner, *outer]))
    return found


def pressed(network: Network, link_w: Floats, deadline_s: float, most_j: float) -> Floats:
    """More flow on the longest way of the fastest options. Near the fastest iteration time the
    relaxation does not care how much, but the more flows the less may any plan lose there;
    `most_j` is what the relaxation may lose by it."""
    room_s = deadline_s - network.fastest_s
    lift_w = LIFT * float(link_w.max())
    if lift_w * room_s > most_j:
        return link_w
    ends = network.ends(network.fastest)
    row, found = int(np.argmax(ends)), list[int]()
    last = range(int(network.leaves[row]), int(network.leaves[row + 1]))
    found.append(next(k for k in last if network.heads[k] == network.size))
    while row >= 0:
        into = network.entering[network.enters[row] : network.enters[row + 1]]
        before = network.tails[into]
        at = int(np.argmax(np.where(before >= 0, ends[before], 0.0)))
        found.append(int(into[at]))
        row = int(before[at])
    lifted_w = link_w.copy()
    lifted_w[found] += lift_w
    return lifted_w


def climbed(
    link_w: Floats, paths: Sequence[Ints], value_j: Callable[[Floats], float], asks: int
) -> Floats:
    """A flow of higher value, or the one given; `value_j` is asked so many times at most."""
    steps_w = np.full(len(paths), STEP * float(link_w.mean()))
    least_w, best_j = steps_w / 2**HALVINGS_MAX, value_j(link_w)
    while (abs(steps_w) > least_w).any():
        for k, path in enumerate(paths):
            helped = False
            for step_w in (steps_w[k], -steps_w[k]):
                other_w = link_w.copy()
                other_w[path] += step_w
                if other_w[path].min() < 0.0:
                    continue
                if asks <= 0:
                    return link_w
                asks -= 1
                now_j = value_j(other_w)
                if now_j > best_j:
                    link_w, best_j, helped = other_w, now_j, True
                    steps_w[k] = 2 * step_w  # the same way next time, and further
                    break
            if not helped:
                steps_w[k] = abs(steps_w[k]) / 2
    return link_w


def _back(network: Network, row: int, link_w: Floats) -> list[int]:
    found = []
    while row >= 0:
        into = network.entering[network.enters[row] : network.enters[row + 1]]
        found.append(int(into[np.argmax(link_w[into])]))
        row = int(network.tails[found[-1]])
    return found


def _on(network: Network, row: int, link_w: Floats) -> list[int]:
    found = []
    while row < network.size:
        first = int(network.leaves[row])
        found.append(first + int(np.argmax(link_w[first : network.leaves[row + 1]])))
        row = int(network.heads[found[-1]])
    return found
