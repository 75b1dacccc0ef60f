"""Every rule for clocks on one job, timed and priced by the same judge.

A rule's own claim does not count: its clocks are laid out in exact longest paths and priced with
the measured options.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from joulecut_cli.granularity import Asked
from joulecut_cli.jobfile import JobFile
from joulecut_engine.money import Iteration, Prices, Worth, least_cost, worth
from joulecut_engine.optimize.problem import Goal, NoCommonClock
from joulecut_engine.optimize.rules_of_thumb import off_path
from joulecut_engine.optimize.schedule import baseline, energy, makespan
from joulecut_engine.optimize.solver import Solver
from joulecut_lab.compare import baselines
from joulecut_lab.compare.baselines import Clocks
from joulecut_lab.compare.rules import (
    Chosen,
    Entry,
    Ours,
    Point,
    Published,
    Rule,
    Setting,
    cluster_baseline_j,
)

OURS = (Asked("gpu"), Asked("changes"), Asked("changes", 4), Asked("computation"))
STYLES = {"gpu": "gpu", "changes:2": "changes", "changes:4": "edge", "computation": "ours"}


class Judge:
    """Prices the clocks of every rule; its bounds are those of a clock per operation."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._problem = setting.problem
        self._fastest = baseline(setting.problem)
        self._frontier = Solver(setting.problem, "computation")

    def entries(
        self,
        ours: Sequence[Asked],
        perseus_unit_s: float,
        heard: Callable[[int, int], None] = lambda *_: None,
    ) -> list[Entry]:
        """All rules, from knowing least to knowing most. Raises Infeasible."""
        setting = self._setting
        makers: list[tuple[str, str, Callable[[], Rule]]] = [
            ("highest clock", "base", lambda: Chosen(setting, lambda p: [baselines.all_max(p)])),
            ("one clock for all", "one", lambda: Chosen(setting, baselines.one_clock)),
            ("power cap for all (Zeus)", "cap", lambda: Chosen(setting, baselines.power_cap)),
            ("cap per stage (Zeus)", "sand", lambda: Chosen(setting, baselines.cap_per_stage)),
            ("clock per stage", "stage", lambda: Chosen(setting, baselines.clock_per_stage)),
            ("EnvPipe-like", "sky", lambda: Chosen(setting, lambda p: [off_path(p)])),
            ("Perseus", "perseus", lambda: Published(setting, perseus_unit_s)),
        ]
        for asked in ours:
            changes = f":{asked.changes or 2}" if asked.granularity == "changes" else ""
            name = asked.granularity + changes
            make = partial(Ours, setting, asked)
            makers.append((f"Joulecut {name}", STYLES.get(name, "changes"), make))
        found = []
        for done, maker in enumerate(makers, start=1):
            found.append(self._entry(*maker))
            heard(done, len(makers))
        return found

    def _entry(self, name: str, style: str, make: Callable[[], Rule]) -> Entry:
        began_s = time.perf_counter()
        try:
            rule = make()
            plans = [rule.plan(deadline_s) for deadline_s in self._setting.deadlines_s]
        except NoCommonClock as none:
            return Entry(name, style, remark=str(none))
        seconds = time.perf_counter() - began_s
        points = tuple(map(self._point, plans, self._setting.deadlines_s))
        return Entry(name, style, points, seconds, *self._cluster(rule, points[0].plan))

    def bound_j(self, deadline_s: float) -> float:
        """No plan within the deadline takes less."""
        return self._frontier.at(Goal(deadline_s)).lower_bound_j

    def _point(self, clocks: Clocks, deadline_s: float) -> Point:
        """The bound is for the deadline; for its own time where the plan takes longer."""
        time_s, _ = makespan(self._problem, clocks)
        plan = Iteration(time_s, energy(self._problem, clocks, time_s))
        return Point(plan, self.bound_j(max(deadline_s, time_s)))

    def _cluster(self, rule: Rule, plan: Iteration) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Joules and lateness. All pipelines but one wait for the one that takes the factor's
        time; that one draws its plan's power for that much longer."""
        setting, deadline_s = self._setting, self._setting.deadlines_s[0]
        joules, late = list[float](), list[float]()
        for factor in setting.stragglers:
            until_s = factor * self._fastest.iteration_time_s
            clocks = rule.waiting(until_s, deadline_s)
            time_s, _ = makespan(self._problem, clocks)
            waiting_j = energy(self._problem, clocks, max(until_s, time_s))
            joules.append((setting.pipelines - 1) * waiting_j + factor * plan.energy_j)
            late.append(max(0.0, time_s / max(until_s, deadline_s) - 1))
        return tuple(joules), tuple(late)


LATE = 1e-6  # relative: what floats differ by is not late


class Straggler(NamedTuple):
    """Joules of all pipelines while one takes `factor` times as long; the others end late by the
    fraction `late_ratio`.
    """

    factor: float
    energy_j: float
    saving_ratio: float
    late_ratio: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all rules came to on one job; `fastest` is the baseline, `bounds_j` are of a clock per
    operation, for each slowdown.
    """

    job: JobFile
    setting: Setting
    fastest: Iteration
    entries: tuple[Entry, ...]
    bounds_j: tuple[float, ...]
    perseus_unit_s: float
    prices: Prices

    def left_out(self) -> str:
        """Keys of the job file that no rule uses; empty for none."""
        return self.job.left_out("jitter", "switching")

    def saving(self, joules: float, of_j: float | None = None) -> float:
        """A fraction of the baseline's energy, or of another."""
        return 1 - joules / (self.fastest.energy_j if of_j is None else of_j)

    def slowdown(self, priced: Iteration) -> float:
        return priced.time_s / self.fastest.time_s - 1

    def late(self, priced: Iteration, deadline_s: float) -> float:
        """By what fraction of the deadline; 0 for one that keeps it."""
        over = priced.time_s / deadline_s - 1
        return over if over > LATE else 0.0

    def worth(self, entry: Entry) -> Worth:
        """The point of a rule, or default clocks, where energy and GPU time cost least."""
        gpus = len(self.setting.problem.graph.order)
        points = [self.fastest, *(one.plan for one in entry.points)]
        return worth(self.fastest, least_cost(points, gpus, self.prices), gpus, self.prices)

    def stragglers(self, entry: Entry) -> list[Straggler]:
        """What a rule saves of all pipelines at full speed, for each straggler."""
        against_j = cluster_baseline_j(self.setting, self.fastest)
        rows = zip(self.setting.stragglers, entry.cluster_j, against_j, entry.late, strict=False)
        return [
            Straggler(factor, joules, self.saving(joules, base_j), late)
            for factor, joules, base_j, late in rows
        ]
