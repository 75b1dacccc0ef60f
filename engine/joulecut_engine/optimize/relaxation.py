"""The relaxation: a lower bound on the energy of any plan, and the price of each second.

Where an operation may sit anywhere on its convex curve, the cheapest schedule within a deadline
is the dual of a maximum-cost circulation (Fulkerson 1961, Kelley 1961). A breakpoint ("knee") of
a curve is an arc whose capacity is the change of slope there; the way back from the end of the
iteration to its start has length -deadline. By weak duality any balanced flow within the
capacities proves a bound. The bound is evaluated from such a flow alone, so a method that stops
early makes it weaker, never wrong.

The method is Mehrotra's predictor-corrector (SIAM J. Optim. 2, 1992): 15-25 steps whatever the
size of the job. Each step solves one system in the start times. Ends are eliminated by hand, and
rows in order of time keep the matrix near its diagonal.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulecut_engine.optimize.activity_network import ActivityNetwork
from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Floats, Ints

TOLERANCE = 1e-8  # of the energy: ten times finer than bounds are compared at
ROUND_OFF = 1e-12  # of the largest term: float sums over 1e5 terms
# At the very fastest deadline no schedule has room on all sides. The flow is then sought for a
# deadline so much longer; its bound is evaluated at the true one.
ROOM_LEAST = 1e-9
# The first iterate, in shares of typical flows and hull widths.
BASE_SHARE, WIDTH_SHARE, PRODUCT_SHARE, SLACK_SHARE = 0.2, 0.3, 0.3, 0.1
ROOM_FILLER = 1e-20  # of typical capacities: knees that only pad the table
STEP_MIN, STEP_MAX = 0.95, 0.9995  # of the way to the nearest wall
STEPS_MAX = 120  # twice what any measured problem took
STALLED_MAX = 24  # steps without progress; at the fastest deadline twenty short ones may occur
TARGET_MIN = 0.01  # of the tolerance: nearer to the walls, round-off unbalances the flow
LACKING_MAX = 10.0  # of the tolerance: imbalance is counted as if it went all the way to the end
HELD = 1.0 + 4e-15  # on the diagonal: a pair bound together far tighter than to the rest stays put


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The relaxed optimum, by row.

    `bound_j` bounds sum c + time_price * T at `deadline_s` from below; `deadline_price_w` is how
    much it falls per second of deadline, `price_w[k]` what a second more for row k saves.
    These prices are a balanced flow of which at most `arrives_w` arrives at the end.
    `limits_s` are ends of an optimal relaxed schedule, which takes `iteration_s`.
    """

    bound_j: float
    deadline_s: float
    deadline_price_w: float
    price_w: Floats
    arrives_w: float
    limits_s: Floats
    iteration_s: float

    def bound_at_j(self, deadline_s: float) -> float:
        """The same flow bounds every other deadline too."""
        return self.bound_j + self.deadline_price_w * (self.deadline_s - deadline_s)

    def between(self, other: "Relaxation", deadline_s: float) -> tuple["Relaxation", float]:
        """Both mixed, for a deadline between that of `other` and this longer one, with the higher
        of their bounds; and how far below the optimum, as a share, this bound may be.

        Curves are convex, so a mixture of schedules costs no more than the line through both
        optima; a mixture of flows balances."""
        mine = (deadline_s - other.deadline_s) / (self.deadline_s - other.deadline_s)
        theirs = 1.0 - mine
        best = max(self, other, key=lambda one: one.bound_at_j(deadline_s))
        bound_j = best.bound_at_j(deadline_s)
        found = Relaxation(
            bound_j=bound_j,
            deadline_s=deadline_s,
            deadline_price_w=best.deadline_price_w,
            price_w=mine * self.price_w + theirs * other.price_w,
            arrives_w=mine * self.arrives_w + theirs * other.arrives_w,
            limits_s=mine * self.limits_s + theirs * other.limits_s,
            iteration_s=mine * self.iteration_s + theirs * other.iteration_s,
        )
        line_j = mine * self.bound_j + theirs * other.bound_j
        return found, (line_j - bound_j) / abs(bound_j)


class _Point(NamedTuple):
    """An iterate; products of a flow and what faces it tend to 0.

    At a knee of length d and a duration x: `flow` faces `under`, `spare` = room - flow faces
    `over`, and over - under = d - x; all are (knees, rows). Open arcs have no capacity: the
    fastest option of each row, then the links, then the way back. Their flow faces their slack.
    """

    start: Floats  # rows, then the end of the iteration
    end: Floats
    flow: Floats
    spare: Floats
    over: Floats
    under: Floats
    open_flow: Floats
    open_slack: Floats


class _Step(NamedTuple):
    """One linearised step. `theta`: how much a flow answers to its times; `constant`: how it
    changes if no time does."""

    theta: Floats
    constant: Floats
    open_theta: Floats
    open_constant: Floats
    own: Floats  # by row, of all its arcs together
    inverse: Floats
    lacks_start: Floats
    lacks_end: Floats


class Relaxer:
    """One activity network; `relax` answers one deadline after another, each from scratch."""

    def __init__(self, network: ActivityNetwork) -> None:
        self.network = network
        curves, rows = network.curves.distinct, network.size
        count = [len(curve.hull_s) - 1 for curve in curves]
        knee = np.ones((len(curves), max(1, *count)))
        room = np.full(knee.shape, ROOM_FILLER)
        for i, (curve, knees) in enumerate(zip(curves, count, strict=True)):
            knee[i] = curve.hull_s[-1] * network.second
            knee[i, :knees] = curve.hull_s[1:] * network.second
            room[i, :knees] = -np.diff(np.append(curve.saved_w, 0.0)) * network.watt
        self._knee = np.ascontiguousarray(knee[network.curve].T)
        self._room = np.ascontiguousarray(room[network.curve].T)
        self._top = self._room.sum(axis=0)
        self._most_saved = float((self._room * (self._knee - network.fastest)).sum())
        self._inner = network.leaves[rows]  # links of the start come last
        self._pairs = _pairs(network.tails[: self._inner])
        first, at = network.envelope.first, network.envelope.at
        tails, heads = network.tails[: self._inner], network.heads
        low, high = heads[self._pairs[0]], heads[self._pairs[1]]
        self._at = np.concatenate([at[heads[: self._inner]] + tails, at[high] + low])
        self._diagonal = at + np.arange(rows + 1)
        self._first, self._row_at, self._entries = first, at, network.envelope.size

    def relax(self, deadline_s: float, time_price_w: float) -> Relaxation:
        """Minimises sum c + time_price_w * T over relaxed schedules with T <= deadline_s.

        `deadline_s` is at least the fastest iteration time.
        """
        network = self.network
        deadline = max(deadline_s * network.second, 1.0 + ROOM_LEAST)
        price = time_price_w * network.watt
        # Costs beyond waiting may cancel; what is at stake cannot.
        plain = abs(network.cheapest_j) * network.joule + price * deadline
        scale, point = max(plain, self._most_saved), self._begin(deadline, price)
        if self._most_saved > 0.0:
            point = self._improved(point, deadline, price, TOLERANCE * scale)
        return self._read(point, deadline_s, time_price_w)

    def _begin(self, deadline: float, price: float) -> _Point:
        """A middle schedule stretched to the deadline, every flow half of its room. It need not
        balance, nor keep dependencies: only be far from every wall."""
        network, rows, top = self.network, self.network.size, self._top
        fast, slow = network.fastest, network.cheapest
        margin = 0.05 * (slow - fast)
        x = np.clip(fast * deadline, fast + margin, slow - margin)
        starts, rests = network.around(x)
        least = float((starts + x).max())
        middle = (starts + (least - rests)) / 2 / least
        start = np.append(middle * deadline, deadline)
        end = start[:-1] + x
        base = BASE_SHARE * float(top.mean()) + 1e-6
        link = self._split(top / 2 + base)
        back = max(float(link[network.heads == rows].sum()), 1.1 * price + 1e-3) - price
        open_flow = np.concatenate([np.full(rows, base), link, [back]])
        width = WIDTH_SHARE * float((slow - fast).mean()) + 1e-3 * float(fast.mean())
        product = PRODUCT_SHARE * (float(top.mean()) / 2 + base) * width
        span = self._spans(start, end, 1.0, deadline)
        span[-1] = width
        slack = np.maximum(span, PRODUCT_SHARE * product / open_flow)
        slack = np.maximum(slack, SLACK_SHARE * width)
        flow = self._room / 2
        short = self._knee - x
        both = (product / flow) ** 2
        larger = (np.sqrt(short * short + 4 * both) + np.abs(short)) / 2
        smaller = both / larger
        over, under = np.where(short > 0, (larger, smaller), (smaller, larger))
        return _Point(start, end, flow, flow.copy(), over, under, open_flow, slack)

    def _split(self, flow: Floats) -> Floats:
        """Flow on links: between what its tail would give and what its head would get."""
        network, rows = self.network, self.network.size
        given = flow / np.diff(network.leaves)
        taken = np.append(flow / np.diff(network.enters)[:rows], 0.0)
        given_to = np.where(network.tails >= 0, given[network.tails], taken[network.heads])
        taken_from = np.where(network.heads < rows, taken[network.heads], given_to)
        return (given_to + taken_from) / 2

    def _spans(self, start: Floats, end: Floats, lengths: float, deadline: float) -> Floats:
        """By open arc: time of its head - time of its tail - its length."""
        network = self.network
        own = end - start[:-1] - lengths * network.fastest
        after = np.append(end, 0.0)[network.tails]  # tail -1: the start of the iteration, at 0
        return np.concatenate([own, start[network.heads] - after, [lengths * deadline - start[-1]]])

    def _improved(self, point: _Point, deadline: float, price: float, tolerance: float) -> _Point:
        """Steps until the sum of all products is below `tolerance`, or no step helps."""
        pairs = 2 * point.flow.size + len(point.open_flow)
        best, stalled = np.inf, 0
        for _ in range(STEPS_MAX):
            lacks_start, lacks_end = self._imbalance(point, price)
            lacking = deadline * float(np.abs(lacks_start).sum() + np.abs(lacks_end).sum())
            left = float((point.flow * point.under).sum() + (point.spare * point.over).sum())
            left += float((point.open_flow * point.open_slack).sum())
            if left <= tolerance and lacking <= LACKING_MAX * tolerance:
                return point
            stalled = 0 if left + lacking < 0.9 * best else stalled + 1
            if stalled == STALLED_MAX:
                break
            best = min(best, left + lacking)
            point = self._advanced(point, deadline, left, tolerance, pairs, lacks_start, lacks_end)
        return point

    def _imbalance(self, point: _Point, price: float) -> tuple[Floats, Floats]:
        """What start and end of each row lack of a balanced flow."""
        network, rows = self.network, self.network.size
        link = point.open_flow[rows:-1]
        through = point.flow.sum(axis=0) + point.open_flow[:rows]
        income = np.bincount(network.heads, link, rows + 1)
        out = np.bincount(network.tails[: self._inner], link[: self._inner], rows)
        return np.append(through, price + point.open_flow[-1]) - income, out - through

    def _advanced(
        self,
        point: _Point,
        deadline: float,
        left: float,
        tolerance: float,
        pairs: int,
        lacks_start: Floats,
        lacks_end: Floats,
    ) -> _Point:
        """One predictor and one corrector with the same factors."""
        rows = self.network.size
        start, end, flow, spare, over, under, open_flow, open_slack = point
        span = self._spans(start, end, 1.0, deadline)
        knees, short = point[2:6], self._knee - (end - start[:-1])
        theta, moves = np.empty_like(flow), np.zeros((3, *flow.shape))
        _pull(knees, 0.0, moves, short, theta)
        per_slack = 1.0 / open_slack
        open_theta = open_flow * per_slack
        own = theta.sum(axis=0) + open_theta[:rows]
        out = np.bincount(self.network.tails[: self._inner], open_theta[rows:][: self._inner], rows)
        inverse = 1.0 / (own + out)
        constant, change = theta * short, -open_theta * span
        step = _Step(theta, constant, open_theta, change, own, inverse, lacks_start, lacks_end)
        matrix = self._factors(step)
        # Towards products of 0.
        d_start, d_end = self._direction(matrix, step)
        closes, drains = _moves(knees, theta, short, 0.0, moves, d_end - d_start[:-1])
        d_slack = self._spans(d_start, d_end, 0.0, 0.0) + span - open_slack
        d_open = -open_flow * (1.0 + d_slack * per_slack)
        near = _reach(1.0, closes, -d_slack * per_slack)
        far = _reach(1.0, drains, 1.0 + d_slack * per_slack)
        ahead = _ahead(knees, moves, near, far)
        ahead += float(((open_flow + far * d_open) * (open_slack + near * d_slack)).sum())
        target = max(left * (max(0.0, ahead) / left) ** 3, TARGET_MIN * tolerance) / pairs
        # Towards products of `target`, curvature included.
        _pull(knees, target, moves, short, theta)
        change = change + (target - d_open * d_slack) * per_slack
        step = step._replace(constant=theta * short, open_constant=change)
        d_start, d_end = self._direction(matrix, step)
        to = d_end - d_start[:-1]
        closes, drains = _moves(knees, theta, short, target, moves, to)
        d_span = self._spans(d_start, d_end, 0.0, 0.0)
        d_slack = d_span + span - open_slack
        d_open = change - open_theta * d_span
        near = _reach(1e-30, closes, -d_slack * per_slack)
        far = _reach(1e-30, drains, -d_open / open_flow)
        reach = min(STEP_MAX, max(STEP_MIN, 1.0 - left))
        near, far = min(1.0, reach * near), min(1.0, reach * far)
        d, du, dv = moves
        return _Point(
            start + near * d_start,
            end + near * d_end,
            flow + far * d,
            spare - far * d,
            over + near * du,
            under + near * dv,
            open_flow + far * d_open,
            open_slack + near * d_slack,
        )

    def _factors(self, step: _Step) -> Floats:
        """The system in start times, ends eliminated, and its Cholesky factors. An end ties its
        start and its successors to each other in pairs: sums of these alone, so nothing cancels."""
        network, rows = self.network, self.network.size
        theta, tails = step.open_theta[rows:-1], network.tails[: self._inner]
        share = theta[: self._inner] * step.inverse[tails]
        to_start, (one, other) = share * step.own[tails], self._pairs
        between = share[one] * theta[other]
        entries = -np.concatenate([to_start, between])
        matrix = np.bincount(self._at, entries, self._entries).astype(np.float64, copy=False)
        heads = network.heads
        diagonal = np.append(np.bincount(tails, to_start, rows), step.open_theta[-1])
        ties = np.concatenate([to_start, theta[self._inner :]])
        diagonal += np.bincount(heads, ties, rows + 1)
        diagonal += np.bincount(heads[one], between, rows + 1)
        diagonal += np.bincount(heads[other], between, rows + 1)
        matrix[self._diagonal] = diagonal * HELD
        _factorise(matrix, self._first, self._row_at)
        return matrix

    def _direction(self, matrix: Floats, step: _Step) -> tuple[Floats, Floats]:
        """Directions of all times: flows balance after the step."""
        network, rows = self.network, self.network.size
        tails, heads = network.tails[: self._inner], network.heads
        change, theta = step.open_constant[rows:-1], step.open_theta[rows:-1]
        constant = step.constant.sum(axis=0) + step.open_constant[:rows]
        give = constant - step.lacks_end - np.bincount(tails, change[: self._inner], rows)
        each = change.copy()
        each[: self._inner] += theta[: self._inner] * (give * step.inverse)[tails]
        value = np.bincount(heads, each, rows + 1) - step.lacks_start
        value[:rows] += step.own * step.inverse * give - constant
        value[rows] -= step.open_constant[-1]
        _substitute(matrix, self._first, self._row_at, value)
        onwards = (theta * value[heads])[: self._inner]
        give = give + step.own * value[:rows] + np.bincount(tails, onwards, rows)
        return value, give * step.inverse

    def _read(self, point: _Point, deadline_s: float, time_price_w: float) -> Relaxation:
        network, rows = self.network, self.network.size
        flow = np.clip(point.flow, 0.0, self._room)
        base = np.maximum(point.open_flow[:rows], 0.0)
        link = np.maximum(point.open_flow[rows:-1], 0.0)
        through, share = flow.sum(axis=0), np.ones(rows)
        arrives = _settle(network.heads, network.leaves, through, share, base, link)
        flow *= share
        back = max(0.0, arrives - time_price_w * network.watt)
        # Sums and not dot products: those wake other threads for less work than waking takes.
        gained = float((flow * self._knee).sum() + (base * network.fastest).sum())
        charged = back * deadline_s * network.second
        largest_j = abs(network.cheapest_j) + (gained + charged) / network.joule
        bound_j = network.cheapest_j + (gained - charged) / network.joule
        deadline_price_w = back / network.watt
        # Everything at its cheapest, in the least time: holds for every deadline, and is all there
        # is where nothing is to choose.
        simple_j = network.cheapest_j + time_price_w * network.fastest_s
        if simple_j >= bound_j:
            bound_j, deadline_price_w = simple_j, 0.0
        return Relaxation(
            bound_j=bound_j - ROUND_OFF * largest_j,
            deadline_s=deadline_s,
            deadline_price_w=deadline_price_w,
            price_w=(base + flow.sum(axis=0)) / network.watt,
            arrives_w=max(arrives / network.watt, time_price_w),
            limits_s=point.end / network.second,
            iteration_s=float(point.start[-1]) / network.second,
        )


def _reach(least: float, knees: float, links: Floats) -> float:
    """How much of a step is possible that uses up these shares of what is there."""
    return 1.0 / max(least, knees, float(links.max()))


_Knees = tuple[Floats, Floats, Floats, Floats]  # flow, spare, over and under, (knees, rows)
# As arrays one after another the loops below take three times as long.


@compiled
def _pull(knees: _Knees, target: float, moves: Floats, short: Floats, theta: Floats) -> None:
    """Writes how much the flow of each knee answers to its duration, and adds to what the knee is
    short of what products of `target` pull at it, curvature of the last moves included."""
    flow, spare, over, under = knees
    d, du, dv = moves
    for k in range(flow.shape[0]):
        for i in range(flow.shape[1]):
            one, other = flow[k, i], spare[k, i]
            theta[k, i] = one * other / (over[k, i] * one + under[k, i] * other)
            short[k, i] += (target - d[k, i] * dv[k, i]) / one
            short[k, i] -= (target + d[k, i] * du[k, i]) / other


@compiled
def _moves(
    knees: _Knees, theta: Floats, pull: Floats, target: float, moves: Floats, to: Floats
) -> tuple[float, float]:
    """Writes how flow, over and under change at each knee where durations change by `to`, in the
    place of the last such moves, and answers the largest shares that this uses up of over and
    under, and of flow and spare."""
    flow, spare, over, under = knees
    d, du, dv = moves
    closes, drains = 0.0, 0.0
    for k in range(flow.shape[0]):
        for i in range(flow.shape[1]):
            at_over, at_under = target + d[k, i] * du[k, i], target - d[k, i] * dv[k, i]
            moved = theta[k, i] * (pull[k, i] - to[i])
            above = (at_over + over[k, i] * moved) / spare[k, i]
            below = (at_under - under[k, i] * moved) / flow[k, i]
            closes = max(closes, 1.0 - above / over[k, i], 1.0 - below / under[k, i])
            drains = max(drains, -moved / flow[k, i], moved / spare[k, i])
            d[k, i], du[k, i], dv[k, i] = moved, above - over[k, i], below - under[k, i]
    return closes, drains


@compiled
def _ahead(knees: _Knees, moves: Floats, near: float, far: float) -> float:
    """The sum of the products of flows and what faces them after so much of a step."""
    flow, spare, over, under = knees
    d, du, dv = moves
    total = 0.0
    for k in range(flow.shape[0]):
        for i in range(flow.shape[1]):
            total += (flow[k, i] + far * d[k, i]) * (under[k, i] + near * dv[k, i])
            total += (spare[k, i] - far * d[k, i]) * (over[k, i] + near * du[k, i])
    return total


def _pairs(tails: Ints) -> tuple[Ints, Ints]:
    """All pairs of links with a common tail; links are sorted by it."""
    one, other = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for apart in range(1, len(tails)):
        found = np.flatnonzero(tails[apart:] == tails[:-apart])
        if not len(found):
            break
        one.append(found)
        other.append(found + apart)
    return np.concatenate(one), np.concatenate(other)


@compiled
def _factorise(matrix: Floats, first: Ints, at: Ints) -> None:
    """Cholesky in place on an envelope; the diagonal holds inverses. A pivot that vanishes (a
    node that nothing holds) is treated as fixed."""
    for i in range(len(first)):
        row = at[i]
        for j in range(first[i], i):
            other = at[j]
            left = matrix[row + j]
            for k in range(max(first[i], first[j]), j):
                left -= matrix[row + k] * matrix[other + k]
            matrix[row + j] = left * matrix[other + j]
        left = matrix[row + i]
        for k in range(first[i], i):
            left -= matrix[row + k] * matrix[row + k]
        matrix[row + i] = 1.0 / np.sqrt(left) if left > 1e-30 else 1e-15


@compiled
def _substitute(matrix: Floats, first: Ints, at: Ints, value: Floats) -> None:
    """Solves in place, after `_factorise`."""
    for i in range(len(first)):
        left = value[i]
        for k in range(first[i], i):
            left -= matrix[at[i] + k] * value[k]
        value[i] = left * matrix[at[i] + i]
    for i in range(len(first) - 1, -1, -1):
        value[i] *= matrix[at[i] + i]
        for k in range(first[i], i):
            value[k] -= matrix[at[i] + k] * value[i]


@compiled
def _settle(
    heads: Ints, leaves: Ints, through: Floats, share: Floats, base: Floats, link: Floats
) -> float:
    """Balances the flow exactly, in order of time. A row that gets more than flows through its
    knees sends the rest through its fastest option; one that gets less keeps a `share` of what
    flows through its knees. Returns what arrives at the end."""
    rows = len(base)
    income = np.zeros(rows + 1)
    for at in range(leaves[rows], len(link)):
        income[heads[at]] += link[at]
    for i in range(rows):
        base[i] = max(0.0, income[i] - through[i])
        if through[i] > income[i]:
            share[i] = income[i] / through[i]
        out = 0.0
        for at in range(leaves[i], leaves[i + 1]):
            out += link[at]
        for at in range(leaves[i], leaves[i + 1]):
            part = link[at] / out if out > 0.0 else 1.0 / (leaves[i + 1] - leaves[i])
            link[at] = income[i] * part
            income[heads[at]] += link[at]
    arrives: float = income[rows]
    return arrives
