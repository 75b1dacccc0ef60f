"""Exact bounds for small problems: with few operations the relaxation itself is far off.

Between two real options of an operation lies a plan that nobody can run; in a long pipeline
such halves add up to little, in one of a dozen operations to percents of the energy. There a
whole integer program is affordable: HiGHS branches until it has proven what is left.
"""

from dataclasses import dataclass

import numpy as np

from joulecut_controller.hardware import ClockOption
from joulecut_controller.solve.problem import Goal, Problem

# Options times operations: below that the program is solved in seconds, mostly in far less.
CHOICES_MAX = 400
NODES_MAX = 4_000  # counted, not timed, so that the same question has the same answer
GAP_ENOUGH = 2e-4
# HiGHS keeps constraints and costs to 1e-6 and 1e-7 of the units below, which are near 1.
SLACK = 3e-6


@dataclass(frozen=True, slots=True)
class Branched:
    """`bound_j` holds for every plan; `clocks` is the best plan found, None where there is none."""

    bound_j: float
    clocks: tuple[ClockOption, ...] | None


def small(problem: Problem) -> bool:
    """Whether branching is worth its time."""
    return sum(map(len, problem.options)) <= CHOICES_MAX


def branched(problem: Problem, goal: Goal, deadline_s: float) -> Branched:
    """The integer program of DESIGN section 6: one option each, longest path within the deadline.

    `deadline_s` is beyond which no plan is cheaper, and at least the fastest time.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 -- slow to load
    from scipy.sparse import coo_array  # noqa: PLC0415

    graph, options = problem.graph, problem.options
    first = np.concatenate(([0], np.cumsum([len(menu) for menu in options])))
    choices, size = int(first[-1]), len(options)
    end = choices + size  # the column of the iteration time, after the starts
    flat = [(i, option) for i, menu in enumerate(options) for option in menu]
    time = np.array([option.time_s for _, option in flat]) / deadline_s
    power_w = [problem.blocking_power_w[graph.operations[i].stage] for i, _ in flat]
    cost_j = np.array([o.effective_cost_j(w) for (_, o), w in zip(flat, power_w, strict=True)])
    scale_j = float(np.abs(cost_j).max()) or 1.0

    rows: list[tuple[int, int, float]] = []
    low: list[float] = []

    def begin_after(before: int, column: int) -> None:
        """What stands in `column` comes after the end of `before`."""
        row = len(low)
        rows.append((row, column, 1.0))
        rows.append((row, choices + before, -1.0))
        rows.extend((row, k, -time[k]) for k in range(first[before], first[before + 1]))
        low.append(0.0)

    for before, after in graph.edges:
        begin_after(before, choices + after)
    for i in range(size):
        begin_after(i, end)
    ordered = len(low)
    for i in range(size):
        rows.extend((len(low), k, 1.0) for k in range(first[i], first[i + 1]))
        low.append(1.0)
    high = np.concatenate((np.full(ordered, np.inf), np.ones(size)))
    at, columns, values = (np.array(part) for part in zip(*rows, strict=True))
    matrix = coo_array((values, (at, columns)), shape=(len(low), end + 1)).tocsc()
    price = 0.0 if goal.waits else problem.time_price_w * deadline_s / scale_j
    found = milp(
        np.concatenate((cost_j / scale_j, np.zeros(size), [price])),
        integrality=np.concatenate((np.ones(choices), np.zeros(size + 1))),
        bounds=Bounds(0.0, 1.0),
        constraints=LinearConstraint(matrix, np.array(low), high),
        options={"node_limit": NODES_MAX, "mip_rel_gap": GAP_ENOUGH},
    )
    waiting_j = problem.time_price_w * goal.deadline_s if goal.waits else 0.0
    bound = getattr(found, "mip_dual_bound", None)
    if bound is None or not np.isfinite(bound):
        return Branched(-np.inf, None)
    bound_j = (float(bound) - SLACK * (size + 1)) * scale_j + waiting_j
    if found.x is None:
        return Branched(bound_j, None)
    taken = [int(found.x[first[i] : first[i + 1]].argmax()) for i in range(size)]
    return Branched(bound_j, tuple(menu[k] for menu, k in zip(options, taken, strict=True)))
