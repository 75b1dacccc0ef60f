"""What the solver is asked: the promise to the job, in the model's own seconds.

The promise is made in measured time; the model is a little faster than reality, and how
much is learnt from what runs (`pace`). A straggler's time replaces the own deadline where
it is waited for anyway.
"""

from dataclasses import replace

from joulecut_controller.plan.appraisal import appraise, default_clocks, shaken
from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.pace import Pace, learn
from joulecut_controller.plan.planning_input import Case, Standing
from joulecut_controller.plan.solver_cache import Answers
from joulecut_engine.optimize.problem import Goal, Infeasible, Solution

# A goal this much tighter than it need be stands; it is never held when it became too loose.
GOAL_SLACK_RATIO = 0.001
GOAL_SLACK_RATIO_PEER = 0.01  # a straggler's time is measured from a few iterations only
# A straggler's time is a mean: aiming at it exactly would be late every second time.
PEER_MARGIN_RATIO = 0.005
PEER_LATE_RATIO = 0.01  # the larger of two noisy times exceeds either mean by about this
ROUNDING = 1e-9  # deadlines are held to this, relative


def learn_pace(
    case: Case,
    standing: Standing,
    answers: Answers,
    deadline_s: float,
    at_default: float,
) -> tuple[Standing, bool]:
    """The pace after a look at what runs, and whether that is late."""
    measured, costs = case.job.current, standing.costs
    if not case.measured_applied or standing.clocks is None or measured is None or costs is None:
        return standing, False
    running = appraise(costs, standing.clocks)
    if running is None:
        return standing, False
    running = shaken(running, costs, standing.jitter, answers)
    # Pace is learnt from means, whichever statistic the deadline is for.
    deadline_s -= case.job.policy.slo.beyond_mean_s(measured.time_sd_s)
    limit_s, peer_s = deadline_s, case.job.peer_iteration_time_s
    if peer_s is not None:
        limit_s = max(deadline_s, peer_s * (1.0 + PEER_LATE_RATIO))
        if measured.time_mean_s <= limit_s:
            return standing, False  # the time measured is the straggler's, not ours
    pace, late = learn(
        standing.pace,
        measured=measured,
        modelled_s=running.mean_s,
        limit_s=limit_s,
        at_default=at_default,
        now_s=case.view.now_s,
        dwell_s=dwell_s(case),
    )
    return replace(standing, pace=pace), late


def _peer_s(case: Case) -> float | None:
    """The straggler's iteration time, where waiting for it is once an iteration."""
    pipeline = case.job.policy.pipeline
    if pipeline is None or pipeline.sync != "iteration":
        return None
    return case.job.peer_iteration_time_s


def goal_of(
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
    lone = answers.ask(standing.costs, own, case.job.policy.clocks.granularity, standing.jitter)
    lone_s, late_ratio = lone_times(lone, standing, answers)
    # Jitter is a matter of a lone pipeline: one that waits is asked on mean times, and the
    # lateness of the lone plan comes off, which has used up more of its slack.
    wanted_s = peer_s * (1.0 - PEER_MARGIN_RATIO) / (ratio * late_ratio)
    if wanted_s <= lone_s:
        return own, deadline_s
    return Goal(_hold(standing.goal, wanted_s, waits=True), waits=True), peer_s


def lone_times(
    lone: Solution | Infeasible, standing: Standing, answers: Answers
) -> tuple[float, float]:
    """The lone plan's iteration time on mean times, and how much later it really runs."""
    if isinstance(lone, Infeasible):
        return lone.fastest_s, 1.0
    time_s, jitter = lone.iteration_time_s, standing.jitter
    if jitter.still or standing.costs is None:
        return time_s, 1.0
    spread = answers.spread(standing.costs, jitter, lone.clocks)
    return time_s, max(1.0, spread.mean_s / time_s)


def _hold(held: Goal | None, wanted_s: float, *, waits: bool) -> float:
    """The held deadline while it is a little tighter than wanted; else the wanted one."""
    slack = GOAL_SLACK_RATIO_PEER if waits else GOAL_SLACK_RATIO
    if held is None or held.waits != waits:
        return wanted_s
    tight_enough = held.deadline_s <= wanted_s * (1.0 + ROUNDING)
    return (
        held.deadline_s if tight_enough and held.deadline_s >= wanted_s * (1 - slack) else wanted_s
    )


def dwell_s(case: Case) -> float:
    """Between two lowerings: the operator's word, or a site's if that is longer."""
    sites = (
        case.view.gpus[uuid].description.min_dwell_s for stage in case.job.stages for uuid in stage
    )
    return max(case.job.policy.clocks.min_dwell_s, *sites)


def rescaled(standing: Standing, costs: Costs) -> Pace:
    """The pace by the new costs' seconds, so that the clocks held keep their real time."""
    old, pace = standing.costs, standing.pace
    if old is None or pace.learned is None:
        return pace
    before = appraise(old, standing.clocks or default_clocks(old))
    after = appraise(costs, standing.clocks or default_clocks(costs))
    if before is None or after is None:
        return replace(pace, learned=None)
    return replace(pace, learned=pace.learned * before.iteration_time_s / after.iteration_time_s)
