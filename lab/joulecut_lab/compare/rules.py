"""Rules for clocks of other systems and of this one, as their authors describe them.

A rule returns clocks only; `contest` computes their time and energy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from joulecut_cli.granularity import Asked
from joulecut_engine.money import Iteration
from joulecut_engine.optimize.problem import TWO_CHANGES, Goal, Problem, Sync
from joulecut_engine.optimize.schedule import baseline, energy, makespan
from joulecut_engine.optimize.solver import Solver
from joulecut_lab.compare import baselines
from joulecut_lab.compare.baselines import Clocks
from joulecut_lab.compare.perseus import UNIT_S, Claim, Perseus


@dataclass(frozen=True, slots=True)
class Setting:
    """What all rules are asked. Slowdowns are fractions of the baseline's time and ascend;
    straggler factors are times it, asked at the first slowdown; `pipelines` meet at the end of
    every iteration."""

    problem: Problem
    slowdowns: tuple[float, ...] = (0.0,)
    stragglers: tuple[float, ...] = ()
    pipelines: int = 1
    sync: Sync = "iteration"

    @property
    def deadlines_s(self) -> tuple[float, ...]:
        """Of each slowdown."""
        fastest_s = baseline(self.problem).iteration_time_s
        return tuple(fastest_s * (1.0 + slowdown) for slowdown in self.slowdowns)


@dataclass(frozen=True, slots=True)
class Point:
    """A rule's plan for one slowdown, late as it may be."""

    plan: Iteration
    lower_bound_j: float

    @property
    def gap(self) -> float:
        """Energy above the bound for the time that the plan takes."""
        return max(0.0, self.plan.energy_j / self.lower_bound_j - 1)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a rule came to: a point for each slowdown; none where it has no plan at all.

    `cluster_j` are the joules of all pipelines for each straggler, `late` by what fraction they end
    after it.
    """

    name: str
    style: str
    points: tuple[Point, ...] = ()
    seconds: float = 0.0
    cluster_j: tuple[float, ...] = ()
    late: tuple[float, ...] = ()
    remark: str = ""


def cluster_baseline_j(setting: Setting, fastest: Iteration) -> tuple[float, ...]:
    """All pipelines at full speed, waiting for each straggler."""
    price_w = setting.problem.time_price_w
    return tuple(
        (setting.pipelines - 1) * (fastest.energy_j + price_w * (factor - 1) * fastest.time_s)
        + factor * fastest.energy_j
        for factor in setting.stragglers
    )


UNITS_MIN = 10  # whole units in the shortest operation: flooring must not erase it


class Rule(Protocol):
    """A rule for clocks."""

    def plan(self, deadline_s: float) -> Clocks:
        """Within the deadline, or as fast as it can."""

    def waiting(self, until_s: float, deadline_s: float) -> Clocks:
        """While a sibling takes until then."""


class Chosen:
    """The best plan of a rule with one free parameter. It ignores stragglers."""

    def __init__(self, setting: Setting, plans: Callable[[Problem], Sequence[Clocks]]) -> None:
        self._plans = baselines.timed(setting.problem, plans(setting.problem))

    def plan(self, deadline_s: float) -> Clocks:
        within = baselines.cheapest_within(self._plans, deadline_s)
        return within or min(self._plans, key=lambda one: one.time_s).clocks

    def waiting(self, until_s: float, deadline_s: float) -> Clocks:  # noqa: ARG002 -- ignored
        return self.plan(deadline_s)


class Published:
    """Perseus: plans within a deadline as it reckons time, stragglers up to its T*."""

    def __init__(self, setting: Setting, unit_s: float) -> None:
        self._setting = setting
        self.solver = Perseus(setting.problem, unit_s)
        self._best = self.solver.cheapest()
        self._fastest_s = baseline(setting.problem).iteration_time_s

    def plan(self, deadline_s: float) -> Clocks:
        return self.claim(deadline_s).clocks

    def waiting(self, until_s: float, deadline_s: float) -> Clocks:
        return self.claim(deadline_s, until_s).clocks

    def claim(self, deadline_s: float, until_s: float = 0.0) -> Claim:
        """Its plan of longest time <= min(T', T*), or within the deadline if that is later."""
        if self._setting.sync == "layer":
            until_s = 0.0
        within_s = max(deadline_s / self._fastest_s * self.solver.fastest_s, until_s)
        return self.solver.within(min(within_s, self._best.iteration_time_s))


class Ours:
    """Our frontier at one granularity."""

    def __init__(self, setting: Setting, asked: Asked) -> None:
        self._setting = setting
        limits = replace(TWO_CHANGES, per_iteration=asked.changes or TWO_CHANGES.per_iteration)
        self._frontier = Solver(setting.problem, asked.granularity, limits)

    def plan(self, deadline_s: float) -> Clocks:
        return self._frontier.at(Goal(max(deadline_s, self._frontier.fastest_s))).clocks

    def waiting(self, until_s: float, deadline_s: float) -> Clocks:
        setting, frontier, alone = self._setting, self._frontier, self.plan(deadline_s)
        if setting.sync == "layer" or until_s <= deadline_s:  # no time beyond its own
            return alone
        cheapest_s = frontier.least.iteration_time_s
        target_s = max(until_s, min(deadline_s, cheapest_s))
        if target_s > until_s or target_s < frontier.fastest_s:  # it will not be waiting
            return alone
        found = frontier.at(Goal(target_s, waits=True)).clocks
        if makespan(setting.problem, alone)[0] > target_s * (1.0 + 1e-9):
            return found
        return min(alone, found, key=lambda clocks: energy(setting.problem, clocks, target_s))


def unit_s(problem: Problem) -> float:
    """What the published solver would floor times to: 1 ms, less where operations are short."""
    menus = {menu for menu in baselines.menus_of(problem) if len(menu) > 1}
    shortest_s = min((o.time_s for menu in menus for o in menu), default=UNIT_S * UNITS_MIN)
    return min(UNIT_S, shortest_s / UNITS_MIN)
