"""A plan before it has its number: what would be done, and on what authority.

Of the planner's choice and of a trial without a profile alike, so that both go the same way:
the guard first, then a number, then the guard once more, then the trail. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from joulecut_controller.plan.actions import actions_for
from joulecut_controller.plan.guard import Authority
from joulecut_controller.plan.plan import Action, Forecast, Plan
from joulecut_controller.plan.planner import Choice
from joulecut_controller.plan.trial import Trial
from joulecut_controller.view import JobView
from joulecut_engine.optimize.problem import Goal, Problem, Solution


@dataclass(frozen=True, slots=True)
class Draft:
    """`clocks` tells one draft of a job from another; `problem` and `goal` are the question
    that the solver answered, `reach_mhz` the bound by stage where there was none.
    """

    clocks: tuple[int | None, ...]
    actions: tuple[Action, ...]
    forecast: Forecast
    deadline_s: float
    solution: Solution | None = None
    problem: Problem | None = None
    goal: Goal | None = None
    reach_mhz: tuple[int, ...] | None = None

    def plan(self, blank: Plan, generation: int) -> Plan:
        """The plan of this content; `blank` says whose it is, what it replaces, and why."""
        return replace(
            blank,
            generation=generation,
            actions=self.actions,
            deadline_s=self.deadline_s,
            forecast=self.forecast,
            solution=self.solution,
        )

    def authority(
        self,
        *,
        epoch: int,
        generation_last: int,
        ttl_s: float,
        snapshot_age_max_s: float,
        report_age_max_s: float,
    ) -> Authority:
        return Authority(
            epoch=epoch,
            generation_last=generation_last,
            ttl_s=ttl_s,
            snapshot_age_max_s=snapshot_age_max_s,
            report_age_max_s=report_age_max_s,
            problem=self.problem,
            goal=self.goal,
            reach_mhz=self.reach_mhz,
        )


def draft_of_choice(choice: Choice, job: JobView, running: Mapping[str, int]) -> Draft:
    """`running` maps the job's GPUs to the clock that their lease allows (0: none)."""
    return Draft(
        clocks=choice.clocks,
        actions=actions_for(job, choice, running),
        forecast=choice.forecast,
        deadline_s=choice.deadline_s,
        solution=choice.solution,
        problem=choice.costs.problem,
        goal=choice.goal,
    )


def draft_of_trial(trial: Trial) -> Draft:
    return Draft(
        clocks=tuple(action.clock_mhz for action in trial.actions),
        actions=trial.actions,
        forecast=trial.forecast,
        deadline_s=trial.deadline_s,
        reach_mhz=trial.reach_mhz,
    )
