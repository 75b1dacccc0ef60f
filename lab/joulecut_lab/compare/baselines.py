"""What others do about clocks, as plans of our own kind, so that one judge prices them all.

None of these knows more than its original does: one number for all GPUs, one per stage by
compute time, a power limit, or the critical path. Where a rule leaves a number open (which
clock, which cap), the best one within the deadline is taken for it: that is generous.
An operation with a single option (communication at a fixed cost) always takes it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.power_limit import under_limit
from joulecut_engine.optimize.levels import levels_of
from joulecut_engine.optimize.problem import NoCommonClock, Problem
from joulecut_engine.optimize.schedule import energy

Clocks = tuple[ClockOption, ...]  # by operation
Menus = tuple[tuple[ClockOption, ...], ...]
SLACK = 1e-9  # relative: a deadline is kept to this
CAPS = 96  # power limits tried: steps of 0.5 % of the span between lowest and highest clock
BUDGETS_MAX = 400  # busy times tried; beyond, neighbours differ by less than one is measured to


def menus_of(problem: Problem) -> Menus:
    """All measured options: a rule without a frontier also takes dominated ones."""
    return problem.measured or problem.options


def all_max(problem: Problem) -> Clocks:
    """The highest clock everywhere, as GPUs run by default."""
    return tuple(max(menu, key=lambda o: o.clock_mhz) for menu in menus_of(problem))


def one_clock(problem: Problem) -> list[Clocks]:
    """Every plan in which all GPUs run at one clock, highest first. Raises NoCommonClock."""
    menus = menus_of(problem)
    shared = [{o.clock_mhz for o in menu} for menu in set(menus) if len(menu) > 1]
    if not shared:
        return [all_max(problem)]
    clocks = sorted(set.intersection(*shared), reverse=True)
    if not clocks:
        raise NoCommonClock(None)
    return [tuple(_at(menu, clock) for menu in menus) for clock in clocks]


def clock_per_stage(problem: Problem) -> list[Clocks]:
    """Stages balanced by compute time, as a per-stage limit does (Zeus on pipelines).

    For each busy time that some stage has at some clock: every stage at its lowest clock
    that keeps within it, or at its quickest where none does. Raises NoCommonClock.
    """
    menus = menus_of(problem)
    stages = []
    for stage, indices in enumerate(problem.graph.order):
        shared = [{o.clock_mhz for o in menus[i]} for i in indices if len(menus[i]) > 1]
        clocks = sorted(set.intersection(*shared)) if shared else [0]
        if not clocks:
            raise NoCommonClock(stage)
        stages.append([[_at(menus[i], clock) for i in indices] for clock in clocks])
    return _balanced(problem, stages)


def _balanced(problem: Problem, stages: Sequence[list[list[ClockOption]]]) -> list[Clocks]:
    """Of the choices of every stage, for each busy time of some stage: the first that keeps within
    it, or the quickest.
    """
    timed = [[(sum(o.time_s for o in choice), choice) for choice in plans] for plans in stages]
    budgets = sorted({busy_s for plans in timed for busy_s, _ in plans})
    found = []
    for budget_s in budgets[:: max(1, len(budgets) // BUDGETS_MAX)]:
        clocks_by_operation = list(all_max(problem))
        for indices, plans in zip(problem.graph.order, timed, strict=True):
            within = [plan for busy_s, plan in plans if busy_s <= budget_s * (1 + SLACK)]
            chosen = within[0] if within else min(plans, key=lambda p: p[0])[1]
            for i, option in zip(indices, chosen, strict=True):
                clocks_by_operation[i] = option
        found.append(tuple(clocks_by_operation))
    return found


def power_cap(problem: Problem) -> list[Clocks]:
    """One power limit for all GPUs: work that would draw more is held at the clock where it draws
    the limit, as by a card's own governor. The last limit holds nothing.
    """
    menus = menus_of(problem)
    held = {limit_w: _held(menus, limit_w) for limit_w in _limits_w(menus)}
    return [*(tuple(found[menu] for menu in menus) for found in held.values()), all_max(problem)]


def cap_per_stage(problem: Problem) -> list[Clocks]:
    """A power limit for each stage, balanced by compute time, as Zeus sets them on pipelines.

    For each busy time that some stage has under some limit: every stage at its lowest limit that
    keeps within it, or without one.
    """
    menus = menus_of(problem)
    held = [_held(menus, limit_w) for limit_w in _limits_w(menus)]
    highest = all_max(problem)
    stages = [
        [*([found[menus[i]] for i in indices] for found in held), [highest[i] for i in indices]]
        for indices in problem.graph.order
    ]
    return _balanced(problem, stages)


def _held(menus: Menus, limit_w: float) -> dict[tuple[ClockOption, ...], ClockOption]:
    """What each menu's work takes under a limit, at the highest clock that is asked for."""
    return {
        menu: max(under_limit(menu, limit_w), key=lambda o: o.clock_mhz)
        if len(menu) > 1
        else menu[0]
        for menu in set(menus)
    }


def _limits_w(menus: Menus) -> list[float]:
    """Limits from the lowest power that all work was measured at to the highest."""
    several = [menu for menu in set(menus) if len(menu) > 1]
    if not several:
        return []
    least = max(min(o.power_w for o in menu) for menu in several)
    most = max(o.power_w for menu in several for o in menu)
    return [float(limit_w) for limit_w in np.linspace(least, most, CAPS)[:-1]]


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan with its iteration time and energy."""

    time_s: float
    energy_j: float
    clocks: Clocks


def timed(problem: Problem, plans: Sequence[Clocks]) -> list[Timed]:
    """All plans, by the one judge of times and energies."""
    if not plans:
        return []
    duration_s = np.array([[option.time_s for option in clocks] for clocks in plans]).T
    times_s = levels_of(problem.graph).iteration_times(duration_s).tolist()
    return [
        Timed(time_s, energy(problem, clocks, time_s), clocks)
        for clocks, time_s in zip(plans, times_s, strict=True)
    ]


def cheapest_within(plans: Iterable[Timed], deadline_s: float) -> Clocks | None:
    """The plan of least energy that meets a deadline; None where none does."""
    within = [one for one in plans if one.time_s <= deadline_s * (1 + SLACK)]
    return min(within, key=lambda one: one.energy_j).clocks if within else None


def _at(menu: tuple[ClockOption, ...], clock_mhz: int) -> ClockOption:
    """The option at a clock; the only one where there is no choice."""
    at = [o for o in menu if o.clock_mhz == clock_mhz] if len(menu) > 1 else list(menu)
    return min(at, key=lambda o: (o.time_s, o.energy_j))
