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
    keys = list(zip(map(id, problem.options), power_w, strict=True))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    menus = dict(zip(map(id, problem.options), problem.options, strict=True))
    distinct = tuple(_curve(menus[key], watts) for key, watts in numbers)
    return Curves(distinct, np.array([numbers[key] for key in keys], dtype=np.int64))


def _curve(options: tuple[ClockOption, ...], blocking_power_w: float) -> Curve:
    # Lists: numbers out of an array take three times as long.
    time_s = [option.time_s for option in options]
    cost_j = [option.effective_cost_j(blocking_power_w) for option in options]
    cheapest = cost_j.index(min(cost_j))
    points: list[tuple[float, float]] = []
    for at_s, at_j in zip(time_s[: cheapest + 1], cost_j, strict=False):
        if points and at_s - points[-1][0] < STEP_MIN * at_s:
            points[-1] = points[-1][0], min(points[-1][1], at_j)
        else:
            points.append((at_s, at_j))
    # Of points on one line those between are left out: a flow has no negative room, and an interior
    # point method none that is empty.
    hull: list[tuple[float, float]] = []
    for point in points:
        while len(hull) > 1 and _slope(hull[-1], point) >= _slope(*hull[-2:]) * (
            1.0 - SLOPE_STEP_MIN
        ):
            hull.pop()
        hull.append(point)
    hull_s, hull_j = np.array(hull).T
    return Curve(
        np.array(time_s), np.array(cost_j), hull_s, cheapest, -np.diff(hull_j) / np.diff(hull_s)
    )


def _slope(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Joules saved per second more."""
    return (one[1] - other[1]) / (other[0] - one[0])
