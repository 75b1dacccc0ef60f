"""What an operation saves by running longer, as the relaxation sees it: a convex curve.

One curve per distinct (option set, blocking power). An operation given x seconds costs at
least the lower convex hull of its options at x; beyond the cheapest option it just ends
early. The hull is what makes the relaxation both solvable and a true lower bound.
"""

from dataclasses import dataclass

import numpy as np

from joulecut_controller.hardware import ClockOption
from joulecut_controller.solve.problem import Problem
from joulecut_controller.solve.waves import Floats, Ints


@dataclass(frozen=True, slots=True)
class Curve:
    """All options, fastest first, and the hull: `saved_w[k]` joules saved per second between
    hull points k and k+1, decreasing; every array in seconds, joules, watts."""

    time_s: Floats
    cost_j: Floats
    hull: Ints  # indices of options on the hull; the last is the cheapest option
    saved_w: Floats  # len(hull) - 1


@dataclass(frozen=True, slots=True)
class Curves:
    """`curve[i]` prices operation i: an index into `distinct`."""

    distinct: tuple[Curve, ...]
    curve: Ints


def curves_of(problem: Problem) -> Curves:
    """Work is done once per option tuple and blocking power, however many operations share it."""
    numbers: dict[tuple[int, float], int] = {}
    distinct: list[Curve] = []
    curve: list[int] = []
    for operation, options in zip(problem.graph.operations, problem.options, strict=True):
        power_w = problem.blocking_power_w[operation.stage]
        key = (id(options), power_w)
        if key not in numbers:
            numbers[key] = len(distinct)
            distinct.append(_curve(options, power_w))
        curve.append(numbers[key])
    return Curves(tuple(distinct), np.array(curve, dtype=np.int64))


def _curve(options: tuple[ClockOption, ...], blocking_power_w: float) -> Curve:
    time_s = np.array([option.time_s for option in options])
    cost_j = np.array([option.effective_cost_j(blocking_power_w) for option in options])
    hull: list[int] = []
    for i in range(int(np.argmin(cost_j)) + 1):
        while hull and cost_j[i] <= cost_j[hull[-1]] and time_s[i] <= time_s[hull[-1]]:
            hull.pop()
        while len(hull) > 1 and _above(time_s, cost_j, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(i)
    at = np.array(hull, dtype=np.int64)
    saved_w = -np.diff(cost_j[at]) / np.diff(time_s[at])
    return Curve(time_s, cost_j, at, saved_w)


def _above(time_s: Floats, cost_j: Floats, a: int, b: int, c: int) -> bool:
    """Whether option b lies on or above the line from a to c."""
    left = (cost_j[b] - cost_j[a]) * (time_s[c] - time_s[a])
    return bool(left >= (cost_j[c] - cost_j[a]) * (time_s[b] - time_s[a]))
