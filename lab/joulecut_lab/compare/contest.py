"""Every rule for clocks on one job, timed and priced by the same judge.

A rule's own claim does not count: its clocks are laid out in exact longest paths and priced with
the measured options.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joulecut_cli.jobfile import JobFile
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.frontier import Frontier
from joulecut_engine.optimize.problem import Goal, NoCommonClock
from joulecut_engine.optimize.schedule import baseline, energy, makespan
from joulecut_engine.optimize.solver import Solver
from joulecut_lab.compare import baselines
from joulecut_lab.compare.baselines import Clocks
from joulecut_lab.compare.perseus import Claim
from joulecut_lab.compare.rules import (
    Chosen,
    Entry,
    Ours,
    Priced,
    Published,
    Rule,
    Setting,
    cluster_baseline_j,
)


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
    """Prices the clocks of every rule; its bounds are those of a clock per operation."""

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


LATE = 1e-6  # relative: what floats differ by is not late


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all rules came to on one job; `fastest` is the baseline."""

    job: JobFile
    setting: Setting
    fastest: Priced
    entries: tuple[Entry, ...]
    perseus_unit_s: float

    def left_out(self) -> str:
        """Keys of the job file that no rule uses; empty for none."""
        return self.job.left_out("jitter", "switching")

    def saving(self, joules: float, of_j: float | None = None) -> float:
        """A fraction of the baseline's energy, or of another."""
        return 1 - joules / (self.fastest.energy_j if of_j is None else of_j)

    def slowdown(self, priced: Priced) -> float:
        return priced.time_s / self.fastest.time_s - 1

    def late(self, priced: Priced) -> float:
        """By what fraction of the deadline; 0 for one that keeps it."""
        over = priced.time_s / self.setting.deadline_s - 1
        return over if over > LATE else 0.0

    def baseline_cluster_j(self) -> tuple[float, ...]:
        """Joules of all pipelines at full speed, for each straggler."""
        return cluster_baseline_j(self.setting, self.fastest)

    def claimed_saving(self, entry: Entry) -> float:
        """The saving that a rule with its own cost model claims."""
        assert entry.claimed is not None
        return self.saving(entry.claimed.energy_j, self._floored(entry).energy_j)

    def claimed_stragglers(self, entry: Entry) -> list[float]:
        """The same for each straggler; empty for a rule without a reckoning of its own."""
        if not entry.claimed_cluster_j:
            return []
        base_j = cluster_baseline_j(self.setting, self._floored(entry))
        pairs = zip(entry.claimed_cluster_j, base_j, strict=True)
        return [self.saving(joules, of_j) for joules, of_j in pairs]

    def _floored(self, entry: Entry) -> Priced:
        """The baseline in Perseus' reckoning: at full speed, floored times."""
        short_s = self.fastest.time_s - entry.claimed_fastest_s
        price_w = self.setting.problem.time_price_w
        return Priced(entry.claimed_fastest_s, self.fastest.energy_j - price_w * short_s)
