"""Bloat of a job by its profile, scaled to its measured energy.

With the controller's graph and solver: intrinsic bloat at the job's iteration time (Perseus,
SOSP'24, section 2), extrinsic bloat while it waits for a sibling, and the savings of plans of every
granularity within its target. Pure; several solves, seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass

from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import GRANULARITIES, Granularity
from joulecut_engine.optimize.jitter_margin import Solves
from joulecut_engine.optimize.problem import Goal, Infeasible, NoCommonClock, Problem, Solution
from joulecut_engine.optimize.schedule import energy, makespan
from joulecut_lab.audit.finding import Amount, PlanSaving

Prepare = Callable[[Problem, Granularity], Solves]

ROUNDING = 1e-9  # a deadline at the very time a job has must not fail by an ulp
MHZ_MAX = 1e6  # above every clock there is
EXPLAINED_RATIO = 0.03  # as everywhere: a graph further off does not fit


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """A job as it ran: `work_j` measured while not idle, at the clock its GPUs worked at most.

    `iteration_s` and `peer_s` are measured means where the job reports them; `waited_share` is the
    share of the time that a sibling was waited for.
    """

    work_j: float
    clock_mhz: float | None
    iteration_s: float | None = None
    peer_s: float | None = None
    waited_share: float = 0.0


class ProfileEstimate:
    """One job's problem, with the time and energy of its present clocks by the profile."""

    def __init__(self, problem: Problem, now: MeasuredJob, prepare: Prepare, source: str) -> None:
        self._problem, self._now, self._prepare, self._source = problem, now, prepare, source
        self._options = _at(problem, now.clock_mhz)
        self.iteration_s, _ = makespan(problem, self._options)
        self._energy_j = energy(problem, self._options, self.iteration_s)
        self._prepared: dict[Granularity, Solves] = {}

    @property
    def unexplained(self) -> str:
        """Why the profile does not fit this job; empty where it does."""
        measured_s = self._now.iteration_s
        if measured_s is None or abs(measured_s / self.iteration_s - 1.0) <= EXPLAINED_RATIO:
            return ""
        return (
            f"the pipeline graph predicts {self.iteration_s:.4g} s an iteration, but "
            f"{measured_s:.4g} s were measured: the profile does not fit this job"
        )

    def intrinsic(self) -> Amount:
        ratio = self._saved(Goal(self.iteration_s * (1.0 + ROUNDING)), "computation")
        if self.unexplained or ratio is None:
            return Amount.unknown(self.unexplained or "no plan keeps its iteration time")
        text = f"above the frontier at the same {self.iteration_s:.4g} s, by {self._source}"
        return Amount(max(0.0, ratio) * self._now.work_j, "predicted", text)

    def extrinsic(self) -> Amount:
        peer_s, own_s = self._now.peer_s, self._now.iteration_s
        if self.unexplained:
            return Amount.unknown(self.unexplained)
        if peer_s is None:
            return Amount.unknown(
                "no iteration time of its siblings: reports need peer_iteration_time_s"
            )
        ratio = peer_s / (own_s or self.iteration_s)
        deadline_s = self.iteration_s * max(1.0, ratio)
        waiting_j = energy(self._problem, self._options, deadline_s)
        both = self._saved(Goal(deadline_s, waits=True), "computation", waiting_j)
        own = self._saved(Goal(self.iteration_s * (1.0 + ROUNDING)), "computation")
        if both is None or own is None:
            return Amount.unknown("no plan keeps its iteration time")
        beyond = max(0.0, both - max(0.0, own) * self._energy_j / waiting_j)
        text = f"while a sibling took {peer_s:.4g} s and was waited for, by {self._source}"
        return Amount(beyond * self._now.work_j * self._now.waited_share, "predicted", text)

    def savings(self, deadline_s: float) -> tuple[PlanSaving, ...]:
        """Of every granularity within a deadline in the job's seconds."""
        scale = self.iteration_s / (self._now.iteration_s or self.iteration_s)
        goal = Goal(max(deadline_s * scale, self.iteration_s) * (1.0 + ROUNDING))
        made = []
        for granularity in GRANULARITIES:
            found = None if self.unexplained else self._answer(goal, granularity)
            if found is None:
                why = self.unexplained or "no plan of this granularity keeps the target"
                made.append(PlanSaving(granularity, None, None, why))
                continue
            text = f"within {goal.deadline_s:.4g} s an iteration, by {self._source}"
            ratio = 1.0 - found.energy_j / self._energy_j
            slower = found.iteration_time_s / self.iteration_s - 1.0
            joules = ratio * self._now.work_j
            made.append(PlanSaving(granularity, ratio, joules, text, slowdown=slower))
        return tuple(made)

    def _saved(
        self, goal: Goal, granularity: Granularity, before_j: float | None = None
    ) -> float | None:
        """Share of the present energy that a plan saves."""
        found = self._answer(goal, granularity)
        before_j = self._energy_j if before_j is None else before_j
        return None if found is None else 1.0 - found.energy_j / before_j

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
