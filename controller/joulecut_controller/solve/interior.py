"""An interior-point method that knows its network: one relaxed deadline in 15-25 steps.

Mehrotra's predictor-corrector (SIAM J. Optim. 2, 1992) on the relaxation's flow form. Unlike
a simplex walk its number of steps hardly depends on the size of the job, ties between
identical stages do not slow it down, and where many schedules are optimal it ends in the
middle of them, which is where rounding wants to start. Each step solves one system in the
start times; ends are eliminated by hand, so the envelope has one row per operation.

The flow stays balanced and within its capacities, so what it ends with is a lower bound
whenever it ends; start times need not respect dependencies until then.
"""

from typing import NamedTuple

import numpy as np

from joulecut_controller.solve.compiled import loose
from joulecut_controller.solve.waves import Floats, Ints

STEP_MIN, STEP_MAX = 0.9, 0.9995  # of the way to the nearest wall
STEPS_MAX = 80  # three times what any measured problem took
STALLED_MAX = 6  # rounding has the last word then; the bound stays valid, only less sharp


class Shape(NamedTuple):
    """What does not change with the deadline.

    Breakpoints ("knees") are kept rank by rank: rank r of the operations in slots 0 to
    `slots[r]` is at `base[r] + slot`, so that each pass is a few long loops without indices.
    Open arcs have no capacity: the fastest option of each row, then the links, then the
    way back from the end to the start, as long as the deadline.
    """

    tails: Ints
    heads: Ints
    leaves: Ints
    row: Ints  # by slot
    base: Ints
    slots: Ints
    knee: Floats  # breakpoint times
    room: Floats  # capacities: how much the slope changes there
    fastest: Floats  # by row
    first: Ints
    at: Ints


class Point(NamedTuple):
    """An iterate; the products of flow and what faces it tend to 0.

    At a knee d and duration x: flow faces `under`, spare = room - flow faces `over`, and
    over - under = d - x. The flow of an open arc faces its slack.
    """

    start: Floats  # rows, then the end of the iteration
    end: Floats
    flow: Floats
    spare: Floats
    over: Floats
    under: Floats
    open_flow: Floats
    open_slack: Floats


class Work(NamedTuple):
    """Scratch, allocated once per call. `d_` are directions, `c_` second-order products."""

    theta: Floats  # how much a knee's flow answers to its duration
    per_flow: Floats
    per_spare: Floats
    constant: Floats
    d_flow: Floats
    d_over: Floats
    d_under: Floats
    c_flow: Floats
    c_spare: Floats
    open_theta: Floats
    open_constant: Floats
    open_d_flow: Floats
    open_d_slack: Floats
    open_c: Floats
    span: Floats  # by open arc: head time - tail time - length
    d_span: Floats
    x: Floats  # durations by slot
    dx: Floats
    by_slot: Floats
    own: Floats  # by row, of all its arcs together: theta and constants
    constants: Floats
    inverse: Floats
    right: Floats
    d_end: Floats
    d_start: Floats
    lacks_start: Floats  # what flows out of a start but not into it
    lacks_end: Floats
    matrix: Floats


def work_of(shape: Shape, size: int) -> Work:
    k, n, a = len(shape.knee), len(shape.fastest), len(shape.fastest) + len(shape.heads) + 1
    sizes = (k,) * 9 + (a,) * 7 + (n,) * 8 + (n + 1, n + 1, n, size)
    return Work(*(np.zeros(s) for s in sizes))


@loose
def improve(
    shape: Shape, point: Point, work: Work, deadline: float, price: float, tolerance: float
) -> tuple[int, float]:
    """Steps until the sum of all products is below `tolerance`, or no step helps.

    Returns the number of steps and that sum, with what does not balance: flow and schedule
    are that far apart.
    """
    pairs = 2 * len(shape.knee) + len(point.open_flow)
    left = _balance(shape, point, work, price)
    now = best = left + deadline * _imbalance(work)
    steps, stalled = 0, 0
    while best > tolerance and steps < STEPS_MAX and stalled < STALLED_MAX:
        steps += 1
        _spans(shape, point.start, point.end, 1.0, deadline, work.span)
        _conduct(shape, point, work)
        _factor(shape, work)
        work.c_flow[:] = 0.0
        work.c_spare[:] = 0.0
        work.open_c[:] = 0.0
        near, far = _move(shape, point, work, 0.0)
        ahead = _products(point, work, min(1.0, near), min(1.0, far))
        near, far = _move(shape, point, work, left / pairs * (ahead / left) ** 3)
        reach = min(STEP_MAX, max(STEP_MIN, 1.0 - left))
        _advance(point, work, min(1.0, reach * near), min(1.0, reach * far))
        left = _balance(shape, point, work, price)
        now = left + deadline * _imbalance(work)
        stalled = 0 if now < 0.9 * best else stalled + 1
        best = min(best, now)
    return steps, now


@loose
def _spans(
    shape: Shape, start: Floats, end: Floats, lengths: float, deadline: float, span: Floats
) -> None:
    n, m = len(shape.fastest), len(shape.heads)
    for i in range(n):
        span[i] = end[i] - start[i] - lengths * shape.fastest[i]
    for link in range(shape.leaves[n]):
        span[n + link] = start[shape.heads[link]] - end[shape.tails[link]]
    for link in range(shape.leaves[n], m):
        span[n + link] = start[shape.heads[link]]
    span[n + m] = lengths * deadline - start[n]


@loose
def _balance(shape: Shape, point: Point, work: Work, price: float) -> float:
    """Durations, what each node lacks, and the sum of all products."""
    n, m = len(shape.fastest), len(shape.heads)
    for s in range(n):
        i = shape.row[s]
        work.x[s] = point.end[i] - point.start[i]
        work.by_slot[s] = point.open_flow[i]
    left: float = 0.0
    for r in range(len(shape.slots)):
        b = shape.base[r]
        for s in range(shape.slots[r]):
            f = point.flow[b + s]
            work.by_slot[s] += f
            left += f * point.under[b + s] + point.spare[b + s] * point.over[b + s]
    for s in range(n):
        work.lacks_start[shape.row[s]] = work.by_slot[s]
    work.lacks_start[n] = price + point.open_flow[n + m]
    for i in range(n):
        out = 0.0
        for link in range(shape.leaves[i], shape.leaves[i + 1]):
            out += point.open_flow[n + link]
        work.lacks_end[i] = out - work.lacks_start[i]
    for link in range(m):
        work.lacks_start[shape.heads[link]] -= point.open_flow[n + link]
    for a in range(n + m + 1):
        left += point.open_flow[a] * point.open_slack[a]
    return left


@loose
def _imbalance(work: Work) -> float:
    total: float = abs(work.lacks_start[-1])
    for i in range(len(work.lacks_end)):
        total += abs(work.lacks_end[i]) + abs(work.lacks_start[i])
    return total


@loose
def _conduct(shape: Shape, point: Point, work: Work) -> None:
    """How much each arc's flow answers to a change of its times."""
    work.by_slot[:] = 0.0
    for r in range(len(shape.slots)):
        b = shape.base[r]
        for s in range(shape.slots[r]):
            k = b + s
            f, g = point.flow[k], point.spare[k]
            work.per_flow[k] = 1.0 / f
            work.per_spare[k] = 1.0 / g
            theta = f * g / (point.over[k] * f + point.under[k] * g)
            work.theta[k] = theta
            work.by_slot[s] += theta
    for a in range(len(point.open_flow)):
        work.open_theta[a] = point.open_flow[a] / point.open_slack[a]
    for s in range(len(shape.fastest)):
        i = shape.row[s]
        work.own[i] = work.by_slot[s] + work.open_theta[i]


@loose
def _factor(shape: Shape, work: Work) -> None:
    """The system in start times, ends eliminated, and its factors."""
    n, matrix, at, theta = len(shape.fastest), work.matrix, shape.at, work.open_theta
    matrix[:] = 0.0
    for i in range(n):
        total = work.own[i]
        for link in range(shape.leaves[i], shape.leaves[i + 1]):
            total += theta[n + link]
        work.inverse[i] = 1.0 / total
        matrix[at[i] + i] += work.own[i] * (total - work.own[i]) / total
        for link in range(shape.leaves[i], shape.leaves[i + 1]):
            j = shape.heads[link]
            share = theta[n + link] / total
            matrix[at[j] + j] += share * (total - theta[n + link])
            matrix[at[j] + i] -= share * work.own[i]
            for other in range(shape.leaves[i], link):
                o = shape.heads[other]
                matrix[at[max(o, j)] + min(o, j)] -= share * theta[n + other]
    for link in range(shape.leaves[n], len(shape.heads)):
        j = shape.heads[link]
        matrix[at[j] + j] += theta[n + link]
    matrix[at[n] + n] += theta[n + len(shape.heads)]
    _factorise(matrix, shape.first, at)


@loose
def _move(shape: Shape, point: Point, work: Work, target: float) -> tuple[float, float]:
    """The direction in which all products become `target`, and how far slacks and flows can
    follow it before one of them is 0."""
    _constants(shape, point, work, target)
    _direct(shape, work)
    _spans(shape, work.d_start, work.d_end, 0.0, 0.0, work.d_span)
    for s in range(len(shape.fastest)):
        work.dx[s] = work.d_span[shape.row[s]]
    fall, ebb = 1e-30, 1e-30
    for a in range(len(point.open_flow)):
        d_slack = work.d_span[a] + work.span[a] - point.open_slack[a]
        d_flow = work.open_constant[a] - work.open_theta[a] * work.d_span[a]
        work.open_d_slack[a] = d_slack
        work.open_d_flow[a] = d_flow
        fall = max(fall, -d_slack / point.open_slack[a])
        ebb = max(ebb, -d_flow / point.open_flow[a])
    for r in range(len(shape.slots)):
        b = shape.base[r]
        for s in range(shape.slots[r]):
            k = b + s
            u, v = point.over[k], point.under[k]
            d = work.constant[k] - work.theta[k] * work.dx[s]
            p, q = work.per_spare[k], work.per_flow[k]
            du = (target - work.c_spare[k] + u * d) * p - u
            dv = (target - work.c_flow[k] - v * d) * q - v
            work.d_flow[k], work.d_over[k], work.d_under[k] = d, du, dv
            fall = max(fall, -du / u, -dv / v)
            ebb = max(ebb, d * p, -d * q)
    return 1.0 / fall, 1.0 / ebb


@loose
def _constants(shape: Shape, point: Point, work: Work, target: float) -> None:
    """How much each arc's flow would change if no time did."""
    work.by_slot[:] = 0.0
    for r in range(len(shape.slots)):
        b = shape.base[r]
        for s in range(shape.slots[r]):
            k = b + s
            p, q = work.per_spare[k], work.per_flow[k]
            pull = shape.knee[k] - work.x[s] + target * (q - p)
            constant = work.theta[k] * (pull + work.c_spare[k] * p - work.c_flow[k] * q)
            work.constant[k] = constant
            work.by_slot[s] += constant
    for a in range(len(point.open_flow)):
        wish = (target - work.open_c[a]) / point.open_slack[a]
        work.open_constant[a] = wish - work.open_theta[a] * work.span[a]
    for s in range(len(shape.fastest)):
        i = shape.row[s]
        work.constants[i] = work.by_slot[s] + work.open_constant[i]


@loose
def _direct(shape: Shape, work: Work) -> None:
    """Directions of all times: flows must balance after the step."""
    n, m = len(shape.fastest), len(shape.heads)
    change, theta, value = work.open_constant, work.open_theta, work.d_start
    for i in range(n):
        give = work.constants[i] - work.lacks_end[i]
        for link in range(shape.leaves[i], shape.leaves[i + 1]):
            give -= change[n + link]
        work.right[i] = give
        value[i] = work.own[i] * work.inverse[i] * give - work.lacks_start[i] - work.constants[i]
    value[n] = -work.lacks_start[n] - change[n + m]
    for i in range(n):
        give = work.right[i] * work.inverse[i]
        for link in range(shape.leaves[i], shape.leaves[i + 1]):
            value[shape.heads[link]] += change[n + link] + theta[n + link] * give
    for link in range(shape.leaves[n], m):
        value[shape.heads[link]] += change[n + link]
    _substitute(work.matrix, shape.first, shape.at, value)
    for i in range(n):
        give = work.right[i] + work.own[i] * value[i]
        for link in range(shape.leaves[i], shape.leaves[i + 1]):
            give += theta[n + link] * value[shape.heads[link]]
        work.d_end[i] = give * work.inverse[i]


@loose
def _products(point: Point, work: Work, near: float, far: float) -> float:
    """The sum of all products after a step, and what curvature would add to each."""
    total = 0.0
    for k in range(len(point.flow)):
        d, du, dv = work.d_flow[k], work.d_over[k], work.d_under[k]
        total += (point.flow[k] + far * d) * (point.under[k] + near * dv)
        total += (point.spare[k] - far * d) * (point.over[k] + near * du)
        work.c_flow[k] = d * dv
        work.c_spare[k] = -d * du
    for a in range(len(point.open_flow)):
        d, dz = work.open_d_flow[a], work.open_d_slack[a]
        total += (point.open_flow[a] + far * d) * (point.open_slack[a] + near * dz)
        work.open_c[a] = d * dz
    return total


@loose
def _advance(point: Point, work: Work, near: float, far: float) -> None:
    for i in range(len(point.end)):
        point.start[i] += near * work.d_start[i]
        point.end[i] += near * work.d_end[i]
    point.start[-1] += near * work.d_start[-1]
    for k in range(len(point.flow)):
        point.flow[k] += far * work.d_flow[k]
        point.spare[k] -= far * work.d_flow[k]
        point.over[k] += near * work.d_over[k]
        point.under[k] += near * work.d_under[k]
    for a in range(len(point.open_flow)):
        point.open_flow[a] += far * work.open_d_flow[a]
        point.open_slack[a] += near * work.open_d_slack[a]


@loose
def _factorise(matrix: Floats, first: Ints, at: Ints) -> None:
    """Cholesky in place; the diagonal holds inverses. A pivot that vanishes (a node nothing
    holds, by rounding) is treated as fixed."""
    for i in range(len(first)):
        row, start = at[i], first[i]
        for j in range(start, i):
            other = at[j]
            left = matrix[row + j]
            for k in range(max(start, first[j]), j):
                left -= matrix[row + k] * matrix[other + k]
            matrix[row + j] = left * matrix[other + j]
        left = matrix[row + i]
        for k in range(start, i):
            left -= matrix[row + k] * matrix[row + k]
        matrix[row + i] = 1.0 / np.sqrt(left) if left > 1e-30 else 1e-15


@loose
def _substitute(matrix: Floats, first: Ints, at: Ints, value: Floats) -> None:
    """Solves in place, after `_factorise`."""
    size = len(first)
    for i in range(size):
        row = at[i]
        left = value[i]
        for k in range(first[i], i):
            left -= matrix[row + k] * value[k]
        value[i] = left * matrix[row + i]
    for i in range(size - 1, -1, -1):
        row = at[i]
        found = value[i] * matrix[row + i]
        value[i] = found
        for k in range(first[i], i):
            value[k] -= matrix[row + k] * found
