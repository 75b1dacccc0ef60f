"""Bounds and plans slice by slice: what happens at about the same time, across all stages.

By the prices of the relaxation a plan's distance from the bound is a sum of terms that are
never negative (`solve.strips` says why): what options cost more than the best, and waits at the
price of their link. So the least that a slice of the graph can lose, all else left free, adds
to the bound, and slices without a common operation add up. Strips follow stages and need
microbatches that pass one by one; a slice in time needs nothing of its graph. It sees what
operations that run side by side forbid each other, and is blind to what lies at its borders.

The same slices, with all else held where it is, are searched for better plans.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.deadline_presolve import windows
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.program import Piece, branched
from joulecut_engine.optimize.relaxation import Relaxation

Mask = NDArray[np.bool_]


class Size(NamedTuple):
    """Of a slice: operations, options beside one each, and nodes of branching at most."""

    rows: int
    choices: int
    nodes: int


# Twice the operations take three to ten times as long, and prove a fifth to two thirds of what
# the smaller ones left.
SMALL_BOUND, LARGE_BOUND = Size(48, 300, 400), Size(96, 1000, 100)
SMALL_PLAN, LARGE_PLAN = Size(32, 250, 60), Size(64, 400, 50)
CLOSE = 0.02  # of a slice's loss: proving it finer proves less than other slices would
CLOSE_PLAN = 1e-4  # of what its plan costs


class Slices:
    """One problem at one deadline, cut along an optimal relaxed schedule."""

    def __init__(
        self, computation: Computation, relaxed: Relaxation, goal: Goal, time_price_w: float
    ) -> None:
        self._network = network = computation.network
        self._relaxed, self._price_w = relaxed, time_price_w
        self._horizon_s = computation.useful_deadline_s(goal.deadline_s)
        curves = [network.curves.distinct[c] for c in network.curve]
        self._time = [curve.time_s for curve in curves]
        self._cost = [curve.cost_j for curve in curves]
        self._heads_s, self._tails_s = windows(computation.network)
        self._order = np.argsort(np.mean(relaxed.limits_s, axis=0), kind="stable")
        self._links = np.stack([network.tails, network.heads], axis=1)

    def _cut(self, size: Size, begin: float = 0.0) -> list[Ints]:
        """Rows of one slice after another, alike in size; `begin` of one is cut off in front."""
        more = np.array([len(self._time[row]) - 1 for row in self._order])
        weight = np.maximum(1.0 / size.rows, more / size.choices)
        before = np.cumsum(weight) - weight
        step = float(weight.sum()) / math.ceil(float(weight.sum()))
        number = np.floor(before / step + begin).astype(np.int64)
        return [np.sort(self._order[number == k]) for k in np.unique(number)]

    def losses_j(self, size: Size) -> Floats:
        """By row: what is lost in other slices than its own, at least; and last in all."""
        lost_j, link_w = np.zeros(self._network.size + 1), self._relaxed.link_w
        if link_w is not None:
            for rows in self._cut(size):
                loss_j = max(0.0, self._loss_j(rows, link_w, size.nodes))
                lost_j += loss_j
                lost_j[rows] -= loss_j
        return lost_j

    def _loss_j(self, rows: Ints, link_w: Floats, nodes: int) -> float:
        """What a slice loses, all else left free, at the prices of the relaxation."""
        here = self._here(rows)
        tails, heads = here[self._links[:, 0]], here[self._links[:, 1]]
        inner = (tails >= 0) & (heads >= 0)
        begins = (self._links[:, 0] < 0) & (heads >= 0)
        start_w = np.zeros(len(rows))
        np.add.at(start_w, heads[begins], link_w[begins])
        price_w = self._relaxed.price_w[rows]
        costs_j = [self._cost[r] + w * self._time[r] for r, w in zip(rows, price_w, strict=True)]
        early_w = self._early_w(link_w, inner & (heads == len(rows)))
        piece = Piece(
            time_s=tuple(self._time[r] for r in rows),
            cost_j=tuple(cost_j - cost_j.min() for cost_j in costs_j),
            links=np.stack([tails[inner], heads[inner]], axis=1),
            wait_w=link_w[inner],
            start_w=start_w,
            earliest_s=self._heads_s[rows],
            latest_s=self._horizon_s - self._tails_s[rows],
            horizon_s=self._horizon_s,
            flow_w=float(link_w[inner].sum()),
            end_w=-early_w,
            offset_j=early_w * self._horizon_s,
        )
        return branched(piece, nodes, CLOSE).bound_j

    def _early_w(self, link_w: Floats, own: Mask) -> float:
        """What each second of the deadline that is not used loses, as far as a slice answers for
        it: by its share of what arrives at the end. The rest is what time costs anyway."""
        arrives_w = float(link_w[self._links[:, 1] == self._network.size].sum())
        if arrives_w <= self._price_w:
            return 0.0
        return float(link_w[own].sum()) / arrives_w * (arrives_w - self._price_w)

    def _here(self, rows: Ints) -> Ints:
        """By node, its row in the slice; -1 elsewhere, the start of the iteration included (the
        last entry, so that -1 finds it)."""
        here = np.full(self._network.size + 2, -1)
        here[rows] = np.arange(len(rows))
        here[self._network.size] = len(rows)
        return here

    def improved(self, choice: Ints, size: Size, begin: float) -> Ints:
        """Options by row, no dearer: each slice branched with all else as it is, and in no more
        time than these options take or the relaxation does."""
        choice = choice.copy()
        for rows in self._cut(size, begin):
            proof = branched(self._held(rows, choice), size.nodes, CLOSE_PLAN)
            if proof.choice is not None:
                now_j, then_j = (self._sum_j(rows, own) for own in (choice[rows], proof.choice))
                if then_j < now_j:
                    choice[rows] = proof.choice
        return choice

    def _held(self, rows: Ints, choice: Ints) -> Piece:
        """One slice in the room that the others leave."""
        network, size = self._network, self._network.size
        lasts_s = np.array([menu[k] for menu, k in zip(self._time, choice, strict=True)])
        ends_s = network.ends(lasts_s * network.second) / network.second
        horizon_s = max(float(ends_s.max()), min(self._relaxed.iteration_s, self._horizon_s))
        after_s = np.zeros(size)  # from a row's end to the end of the iteration
        here, links = self._here(rows), []
        earliest_s, latest_s = np.zeros(len(rows)), np.full(len(rows), horizon_s)
        inner = self._links[(self._links[:, 0] >= 0) & (self._links[:, 1] < size)]
        for before, after in inner[np.argsort(-inner[:, 0], kind="stable")].tolist():
            after_s[before] = max(after_s[before], lasts_s[after] + after_s[after])
            first, second = here[before], here[after]
            if first >= 0 and second >= 0:
                links.append((first, second))
            elif first >= 0:
                by_s = horizon_s - after_s[after] - lasts_s[after]
                latest_s[first] = min(latest_s[first], by_s)
            elif second >= 0:
                earliest_s[second] = max(earliest_s[second], ends_s[before])
        now_j = self._sum_j(rows, choice[rows])
        return Piece(
            time_s=tuple(self._time[r] for r in rows),
            cost_j=tuple(self._cost[r] for r in rows),
            links=np.array(links, dtype=np.int64).reshape(-1, 2),
            wait_w=np.zeros(len(links)),
            start_w=np.zeros(len(rows)),
            earliest_s=earliest_s,
            latest_s=latest_s,
            horizon_s=horizon_s,
            flow_w=0.0,
            offset_j=2 * abs(now_j),  # effective costs may be negative, shares may not
        )

    def _sum_j(self, rows: Ints, choice: Ints) -> float:
        return sum(float(self._cost[r][k]) for r, k in zip(rows, choice, strict=True))
