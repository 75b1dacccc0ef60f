"""Every rule for clocks on one job, timed, and priced by the same judge.

What a rule claims does not count: its clocks are laid out in exact longest paths and priced
with the measured options, ours like the others'.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from joulecut_controller.solve import baselines
from joulecut_controller.solve.baselines import Clocks
from joulecut_controller.solve.frontier import Frontier
from joulecut_controller.solve.perseus import UNIT_S, Claim, Perseus
from joulecut_controller.solve.problem import Goal, NoCommonClock, Problem
from joulecut_controller.solve.schedule import baseline, energy, makespan
from joulecut_controller.solve.solver import Solver
from joulecut_controller.solve.straggler import Sync, time_s
from joulecut_controller.workload import Granularity

HALVINGS = 12  # of a span of deadlines when a power is aimed at: to a fortieth of a per cent
UNITS_MIN = 10  # whole units in the shortest operation: flooring must not erase it


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


class Rule(Protocol):
    """How somebody picks clocks."""

    def plan(self) -> Clocks:
        """Within the deadline, or as fast as it can."""

    def waiting(self, until_s: float) -> Clocks:
        """While a sibling takes until then."""

    def limited(self, power_w: float) -> Clocks | None:
        """The fastest within a mean power; None where that is out of reach."""


class Chosen:
    """A rule with a number left open: the best of its plans. It knows no stragglers."""

    def __init__(self, setting: Setting, plans: Callable[[Problem], Sequence[Clocks]]) -> None:
        self._setting = setting
        self._plans = plans(setting.problem)

    def plan(self) -> Clocks:
        setting = self._setting
        within = baselines.cheapest_within(setting.problem, self._plans, setting.deadline_s)
        found = within or baselines.quickest_under(setting.problem, self._plans, math.inf)
        assert found is not None, "every rule has plans"
        return found

    def waiting(self, until_s: float) -> Clocks:  # noqa: ARG002 -- it never hears of it
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
        """What it runs while nobody is late."""
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
        if setting.sync == "layer":
            return self.plan()
        cheapest_s = frontier.least().iteration_time_s
        target_s = time_s(setting.deadline_s, cheapest_s, until_s, setting.sync)
        if target_s > until_s or target_s < frontier.fastest_s:  # it will not be waiting
            return self.plan()
        return frontier.at(Goal(target_s, waits=True)).clocks

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


def entries(
    setting: Setting,
    granularities: Sequence[Granularity],
    perseus_unit_s: float,
    heard: Callable[[int, int], None] | None = None,
) -> list[Entry]:
    """All rules, from knowing least to knowing most. Raises Infeasible."""
    makers: list[tuple[str, str, Callable[[], Rule]]] = [
        ("highest clock", "base", lambda: Chosen(setting, lambda p: [baselines.all_max(p)])),
        ("one clock for all", "one", lambda: Chosen(setting, baselines.one_clock)),
        ("one power cap for all", "cap", lambda: Chosen(setting, baselines.power_cap)),
        ("one clock per stage", "stage", lambda: Chosen(setting, baselines.clock_per_stage)),
        ("EnvPipe-like", "envpipe", lambda: Chosen(setting, lambda p: [baselines.off_path(p)])),
        ("Perseus", "perseus", lambda: Published(setting, perseus_unit_s)),
    ]
    for granularity in granularities:
        style = str(granularity).replace("computation", "ours")
        makers.append((f"Joulecut {granularity}", style, _ours(setting, granularity)))
    judge = Judge(setting)
    found = []
    for done, (name, style, make) in enumerate(makers):
        found.append(judge.entry(name, style, make))
        if heard is not None:
            heard(done + 1, len(makers))
    return found


def _ours(setting: Setting, granularity: Granularity) -> Callable[[], Rule]:
    return lambda: Ours(setting, granularity)


class Judge:
    """Prices everybody's clocks; its bounds are those of a clock per operation."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._problem = setting.problem
        self._fastest = baseline(setting.problem)
        self._frontier = Frontier(Solver(setting.problem, "computation").search)

    def entry(self, name: str, style: str, make: Callable[[], Rule]) -> Entry:
        setting = self._setting
        began_s = time.perf_counter()
        try:
            rule = make()
            clocks = rule.plan()
        except NoCommonClock as none:
            return Entry(name, style, None, remark=str(none))
        seconds = time.perf_counter() - began_s
        limited = None if setting.power_w is None else rule.limited(setting.power_w)
        under = None if limited is None else self._priced(limited)
        plan = self._priced(clocks)
        cluster_j, late = self._cluster(rule, plan)
        claim = rule.own() if isinstance(rule, Published) else None
        return Entry(
            name=name,
            style=style,
            plan=plan,
            lower_bound_j=self._bound_j(plan, rule),
            seconds=seconds,
            claimed=None if claim is None else self._believed(claim, claim.iteration_time_s),
            claimed_fastest_s=rule.solver.fastest_s if isinstance(rule, Published) else 0.0,
            cluster_j=cluster_j,
            late=late,
            claimed_cluster_j=self._claimed_cluster(rule) if isinstance(rule, Published) else (),
            limited=under,
        )

    def _priced(self, clocks: Clocks) -> Priced:
        time_s, _ = makespan(self._problem, clocks)
        return Priced(time_s, energy(self._problem, clocks, time_s))

    def _bound_j(self, plan: Priced, rule: Rule) -> float:
        """For the deadline; for its own time where it takes longer than that."""
        deadline_s = max(self._setting.deadline_s, plan.time_s)
        bound_j = self._frontier.at(Goal(deadline_s)).lower_bound_j
        if isinstance(rule, Ours) and rule.granularity == "computation":
            return max(bound_j, rule.lower_bound_j)
        return bound_j

    def _cluster(self, rule: Rule, plan: Priced) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Joules and lateness. All pipelines but one wait for the one that takes the factor's
        time; that one draws its plan's power for that much longer."""
        setting = self._setting
        joules: list[float] = []
        late: list[float] = []
        for factor in setting.stragglers:
            until_s = factor * self._fastest.iteration_time_s
            clocks = rule.waiting(until_s)
            time_s, _ = makespan(self._problem, clocks)
            waiting_j = energy(self._problem, clocks, max(until_s, time_s))
            joules.append((setting.pipelines - 1) * waiting_j + factor * plan.energy_j)
            late.append(max(0.0, time_s / max(until_s, setting.deadline_s) - 1))
        return tuple(joules), tuple(late)

    def _believed(self, claim: Claim, until_s: float) -> Priced:
        price_w = self._problem.time_price_w
        return Priced(claim.iteration_time_s, claim.effective_j + price_w * until_s)

    def _claimed_cluster(self, rule: Published) -> tuple[float, ...]:
        """The same sum in its own reckoning: floored times, fitted costs."""
        own = rule.own()
        own_j = self._believed(own, own.iteration_time_s).energy_j
        joules = []
        for factor in self._setting.stragglers:
            until_s = factor * rule.solver.fastest_s
            claim = rule.reacting(until_s)
            waiting_j = self._believed(claim, max(until_s, claim.iteration_time_s)).energy_j
            joules.append((self._setting.pipelines - 1) * waiting_j + factor * own_j)
        return tuple(joules)


def cluster_baseline_j(setting: Setting, fastest: Priced) -> tuple[float, ...]:
    """All pipelines at full speed, waiting for each straggler."""
    price_w = setting.problem.time_price_w
    return tuple(
        (setting.pipelines - 1) * (fastest.energy_j + price_w * (factor - 1) * fastest.time_s)
        + factor * fastest.energy_j
        for factor in setting.stragglers
    )


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
