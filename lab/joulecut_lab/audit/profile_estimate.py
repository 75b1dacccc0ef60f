"""Bloat of a job by its profile, scaled to its measured energy.

With the controller's graph and solver: intrinsic bloat at the job's iteration time (Perseus,
SOSP'24, section 2), and the savings of plans of every granularity within its target. Pure; several
solves, seconds.
"""

from collections.abc import Callable

from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import GRANULARITIES, Granularity
from joulecut_engine.optimize.jitter_margin import Solves
from joulecut_engine.optimize.problem import Goal, Infeasible, NoCommonClock, Problem, Solution
from joulecut_engine.optimize.schedule import energy, makespan
from joulecut_lab.audit.finding import Amount, PlanSaving

Prepare = Callable[[Problem, Granularity], Solves]

ROUNDING = 1e-9  # a deadline at the very time a job has must not fail by an ulp
MHZ_MAX = 1e6  # above every clock there is


class ProfileEstimate:
    """One job's problem, with the time and energy of its present clocks by the profile.

    `work_j` was measured while the job was not idle, at the clock its GPUs worked at most.
    """

    def __init__(
        self,
        problem: Problem,
        prepare: Prepare,
        source: str,
        *,
        work_j: float,
        clock_mhz: float | None,
    ) -> None:
        self._problem, self._work_j = problem, work_j
        self._prepare, self._source = prepare, source
        options = _at(problem, clock_mhz)
        self.iteration_s, _ = makespan(problem, options)
        self._energy_j = energy(problem, options, self.iteration_s)
        self._prepared: dict[Granularity, Solves] = {}

    def intrinsic(self) -> Amount:
        found = self._answer(Goal(self.iteration_s * (1.0 + ROUNDING)), "computation")
        if found is None:
            return Amount.unknown("no plan keeps its iteration time")
        text = f"above the frontier at the same {self.iteration_s:.4g} s, by {self._source}"
        ratio = 1.0 - found.energy_j / self._energy_j
        return Amount(max(0.0, ratio) * self._work_j, "predicted", text)

    def savings(self, deadline_s: float) -> tuple[PlanSaving, ...]:
        """Of every granularity within a deadline in the profile's seconds."""
        goal = Goal(max(deadline_s, self.iteration_s) * (1.0 + ROUNDING))
        made = []
        for granularity in GRANULARITIES:
            found = self._answer(goal, granularity)
            if found is None:
                why = "no plan of this granularity keeps the target"
                made.append(PlanSaving(granularity, None, None, why))
                continue
            text = f"within {goal.deadline_s:.4g} s an iteration, by {self._source}"
            ratio = 1.0 - found.energy_j / self._energy_j
            slower = found.iteration_time_s / self.iteration_s - 1.0
            joules = ratio * self._work_j
            made.append(PlanSaving(granularity, ratio, joules, text, slowdown=slower))
        return tuple(made)

    def _answer(self, goal: Goal, granularity: Granularity) -> Solution | None:
        try:
            if granularity not in self._prepared:
                self._prepared[granularity] = self._prepare(self._problem, granularity)
            return self._prepared[granularity].solve(goal)
        except (Infeasible, NoCommonClock):
            return None


def _at(problem: Problem, clock_mhz: float | None) -> tuple[ClockOption, ...]:
    """Options of all operations at the clock nearest to `clock_mhz`; the highest without one."""
    wanted_mhz = MHZ_MAX if clock_mhz is None else clock_mhz
    return tuple(
        menu[0]
        if menu[0].clock_mhz == ANY_CLOCK_MHZ
        else min(menu, key=lambda option: abs(option.clock_mhz - wanted_mhz))
        for menu in problem.measured or problem.options
    )
