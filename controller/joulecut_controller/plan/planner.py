"""From one look at a job to one decision: keep its clocks, change them, or default clocks.

Pure: the case and what stood before go in, a decision comes out; the number a plan carries
and everything that touches a GPU come later. Every way to say "no change" has its reason,
because an operator who sees nothing happen must see why.
"""

from dataclasses import dataclass, replace
from typing import Literal

from joulecut_controller.learn.advice import Advice
from joulecut_controller.plan.appraisal import (
    Appraisal,
    Clocks,
    appraise,
    default_clocks,
    shaken,
)
from joulecut_controller.plan.costs import Costs, price
from joulecut_controller.plan.forecast import Prospect, forecast
from joulecut_controller.plan.goal import dwell_s, goal_of, learn_pace, rescaled
from joulecut_controller.plan.jitter import STILL, jitter_of
from joulecut_controller.plan.pace import EXPLAINED_RATIO, surely_above
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.plan.planning_input import Case, Standing
from joulecut_controller.plan.solver_cache import Answers
from joulecut_controller.plan.suspended import as_before, as_solution, put_aside, rest_s, said_again
from joulecut_controller.plan.trial import Trial
from joulecut_engine.estimate.estimator import Estimator
from joulecut_engine.optimize.problem import Goal, Infeasible, Solution

# A new plan must promise this much more of the baseline's energy than the running one: half
# of what a prediction of power is off by, so that plans are not swapped for noise.
IMPROVEMENT_RATIO_MIN = 0.005
FIT_RATIO = 0.001  # a running plan so little over its goal is left to measurement to judge

Verdict = Literal["default", "keep", "change"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The clocks decided on, and what they promise."""

    clocks: Clocks
    costs: Costs
    goal: Goal
    deadline_s: float
    forecast: Forecast
    solution: Solution
    busy_ratio: tuple[float, ...]  # by stage
    prospect: Prospect
    before: Appraisal  # the clocks that this replaces


@dataclass(frozen=True, slots=True)
class Decision:
    """`topic` is one stable word for the reason; it changes when the story does. `late` says
    that the running plan was found to break its deadline.
    """

    verdict: Verdict
    topic: str
    reason: str
    standing: Standing
    choice: Choice | None = None
    late: bool = False
    trial: Trial | None = None  # of a job without a profile, in place of a choice
    advice: Advice | None = None

    @property
    def commands(self) -> bool:
        """Whether clocks are to be set, so that the guard must see how things are now."""
        return self.verdict == "change" or self.trial is not None


def decide(case: Case, standing: Standing, estimator: Estimator, answers: Answers) -> Decision:
    """One job, one pass. Calls the solver through `answers`; may take seconds."""
    if standing.mode != case.mode:  # what was only recommended does not run
        standing = replace(standing, mode=case.mode, clocks=None, goal=None)
        standing = replace(standing, changed_s=float("-inf"), aside=None)
    hindered = obstacle(case)
    if hindered:
        return _give_back(standing, *hindered)
    if case.holdout:
        return Decision("default", "holdout", case.holdout, put_aside(standing, case.view.now_s))
    if standing.aside is not None and (wait_s := rest_s(standing.aside, case)) > 0.0:
        words = f"a hold-out window was cut short; clocks are not lowered for {wait_s:.0f} s yet"
        return Decision("default", "holdout", words, standing)
    priced = price(case.job, case.view.gpus, estimator, case.host_power_w, held=standing.costs)
    if isinstance(priced, str):
        return _give_back(standing, "evidence", priced)
    if priced is not standing.costs:
        standing = replace(standing, costs=priced, pace=rescaled(standing, priced))
    return _within_reach(case, standing, priced, answers)


def given_up(standing: Standing, reason: str) -> Decision:
    """Default clocks for a job that could not even be judged."""
    return _give_back(standing, "fault", reason)


def _give_back(standing: Standing, topic: str, reason: str) -> Decision:
    standing = replace(standing, clocks=None, goal=None, aside=None)
    return Decision("default", topic, reason, standing)


def obstacle(case: Case) -> tuple[str, str] | None:
    """What forbids any plan, before anything is computed; the first reason counts."""
    job, policy = case.job, case.job.policy
    counted, needed = case.baseline_progress
    progress = f"{counted} of {needed} iterations" if counted < needed else "not steady yet"
    stale = _stale(case)
    reasons: tuple[tuple[bool, str, str], ...] = (
        (case.mode == "off", "off", "mode is off"),
        (bool(case.paused), "paused", case.paused),
        (
            policy.pipeline is None,
            "pipeline",
            "the policy gives no pipeline for this job: no change",
        ),
        (
            policy.profile is None,
            "profile",
            "no profile, hence no evidence about other clocks: no change",
        ),
        (bool(job.complaint), "layout", f"{job.complaint}: no change"),
        (
            case.silent,
            "silent",
            f"the job has been silent for {job.report_age_s:.0f} s: default clocks",
        ),
        (bool(stale), "stale", f"nothing fresh is known of GPU {stale}: default clocks"),
        (
            job.baseline is None,
            "baseline",
            f"measuring the baseline ({job.foreign or progress})",
        ),
        (bool(case.unready), "unready", case.unready),
    )
    return next(((topic, reason) for found, topic, reason in reasons if found), None)


def _stale(case: Case) -> str:
    """The first GPU of the job of which nothing fresh is known."""
    for uuid in (uuid for stage in case.job.stages for uuid in stage):
        gpu = case.view.gpus.get(uuid)
        if gpu is None or gpu.snapshot is None or gpu.age_s > case.stale_s:
            return f"{gpu.node}/{gpu.description.index}" if gpu else uuid
    return ""


def _within_reach(case: Case, standing: Standing, costs: Costs, answers: Answers) -> Decision:
    """Holds the model against the baseline, and the target against both."""
    job, baseline = case.job, case.job.baseline
    assert baseline is not None
    default = appraise(costs, default_clocks(costs))
    assert default is not None
    at_default = baseline.time_mean_s / default.iteration_time_s
    if abs(at_default - 1.0) > EXPLAINED_RATIO:
        return _give_back(
            standing,
            "explained",
            f"the pipeline graph predicts {default.iteration_time_s:.4g} s an iteration, but "
            f"{baseline.time_mean_s:.4g} s were measured (allowed {EXPLAINED_RATIO:.0%} apart): "
            "no change",
        )
    slo = job.policy.slo
    beyond_s = slo.beyond_mean_s(baseline.time_sd_s)
    deadline_s = slo.deadline_s(baseline.time_mean_s + beyond_s)
    if surely_above(baseline, deadline_s - beyond_s):
        return _give_back(
            standing,
            "unreachable",
            f"target unreachable: {slo.given_as} asks for {deadline_s:.4g} s an "
            f"iteration, default clocks give {baseline.time_mean_s + beyond_s:.4g} s: no change",
        )
    if case.allotted_s is not None:
        deadline_s = max(deadline_s, case.allotted_s + beyond_s)
    aside = standing.aside
    standing = replace(standing, jitter=jitter_of(job, standing.jitter), aside=None)
    if aside is not None:
        standing = replace(standing, goal=aside.goal)
    default = shaken(default, costs, standing.jitter, answers)
    at_default = baseline.time_mean_s / default.mean_s
    standing, late = learn_pace(case, standing, answers, deadline_s, at_default)
    ratio = standing.pace.ratio(at_default)
    goal, promised_s = goal_of(case, standing, answers, deadline_s, ratio)
    jitter = STILL if goal.waits else standing.jitter
    answer = answers.ask(costs, goal, job.policy.clocks.granularity, jitter)
    if isinstance(answer, Infeasible):
        return _give_back(
            standing,
            "room",
            f"no clocks but the default ones keep {promised_s:.4g} s an iteration: no change",
        )
    prospect = Prospect(costs, goal, default, baseline.time_mean_s, ratio, promised_s, jitter)
    if aside is not None:
        prospect, answer = as_before(
            aside, prospect, answer, answers, gain_min=IMPROVEMENT_RATIO_MIN, fit_ratio=FIT_RATIO
        )
    standing = replace(standing, goal=prospect.goal)
    decision = _compare(case, standing, prospect, answer, answers, late=late)
    if aside is None or decision.choice is None:
        return decision
    words = said_again(decision.choice.clocks, aside, decision.choice.forecast)
    return replace(decision, reason=words or decision.reason)


def _compare(
    case: Case,
    standing: Standing,
    prospect: Prospect,
    answer: Solution,
    answers: Answers,
    *,
    late: bool,
) -> Decision:
    """The answer against what stands: changed only for a reason, lowered only after a dwell."""
    costs = prospect.costs
    new = tuple(option.clock_mhz for option in answer.clocks)
    held = standing.clocks or default_clocks(costs)
    before = _appraised(prospect, held, answers)
    if before is None:  # the held clocks left the bounds, or the graph changed: start anew
        return _give_back(standing, "bounds", "the clocks held are no longer among those allowed")
    limit_s = prospect.goal.deadline_s * (1.0 + FIT_RATIO)
    fits = not late and before.held_s <= limit_s
    after = _appraised(prospect, new, answers)
    assert after is not None
    gain = (prospect.cost_j(before) - prospect.cost_j(after)) / prospect.baseline_j
    if new == held or (fits and gain < IMPROVEMENT_RATIO_MIN):
        return _keep(standing, gain)
    lowers = any(a < b for a, b in zip(new, held, strict=True))
    waits_s = standing.changed_s + dwell_s(case) - case.view.now_s
    if lowers and waits_s > 0:
        if fits:
            return Decision(
                "keep",
                "dwell",
                f"{gain:.1%} more could be saved; clocks are not lowered for {waits_s:.0f} s yet",
                standing,
                late=late,
            )
        new = tuple(max(a, b) for a, b in zip(new, held, strict=True))
        after = _appraised(prospect, new, answers)
        assert after is not None
        answer = as_solution(answer, after, prospect)
    choice = Choice(
        clocks=new,
        costs=costs,
        goal=prospect.goal,
        deadline_s=prospect.promised_s,
        forecast=forecast(prospect, answer, after),
        prospect=prospect,
        before=before,
        solution=answer,
        busy_ratio=tuple(busy_s / after.iteration_time_s for busy_s in after.busy_s),
    )
    standing = replace(standing, clocks=new, changed_s=case.view.now_s)
    return Decision(
        "change", "plan", _sentence(case, choice, prospect, late), standing, choice, late
    )


def _appraised(prospect: Prospect, clocks: Clocks, answers: Answers) -> Appraisal | None:
    made = appraise(prospect.costs, clocks)
    return made and shaken(made, prospect.costs, prospect.jitter, answers)


def _keep(standing: Standing, gain: float) -> Decision:
    if standing.clocks is None:
        return Decision(
            "keep", "nothing", f"default clocks are right: {max(gain, 0.0):.1%} to save", standing
        )
    return Decision("keep", "steady", "the plan stands", standing)


def _sentence(case: Case, choice: Choice, prospect: Prospect, late: bool) -> str:
    figures = choice.forecast
    slo = case.job.policy.slo
    why = "measured late, backing off; " if late else ""
    if prospect.goal.waits:
        why += f"a sibling takes {choice.deadline_s:.4g} s and is waited for; "
    elif case.allotted_s is not None and choice.deadline_s >= case.allotted_s:
        why += f"the power budget asks for {choice.deadline_s:.4g} s; "
    else:
        why += f"{slo.given_as} allows {choice.deadline_s:.4g} s; "
    return (
        f"{why}predicted {figures.iteration_time_s:.4g} s an iteration "
        f"({figures.slowdown_ratio:+.2%}), {figures.saved_ratio:.1%} less energy"
    )
