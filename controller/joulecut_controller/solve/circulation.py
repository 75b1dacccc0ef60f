"""The relaxation: how little energy any plan can use, and what each second is worth.

Where an operation may sit anywhere on its convex curve, the cheapest schedule within a
deadline is the dual of a maximum-cost circulation (Fulkerson 1961, Kelley 1961: project
cost curves by network flow). A breakpoint d of a curve is an arc of length d whose capacity
is the change of slope there; the way back from end to start has length -deadline.

Integers are for the flow algorithm alone. The bound is evaluated in floats from the flow it
returns: by weak duality any flow within the capacities gives a valid one, and capacities are
rounded down. So rounding can cost tightness (about 1e-9 here), never validity.
"""

from dataclasses import dataclass

import numpy as np
from ortools.graph.python import min_cost_flow

from joulecut_controller.solve.curves import Curves
from joulecut_controller.solve.waves import Floats, Ints, Waves

LENGTH_UNITS = 2**30  # of a deadline; a thousand times finer made no bound better by 1e-9
# Cost scaling multiplies lengths by (nodes + 1) and adds them along paths, in 64 bits.
POTENTIAL_MAX = 2**61
FLOW_UNITS = 2**44  # all capacities together: 1e-13 of them is one unit, sums stay below 2^63
ROUND_OFF = 1e-12  # of the largest term: what float sums over 1e5 operations can be off by
SWEEPS_MAX = 1000  # schedules need fewer than ten; without the last sweeps windows are narrower
FAR = np.int64(2**62)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The relaxed optimum, by row.

    `bound_j` bounds sum c + time_price * T at `deadline_s` from below; `deadline_price_w` is
    how much it falls per second of deadline. `price_w[k]` is what one more second for row k
    would save. `early_s` and `late_s`, each (starts, ends) of shape (2, rows), are the earliest
    and the latest optimal schedule that end at `end_s`. Times may be early by up to `grain_s`.
    """

    bound_j: float
    deadline_s: float
    deadline_price_w: float
    price_w: Floats
    early_s: Floats
    late_s: Floats
    end_s: float
    grain_s: float

    def bound_at_j(self, deadline_s: float) -> float:
        """The same flow also bounds every other deadline (it is feasible there too)."""
        return self.bound_j + self.deadline_price_w * (self.deadline_s - deadline_s)


def relax(waves: Waves, curves: Curves, deadline_s: float, time_price_w: float) -> Relaxation:
    """Minimises sum c + time_price_w * T over relaxed schedules with T <= deadline_s.

    `deadline_s` is at least the fastest iteration time; keep it within a few times that of
    the slowest useful schedule, since lengths are cut into fractions of it.
    """
    network = _Network(waves, curves, deadline_s, time_price_w)
    flow = network.maximise()
    early, late = _Windows(waves, network, flow).schedules()
    seconds = deadline_s / network.deadline
    return Relaxation(
        bound_j=network.bound_j(flow),
        deadline_s=deadline_s,
        deadline_price_w=network.deadline_price_w(flow),
        price_w=np.add.reduceat(flow.arcs, network.first_arc) / network.watt,
        early_s=np.asarray(early * seconds, dtype=np.float64),
        late_s=np.asarray(late * seconds, dtype=np.float64),
        end_s=float(early[1].max()) * seconds,
        grain_s=(len(waves.waves) + 2) * seconds,  # each operation of a path is rounded down
    )


@dataclass(frozen=True, slots=True)
class _Flow:
    arcs: Ints  # as the arcs of `_Network`, by row and breakpoint
    links: Ints  # edges of the graph, then source arcs, then sink arcs
    back: int  # on the return arc


class _Network:
    """Nodes: start of row k is k, its end is size + k, then source and sink."""

    def __init__(
        self, waves: Waves, curves: Curves, deadline_s: float, time_price_w: float
    ) -> None:
        size = waves.size
        self.size, self.deadline_s, self.time_price_w = size, deadline_s, time_price_w
        self.source, self.sink = 2 * size, 2 * size + 1
        curve = curves.curve[waves.operation]
        self.cheapest_j = np.array([c.cost_j[c.cheapest] for c in curves.distinct])[curve]

        # One arc per row and hull point; the first, of the fastest option, is endless.
        points = np.array([len(c.hull_s) for c in curves.distinct], dtype=np.int64)[curve]
        self.arc_row = np.repeat(np.arange(size), points)
        self.first_arc = np.cumsum(points) - points
        breakpoint_s = [c.hull_s for c in curves.distinct]
        self.arc_s: Floats = np.concatenate([breakpoint_s[i] for i in curve])
        drop_w = [-np.diff(np.append(c.saved_w, 0.0)) for c in curves.distinct]
        capacity_w = np.concatenate([np.concatenate(([0.0], drop_w[i])) for i in curve])

        nodes = 2 * size + 2
        units = min(LENGTH_UNITS, POTENTIAL_MAX // (nodes * (nodes + 1)))
        # Rounded down, so that no path of fastest options gets longer than the deadline.
        self.length: Ints = np.floor(self.arc_s * (units / deadline_s)).astype(np.int64)
        self.deadline = units + 1

        total_w = float(capacity_w.sum()) + time_price_w
        self.watt = FLOW_UNITS / total_w if total_w > 0 else 1.0
        self.forced = int(time_price_w * self.watt)
        self.capacity: Ints = np.floor(capacity_w * self.watt).astype(np.int64)
        self.endless = int(self.capacity.sum()) + self.forced + 1
        self.capacity[self.first_arc] = self.endless

        starts = np.setdiff1d(np.arange(size), waves.edges[:, 1])
        ends = np.setdiff1d(np.arange(size), waves.edges[:, 0])
        self.links: Ints = np.concatenate(
            [
                np.stack([waves.edges[:, 0] + size, waves.edges[:, 1]], axis=1),
                np.stack([np.full(len(starts), self.source), starts], axis=1),
                np.stack([ends + size, np.full(len(ends), self.sink)], axis=1),
            ]
        )

    def maximise(self) -> _Flow:
        """Most length x flow. `forced` units pass for the time price, free of the deadline."""
        links = len(self.links)
        solver = min_cost_flow.SimpleMinCostFlow()
        arcs = solver.add_arcs_with_capacity_and_unit_cost(
            np.concatenate([self.arc_row, self.links[:, 0], [self.sink]]).astype(np.int32),
            np.concatenate([self.arc_row + self.size, self.links[:, 1], [self.source]]).astype(
                np.int32
            ),
            np.concatenate([self.capacity, np.full(links + 1, self.endless)]),
            np.concatenate([-self.length, np.zeros(links, dtype=np.int64), [self.deadline]]),
        )
        solver.set_node_supply(self.source, self.forced)
        solver.set_node_supply(self.sink, -self.forced)
        status = solver.solve()
        assert status == solver.OPTIMAL, f"min-cost flow ended as {status}"
        flows: Ints = np.asarray(solver.flows(arcs), dtype=np.int64)
        return _Flow(flows[: len(self.arc_row)], flows[len(self.arc_row) : -1], int(flows[-1]))

    def deadline_price_w(self, flow: _Flow) -> float:
        return max(0.0, (self.forced + flow.back) / self.watt - self.time_price_w)

    def bound_j(self, flow: _Flow) -> float:
        gained_j = float(np.dot(flow.arcs / self.watt, self.arc_s))
        charged_j = self.deadline_price_w(flow) * self.deadline_s
        cheapest_j = float(self.cheapest_j.sum())
        largest_j = float(np.abs(self.cheapest_j).sum()) + gained_j + charged_j
        return cheapest_j + gained_j - charged_j - ROUND_OFF * largest_j


class _Windows:
    """Optimal node times from an optimal flow, by complementary slackness.

    An operation lasts no longer than an arc with flow, no shorter than one with room left;
    a link with flow is tight. Those difference constraints have no positive cycle where the
    flow is optimal, so sweeps to and fro over the waves reach their least solution.
    """

    def __init__(self, waves: Waves, network: _Network, flow: _Flow) -> None:
        size = waves.size
        self._waves = waves
        room = np.where(flow.arcs < network.capacity, network.length, 0)
        used = np.where(flow.arcs > 0, network.length, FAR)
        self._shortest: Ints = np.maximum.reduceat(room, network.first_arc)
        self._longest: Ints = np.minimum.reduceat(used, network.first_arc)
        edges = len(waves.edges)
        self._tight = np.append(flow.links[:edges] > 0, False)
        carrying = network.links[edges:][flow.links[edges:] > 0]
        self._first = carrying[carrying[:, 0] == network.source, 1]
        self._last = carrying[carrying[:, 1] == network.sink, 0] - size
        self._end = network.deadline if flow.back > 0 else 0

    def schedules(self) -> tuple[Ints, Ints]:
        """The earliest and the latest, each (starts, ends), in length units."""
        early = self._least(self._waves, self._last)
        mirrored = self._least(self._waves.mirrored(), self._first)
        horizon = max(int(early[1].max()), self._end)
        return early, horizon - mirrored[::-1]

    def _least(self, waves: Waves, last: Ints) -> Ints:
        """The least starts and ends; rows in `last` end when the iteration does."""
        start, end = np.zeros((2, waves.size + 1), dtype=np.int64)
        for _ in range(SWEEPS_MAX):
            was = start.copy(), end.copy()
            for wave in waves.waves:
                rows = wave.rows
                start[rows] = np.maximum(start[rows], end[wave.before].max(axis=1))
                end[rows] = np.maximum(end[rows], start[rows] + self._shortest[rows])
            end[last] = max(int(end.max()), self._end)
            for wave in reversed(waves.waves):
                rows = wave.rows
                pulled = np.where(self._tight[wave.links_after], start[wave.after], 0)
                end[rows] = np.maximum(end[rows], pulled.max(axis=1))
                start[rows] = np.maximum(start[rows], end[rows] - self._longest[rows])
            if np.array_equal(was[0], start) and np.array_equal(was[1], end):
                break
        return np.stack([start[:-1], end[:-1]])
