"""The solver's goal: the job's deadline in model seconds.

The deadline is in measured time; `pace` says what the model takes for it. A straggler's time
replaces the job's own deadline where it is waited for anyway.
"""

import math
from dataclasses import replace

from joulecut_controller.plan.evaluation import Evaluation
from joulecut_controller.plan.pace import Pace, doubt_ratio, surely_above
from joulecut_controller.plan.planning_input import Lateness, PlannerState, PlanningInput
from joulecut_controller.plan.solver_cache import Answers, Question
from joulecut_controller.reference.reference import LATE_SDS
from joulecut_engine.optimize.problem import Goal, Infeasible

# Relative steps of the slowdowns that the solver is asked for. Measurements move the wanted one
# with every iteration, and each new goal is a new solve.
SLOWDOWN_STEP = 0.01
ALLOWED_STEP = 0.003  # of the allowed slowdown: more is another promise, and no noise
# A straggler's time is a mean: aiming at it exactly would be late every second time.
PEER_MARGIN_RATIO = 0.005
PEER_LATE_RATIO = 0.01  # the larger of two noisy times exceeds either mean by about this
# Clocks that came out late are not tried again for this many dwell times: a job must not swing
# between two plans of which one is late. Each that follows soon, and is late again, doubles it.
CAUTION_DWELLS, CAUTION_S_MAX = 20.0, 4 * 3600.0
FIT_RATIO = 0.001  # a running plan so little over its goal is left to measurement to judge
ROUNDING = 1e-9  # deadlines are held to this, relative
LATE_ITERATIONS_MIN = 8  # fewer show no standard error worth the name


def is_late(inputs: PlanningInput) -> bool:
    """Whether iterations under lowered clocks miss their deadline by more than two standard errors.
    Default clocks are never late.
    """
    measured = inputs.job.measured
    current, baseline, known = measured.current, measured.baseline, measured.reference
    if not inputs.measured_applied or not any(inputs.running.values()):
        return False
    if inputs.allotted_s is not None:  # watts decide how fast it may be, and are measured
        return False
    if current is None or baseline is None or current.iterations < LATE_ITERATIONS_MIN:
        return False
    peer_s = measured.peer_iteration_time_s
    limit_s = inputs.mean_deadline_s
    if peer_s is not None:  # one's own time does not show beside a straggler's
        limit_s = max(limit_s, peer_s * (1.0 + PEER_LATE_RATIO))
        return surely_above(current.time_mean_s, doubt_ratio(current, baseline), limit_s)
    if known is None:
        return False
    slowdown = known.slowdown
    return slowdown.mean - LATE_SDS * slowdown.sd > math.log(limit_s / inputs.default_s)


def pace_of(
    inputs: PlanningInput, state: PlannerState, default: Evaluation, held: Evaluation | None
) -> Pace:
    """`held` are the clocks of the plan in force, or suspended. Under a power budget
    times are as predicted: watts are measured.
    """
    modelled_s, known = default.mean_s, inputs.job.measured.reference
    pace = Pace(inputs.default_s, modelled_s)
    if known is None or inputs.allotted_s is not None:
        return pace
    pace = replace(pace, scale=known.scale)
    measured = known.settings.get(state.setting) if state.setting else None
    if held is None or measured is None:
        return pace
    predicted = math.log(held.mean_s / modelled_s)
    return replace(pace, held=(predicted, measured))


def lateness(inputs: PlanningInput, state: PlannerState, pace: Pace) -> Lateness | None:
    """The memory of late clocks, after those in force were late."""
    if not state.setting:
        return state.late
    now_s, before, caution_s = inputs.view.now_s, state.late, CAUTION_DWELLS * dwell_s(inputs)
    if before is not None and now_s < before.until_s + before.caution_s:
        caution_s = min(2.0 * before.caution_s, CAUTION_S_MAX)
    return Lateness(state.setting, pace.held[0], now_s + caution_s, caution_s)


def _own_aim(inputs: PlanningInput, state: PlannerState, pace: Pace, *, late: bool) -> float:
    """The log slowdown of the model that the own deadline leaves. What a power budget asks for is a
    plan of the frontier, whatever its time turns out.
    """
    if inputs.allotted_s is not None:
        return math.log(inputs.allotted_s / pace.default_s)
    aim = _stepped(pace.goal_s(inputs.deadline_s) / pace.modelled_s)
    # A plan in force stands until it is late, and comes back where it keeps the promise.
    aim_s = pace.modelled_s * math.exp(state.aim)
    stands = not late if state.runs else pace.real_s(aim_s) <= inputs.mean_deadline_s
    same = abs(inputs.allowed - state.allowed) <= ALLOWED_STEP or (state.runs and pace.holds)
    if state.clocks and stands and same:
        aim = max(aim, state.aim)
    known, before = inputs.job.measured.reference, state.late
    if known is None or before is None or inputs.view.now_s >= before.until_s:
        return aim
    measured = known.settings.get(before.setting)
    if measured is None or measured.mean <= inputs.allowed:
        return aim  # default clocks have been measured since: those clocks were not late
    least_s = replace(pace, held=(before.modelled, measured)).goal_s(inputs.deadline_s)
    return min(aim, math.log(least_s / pace.modelled_s))


def _stepped(ratio: float) -> float:
    """The log of a ratio, at the next lower step where it is above 0."""
    slowdown, step = math.log(ratio), math.log1p(SLOWDOWN_STEP)
    if slowdown <= 0.0:
        return slowdown
    return math.exp(step * math.floor(math.log(slowdown) / step + ROUNDING))


def _peer_s(inputs: PlanningInput) -> float | None:
    """The straggler's iteration time, where waiting for it is once an iteration."""
    pipeline = inputs.job.policy.pipeline
    if pipeline is None or pipeline.sync != "iteration":
        return None
    return inputs.job.measured.peer_iteration_time_s


def goal_of(
    inputs: PlanningInput, state: PlannerState, solver: Answers, pace: Pace, *, late: bool
) -> tuple[Goal, float, float]:
    """The solver's goal in model seconds, what it promises in real ones, and its `_own_aim`.

    With an own deadline D and a straggler that takes T', T = max(T', min(D, T_E)): the plan
    of a lone pipeline within D ends at min(D, T_E), so a straggler slower than that plan is
    waited for anyway, and one faster than it changes nothing.
    """
    assert state.costs is not None
    deadline_s = inputs.deadline_s
    aim = _own_aim(inputs, state, pace, late=late)
    own = Goal(pace.modelled_s * math.exp(aim) * (1.0 + ROUNDING))
    peer_s = _peer_s(inputs)
    if peer_s is None:
        return own, deadline_s, aim
    rung = state.rung
    asked = Question(state.costs, own, rung.granularity, state.jitter, rung.limits)
    lone, jitter, late_ratio = solver.ask(asked), state.jitter, 1.0
    lone_s = lone.fastest_s if isinstance(lone, Infeasible) else lone.iteration_time_s
    if not isinstance(lone, Infeasible) and not jitter.still:
        late_ratio = max(1.0, solver.spread(state.costs, jitter, lone.clocks).mean_s / lone_s)
    # Jitter is a matter of a lone pipeline: one that waits is asked on mean times, and the
    # lateness of the lone plan comes off, which has used up more of its slack.
    wanted_s = pace.goal_s(peer_s * (1.0 - PEER_MARGIN_RATIO)) / late_ratio
    wanted_s = pace.modelled_s * math.exp(_stepped(wanted_s / pace.modelled_s))
    if wanted_s <= lone_s:
        return own, deadline_s, aim
    return Goal(wanted_s, waits=True), peer_s, aim


def dwell_s(inputs: PlanningInput) -> float:
    """Least time between two lowerings: the operator's setting, or a site's if longer."""
    sites = (
        inputs.view.gpus[uuid].description.min_dwell_s
        for uuid in inputs.job.placement.uuids
        if uuid in inputs.view.gpus
    )
    return max((inputs.job.policy.clocks.min_dwell_s, *sites))
