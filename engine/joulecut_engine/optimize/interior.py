"""An interior-point method that knows its network: one relaxed deadline in 15-25 steps.

Mehrotra's predictor-corrector (SIAM J. Optim. 2, 1992) on the relaxation's flow form. Unlike
a simplex walk its number of steps hardly depends on the size of the job, ties between
identical stages do not slow it down, and where many schedules are optimal it ends in the
middle of them, which is where rounding wants to start. Each step solves one system in the
start times; ends are eliminated by hand, so the envelope has one row per operation.

The flow stays balanced and within its capacities, so what it ends with is a lower bound
whenever it ends; start times need not respect dependencies until then.

Written for the compiler: what belongs to 32 operations lies together at constant distances, so
that a pass over breakpoints is one vector loop over memory read once (else each pair of arrays
is asked whether it overlaps), and indices are unsigned, since each signed one is asked whether
it counts from the end. Together that halves a step.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.compiled import loose
from joulecut_engine.optimize.levels import Floats

Marks = NDArray[np.uint64]

STEP_MIN, STEP_MAX = 0.95, 0.9995  # of the way to the nearest wall
STEPS_MAX = 120  # twice what any measured problem took
# Rounding has the last word then; the bound stays valid, only less sharp. At the fastest deadline
# twenty short steps may come before a long one.
STALLED_MAX = 24
# Of the tolerance, by which products may be: nearer to the walls, round-off unbalances the flow.
TARGET_MIN = 0.01
# Of the tolerance: what does not balance is counted as if it were wrong all the way to the end;
# balancing it costs a thousandth of that.
LACKING_MAX = 10.0
# Every start is held by a few round-offs of what pulls at it: a pair bound together a billion
# times tighter than to the rest would else go where round-off sends it.
HELD = 1.0 + 4e-15
LANES = 32  # operations side by side: fewer are unrolled before they are vectorised
Mark = np.uint64
ZERO, ONE, TWO, WIDE = Mark(0), Mark(1), Mark(2), Mark(LANES)


def _fields(count: int) -> list[np.uint64]:
    return [np.uint64(LANES * field) for field in range(count)]


FIELDS = 12
# Of breakpoints ("knees"), by block: where each field begins. SHORT = KNEE - X is kept: the
# compiler would else add X and DX first, which loses what matters where theta is large.
(FLOW, SPARE, OVER, UNDER, KNEE, SHORT, THETA, PER_SPARE, PER_FLOW, D_FLOW, D_OVER, D_UNDER) = (
    _fields(FIELDS)
)
KNEES = np.uint64(FIELDS * LANES)
# Of operations, by group: durations, how they change, and sums over their knees.
X, DX, FLOWS, THETAS, CONSTANTS, TARGETS = _fields(6)
SUMS = np.uint64(6 * LANES)
# What a pass gathers, by lane.
FALL, EBB, BY_FAR, BY_BOTH = _fields(4)
GATHERED = Mark(4 * LANES)


class Shape(NamedTuple):
    """What does not change with the deadline.

    Operations are kept in groups of LANES, row i at `place[i]`; blocks group[c] to group[c + 1]
    hold the knees of group c, one rank each. Open arcs have no capacity: the fastest option of
    each row, then the links, then the way back from the end to the start, as long as the
    deadline.
    """

    heads: Marks
    tails: Marks  # links of the start come last, and their tails are never asked for
    leaves: Marks
    place: Marks
    group: Marks
    fastest: Floats  # by row
    first: Marks
    at: Marks


class Point(NamedTuple):
    """An iterate; the products of flow and what faces it tend to 0.

    At a knee d and duration x: flow faces `under`, spare = room - flow faces `over`, and
    over - under = d - x. The flow of an open arc faces its slack.
    """

    start: Floats  # rows, then the end of the iteration
    end: Floats
    knees: Floats  # KNEES for each block
    open_flow: Floats
    open_slack: Floats


class Work(NamedTuple):
    """Scratch, allocated once. `d_` are directions."""

    groups: Floats  # SUMS for each group
    lanes: Floats
    open_theta: Floats  # how much an open arc's flow answers to its times
    open_constant: Floats
    open_d_flow: Floats
    open_d_slack: Floats
    per_slack: Floats
    span: Floats  # by open arc: head time - tail time - length
    d_span: Floats
    own: Floats  # by row, of all its arcs together: theta and constants
    constants: Floats
    inverse: Floats
    right: Floats
    d_end: Floats
    lacks_end: Floats
    d_start: Floats
    lacks_start: Floats  # what flows out of a start but not into it
    matrix: Floats


def work_of(shape: Shape, size: int) -> Work:
    n, a = len(shape.fastest), len(shape.fastest) + len(shape.heads) + 1
    groups = (len(shape.group) - 1) * int(SUMS)
    sizes = (groups, int(GATHERED)) + (a,) * 7 + (n,) * 6 + (n + 1, n + 1, size)
    return Work(*(np.zeros(s) for s in sizes))


@loose
def improve(
    shape: Shape, point: Point, work: Work, deadline: float, price: float, tolerance: float
) -> tuple[int, float]:
    """Steps until the sum of all products is below `tolerance`, or no step helps.

    Returns the number of steps and that sum, with what does not balance: flow and schedule
    are that far apart.
    """
    pairs = 2 * len(point.knees) // FIELDS + len(point.open_flow)
    left = _look(shape, point, work, 0.0, 0.0)
    lacking = deadline * _imbalance(shape, point, work, price)
    best, steps, stalled = left + lacking, 0, 0
    while steps < STEPS_MAX and stalled < STALLED_MAX:
        if left <= tolerance and lacking <= LACKING_MAX * tolerance:
            break
        steps += 1
        _spans(shape, point.start, point.end, 1.0, deadline, work.span)
        _answer(shape, point, work)
        _factor(shape, work)
        _direct(shape, work)
        ahead = _foresee(shape, point, work, left)
        target = max(left * (ahead / left) ** 3, TARGET_MIN * tolerance) / pairs
        _correct(shape, work, target)
        _direct(shape, work)
        near, far = _aim(shape, point, work, target)
        reach = min(STEP_MAX, max(STEP_MIN, 1.0 - left))
        near, far = min(1.0, reach * near), min(1.0, reach * far)
        _advance(point, work, near, far)
        left = _look(shape, point, work, near, far)
        lacking = deadline * _imbalance(shape, point, work, price)
        stalled = 0 if left + lacking < 0.9 * best else stalled + 1
        best = min(best, left + lacking)
    return steps, left + lacking


@loose
def _spans(
    shape: Shape, start: Floats, end: Floats, lengths: float, deadline: float, span: Floats
) -> None:
    n, m = np.uint64(len(shape.fastest)), np.uint64(len(shape.heads))
    for i in range(n):
        span[i] = end[i] - start[i] - lengths * shape.fastest[i]
    for link in range(shape.leaves[n]):
        span[n + link] = start[shape.heads[link]] - end[shape.tails[link]]
    for link in range(shape.leaves[n], m):
        span[n + link] = start[shape.heads[link]]
    span[n + m] = lengths * deadline - start[n]


@loose
def _look(shape: Shape, point: Point, work: Work, near: float, far: float) -> float:
    """Takes the last step at the knees; how much their flows answer to durations, and what
    changes them if no time does. Returns the sum of all products."""
    groups, knees, lanes = work.groups, point.knees, work.lanes
    _spread(shape, point.start, point.end, groups, X)
    lanes[:] = 0.0
    for c in range(np.uint64(len(shape.group)) - ONE):
        at = c * SUMS
        groups[at + FLOWS : at + SUMS] = 0.0
        for b in range(shape.group[c], shape.group[c + ONE]):
            k = b * KNEES
            for s in range(WIDE):
                f = knees[k + FLOW + s] + far * knees[k + D_FLOW + s]
                g = knees[k + SPARE + s] - far * knees[k + D_FLOW + s]
                u = knees[k + OVER + s] + near * knees[k + D_OVER + s]
                v = knees[k + UNDER + s] + near * knees[k + D_UNDER + s]
                both = u * f + v * g
                once = 1.0 / (f * g * both)  # one division instead of three
                theta = f * g * f * g * once
                short = knees[k + KNEE + s] - groups[at + X + s]
                knees[k + FLOW + s], knees[k + SPARE + s] = f, g
                knees[k + OVER + s], knees[k + UNDER + s] = u, v
                knees[k + SHORT + s], knees[k + THETA + s] = short, theta
                knees[k + PER_SPARE + s] = f * both * once
                knees[k + PER_FLOW + s] = g * both * once
                groups[at + FLOWS + s] += f
                groups[at + THETAS + s] += theta
                groups[at + CONSTANTS + s] += theta * short
                lanes[s] += f * v + g * u
    left: float = lanes.sum()
    for a in range(len(point.open_flow)):
        left += point.open_flow[a] * point.open_slack[a]
    return left


@loose
def _spread(shape: Shape, start: Floats, end: Floats, groups: Floats, field: np.uint64) -> None:
    for i in range(np.uint64(len(end))):
        groups[shape.place[i] + field] = end[i] - start[i]


@loose
def _gather(shape: Shape, groups: Floats, field: np.uint64, arcs: Floats, by_row: Floats) -> None:
    """Sums over knees, with what the row's open arc adds."""
    for i in range(np.uint64(len(shape.fastest))):
        by_row[i] = groups[shape.place[i] + field] + arcs[i]


@loose
def _imbalance(shape: Shape, point: Point, work: Work, price: float) -> float:
    """What each node lacks, and the sum of that."""
    n, m = np.uint64(len(shape.fastest)), np.uint64(len(shape.heads))
    start, end, flow = work.lacks_start, work.lacks_end, point.open_flow
    _gather(shape, work.groups, FLOWS, flow, start)
    start[n] = price + flow[n + m]
    total: float = 0.0
    for i in range(n):
        out = 0.0
        for link in range(shape.leaves[i], shape.leaves[i + ONE]):
            out += flow[n + link]
        end[i] = out - start[i]
        total += abs(end[i])
    for link in range(m):
        start[shape.heads[link]] -= flow[n + link]
    for i in range(n + ONE):
        total += abs(start[i])
    return total


@loose
def _answer(shape: Shape, point: Point, work: Work) -> None:
    """How much open arcs and whole rows answer, and what changes them if no time does."""
    for a in range(len(point.open_flow)):
        work.per_slack[a] = 1.0 / point.open_slack[a]
        work.open_theta[a] = point.open_flow[a] * work.per_slack[a]
    for a in range(len(point.open_flow)):
        work.open_constant[a] = -work.open_theta[a] * work.span[a]
    _gather(shape, work.groups, THETAS, work.open_theta, work.own)
    _gather(shape, work.groups, CONSTANTS, work.open_constant, work.constants)


@loose
def _factor(shape: Shape, work: Work) -> None:
    """The system in start times, ends eliminated, and its factors. An end ties its start and
    its successors to each other in pairs: sums of these alone, so nothing cancels."""
    n, m = np.uint64(len(shape.fastest)), np.uint64(len(shape.heads))
    matrix, at, theta = work.matrix, shape.at, work.open_theta
    matrix[:] = 0.0
    for i in range(n):
        total = work.own[i]
        for link in range(shape.leaves[i], shape.leaves[i + ONE]):
            total += theta[n + link]
        work.inverse[i] = 1.0 / total
        ties = 0.0
        for link in range(shape.leaves[i], shape.leaves[i + ONE]):
            j = shape.heads[link]
            share = theta[n + link] * work.inverse[i]
            tie = share * work.own[i]
            matrix[at[j] + i] -= tie
            ties += tie
            for other in range(shape.leaves[i], link):
                o = shape.heads[other]  # before j: links are sorted
                more = share * theta[n + other]
                matrix[at[j] + o] -= more
                matrix[at[o] + o] += more
                tie += more
            matrix[at[j] + j] += tie
        matrix[at[i] + i] += ties
    for link in range(shape.leaves[n], m):
        j = shape.heads[link]
        matrix[at[j] + j] += theta[n + link]
    matrix[at[n] + n] += theta[n + m]
    _factorise(matrix, shape.first, at)


@loose
def _direct(shape: Shape, work: Work) -> None:
    """Directions of all times: flows must balance after the step."""
    n, m = np.uint64(len(shape.fastest)), np.uint64(len(shape.heads))
    change, theta, value = work.open_constant, work.open_theta, work.d_start
    for i in range(n):
        give = work.constants[i] - work.lacks_end[i]
        for link in range(shape.leaves[i], shape.leaves[i + ONE]):
            give -= change[n + link]
        work.right[i] = give
        value[i] = work.own[i] * work.inverse[i] * give - work.lacks_start[i] - work.constants[i]
    value[n] = -work.lacks_start[n] - change[n + m]
    for i in range(n):
        give = work.right[i] * work.inverse[i]
        for link in range(shape.leaves[i], shape.leaves[i + ONE]):
            value[shape.heads[link]] += change[n + link] + theta[n + link] * give
    for link in range(shape.leaves[n], m):
        value[shape.heads[link]] += change[n + link]
    _substitute(work.matrix, shape.first, shape.at, value)
    for i in range(n):
        give = work.right[i] + work.own[i] * value[i]
        for link in range(shape.leaves[i], shape.leaves[i + ONE]):
            give += theta[n + link] * value[shape.heads[link]]
        work.d_end[i] = give * work.inverse[i]


@loose
def _foresee(shape: Shape, point: Point, work: Work, left: float) -> float:
    """The sum of all products after a step towards none, and what curvature would add to the
    constants. A pair's two relative changes add up to -1, which saves divisions."""
    groups, knees, lanes = work.groups, point.knees, work.lanes
    _spans(shape, work.d_start, work.d_end, 0.0, 0.0, work.d_span)
    _spread(shape, work.d_start, work.d_end, groups, DX)
    lanes[:] = 0.0
    for c in range(np.uint64(len(shape.group)) - ONE):
        at = c * SUMS
        groups[at + CONSTANTS : at + SUMS] = 0.0
        for b in range(shape.group[c], shape.group[c + ONE]):
            k = b * KNEES
            for s in range(WIDE):
                u, v = knees[k + OVER + s], knees[k + UNDER + s]
                p, q = knees[k + PER_SPARE + s], knees[k + PER_FLOW + s]
                short, theta = knees[k + SHORT + s], knees[k + THETA + s]
                d = theta * (short - groups[at + DX + s])
                du, dv = u * (d * p - 1.0), -v * (d * q + 1.0)
                knees[k + D_FLOW + s] = d
                lanes[FALL + s] = max(lanes[FALL + s], -d * p, d * q)
                lanes[EBB + s] = max(lanes[EBB + s], d * p, -d * q)
                lanes[BY_FAR + s] += d * (v - u)
                lanes[BY_BOTH + s] += d * (dv - du)
                groups[at + CONSTANTS + s] += theta * (short - d * (du * p + dv * q))
                groups[at + TARGETS + s] += theta * (q - p)
    fall, ebb = 1.0 + lanes[FALL:EBB].max(), lanes[EBB:BY_FAR].max()
    for a in range(len(point.open_flow)):
        d_slack = work.d_span[a] + work.span[a] - point.open_slack[a]
        work.open_d_slack[a] = d_slack
        fall = max(fall, -d_slack * work.per_slack[a])
        ebb = max(ebb, 1.0 + d_slack * work.per_slack[a])
    by_far, by_both = lanes[BY_FAR:BY_BOTH].sum(), lanes[BY_BOTH:].sum()
    for a in range(len(point.open_flow)):
        d_slack, per_slack = work.open_d_slack[a], work.per_slack[a]
        d_flow = -point.open_flow[a] * (1.0 + d_slack * per_slack)
        by_far += d_flow * point.open_slack[a]
        by_both += d_flow * d_slack
        work.open_constant[a] = -work.open_theta[a] * work.span[a] - d_flow * d_slack * per_slack
    near, far = min(1.0, 1.0 / fall), min(1.0, 1.0 / max(ebb, 1e-30))
    ahead: float = left - near * (left + by_far) + far * by_far + near * far * by_both
    return max(0.0, ahead)


@loose
def _correct(shape: Shape, work: Work, target: float) -> None:
    """Constants for products that become `target`, curvature included."""
    for a in range(len(work.per_slack)):
        work.open_constant[a] += target * work.per_slack[a]
    _gather(shape, work.groups, CONSTANTS, work.open_constant, work.constants)
    for i in range(np.uint64(len(work.constants))):
        work.constants[i] += target * work.groups[shape.place[i] + TARGETS]


@loose
def _aim(shape: Shape, point: Point, work: Work, target: float) -> tuple[float, float]:
    """The direction in which all products become `target`, and how far slacks and flows can
    follow it before one of them is 0."""
    groups, knees, lanes = work.groups, point.knees, work.lanes
    _spans(shape, work.d_start, work.d_end, 0.0, 0.0, work.d_span)
    _spread(shape, work.d_start, work.d_end, groups, DX)
    lanes[:] = 1e-30
    for c in range(np.uint64(len(shape.group)) - ONE):
        at = c * SUMS
        for b in range(shape.group[c], shape.group[c + ONE]):
            k = b * KNEES
            for s in range(WIDE):
                u, v = knees[k + OVER + s], knees[k + UNDER + s]
                p, q = knees[k + PER_SPARE + s], knees[k + PER_FLOW + s]
                d = knees[k + D_FLOW + s]
                over = target + d * u * (d * p - 1.0)
                under = target + d * v * (d * q + 1.0)
                pull = knees[k + SHORT + s] - groups[at + DX + s]
                d = knees[k + THETA + s] * (pull + under * q - over * p)
                du, dv = (over + u * d) * p - u, (under - v * d) * q - v
                knees[k + D_FLOW + s] = d
                knees[k + D_OVER + s], knees[k + D_UNDER + s] = du, dv
                lanes[FALL + s] = max(lanes[FALL + s], max(-du * v, -dv * u) / (u * v))
                lanes[EBB + s] = max(lanes[EBB + s], d * p, -d * q)
    fall, ebb = lanes[FALL:EBB].max(), lanes[EBB:BY_FAR].max()
    for a in range(len(point.open_flow)):
        d_slack = work.d_span[a] + work.span[a] - point.open_slack[a]
        work.open_d_slack[a] = d_slack
        fall = max(fall, -d_slack * work.per_slack[a])
    for a in range(len(point.open_flow)):
        d_flow = work.open_constant[a] - work.open_theta[a] * work.d_span[a]
        work.open_d_flow[a] = d_flow
        ebb = max(ebb, -d_flow / point.open_flow[a])
    return 1.0 / fall, 1.0 / ebb


@loose
def _advance(point: Point, work: Work, near: float, far: float) -> None:
    """All but the knees: these step when they are looked at next."""
    for i in range(len(point.end)):
        point.start[i] += near * work.d_start[i]
        point.end[i] += near * work.d_end[i]
    point.start[-1] += near * work.d_start[-1]
    for a in range(len(point.open_flow)):
        point.open_flow[a] += far * work.open_d_flow[a]
        point.open_slack[a] += near * work.open_d_slack[a]


@loose
def _factorise(matrix: Floats, first: Marks, at: Marks) -> None:
    """Cholesky in place, two rows at a time, so that one need not wait for the other; the
    diagonal holds inverses."""
    size, i = np.uint64(len(first)), ZERO
    while i + ONE < size:
        a, b = at[i], at[i + ONE]
        first_a, first_b = first[i], first[i + ONE]
        common = min(max(first_a, first_b), i)
        for j in range(first_a, common):
            _entry(matrix, first, at, a, first_a, Mark(j))
        for j in range(first_b, common):
            _entry(matrix, first, at, b, first_b, Mark(j))
        for j in range(common, i):
            other, begin = at[j], max(common, first[j])
            left_a, left_b = matrix[a + j], matrix[b + j]
            for k in range(begin, j):
                left_a -= matrix[a + k] * matrix[other + k]
                left_b -= matrix[b + k] * matrix[other + k]
            for k in range(max(first_a, first[j]), begin):
                left_a -= matrix[a + k] * matrix[other + k]
            for k in range(max(first_b, first[j]), begin):
                left_b -= matrix[b + k] * matrix[other + k]
            matrix[a + j], matrix[b + j] = left_a * matrix[other + j], left_b * matrix[other + j]
        _pivot(matrix, a, first_a, i)
        if first_b <= i:
            _entry(matrix, first, at, b, first_b, i)
        _pivot(matrix, b, first_b, i + ONE)
        i += TWO
    if i < size:
        for j in range(first[i], i):
            _entry(matrix, first, at, at[i], first[i], Mark(j))
        _pivot(matrix, at[i], first[i], i)


@loose
def _entry(matrix: Floats, first: Marks, at: Marks, row: Mark, begin: Mark, j: Mark) -> None:
    """Column j of a row whose columns from `begin` on are there."""
    other = at[j]
    left = matrix[row + j]
    for k in range(max(begin, first[j]), j):
        left -= matrix[row + k] * matrix[other + k]
    matrix[row + j] = left * matrix[other + j]


@loose
def _pivot(matrix: Floats, row: Mark, begin: Mark, i: Mark) -> None:
    """One that vanishes (a node nothing holds, by rounding) is treated as fixed."""
    left = matrix[row + i] * HELD
    for k in range(begin, i):
        left -= matrix[row + k] * matrix[row + k]
    matrix[row + i] = 1.0 / np.sqrt(left) if left > 1e-30 else 1e-15


@loose
def _substitute(matrix: Floats, first: Marks, at: Marks, value: Floats) -> None:
    """Solves in place, after `_factorise`."""
    size = np.uint64(len(first))
    for i in range(size):
        row = at[i]
        left = value[i]
        for k in range(first[i], i):
            left -= matrix[row + k] * value[k]
        value[i] = left * matrix[row + i]
    for below in range(size):
        j = size - ONE - below
        row = at[j]
        found = value[j] * matrix[row + j]
        value[j] = found
        for k in range(first[j], j):
            value[k] -= matrix[row + k] * found
