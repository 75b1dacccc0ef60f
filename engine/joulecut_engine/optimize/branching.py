"""Small problems, where the relaxation is far off: better plans and bounds by branching.

Options that no better plan can have are dropped first; if nothing is left, that is the proof.
What is small then is solved as one integer program; of what is not, slices in time are, one
after another: once for the bound, and once, all else held, for the plan.
"""

from dataclasses import replace

import numpy as np

from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.deadline_presolve import windows
from joulecut_engine.optimize.narrowing import Narrowed, choices, narrowed, without
from joulecut_engine.optimize.problem import Goal, Solution
from joulecut_engine.optimize.program import Piece, branched
from joulecut_engine.optimize.schedule import solution
from joulecut_engine.optimize.slices import (
    LARGE_BOUND,
    LARGE_PLAN,
    SMALL_BOUND,
    SMALL_PLAN,
    Size,
    Slices,
)

CHOICES_WHOLE = 400  # beside one per operation: solved as a whole
CHOICES_MAX = 10_000  # sliced: more is left to strips and spans, which see as much there
WORK = 400_000  # nodes times choices of a whole program: some seconds
GAP_ENOUGH = 5e-4  # a tenth of what is promised; half of it takes three times as long
GAP_SLICED = 1.5e-3  # where so much is left, slices are asked, ...
GAP_WIDE = 2.5e-3  # ... and larger ones where so much still is
GAP_BAR = 4.9e-3  # what is promised for small problems
STEPS = (
    (SMALL_BOUND, SMALL_PLAN, (0.0, 0.5, 0.25, 0.75), GAP_SLICED),
    (LARGE_BOUND, LARGE_PLAN, (0.0, 0.5, 0.25), GAP_WIDE),
    (LARGE_BOUND, LARGE_PLAN, (), GAP_BAR),
)
AIM = 0.75  # of a gap: what is asked whether it can be closed
ROUNDS = 3  # of bounds, each without the options that the last has excluded
WORTH = 0.1  # of the options: a round that excludes less is the last


def small(computation: Computation) -> bool:
    """Whether branching is worth its time."""
    return choices(computation.problem) <= CHOICES_MAX


def settled(computation: Computation, goal: Goal, found: Solution) -> Solution:
    """As `found`, or cheaper, or with a better bound."""
    target_j = found.energy_j / (1.0 + GAP_ENOUGH)
    left = narrowed(computation, goal, target_j)
    if left is None:
        return _raised(found, target_j)
    found = _raised(found, min(left.bound_j, target_j))
    if choices(left.computation.problem) <= CHOICES_WHOLE:
        return _whole(left, goal, found, target_j)
    return found


def sliced(computation: Computation, goal: Goal, found: Solution) -> Solution:
    """As `settled`, for what is too large to be solved as a whole."""
    for bound_size, plan_size, begins, enough in STEPS:
        if found.gap <= enough:
            break
        found = _higher(computation, goal, found, bound_size)
        if found.gap > enough and begins:
            found = _lower(computation, goal, found, plan_size, begins)
    return found


def _higher(computation: Computation, goal: Goal, found: Solution, size: Size) -> Solution:
    """With a better bound. The less is asked for, the more options go: so what slices have proven
    is followed by the question whether any plan closes a good part of what they left."""
    target_j = found.energy_j / (1.0 + GAP_SLICED)
    left = narrowed(computation, goal, target_j)
    for _ in range(ROUNDS):
        if left is None:
            return _raised(found, target_j)
        own = left.computation
        slices = Slices(own, left.relaxed, goal, own.time_price_w(goal))
        lost_j = slices.losses_j(size)
        found = _raised(found, min(target_j, left.bound_j + float(lost_j[-1])))
        if found.gap <= GAP_SLICED:
            return found
        target_j = min(target_j, found.energy_j / (1.0 + _aim(found.gap)))
        problem = without(left, goal, target_j, lost_j[:-1][own.network.row])
        if problem is None:
            return _raised(found, target_j)
        if choices(problem) > choices(own.problem) * (1.0 - WORTH):
            return found
        left = narrowed(Computation(problem), goal, target_j)
    return found


def _aim(gap: float) -> float:
    """What to ask for where so much is left; what is promised first of all."""
    return max(GAP_SLICED, AIM * gap, GAP_BAR if gap > GAP_BAR else 0.0)


def _lower(
    computation: Computation, goal: Goal, found: Solution, size: Size, begins: tuple[float, ...]
) -> Solution:
    """With a cheaper plan."""
    problem, row = computation.problem, computation.network.row
    relaxed = computation.relax(goal)
    slices = Slices(computation, relaxed, goal, computation.time_price_w(goal))
    choice = np.zeros(len(row), dtype=np.int64)
    pairs = zip(problem.options, found.clocks, strict=True)
    choice[row] = [menu.index(option) for menu, option in pairs]
    for begin in begins:
        choice = slices.improved(choice, size, begin)
    taken = zip(problem.options, choice[row].tolist(), strict=True)
    clocks = tuple([menu[k] for menu, k in taken])
    other = solution(problem, goal, found.granularity, clocks, found.lower_bound_j)
    return _cheaper(goal, found, other)


def _whole(left: Narrowed, goal: Goal, found: Solution, target_j: float) -> Solution:
    """One program of everything that is left."""
    own, problem = left.computation, left.computation.problem
    network, price_w = own.network, own.time_price_w(goal)
    curves = [network.curves.distinct[c] for c in network.curve]
    heads_s, tails_s = windows(own.network)
    begins = network.tails < 0
    horizon_s = own.useful_deadline_s(goal.deadline_s)
    flow_w = 0.0 if left.relaxed.link_w is None else float(left.relaxed.link_w.sum())
    piece = Piece(
        time_s=tuple(curve.time_s for curve in curves),
        cost_j=tuple(curve.cost_j for curve in curves),
        links=np.stack([network.tails, network.heads], axis=1)[~begins],
        wait_w=np.zeros(int((~begins).sum())),
        start_w=np.zeros(network.size),
        earliest_s=heads_s,
        latest_s=horizon_s - tails_s,
        horizon_s=horizon_s,
        flow_w=flow_w + price_w,
        end_w=price_w,
        end_earliest_s=own.fastest_s,
        offset_j=problem.time_price_w * goal.deadline_s if goal.waits else 0.0,
    )
    proof = branched(piece, WORK // max(1, choices(problem)), GAP_ENOUGH)
    found = _raised(found, min(target_j, proof.bound_j))
    if proof.choice is None:
        return found
    clocks = [menu[k] for menu, k in zip(problem.options, proof.choice[network.row], strict=True)]
    other = solution(problem, goal, found.granularity, tuple(clocks), found.lower_bound_j)
    return _cheaper(goal, found, other)


def _cheaper(goal: Goal, found: Solution, other: Solution) -> Solution:
    """The other one where it is cheaper and in time."""
    late = other.iteration_time_s > goal.deadline_s
    return found if late or other.energy_j >= found.energy_j else other


def _raised(found: Solution, bound_j: float) -> Solution:
    bound_j = max(found.lower_bound_j, bound_j)
    return replace(found, lower_bound_j=min(bound_j, found.energy_j))
