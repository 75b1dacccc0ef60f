"""The relaxation: how little energy any plan can use, and what each second is worth.

Where an operation may sit anywhere on its convex curve, the cheapest schedule within a
deadline is the dual of a maximum-cost circulation (Fulkerson 1961, Kelley 1961). A
breakpoint d of a curve is an arc of length d whose capacity is the change of slope there;
the way back from end to start has length -deadline. By weak duality any balanced flow within
the capacities gives a bound: it is evaluated here from such a flow alone, whatever found it.
"""

from dataclasses import dataclass

import numpy as np

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.face import ends
from joulecut_engine.optimize.interior import (
    D_FLOW,
    FLOW,
    KNEE,
    KNEES,
    LANES,
    OVER,
    SPARE,
    SUMS,
    UNDER,
    Point,
    Shape,
    improve,
    work_of,
)
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import Network

TOLERANCE = 1e-8  # of the energy: ten times finer than bounds are compared at
ROUND_OFF = 1e-12  # of the largest term: what float sums over 1e5 terms can be off by
# At the very fastest deadline no schedule has room on all sides. The flow is then sought for a
# deadline so much longer; its bound is evaluated at the true one and loses nothing, unless some
# option is so near to the next that between the two deadlines another would be worth more.
ROOM_LEAST = 1e-9
# Where to begin, in shares of typical flows and hull widths: 15-25 steps whatever the job;
# each may be halved or doubled for one or two steps more.
BASE_SHARE, WIDTH_SHARE, PRODUCT_SHARE, SLACK_SHARE = 0.2, 0.3, 0.3, 0.1
# Of typical capacities, for knees that only fill up a block: their flow changes no digit.
ROOM_FILLER = 1e-20


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The relaxed optimum, by row.

    `bound_j` bounds sum c + time_price * T at `deadline_s` from below; `deadline_price_w` is
    how much it falls per second of deadline, `price_w[k]` what a second more for row k saves.
    `limits_s` are ends of optimal relaxed schedules, all of which take `iteration_s`; `steps`
    are of the method that found them. `link_w` is the flow by link that proves the bound; None
    where the bound needs none.
    """

    bound_j: float
    deadline_s: float
    deadline_price_w: float
    price_w: Floats
    limits_s: tuple[Floats, ...]
    iteration_s: float
    steps: int
    apart_ratio: float = 0.0  # of flow and schedule, of the energy; 0 where both are exact
    link_w: Floats | None = None

    def bound_at_j(self, deadline_s: float) -> float:
        """The same flow also bounds every other deadline (it is feasible there too)."""
        return self.bound_j + self.deadline_price_w * (self.deadline_s - deadline_s)


class Interior:
    """One problem; `relax` answers one deadline after another, each from scratch (a step of the
    method is cheap, and a neighbour's last iterate is too near the walls to begin from)."""

    def __init__(self, network: Network) -> None:
        self.network = network
        curves, rows = network.curves.distinct, network.size
        count = np.array([len(c.hull_s) - 1 for c in curves])
        # As many blocks per group as its first row has knees; those of the others are filled up
        # with knees of next to no capacity.
        row = np.argsort(-count[network.curve], kind="stable")
        ranks = count[network.curve[row[::LANES]]]
        group = np.concatenate([[0], np.cumsum(ranks)])
        rank = np.arange(group[-1]) - np.repeat(group[:-1], ranks)
        lane = np.arange(LANES)
        slot = np.repeat(np.arange(len(ranks)), ranks)[:, None] * LANES + lane
        self._owner = row[np.minimum(slot, rows - 1)]  # of a knee, by block and lane
        knee = np.zeros((len(curves), int(count.max())))
        room = np.full(knee.shape, ROOM_FILLER)
        for i, c in enumerate(curves):
            knee[i] = c.hull_s[-1] * network.second
            knee[i, : count[i]] = c.hull_s[1:] * network.second
            room[i, : count[i]] = -np.diff(np.append(c.saved_w, 0.0)) * network.watt
        curve = network.curve[self._owner]
        self._knee: Floats = knee[curve, rank[:, None]]
        self._room: Floats = room[curve, rank[:, None]]
        self._room[slot >= rows] = ROOM_FILLER
        place = np.empty(rows, dtype=np.int64)
        place[row] = np.arange(rows) // LANES * int(SUMS) + np.arange(rows) % LANES
        # Where the knees of each row lie, row after row.
        each = count[network.curve]
        self._knees_of: Ints = np.concatenate([[0], np.cumsum(each)])
        of_row = np.arange(self._knees_of[-1]) - np.repeat(self._knees_of[:-1], each)
        lane_of = np.empty(rows, dtype=np.int64)
        lane_of[row] = group[np.arange(rows) // LANES] * LANES + np.arange(rows) % LANES
        self._real: Ints = np.repeat(lane_of, each) + of_row * LANES
        self.shape = Shape(
            heads=network.heads.astype(np.uint64),
            tails=np.maximum(network.tails, 0).astype(np.uint64),
            leaves=network.leaves.astype(np.uint64),
            place=place.astype(np.uint64),
            group=group.astype(np.uint64),
            fastest=network.fastest,
            first=network.envelope.first.astype(np.uint64),
            at=network.envelope.at.astype(np.uint64),
        )
        self._work = work_of(self.shape, network.envelope.size)
        wider = knee[curve, rank[:, None]] - network.fastest[self._owner]
        self._most_saved = float((self._room * wider).ravel()[self._real].sum())
        self._top = np.bincount(self._owner.ravel(), self._room.ravel(), rows)
        self._state: Floats = np.zeros(len(self._room) * int(KNEES))
        self._field(KNEE)[:] = self._knee
        self.point: Point  # of the last answer

    def relax(self, deadline_s: float, time_price_w: float) -> Relaxation:
        """Minimises sum c + time_price_w * T over relaxed schedules with T <= deadline_s.

        `deadline_s` is at least the fastest iteration time.
        """
        network = self.network
        deadline = max(deadline_s * network.second, 1.0 + ROOM_LEAST)
        price = time_price_w * network.watt
        self.point = self._begin(deadline, price)
        # Costs beyond waiting may cancel; what is at stake cannot.
        plain = abs(network.cheapest_j) * network.joule + price * deadline
        scale = max(plain, self._most_saved)
        steps, apart = 0, 0.0
        if len(self._real) > 0:
            tolerance = TOLERANCE * scale
            steps, apart = improve(self.shape, self.point, self._work, deadline, price, tolerance)
        return self._read(deadline_s, time_price_w, steps, apart / scale if scale > 0 else 0.0)

    def _begin(self, deadline: float, price: float) -> Point:
        """A middle schedule stretched to the deadline, every flow half of what it may be. It
        need not balance, nor keep dependencies: only be far from every wall."""
        network, rows, top = self.network, self.network.size, self._top
        fast, slow = network.fastest, network.cheapest
        margin = 0.05 * (slow - fast)
        x = np.clip(fast * deadline, fast + margin, slow - margin)
        start = np.append(_middle(network.heads, network.leaves, x) * deadline, deadline)
        end = start[:-1] + x
        base = BASE_SHARE * float(top.mean()) + 1e-6
        link = self._split(top / 2 + base)
        back = max(float(link[network.heads == rows].sum()), 1.1 * price + 1e-3) - price
        open_flow = np.concatenate([np.full(rows, base), link, [back]])
        width = WIDTH_SHARE * float((slow - fast).mean()) + 1e-3 * float(fast.mean())
        product = PRODUCT_SHARE * (float(top.mean()) / 2 + base) * width
        after = np.where(network.tails >= 0, end[network.tails], 0.0)
        span = np.concatenate([x - fast, start[network.heads] - after, [width]])
        slack = np.maximum(span, PRODUCT_SHARE * product / open_flow)
        flow = self._room / 2
        short = self._knee - x[self._owner]
        both = (product / flow) ** 2
        larger = (np.sqrt(short * short + 4 * both) + np.abs(short)) / 2
        smaller = both / larger
        self._field(FLOW)[:] = self._field(SPARE)[:] = flow
        self._field(OVER)[:] = np.where(short > 0, larger, smaller)
        self._field(UNDER)[:] = np.where(short > 0, smaller, larger)
        self._state.reshape(-1, int(KNEES))[:, int(D_FLOW) :] = 0.0
        return Point(
            start=start,
            end=end,
            knees=self._state,
            open_flow=open_flow,
            open_slack=np.maximum(slack, SLACK_SHARE * width),
        )

    def _field(self, field: np.uint64) -> Floats:
        """(blocks, LANES) of what is kept for knees."""
        shape = (len(self._room), int(KNEES) // LANES, LANES)
        fields: Floats = self._state.reshape(shape)[:, int(field) // LANES]
        return fields

    def _ranges(self, room: Floats, knee: Floats) -> tuple[Floats, Floats]:
        """Shortest and longest durations by row: of a pair, what vanishes is the smaller."""
        flow, spare, over, under = (
            self._field(field).ravel()[self._real] for field in (FLOW, SPARE, OVER, UNDER)
        )
        used, left = flow / room > under / knee, spare / room > over / knee
        rows = self.network.size
        shortest, longest = self.network.fastest.copy(), np.full(rows, np.inf)
        row = np.flatnonzero(np.diff(self._knees_of))
        if len(row) > 0:
            begin = self._knees_of[row]
            least = np.maximum.reduceat(np.where(left, knee, 0.0), begin)
            shortest[row] = np.maximum(shortest[row], least)
            longest[row] = np.minimum.reduceat(np.where(used, knee, np.inf), begin)
        fast = self.point.open_flow[:rows] > self.point.open_slack[:rows]
        longest[fast] = self.network.fastest[fast]
        return shortest, np.maximum(longest, shortest)

    def _split(self, flow: Floats) -> Floats:
        """Flow on links: between what its tail would give and what its head would get."""
        network, rows = self.network, self.network.size
        given = flow / np.diff(network.leaves)
        taken = np.append(flow / np.diff(network.enters)[:rows], 0.0)
        given_to = np.where(network.tails >= 0, given[network.tails], taken[network.heads])
        taken_from = np.where(network.heads < rows, taken[network.heads], given_to)
        return (given_to + taken_from) / 2

    def _read(
        self, deadline_s: float, time_price_w: float, steps: int, apart_ratio: float
    ) -> Relaxation:
        network, rows, point, real = self.network, self.network.size, self.point, self._real
        room, knee = self._room.ravel()[real], self._knee.ravel()[real]
        owner = self._owner.ravel()[real]
        flow = np.clip(self._field(FLOW).ravel()[real], 0.0, room)
        base = np.maximum(point.open_flow[:rows], 0.0)
        link = np.maximum(point.open_flow[rows:-1], 0.0)
        arrives = _settle(self.shape, self._knees_of, flow, base, link)
        back = max(0.0, arrives - time_price_w * network.watt)
        early, late = ends(network, point, self._ranges(room, knee))
        # Sums and not dot products: those wake other threads for less work than waking takes.
        gained = float((flow * knee).sum() + (base * network.fastest).sum())
        charged = back * deadline_s * network.second
        largest_j = abs(network.cheapest_j) + (gained + charged) / network.joule
        bound_j = network.cheapest_j + (gained - charged) / network.joule
        deadline_price_w = back / network.watt
        # Everything at its cheapest, in the least time: all there is where nothing is to choose,
        # and there a method that keeps off the walls stops a millionth short of it.
        simple_j = network.cheapest_j + time_price_w * network.fastest_s
        simple = simple_j >= bound_j
        if simple:
            bound_j, deadline_price_w = simple_j, 0.0  # it holds for every deadline
        return Relaxation(
            bound_j=bound_j - ROUND_OFF * largest_j,
            deadline_s=deadline_s,
            deadline_price_w=deadline_price_w,
            price_w=(base + np.bincount(owner, flow, rows)) / network.watt,
            limits_s=(early / network.second, late / network.second, point.end / network.second),
            iteration_s=float(point.start[rows]) / network.second,
            steps=steps,
            apart_ratio=apart_ratio,
            link_w=None if simple else link / network.watt,
        )


@exact
def _middle(heads: Ints, leaves: Ints, x: Floats) -> Floats:
    """Starts half way between as early and as late as possible, in shares of the makespan."""
    rows = len(x)
    early, tail = np.zeros(rows + 1), np.zeros(rows + 1)
    for i in range(rows):
        for link in range(leaves[i], leaves[i + 1]):
            early[heads[link]] = max(early[heads[link]], early[i] + x[i])
    for i in range(rows - 1, -1, -1):
        for link in range(leaves[i], leaves[i + 1]):
            tail[i] = max(tail[i], tail[heads[link]])
        tail[i] += x[i]
    middle: Floats = (early[:rows] + early[rows] - tail[:rows]) / (2 * early[rows])
    return middle


@exact
def _settle(shape: Shape, knees: Ints, flow: Floats, base: Floats, link: Floats) -> float:
    """Balances the flow exactly, in time order: what an operation gets too much goes through
    its endless arc, what it gets too little is taken from its knees, which begin at
    `knees[i]`. Returns what arrives."""
    rows = len(base)
    income = np.zeros(rows + 1)
    for at in range(shape.leaves[rows], np.uint64(len(link))):
        income[shape.heads[at]] += link[at]
    for i in range(rows):
        through = flow[knees[i] : knees[i + 1]].sum()
        base[i] = max(0.0, income[i] - through)
        if through > income[i]:
            flow[knees[i] : knees[i + 1]] *= income[i] / through
        out = 0.0
        for at in range(shape.leaves[i], shape.leaves[i + 1]):
            out += link[at]
        for at in range(shape.leaves[i], shape.leaves[i + 1]):
            share = link[at] / out if out > 0.0 else 1.0 / (shape.leaves[i + 1] - shape.leaves[i])
            link[at] = income[i] * share
            income[shape.heads[at]] += link[at]
    arrives: float = income[rows]
    return arrives
