"""What an operation saves by running longer, as the relaxation sees it: a convex curve.

One curve per distinct (option set, blocking power). An operation given x seconds costs at
least the lower convex hull of its options at x; beyond the cheapest option it just ends
early. The hull is what makes the relaxation both solvable and a true lower bound.
"""

from dataclasses import dataclass

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import Problem

# Hull points nearer in time than this, relative, become one: fast as the first, cheap as the
# last, which only lowers the bound, by about as little. The joules between them would save
# thousands of times the power of any GPU, and a flow that counts in such watts resolves no
# others.
STEP_MIN = 1e-6
SLOPE_STEP_MIN = 1e-12  # of a slope: less is round-off of two divisions


@dataclass(frozen=True, slots=True)
class Curve:
    """All options, fastest first, and the hull below them: `saved_w[k]` joules saved per
    second between hull points k and k+1, never rising; in seconds, joules, watts."""

    time_s: Floats
    cost_j: Floats
    hull_s: Floats
    cheapest: int  # the option of least cost, where the hull ends
    saved_w: Floats  # len(hull_s) - 1


@dataclass(frozen=True, slots=True)
class Curves:
    """`curve[i]` prices operation i: an index into `distinct`."""

    distinct: tuple[Curve, ...]
    curve: Ints


def curves_of(problem: Problem) -> Curves:
    """Work is done once per option tuple and blocking power, however many operations share it."""
    powers_w = problem.blocking_power_w
    power_w = [powers_w[operation.stage] for operation in problem.graph.operations]
    numbers: dict[tuple[int, float], int] = {}
    keys = list(zip(map(id, problem.options), power_w, strict=True))
    curve = [numbers.setdefault(key, len(numbers)) for key in keys]
    menus = {id(options): options for options in problem.options}
    distinct = tuple(_curve(menus[key], watts) for key, watts in numbers)
    return Curves(distinct, np.array(curve, dtype=np.int64))


def _curve(options: tuple[ClockOption, ...], blocking_power_w: float) -> Curve:
    # Lists: numbers out of an array take three times as long.
    time_s = [option.time_s for option in options]
    cost_j = [option.effective_cost_j(blocking_power_w) for option in options]
    hull: list[int] = []
    for i in range(cost_j.index(min(cost_j)) + 1):
        while hull and cost_j[i] <= cost_j[hull[-1]] and time_s[i] <= time_s[hull[-1]]:
            hull.pop()
        while len(hull) > 1 and _above(time_s, cost_j, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(i)
    hull_s, saved_w = _slopes([time_s[k] for k in hull], [cost_j[k] for k in hull])
    return Curve(np.array(time_s), np.array(cost_j), hull_s, hull[-1], saved_w)


def _slopes(time_s: list[float], cost_j: list[float]) -> tuple[Floats, Floats]:
    """Times of hull points, neighbours nearer than STEP_MIN merged, and watts between them."""
    merged_s, merged_j = time_s[:1], cost_j[:1]
    for point_s, point_j in zip(time_s[1:], cost_j[1:], strict=True):
        if point_s - merged_s[-1] < STEP_MIN * point_s:
            merged_j[-1] = point_j
        else:
            merged_s.append(point_s)
            merged_j.append(point_j)
    # Points on one line have equal slopes but for round-off, and nothing is lost without those
    # between: a flow has no negative room, and an interior point method none that is empty.
    kept = [0]
    for k in range(1, len(merged_s)):
        while len(kept) > 1:
            a, b = kept[-2:]
            before = (merged_j[a] - merged_j[b]) / (merged_s[b] - merged_s[a])
            after = (merged_j[b] - merged_j[k]) / (merged_s[k] - merged_s[b])
            if after < before * (1.0 - SLOPE_STEP_MIN):
                break
            kept.pop()
        kept.append(k)
    hull_s, hull_j = np.array(merged_s)[kept], np.array(merged_j)[kept]
    return hull_s, -np.diff(hull_j) / np.diff(hull_s)


def _above(time_s: list[float], cost_j: list[float], a: int, b: int, c: int) -> bool:
    """Whether option b lies on or above the line from a to c."""
    left = (cost_j[b] - cost_j[a]) * (time_s[c] - time_s[a])
    return left >= (cost_j[c] - cost_j[a]) * (time_s[b] - time_s[a])
