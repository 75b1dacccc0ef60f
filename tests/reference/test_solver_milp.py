"""Plans and bounds against an integer program that knows nothing of the solver but the definition.

HiGHS chooses one option per operation, E = sum e + P (N T - sum t), on graphs that are too large
to try everything. It is stopped at a gap of its own, so both its incumbent and its bound count.
"""

import random
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from joulecut_engine.graph import graph_of
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Granularity, Kind, Operation
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.formulation import priced
from joulecut_engine.optimize.problem import Goal, Infeasible, NoCommonClock, Problem
from joulecut_engine.optimize.solver import Solver, solve

EXACT = 1e-7  # relative: what two ways of adding up may differ by, and HiGHS' tolerances
WORSE = 1e-3  # of the optimum: what a plan may cost more, its bound aside

Tie = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Truth:
    """Joules of the best plan HiGHS found, and what it proved that none goes below."""

    best_j: float
    least_j: float


def drawn(seed: int) -> tuple[Problem, float]:
    """A graph at random with rough menus: dominated options, equal times, fixed costs."""
    dice = random.Random(seed)
    stages, count, power_w = dice.randint(1, 4), dice.randint(8, 20), dice.choice([0.0, 20.0, 80.0])
    kinds: list[Kind] = ["forward", "backward"]
    clocks = {
        s: sorted(dice.sample(range(600, 1500, 30), dice.randint(2, 6))) for s in range(stages)
    }
    menus = {
        (stage, kind): tuple(
            ClockOption(
                mhz,
                round(dice.uniform(0.8, 1.2) * 0.05 * (0.3 + 1500 / mhz), 3),
                round(dice.uniform(0.8, 1.2) * 0.05 * (100 + 300 * (mhz / 1500) ** 2.5), 3),
            )
            for mhz in clocks[stage]
        )
        for stage in range(stages)
        for kind in kinds
    }
    operations, chosen = [], []
    edges: set[tuple[int, int]] = set()
    last: dict[int, int] = {}
    for i in range(count):
        stage = i if i < stages else dice.randrange(stages)
        kind = dice.choice(kinds)
        operations.append(Operation(stage, i, kind))
        fixed = dice.random() < 0.15
        chosen.append((ClockOption(0, 0.03, 4.0),) if fixed else menus[stage, kind])
        edges |= {(dice.randrange(i), i) for _ in range(dice.randint(1, 2)) if i}
        if stage in last:
            edges.add((last[stage], i))
        last[stage] = i
    graph = graph_of(operations, edges, stages)
    by_name = dict(zip(operations, chosen, strict=True))
    problem = priced(graph, [by_name[o] for o in graph.operations], power_w)
    return problem, dice.choice([0.0, 0.005, 0.02, 0.1, 0.4])


def truth(problem: Problem, goal: Goal, granularity: Granularity) -> Truth | None:
    """None where HiGHS finds no plan."""
    menus = problem.measured
    operations, edges = problem.graph.operations, problem.graph.edges
    count, power_w = len(operations), problem.blocking_power_w[0]
    first = np.cumsum([0, *map(len, menus)])
    ties = _ties(problem, first) if granularity == "gpu" else []
    columns = int(first[-1]) + len(ties)
    start, end = columns, columns + count
    cost = np.zeros(end + 1)
    rows: list[tuple[dict[int, float], float, float]] = []
    for i, menu in enumerate(menus):
        picks = range(int(first[i]), int(first[i + 1]))
        cost[picks] = [o.energy_j - power_w * o.time_s for o in menu]
        rows.append((dict.fromkeys(picks, 1.0), 1.0, 1.0))
        takes = {k: -o.time_s for k, o in zip(picks, menu, strict=True)}
        rows.append(({end: 1.0, start + i: -1.0} | takes, 0.0, np.inf))
        rows += [
            ({start + b: 1.0, start + i: -1.0} | takes, 0.0, np.inf) for a, b in edges if a == i
        ]
    rows += [({own: 1.0, one: -1.0}, 0.0, 0.0) for own, same in ties for one in same]
    price_w = power_w * len(problem.graph.order)
    cost[end] = 0.0 if goal.waits else price_w
    matrix = lil_matrix((len(rows), end + 1))
    for r, (row, _, _) in enumerate(rows):
        for column, value in row.items():
            matrix[r, column] = value
    most = np.r_[np.ones(columns), np.full(count + 1, goal.deadline_s * (1 + 1e-10))]
    whole = np.r_[np.ones(columns), np.zeros(count + 1)]
    limits = LinearConstraint(matrix.tocsr(), [r[1] for r in rows], [r[2] for r in rows])
    found = milp(
        cost,
        constraints=limits,
        bounds=Bounds(np.zeros(end + 1), most),
        integrality=whole,
        options={"mip_rel_gap": 1e-7, "time_limit": 20, "presolve": True},
    )
    if found.x is None:
        return None
    waited_j = price_w * goal.deadline_s if goal.waits else 0.0
    return Truth(float(found.fun) + waited_j, float(found.mip_dual_bound) + waited_j)


def _ties(problem: Problem, first: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[Tie]:
    """For one clock per GPU: a column for each of its clocks, and what must equal it."""
    ties: list[Tie] = []
    for line in problem.graph.order:
        for mhz in sorted({o.clock_mhz for i in line for o in problem.measured[i]}):
            same = [
                int(first[i]) + k
                for i in line
                for k, o in enumerate(problem.measured[i])
                if o.clock_mhz == mhz
            ]
            ties.append((int(first[-1]) + len(ties), tuple(same)))
    return ties


@pytest.mark.parametrize("granularity", ["computation", "gpu"])
@pytest.mark.parametrize("seed", range(12))
def test_an_integer_program_finds_nothing_better_and_nothing_below_the_bound(
    seed: int, granularity: Granularity
) -> None:
    problem, slowdown = drawn(seed)
    try:
        fastest_s = Solver(problem, granularity).fastest_s
    except NoCommonClock:
        return
    for waits in (False, True):
        goal = Goal(fastest_s * (1 + slowdown), waits)
        true = truth(problem, goal, granularity)
        plan = solve(problem, goal, granularity)
        assert not check(problem, goal, plan)
        if true is None:  # a fault of its presolve: nothing to compare with
            continue
        assert plan.energy_j >= true.least_j * (1 - EXACT)
        assert plan.lower_bound_j <= true.best_j * (1 + EXACT)
        assert plan.energy_j <= true.best_j * (1 + WORSE)


def test_below_the_fastest_time_neither_has_a_plan() -> None:
    problem, _ = drawn(0)
    fastest_s = Solver(problem, "computation").fastest_s
    goal = Goal(fastest_s * (1 - 1e-4))
    assert truth(problem, goal, "computation") is None
    with pytest.raises(Infeasible):
        solve(problem, goal, "computation")
