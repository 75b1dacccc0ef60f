"""When things happen and what they cost, once every operation has its clock.

The one place where a solution's printed numbers are made: from real options and exact
longest paths, whatever search found them.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import SENDS, Granularity
from joulecut_engine.optimize.levels import levels_of
from joulecut_engine.optimize.problem import Goal, Problem, Solution


def makespan(problem: Problem, clocks: Sequence[ClockOption]) -> tuple[float, tuple[float, ...]]:
    """Iteration time and the start of each operation, in seconds, all as early as possible."""
    seconds = np.array([option.time_s for option in clocks])
    start_s, _ = levels_of(problem.graph).around(seconds)
    return float((start_s + seconds).max()), tuple(start_s.tolist())


def energy(problem: Problem, clocks: Sequence[ClockOption], iteration_time_s: float) -> float:
    """Joules of one iteration of all GPUs: work, then waiting, then overhead (section 6 of
    DESIGN: E = sum e + P_block * (N * T - sum t), here with one blocking power per stage)."""
    work_j = math.fsum([option.energy_j for option in clocks])
    waiting_j = math.fsum(
        power_w * (iteration_time_s - math.fsum([clocks[i].time_s for i in order]))
        for power_w, order in zip(problem.blocking_power_w, problem.graph.order, strict=True)
    )
    return work_j + waiting_j + problem.overhead_power_w * iteration_time_s


def solution(
    problem: Problem,
    goal: Goal,
    granularity: Granularity,
    clocks: tuple[ClockOption, ...],
    lower_bound_j: float,
    bound_granularity: Granularity = "computation",
    timed: tuple[float, tuple[float, ...]] | None = None,
) -> Solution:
    """Prices a choice of clocks; `timed` is its `makespan` where that is known already. A bound
    for `computation` is valid for all."""
    time_s, start_s = timed or makespan(problem, clocks)
    energy_j = energy(problem, clocks, max(time_s, goal.deadline_s) if goal.waits else time_s)
    return Solution(
        granularity=granularity,
        clocks=clocks,
        start_s=start_s,
        iteration_time_s=time_s,
        energy_j=energy_j,
        lower_bound_j=min(lower_bound_j, energy_j),
        bound_granularity=bound_granularity,
    )


def baseline(problem: Problem) -> Solution:
    """Every operation at its fastest option; of equals the one of least energy.

    Its bound is the cheap one that needs no solver: nothing costs less than its cheapest
    option. Ask `solve` for a sharp one.
    """
    menus = dict(zip(map(id, problem.options), problem.options, strict=True))
    fastest = {key: min(menu, key=lambda o: (o.time_s, o.energy_j)) for key, menu in menus.items()}
    clocks = tuple([fastest[id(options)] for options in problem.options])
    timed = makespan(problem, clocks)
    bound_j = floor_j(problem, timed[0])
    return solution(problem, Goal(timed[0]), "computation", clocks, bound_j, timed=timed)


def floor_j(problem: Problem, fastest_s: float) -> float:
    """A bound on any plan that needs no solver; positive, so that gaps are defined.

    A GPU works one operation at a time, so what it waits is never negative and all energies
    together are a bound. Sends run beside that work and their energy includes the blocking
    power of their time, which `energy` takes off again: they count without it.
    """
    places = [(o.stage, o.kind in SENDS) for o in problem.graph.operations]
    counts = Counter(zip(map(id, problem.options), places, strict=True))
    menus = dict(zip(map(id, problem.options), problem.options, strict=True))
    work_j, effective_j = [], []
    for (key, (stage, beside)), n in counts.items():
        power_w = problem.blocking_power_w[stage]
        least_j = min(option.effective_cost_j(power_w) for option in menus[key])
        effective_j.append(n * least_j)
        work_j.append(n * (least_j if beside else min(o.energy_j for o in menus[key])))
    waiting_j = problem.time_price_w * fastest_s
    bound_j = max(math.fsum(work_j), math.fsum(effective_j) + waiting_j)
    return float(np.nextafter(bound_j, 0.0))
