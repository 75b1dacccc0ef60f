"""What a plan is predicted to give, in the job's own seconds and for all its GPUs.

The model's seconds are turned into real ones by the measured ratio, so that a forecast can
be held against a measurement.
"""

from dataclasses import dataclass, replace

from joulecut_controller.plan.appraisal import Appraisal
from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.jitter import STILL, Jitter
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.plan.solver_cache import Answers
from joulecut_engine.graph.pipeline import GRANULARITIES, Granularity
from joulecut_engine.optimize.problem import Goal, Infeasible, Solution

COMPARED = GRANULARITIES  # from what needs no change to a job to what needs most
ROUNDING = 1e-9  # a frontier point at the very time a plan has must not fail by an ulp


@dataclass(frozen=True, slots=True)
class Prospect:
    """The ground on which plans of one pass are compared.

    `ratio` is real seconds over model seconds; `promised_s` the real deadline, or the
    straggler's time where the goal waits.
    """

    costs: Costs
    goal: Goal
    default: Appraisal
    baseline_s: float
    ratio: float
    promised_s: float
    jitter: Jitter = STILL

    def cost_j(self, appraisal: Appraisal) -> float:
        """Energy as the goal counts it, by model seconds, of one GPU per stage."""
        time_s = appraisal.iteration_time_s
        return appraisal.energy_j(max(time_s, self.goal.deadline_s) if self.goal.waits else time_s)

    @property
    def baseline_j(self) -> float:
        return self.cost_j(self.default)

    def real_s(self, appraisal: Appraisal) -> float:
        own_s = self.ratio * appraisal.mean_s
        return max(own_s, self.promised_s) if self.goal.waits else own_s


def forecast(prospect: Prospect, answer: Solution, after: Appraisal) -> Forecast:
    """What the plan gives (`after`); what else could be saved is left to `completed`."""
    width = prospect.costs.width
    waited_s = prospect.promised_s if prospect.goal.waits else 0.0
    baseline_s = max(prospect.baseline_s, waited_s)
    own_saved = 1.0 - prospect.cost_j(after) / prospect.baseline_j
    return Forecast(
        iteration_time_s=prospect.real_s(after),
        energy_j=width * after.energy_j(prospect.real_s(after)),
        baseline_time_s=baseline_s,
        baseline_energy_j=width * prospect.default.energy_j(baseline_s),
        lower_bound_j=width * answer.lower_bound_j,
        gap_ratio=answer.gap,
        saved_by_granularity=((answer.granularity, own_saved),),
    )


def completed(made: Forecast, prospect: Prospect, before: Appraisal, answers: Answers) -> Forecast:
    """The forecast with what every granularity would save at the same deadline, and with
    what the clocks that ran `before` the plan wasted. Several solves: seconds.
    """
    width = prospect.costs.width
    intrinsic_w, extrinsic_w = _bloat_w(prospect, before, answers)
    return replace(
        made,
        saved_by_granularity=tuple(
            (granularity, saved)
            for granularity in COMPARED
            if (saved := _saved_ratio(prospect, granularity, answers)) is not None
        ),
        intrinsic_bloat_w=width * intrinsic_w,
        extrinsic_bloat_w=width * extrinsic_w,
    )


def _saved_ratio(prospect: Prospect, granularity: Granularity, answers: Answers) -> float | None:
    answer = answers.ask(prospect.costs, prospect.goal, granularity, prospect.jitter)
    if isinstance(answer, Infeasible):
        return None
    return 1.0 - answer.energy_j / prospect.baseline_j


def _bloat_w(prospect: Prospect, before: Appraisal, answers: Answers) -> tuple[float, float]:
    """Power that runs now and need not: intrinsic, and extrinsic while a straggler is waited
    for (the words of Perseus, SOSP'24, section 2). Of one GPU per stage, model seconds.
    """
    own_s = before.iteration_time_s
    now = answers.ask(prospect.costs, Goal(own_s * (1.0 + ROUNDING)), "computation")
    if isinstance(now, Infeasible):
        return 0.0, 0.0
    saved_j = max(0.0, before.energy_j(own_s) - now.energy_j)
    if not prospect.goal.waits:
        return saved_j / own_s, 0.0
    waited_s = max(own_s, prospect.goal.deadline_s)
    slow = answers.ask(prospect.costs, prospect.goal, "computation")
    if isinstance(slow, Infeasible):
        return saved_j / waited_s, 0.0
    all_j = max(0.0, before.energy_j(waited_s) - slow.energy_j)
    return saved_j / waited_s, max(0.0, all_j - saved_j) / waited_s
