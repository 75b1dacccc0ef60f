"""The frontier as one walk: each deadline starts where its neighbour ended.

Begins at T_c, where every operation takes its cheapest option and nothing flows, and shortens
the deadline; each answer is an exact corner of the relaxation. Lengths and capacities are
rounded to integers once, capacities downwards; bounds are evaluated in floats from the flow,
so they stay valid, and about 1e-11 below the true optimum.
"""

from dataclasses import replace

import numpy as np

from joulecut_engine.optimize.levels import Floats
from joulecut_engine.optimize.network import Network
from joulecut_engine.optimize.pivot import Arcs, Tree, optimise, plant, shift
from joulecut_engine.optimize.relaxation import ROUND_OFF, Relaxation

LENGTH_BITS = 40  # of the longest useful deadline: sums of any path stay below 2^62
FLOW_BITS = 44  # all capacities together
ENDLESS = 2**60
PIVOTS_MAX = 2**40  # strongly feasible trees end by themselves
STRIDES = 24  # from where nothing is in a hurry towards the fastest, to pass T_E
CROSSINGS_MAX = 60  # a dozen are the rule; any number gives a valid bound


class Sweep:
    """One problem; `relax` may be asked for any deadline, and is quick for one near the last.

    The walk itself knows no price for time (a pipeline that waits): a lone pipeline's best
    iteration time T_E is where `deadline_price_w` falls through its time price.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._second = 2.0**LENGTH_BITS / network.cheapest_s
        curves = [network.curves.distinct[c] for c in network.curve]
        total_w = sum(float(c.saved_w[0]) for c in curves if len(c.saved_w))
        self._watt = 2.0**FLOW_BITS / max(total_w, 1e-300)
        self._piece_s = [c.hull_s[::-1] for c in curves]
        # For the bound, pieces are as long and as wide as they really are.
        self._all_s: Floats = np.concatenate(self._piece_s)
        self._low_w: Floats = np.concatenate([np.append(0.0, c.saved_w[::-1]) for c in curves])
        self._high_w: Floats = np.concatenate([np.append(c.saved_w[::-1], np.inf) for c in curves])
        self.arcs = self._arcs([np.floor(c.saved_w[::-1] * self._watt) for c in curves])
        self.tree = self._tree()
        self._back = len(self.arcs.tail) - 1
        self._lone: dict[float, Relaxation] = {}  # at T_E, for the last time price asked

    def relax(self, deadline_s: float, time_price_w: float) -> Relaxation:
        """Minimises sum c + time_price_w * T over relaxed schedules with T <= deadline_s, which
        is at least the fastest iteration time."""
        found = self._waiting(deadline_s)
        if time_price_w == 0.0 or found.deadline_price_w >= time_price_w:
            return replace(
                found,
                bound_j=found.bound_j + time_price_w * deadline_s,
                deadline_price_w=found.deadline_price_w - time_price_w,
            )
        if time_price_w not in self._lone:
            self._lone = {time_price_w: self._cheapest(found, time_price_w)}
        return replace(self._lone[time_price_w], deadline_s=deadline_s)

    def _cheapest(self, right: Relaxation, price_w: float) -> Relaxation:
        """At T_E, whose deadline is no constraint; `right` is beyond it.

        Each answer is a line below the convex frontier: the next deadline is where the two
        nearest T_E cross, until one of them is the frontier's own there.
        """
        steps, left = right.steps, right
        # One way, and no further than needed: the walk there is the walk of the frontier.
        strides_s = np.linspace(right.deadline_s, self.network.fastest_s, STRIDES + 1)
        for deadline_s in strides_s[1:].tolist():
            right, left = left, self._waiting(deadline_s)
            steps += left.steps
            if left.deadline_price_w >= price_w:
                break
        if left.deadline_price_w <= price_w:  # no faster iteration is cheaper
            bound_j = left.bound_j + price_w * left.deadline_s
            return replace(left, bound_j=bound_j, deadline_price_w=0.0, steps=steps)
        middle = left
        for _ in range(CROSSINGS_MAX):
            middle = self._waiting(_crossing(left, right))
            steps += middle.steps
            if middle.deadline_price_w in (left.deadline_price_w, right.deadline_price_w):
                break
            if middle.deadline_price_w >= price_w:
                left = middle
            else:
                right = middle
        # A mixture of both flows, in which exactly the time price passes: a flow as good as any.
        share = price_w - right.deadline_price_w
        share /= left.deadline_price_w - right.deadline_price_w
        return replace(
            middle,
            bound_j=share * left.bound_at_j(0.0) + (1 - share) * right.bound_at_j(0.0),
            deadline_price_w=0.0,
            price_w=share * left.price_w + (1 - share) * right.price_w,
            steps=steps,
            link_w=_mixed(share, left.link_w, right.link_w),
        )

    def _waiting(self, deadline_s: float) -> Relaxation:
        network, arcs, tree = self.network, self.arcs, self.tree
        rows = network.size
        # Up, so that no deadline is shorter than the path it allows.
        length = -int(np.ceil(min(deadline_s, network.cheapest_s) * self._second)) - rows
        shift(arcs, tree, self._back, 0, length)
        pivots = optimise(arcs, tree, PIVOTS_MAX)
        through = tree.flow[:rows]
        row = np.repeat(np.arange(rows), np.diff(arcs.first[: rows + 1]))
        used_w = np.clip(through[row] / self._watt, self._low_w, self._high_w) - self._low_w
        gained_j = float((used_w * self._all_s).sum())
        price_w = float(tree.flow[self._back]) / self._watt
        charged_j = price_w * deadline_s
        largest_j = abs(network.cheapest_j) + gained_j + charged_j
        time = (tree.time - tree.time[2 * rows]) / self._second
        return Relaxation(
            bound_j=network.cheapest_j + gained_j - charged_j - ROUND_OFF * largest_j,
            deadline_s=deadline_s,
            deadline_price_w=price_w,
            price_w=through / self._watt,
            limits_s=(time[rows : 2 * rows],),
            iteration_s=float(time[2 * rows + 1]),
            steps=pivots,
            link_w=tree.flow[rows : self._back] / self._watt,
        )

    def _arcs(self, slopes: list[Floats]) -> Arcs:
        """Nodes: start of row k is k, its end is rows + k, then source and sink."""
        network, rows = self.network, self.network.size
        source, sink = 2 * rows, 2 * rows + 1
        one, none, endless = np.ones(1), np.zeros(1), np.full(1, float(ENDLESS))
        others = len(network.heads)
        steps = [np.maximum.accumulate(np.maximum(s, 1.0)) for s in slopes]
        lengths = [np.floor(p * self._second) for p in self._piece_s]
        low = [np.concatenate([none, s]) for s in steps]
        high = [np.concatenate([s, endless]) for s in steps]
        pieces = [len(p) for p in lengths] + [1] * (others + 1)
        tails = np.where(network.tails < 0, source, network.tails + rows)
        heads = np.where(network.heads == rows, sink, network.heads)
        return Arcs(
            tail=np.concatenate([np.arange(rows), tails, [sink]]).astype(np.int32),
            head=np.concatenate([np.arange(rows) + rows, heads, [source]]).astype(np.int32),
            first=np.concatenate([[0], np.cumsum(pieces)]).astype(np.int64),
            length=np.concatenate(
                [*lengths, np.zeros(others), -(2.0 ** (LENGTH_BITS + 1)) * one]
            ).astype(np.int64),
            low=np.concatenate([*low, np.zeros(others + 1)]).astype(np.int64),
            high=np.concatenate([*high, np.repeat(endless, others + 1)]).astype(np.int64),
        )

    def _tree(self) -> Tree:
        """Everything as late and as slow as possible: optimal while the deadline is T_c."""
        nodes, count = 2 * self.network.size + 2, len(self.arcs.tail)

        def small(value: int = -1) -> np.ndarray:
            return np.full(nodes, value, dtype=np.int32)

        tree = Tree(
            piece=np.zeros(count, dtype=np.int32),
            flow=np.zeros(count, dtype=np.int64),
            member=np.zeros(count, dtype=np.bool_),
            time=np.zeros(nodes, dtype=np.int64),
            parent=small(),
            arc=small(),
            upwards=np.ones(nodes, dtype=np.bool_),
            depth=small(0),
            child=small(),
            following=small(),
            previous=small(),
            stack=small(),
            cursor=np.zeros(1, dtype=np.int64),
        )
        plant(self.arcs, tree, self.network.leaves)
        return tree


def _mixed(share: float, one: Floats | None, other: Floats | None) -> Floats | None:
    return None if one is None or other is None else share * one + (1 - share) * other


def _crossing(left: Relaxation, right: Relaxation) -> float:
    """Where two lines below the frontier meet; between their own deadlines."""
    fall_j = left.bound_at_j(0.0) - right.bound_at_j(0.0)
    at_s = fall_j / (left.deadline_price_w - right.deadline_price_w)
    return min(max(at_s, left.deadline_s), right.deadline_s)
