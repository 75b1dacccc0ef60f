"""The solver's goal: the job's deadline in model seconds.

The deadline is in measured time; the model is a little faster than reality, by a ratio learned
from running plans (`pace`). A straggler's time replaces the job's own deadline where it is waited
for anyway.
"""

from dataclasses import replace

from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.evaluation import at_default, evaluate, with_jitter
from joulecut_controller.plan.pace import doubt_ratio, learn
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.solver_cache import Answers, Question
from joulecut_controller.plan.work import work_between, work_of
from joulecut_engine.optimize.problem import Goal, Infeasible, Solution

# A goal this much tighter than it need be stands; it is never held when it became too loose.
GOAL_SLACK_RATIO = 0.001
GOAL_SLACK_RATIO_PEER = 0.01  # a straggler's time is measured from a few iterations only
# A straggler's time is a mean: aiming at it exactly would be late every second time.
PEER_MARGIN_RATIO = 0.005
PEER_LATE_RATIO = 0.01  # the larger of two noisy times exceeds either mean by about this
ROUNDING = 1e-9  # deadlines are held to this, relative


def learn_pace(
    inputs: PlanningInput,
    state: PlannerState,
    solver: Answers,
    deadline_s: float,
    measured_ratio: float,
) -> tuple[PlannerState, bool]:
    """The pace updated by the running plan, and whether that plan is late."""
    measured, costs = inputs.job.measured.current, state.costs
    if not inputs.measured_applied or state.clocks is None or measured is None or costs is None:
        return state, False
    running = evaluate(costs, state.clocks)
    if running is None:
        return state, False
    baseline = inputs.job.measured.baseline
    assert baseline is not None
    measured_s = measured.adjusted_mean_s
    seen, known = work_of(measured, costs, running), work_of(baseline, costs, at_default(costs))
    if seen is not None and known is not None:
        measured_s /= work_between(seen, known, (measured, baseline))
    running = with_jitter(running, costs, state.jitter, solver)
    # Pace is learnt from means, whichever statistic the deadline is for.
    deadline_s -= inputs.job.policy.slo.beyond_mean_s(measured.adjusted_sd_s)
    limit_s, peer_s = deadline_s, inputs.job.measured.peer_iteration_time_s
    if peer_s is not None:
        limit_s = max(deadline_s, peer_s * (1.0 + PEER_LATE_RATIO))
        if measured.time_mean_s <= limit_s:
            return state, False  # the time measured is the straggler's, not ours
    pace, late = learn(
        state.pace,
        measured_s=measured_s,
        iterations=measured.iterations,
        doubt=doubt_ratio(measured, baseline),
        modelled_s=running.mean_s + state.constant_s,
        limit_s=limit_s,
        at_default=measured_ratio,
        now_s=inputs.view.now_s,
        dwell_s=dwell_s(inputs),
    )
    return replace(state, pace=pace), late


def _peer_s(inputs: PlanningInput) -> float | None:
    """The straggler's iteration time, where waiting for it is once an iteration."""
    pipeline = inputs.job.policy.pipeline
    if pipeline is None or pipeline.sync != "iteration":
        return None
    return inputs.job.measured.peer_iteration_time_s


def goal_of(
    inputs: PlanningInput, state: PlannerState, solver: Answers, deadline_s: float, ratio: float
) -> tuple[Goal, float]:
    """The solver's goal in model seconds, and what it promises in real ones.

    With an own deadline D and a straggler that takes T', T = max(T', min(D, T_E)): the plan
    of a lone pipeline within D ends at min(D, T_E), so a straggler slower than that plan is
    waited for anyway, and one faster than it changes nothing.
    """
    assert state.costs is not None
    constant_s = state.constant_s
    in_model_s = (deadline_s / ratio - constant_s) * (1.0 + ROUNDING)
    own = Goal(_hold(state.goal, in_model_s, waits=False))
    peer_s = _peer_s(inputs)
    if peer_s is None:
        return own, deadline_s
    rung = state.rung
    asked = Question(state.costs, own, rung.granularity, state.jitter, rung.limits)
    lone = solver.ask(asked)
    lone_s, late_ratio = lone_times(lone, state, solver)
    # Jitter is a matter of a lone pipeline: one that waits is asked on mean times, and the
    # lateness of the lone plan comes off, which has used up more of its slack.
    wanted_s = (peer_s * (1.0 - PEER_MARGIN_RATIO) / ratio - constant_s) / late_ratio
    if wanted_s <= lone_s:
        return own, deadline_s
    return Goal(_hold(state.goal, wanted_s, waits=True), waits=True), peer_s


def lone_times(
    lone: Solution | Infeasible, state: PlannerState, solver: Answers
) -> tuple[float, float]:
    """The lone plan's iteration time on mean times, and how much later it really runs."""
    if isinstance(lone, Infeasible):
        return lone.fastest_s, 1.0
    time_s, jitter = lone.iteration_time_s, state.jitter
    if jitter.still or state.costs is None:
        return time_s, 1.0
    spread = solver.spread(state.costs, jitter, lone.clocks)
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


def dwell_s(inputs: PlanningInput) -> float:
    """Least time between two lowerings: the operator's setting, or a site's if longer."""
    sites = (
        inputs.view.gpus[uuid].description.min_dwell_s
        for stage in inputs.job.placement.stages
        for uuid in stage
        if uuid in inputs.view.gpus
    )
    return max((inputs.job.policy.clocks.min_dwell_s, *sites))


def rescaled(state: PlannerState, costs: Costs) -> PlannerState:
    """The state with new costs, and the pace by their seconds, so that the clocks held keep their
    real time.
    """
    old, pace = state.costs, state.pace
    if old is not None and pace.learned is not None:
        before = evaluate(old, state.clocks) if state.clocks else at_default(old)
        after = evaluate(costs, state.clocks) if state.clocks else at_default(costs)
        learned = None
        if before is not None and after is not None:
            learned = pace.learned * before.iteration_time_s / after.iteration_time_s
        pace = replace(pace, learned=learned)
    return replace(state, costs=costs, pace=pace)
