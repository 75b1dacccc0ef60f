"""From one look at a job to one decision: keep its clocks, change them, or default clocks.

Pure: the case and what stood before go in, a decision comes out; the number a plan carries
and everything that touches a GPU come later. Every way to say "no change" has its reason,
because an operator who sees nothing happen must see why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from joulecut_controller.plan.answers import Answers
from joulecut_controller.plan.appraisal import Appraisal, Clocks, appraise, default_clocks
from joulecut_controller.plan.costs import Costs, price
from joulecut_controller.plan.forecast import Prospect, forecast
from joulecut_controller.plan.pace import EXPLAINED_RATIO, Pace, learn, surely_above
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.policy.policy import Mode
from joulecut_controller.predict.estimator import Estimator
from joulecut_controller.solve.problem import Goal, Infeasible, Solution
from joulecut_controller.view import JobView, View

# A new plan must promise this much more of the baseline's energy than the running one: half
# of what a prediction of power is off by, so that plans are not swapped for noise.
IMPROVEMENT_RATIO_MIN = 0.005
# A goal this much tighter than it need be stands; it is never held when it became too loose.
GOAL_SLACK_RATIO = 0.002
GOAL_SLACK_RATIO_PEER = 0.01  # a straggler's time is measured from a few iterations only
# A straggler's time is a mean: aiming at it exactly would be late every second time.
PEER_MARGIN_RATIO = 0.005
PEER_LATE_RATIO = 0.01  # the larger of two noisy times exceeds either mean by about this
ROUNDING = 1e-9  # deadlines are held to this, relative

Verdict = Literal["default", "keep", "change"]


@dataclass(frozen=True, slots=True)
class Case:
    """One job in one pass. `running` maps its GPUs to the clock their lease allows (0: none).

    `measured_applied` says that `job.current` ran under the clocks of the standing decision.
    """

    view: View
    job: JobView
    mode: Mode
    silent: bool
    baseline_progress: tuple[int, int]  # iterations counted, and needed at least
    running: Mapping[str, int]
    measured_applied: bool
    stale_s: float
    host_power_w: float = 0.0
    paused: str = ""  # why this controller may not act for the job now


@dataclass(frozen=True, slots=True)
class Standing:
    """What the planner carries from pass to pass. `clocks` are those of the last decision,
    None for default clocks; in mode recommend nothing runs under them.
    """

    mode: Mode = "off"
    clocks: Clocks | None = None
    costs: Costs | None = None
    goal: Goal | None = None
    pace: Pace = field(default_factory=Pace)
    changed_s: float = float("-inf")


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


def decide(case: Case, standing: Standing, estimator: Estimator, answers: Answers) -> Decision:
    """One job, one pass. Calls the solver through `answers`; may take seconds."""
    if standing.mode != case.mode:  # what was only recommended does not run
        standing = replace(standing, mode=case.mode, clocks=None, goal=None)
        standing = replace(standing, changed_s=float("-inf"))
    obstacle = _obstacle(case)
    if obstacle:
        return _give_back(standing, *obstacle)
    priced = price(case.job, case.view.gpus, estimator, case.host_power_w, held=standing.costs)
    if isinstance(priced, str):
        return _give_back(standing, "evidence", priced)
    if priced is not standing.costs:
        standing = replace(standing, costs=priced, pace=_rescaled(standing, priced))
    return _within_reach(case, standing, priced, answers)


def _rescaled(standing: Standing, costs: Costs) -> Pace:
    """The pace by the new costs' seconds, so that the clocks held keep their real time."""
    old, pace = standing.costs, standing.pace
    if old is None or pace.learned is None:
        return pace
    before = appraise(old, standing.clocks or default_clocks(old))
    after = appraise(costs, standing.clocks or default_clocks(costs))
    if before is None or after is None:
        return replace(pace, learned=None)
    return replace(pace, learned=pace.learned * before.iteration_time_s / after.iteration_time_s)


def _give_back(standing: Standing, topic: str, reason: str) -> Decision:
    return Decision("default", topic, reason, replace(standing, clocks=None, goal=None))


def _obstacle(case: Case) -> tuple[str, str] | None:
    """What forbids any plan, before anything is computed; the first reason counts."""
    job, policy = case.job, case.job.policy
    counted, needed = case.baseline_progress
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
            f"measuring the baseline ({counted} of {needed} iterations)",
        ),
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
    deadline_s = job.policy.slo.deadline_s(baseline.time_mean_s)
    if surely_above(baseline, deadline_s):
        return _give_back(
            standing,
            "unreachable",
            f"target unreachable: {job.policy.slo.given_as} asks for {deadline_s:.4g} s an "
            f"iteration, default clocks give {baseline.time_mean_s:.4g} s: no change",
        )
    standing, late = _learn_pace(case, standing, costs, deadline_s, at_default)
    ratio = standing.pace.ratio(at_default)
    goal, promised_s = _goal(case, standing, answers, deadline_s, ratio)
    answer = answers.ask(costs, goal, job.policy.clocks.granularity)
    if isinstance(answer, Infeasible):
        return _give_back(
            standing,
            "room",
            f"no clocks but the default ones keep {promised_s:.4g} s an iteration: no change",
        )
    prospect = Prospect(costs, goal, default, baseline.time_mean_s, ratio, promised_s)
    standing = replace(standing, goal=goal)
    return _compare(case, standing, prospect, answer, late=late)


def _learn_pace(
    case: Case, standing: Standing, costs: Costs, deadline_s: float, at_default: float
) -> tuple[Standing, bool]:
    measured = case.job.current
    if not case.measured_applied or standing.clocks is None or measured is None:
        return standing, False
    running = appraise(costs, standing.clocks)
    if running is None:
        return standing, False
    limit_s, peer_s = deadline_s, case.job.peer_iteration_time_s
    if peer_s is not None:
        limit_s = max(deadline_s, peer_s * (1.0 + PEER_LATE_RATIO))
        if measured.time_mean_s <= limit_s:
            return standing, False  # the time measured is the straggler's, not ours
    pace, late = learn(
        standing.pace,
        measured=measured,
        modelled_s=running.iteration_time_s,
        limit_s=limit_s,
        at_default=at_default,
        now_s=case.view.now_s,
        dwell_s=_dwell_s(case),
    )
    return replace(standing, pace=pace), late


def _peer_s(case: Case) -> float | None:
    """The straggler's iteration time, where waiting for it is once an iteration."""
    pipeline = case.job.policy.pipeline
    if pipeline is None or pipeline.sync != "iteration":
        return None
    return case.job.peer_iteration_time_s


def _goal(
    case: Case, standing: Standing, answers: Answers, deadline_s: float, ratio: float
) -> tuple[Goal, float]:
    """The solver's goal in model seconds, and what it promises in real ones.

    With an own deadline D and a straggler that takes T', T = max(T', min(D, T_E)): the plan
    of a lone pipeline within D ends at min(D, T_E), so a straggler slower than that plan is
    waited for anyway, and one faster than it changes nothing.
    """
    assert standing.costs is not None
    own = Goal(_hold(standing.goal, deadline_s / ratio * (1.0 + ROUNDING), waits=False))
    peer_s = _peer_s(case)
    if peer_s is None:
        return own, deadline_s
    lone = answers.ask(standing.costs, own, case.job.policy.clocks.granularity)
    lone_s = lone.fastest_s if isinstance(lone, Infeasible) else lone.iteration_time_s
    wanted_s = peer_s * (1.0 - PEER_MARGIN_RATIO) / ratio
    if wanted_s <= lone_s:
        return own, deadline_s
    return Goal(_hold(standing.goal, wanted_s, waits=True), waits=True), peer_s


def _hold(held: Goal | None, wanted_s: float, *, waits: bool) -> float:
    """The held deadline while it is a little tighter than wanted; else the wanted one."""
    slack = GOAL_SLACK_RATIO_PEER if waits else GOAL_SLACK_RATIO
    if held is None or held.waits != waits:
        return wanted_s
    tight_enough = held.deadline_s <= wanted_s * (1.0 + ROUNDING)
    return (
        held.deadline_s if tight_enough and held.deadline_s >= wanted_s * (1 - slack) else wanted_s
    )


def _dwell_s(case: Case) -> float:
    """Between two lowerings: the operator's word, or a site's if that is longer."""
    sites = (
        case.view.gpus[uuid].description.min_dwell_s for stage in case.job.stages for uuid in stage
    )
    return max(case.job.policy.clocks.min_dwell_s, *sites)


def _compare(
    case: Case,
    standing: Standing,
    prospect: Prospect,
    answer: Solution,
    *,
    late: bool,
) -> Decision:
    """The answer against what stands: changed only for a reason, lowered only after a dwell."""
    costs = prospect.costs
    new = tuple(option.clock_mhz for option in answer.clocks)
    held = standing.clocks or default_clocks(costs)
    before = appraise(costs, held)
    if before is None:  # the held clocks left the bounds, or the graph changed: start anew
        return _give_back(standing, "bounds", "the clocks held are no longer among those allowed")
    limit_s = prospect.goal.deadline_s * (1.0 + GOAL_SLACK_RATIO)
    fits = not late and before.iteration_time_s <= limit_s
    after = appraise(costs, new)
    assert after is not None
    gain = (prospect.cost_j(before) - prospect.cost_j(after)) / prospect.baseline_j
    if new == held or (fits and gain < IMPROVEMENT_RATIO_MIN):
        return _keep(standing, gain)
    lowers = any(a < b for a, b in zip(new, held, strict=True))
    waits_s = standing.changed_s + _dwell_s(case) - case.view.now_s
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
        after = appraise(costs, new)
        assert after is not None
        answer = _as_solution(answer, after, prospect)
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


def _keep(standing: Standing, gain: float) -> Decision:
    if standing.clocks is None:
        return Decision(
            "keep", "nothing", f"default clocks are right: {max(gain, 0.0):.1%} to save", standing
        )
    return Decision("keep", "steady", "the plan stands", standing)


def _as_solution(answer: Solution, after: Appraisal, prospect: Prospect) -> Solution:
    """The raised clocks with the solver's bound, which holds for every plan of this goal."""
    return replace(
        answer,
        clocks=after.options,
        start_s=after.start_s,
        iteration_time_s=after.iteration_time_s,
        energy_j=prospect.cost_j(after),
    )


def _sentence(case: Case, choice: Choice, prospect: Prospect, late: bool) -> str:
    figures = choice.forecast
    slo = case.job.policy.slo
    why = "measured late, backing off; " if late else ""
    if prospect.goal.waits:
        why += f"a sibling takes {choice.deadline_s:.4g} s and is waited for; "
    else:
        why += f"{slo.given_as} allows {choice.deadline_s:.4g} s; "
    return (
        f"{why}predicted {figures.iteration_time_s:.4g} s an iteration "
        f"({figures.slowdown_ratio:+.2%}), {figures.saved_ratio:.1%} less energy"
    )
