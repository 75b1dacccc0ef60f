"""Rules for clocks of other systems and of this one, as their authors describe them.

A rule returns clocks only; `contest` computes their time and energy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.frontier import Frontier
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import baseline, energy, makespan
from joulecut_engine.optimize.solver import Solver
from joulecut_engine.optimize.straggler import Sync, time_s
from joulecut_lab.compare import baselines
from joulecut_lab.compare.baselines import Clocks
from joulecut_lab.compare.perseus import UNIT_S, Claim, Perseus


@dataclass(frozen=True, slots=True)
class Setting:
    """What all rules are asked. `power_w` is for one pipeline; straggler factors are times the
    baseline's iteration time; `pipelines` meet at the end of every iteration."""

    problem: Problem
    deadline_s: float
    stragglers: tuple[float, ...] = ()
    pipelines: int = 1
    power_w: float | None = None
    sync: Sync = "iteration"


@dataclass(frozen=True, slots=True)
class Priced:
    """One iteration of one pipeline: seconds, joules of all its GPUs."""

    time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class Entry:
    """What a rule came to; None where it has no plan at all. One that cannot keep the deadline
    shows its fastest plan, late as it is.

    `claimed` is the rule's own reckoning where that differs (`claimed_fastest_s` is what it
    takes for the time of full speed). `cluster_j` are the joules of all pipelines for each
    straggler, `late` by what fraction they end after it; `limited` is its fastest plan under
    the power.
    """

    name: str
    style: str
    plan: Priced | None
    lower_bound_j: float | None = None
    seconds: float = 0.0
    claimed: Priced | None = None
    claimed_fastest_s: float = 0.0
    cluster_j: tuple[float, ...] = ()
    late: tuple[float, ...] = ()
    claimed_cluster_j: tuple[float, ...] = ()
    limited: Priced | None = None
    remark: str = ""

    @property
    def gap(self) -> float | None:
        """Energy above the bound for the time that the plan takes; None without a plan."""
        if self.plan is None or self.lower_bound_j is None:
            return None
        return max(0.0, self.plan.energy_j / self.lower_bound_j - 1)


def cluster_baseline_j(setting: Setting, fastest: Priced) -> tuple[float, ...]:
    """All pipelines at full speed, waiting for each straggler."""
    price_w = setting.problem.time_price_w
    return tuple(
        (setting.pipelines - 1) * (fastest.energy_j + price_w * (factor - 1) * fastest.time_s)
        + factor * fastest.energy_j
        for factor in setting.stragglers
    )


HALVINGS = 12  # of a span of deadlines when a power is aimed at: to a fortieth of a per cent
UNITS_MIN = 10  # whole units in the shortest operation: flooring must not erase it


class Rule(Protocol):
    """A rule for clocks."""

    def plan(self) -> Clocks:
        """Within the deadline, or as fast as it can."""

    def waiting(self, until_s: float) -> Clocks:
        """While a sibling takes until then."""

    def limited(self, power_w: float) -> Clocks | None:
        """The fastest within a mean power; None where that is out of reach."""


class Chosen:
    """The best plan of a rule with one free parameter. It ignores stragglers."""

    def __init__(self, setting: Setting, plans: Callable[[Problem], Sequence[Clocks]]) -> None:
        self._setting = setting
        self._plans = plans(setting.problem)

    def plan(self) -> Clocks:
        setting = self._setting
        within = baselines.cheapest_within(setting.problem, self._plans, setting.deadline_s)
        found = within or baselines.quickest_under(setting.problem, self._plans, math.inf)
        assert found is not None, "every rule has plans"
        return found

    def waiting(self, until_s: float) -> Clocks:  # noqa: ARG002 -- the rule ignores stragglers
        return self.plan()

    def limited(self, power_w: float) -> Clocks | None:
        return baselines.quickest_under(self._setting.problem, self._plans, power_w)


class Published:
    """Perseus: plans within a deadline as it reckons time, stragglers up to its T*."""

    def __init__(self, setting: Setting, unit_s: float) -> None:
        self._setting = setting
        self.solver = Perseus(setting.problem, unit_s)
        self._best = self.solver.cheapest()
        self._slowdown = setting.deadline_s / baseline(setting.problem).iteration_time_s

    def plan(self) -> Clocks:
        return self.own().clocks

    def own(self) -> Claim:
        """Its plan without a straggler."""
        return self.reacting(0.0)

    def waiting(self, until_s: float) -> Clocks:
        return self.reacting(until_s).clocks

    def reacting(self, until_s: float) -> Claim:
        """Its plan of longest time <= min(T', T*), or within the deadline if that is later."""
        if self._setting.sync == "layer":
            until_s = 0.0
        within_s = max(self._slowdown * self.solver.fastest_s, until_s)
        return self.solver.within(min(within_s, self._best.iteration_time_s))

    def limited(self, power_w: float) -> Clocks | None:
        solver = self.solver
        return _aimed(
            self._setting.problem,
            lambda deadline_s: solver.within(deadline_s).clocks,
            (solver.fastest_s, solver.slowest_s),
            power_w,
        )


class Ours:
    """Our frontier at one granularity."""

    def __init__(self, setting: Setting, granularity: Granularity) -> None:
        self._setting = setting
        self._solver = Solver(setting.problem, granularity)
        self._frontier = Frontier(self._solver.search)
        self.granularity = granularity
        self.lower_bound_j = 0.0

    def plan(self) -> Clocks:
        found = self._solver.solve(Goal(max(self._setting.deadline_s, self._solver.fastest_s)))
        self.lower_bound_j = found.lower_bound_j
        return found.clocks

    def waiting(self, until_s: float) -> Clocks:
        setting, frontier = self._setting, self._frontier
        if setting.sync == "layer" or until_s <= setting.deadline_s:  # no time beyond its own
            return self.plan()
        cheapest_s = frontier.least.iteration_time_s
        target_s = time_s(setting.deadline_s, cheapest_s, until_s, setting.sync)
        if target_s > until_s or target_s < frontier.fastest_s:  # it will not be waiting
            return self.plan()
        found, alone = frontier.at(Goal(target_s, waits=True)).clocks, self.plan()
        if makespan(setting.problem, alone)[0] > target_s * (1.0 + 1e-9):
            return found
        # The plan of the lone pipeline is searched for longer than a point of the frontier.
        return min(alone, found, key=lambda clocks: energy(setting.problem, clocks, target_s))

    def limited(self, power_w: float) -> Clocks | None:
        frontier = self._frontier
        return _aimed(
            self._setting.problem,
            lambda deadline_s: frontier.at(Goal(deadline_s, waits=True)).clocks,
            (frontier.fastest_s, frontier.cheapest_s),
            power_w,
        )


def unit_s(problem: Problem) -> float:
    """What the published solver would floor times to: 1 ms, less where operations are short."""
    menus = {menu for menu in baselines.menus_of(problem) if len(menu) > 1}
    shortest_s = min((o.time_s for menu in menus for o in menu), default=UNIT_S * UNITS_MIN)
    return min(UNIT_S, shortest_s / UNITS_MIN)


def _aimed(
    problem: Problem,
    plan: Callable[[float], Clocks],
    span_s: tuple[float, float],
    power_w: float,
) -> Clocks | None:
    """The earliest deadline whose plan keeps a mean power: it falls as deadlines grow."""

    def keeps(clocks: Clocks) -> bool:
        time_s, _ = makespan(problem, clocks)
        return energy(problem, clocks, time_s) <= power_w * time_s * (1 + baselines.SLACK)

    low_s, high_s = span_s
    best = plan(low_s)
    if keeps(best):
        return best
    best = plan(high_s)
    if not keeps(best):
        return None
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        tried = plan(middle_s)
        if keeps(tried):
            best, high_s = tried, middle_s
        else:
            low_s = middle_s
    return best
