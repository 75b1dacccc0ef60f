"""A problem without the options that no better plan can have: what is left may be small.

Whoever knows a plan asks only for plans that are better, by so much. An option that at the
prices of the relaxation costs more than that leaves, or that is late however fast everything
else is, is in none of them. With fewer options the relaxation is nearer to the truth, and more
of them go: of a thousand options of thirty operations often a dozen stay, or nothing, and then
it is proven that there is no better plan.
"""

from dataclasses import dataclass, replace

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.deadline_presolve import windows
from joulecut_engine.optimize.levels import Floats
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.relaxation import Relaxation

ROUNDS_MAX = 20  # a few are the rule
SURE = 1e-9  # of energies and times: what is so near to the line stays


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What plans below a target may choose from, with its relaxation."""

    computation: Computation
    relaxed: Relaxation
    bound_j: float  # on the energy of these plans


def narrowed(computation: Computation, goal: Goal, target_j: float) -> Narrowed | None:
    """All plans whose energy is at most the target; None where there are none."""
    nothing = np.zeros(len(computation.problem.options))
    for _ in range(ROUNDS_MAX):
        if computation.fastest_s > goal.deadline_s * (1 + SURE):
            return None
        relaxed = computation.relax(goal)
        bound_j = computation.bound_j(goal, relaxed)
        if bound_j > target_j * (1 + SURE):
            return None
        found = Narrowed(computation, relaxed, bound_j)
        problem = without(found, goal, target_j, nothing)
        if problem is None:
            return None
        if choices(problem) == choices(computation.problem):
            break
        computation = Computation(problem)
    return found


def without(found: Narrowed, goal: Goal, target_j: float, sure_j: Floats) -> Problem | None:
    """Without options that lose more than is to spare, or are late; None where an operation has
    none left. `sure_j`, by operation, is lost elsewhere than there, at the same prices."""
    problem, network = found.computation.problem, found.computation.network
    price_w = found.computation.prices_w(found.relaxed)
    heads_s, tails_s = windows(network)
    room_s = (goal.deadline_s * (1 + SURE) - heads_s - tails_s)[network.row]
    spare_j = target_j * (1 + SURE) - found.bound_j - sure_j
    shared: dict[tuple[ClockOption, ...], tuple[ClockOption, ...]] = {}
    menus = []
    for i, menu in enumerate(problem.options):
        power_w = problem.blocking_power_w[problem.graph.operations[i].stage]
        costs_j = [o.effective_cost_j(power_w) + price_w[i] * o.time_s for o in menu]
        most_j = min(costs_j) + spare_j[i]
        pairs = zip(menu, costs_j, strict=True)
        kept = tuple(o for o, j in pairs if j <= most_j and o.time_s <= room_s[i])
        menus.append(shared.setdefault(kept, kept))
    return replace(problem, options=tuple(menus), measured=()) if all(menus) else None


def choices(problem: Problem) -> int:
    """How many options there are beside one for each operation."""
    return sum(map(len, problem.options)) - len(problem.options)
