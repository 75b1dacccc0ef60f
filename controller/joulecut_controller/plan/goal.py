"""The solver's goal: the job's deadline in model seconds.

The deadline is in measured time; `pace` says what the model takes for it. A straggler's time
replaces the job's own deadline where it is waited for anyway.
"""

import math
from dataclasses import replace

from joulecut_controller.plan.evaluation import Evaluation
from joulecut_controller.plan.pace import SCALE_MAX, Pace, significantly_above
from joulecut_controller.plan.planning_input import Lateness, PlannerState, PlanningInput
from joulecut_controller.plan.solver_cache import Asking, Question, Times
from joulecut_controller.reference.reference import LATE_SDS
from joulecut_engine.graph.pipeline import Profile
from joulecut_engine.optimize.jitter import Spread
from joulecut_engine.optimize.problem import Goal, Infeasible, Solution

# A goal stands while the wanted slowdown is longer by less than this part of it. Measurements move
# the wanted one with every iteration, and each new goal is a new solve.
GOAL_SLACK = 0.05
ALLOWED_STEP = 0.003  # of the allowed slowdown: more is another promise, and no noise
GOAL_SLACK_RATIO_PEER = 0.01  # a straggler's time is measured from a few iterations only
# A straggler's time is a mean: aiming at it exactly would be late every second time.
PEER_MARGIN_RATIO = 0.005
PEER_LATE_RATIO = 0.01  # the larger of two noisy times exceeds either mean by about this
FIT_RATIO = 0.001  # a running plan so little over its goal is left to measurement to judge
ROUNDING = 1e-9  # deadlines are held to this, relative
# Clocks that came out late are not tried again for this many dwell times: a job must not swing
# between two plans of which one is late. Each plan that is late again doubles it.
CAUTION_DWELLS = 20.0
CAUTION_DOUBLINGS_MAX = 6  # at 10 s of dwell: 3.6 hours
LONGER_MIN = 1e-9  # seconds at the next lower clock: work that does not follow it at all
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
    limit_s = inputs.deadline_s
    if peer_s is not None:  # one's own time does not show beside a straggler's
        limit_s = max(limit_s, peer_s * (1.0 + PEER_LATE_RATIO))
        return significantly_above(current.time_mean_s, current.stderr_ratio, limit_s)
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
    pace = Pace(inputs.default_s, modelled_s, worst=_worst(inputs.job.policy.profile))
    if known is None or inputs.allotted_s is not None:
        return pace
    pace = replace(pace, scale=known.scale)
    measured = known.settings.get(state.setting) if state.setting else None
    if held is None or measured is None:
        return pace
    predicted = math.log(held.mean_s / modelled_s)
    return replace(pace, held=(predicted, measured))


def _worst(profile: Profile | None) -> float:
    """Slowdown of a stage whose work follows its clock, over what a predicted profile says of a
    small step, of the stage where that is most; 0 of a measured one.
    """
    if profile is None or not profile.predicted:
        return 0.0
    most: dict[int, float] = {}
    said: dict[int, float] = {}
    for (stage, _), options in profile.options.items():
        *_, below, top = sorted(options)
        longest_s = top.time_s * (top.clock_mhz / below.clock_mhz - 1.0)
        most[stage] = most.get(stage, 0.0) + longest_s
        said[stage] = said.get(stage, LONGER_MIN) + below.time_s - top.time_s
    return min(max(1.0, *(most[stage] / said[stage] for stage in most)), SCALE_MAX)


def lateness(inputs: PlanningInput, state: PlannerState, pace: Pace, *, late: bool) -> Lateness:
    """The memory of late plans, updated by the plan in force. It ends once no plan was late for as
    long again as the caution lasted.
    """
    now_s, before = inputs.view.now_s, state.late
    if not late:
        return before if now_s < before.until_s + before.caution_s else Lateness()
    doublings = min(before.count, CAUTION_DOUBLINGS_MAX)
    caution_s = CAUTION_DWELLS * dwell_s(inputs) * 2.0**doublings
    until_s, count = now_s + caution_s, before.count + 1
    return Lateness(state.setting, pace.held[0], until_s, caution_s, count)


def own_aim(inputs: PlanningInput, state: PlannerState, pace: Pace, *, late: bool) -> float:
    """The log slowdown of the model that the own deadline leaves. A plan that is not late is not
    asked to be faster. What a power budget asks for is a plan of the frontier, whatever its time
    turns out.
    """
    if inputs.allotted_s is not None:
        return math.log(inputs.allotted_s / pace.default_s)

    def aim(of: Pace, *, careful: bool) -> float:
        return math.log(of.goal_s(deadline_s, careful=careful) / pace.modelled_s)

    deadline_s, known = inputs.deadline_s, inputs.job.measured.reference
    wanted = aim(pace, careful=inputs.mode == "enforce")
    held, runs = state.aim, inputs.mode == "enforce" and state.runs
    if state.goal is not None and not state.goal.waits and not late:
        if runs and not pace.holds:  # nothing is measured of them yet
            same = abs(inputs.allowed - state.allowed) <= ALLOWED_STEP
        else:
            # Clocks that come back from a window at default ones ask the same question again.
            most = wanted + (FIT_RATIO if state.suspended else ROUNDING)
            same = held >= (1.0 - GOAL_SLACK) * wanted and (runs or held <= most)
        wanted = held if same else wanted
    ceiling = state.late
    if known is None or inputs.view.now_s >= ceiling.until_s:
        return wanted
    measured = known.settings.get(ceiling.setting) if ceiling.setting else None
    if measured is None or measured.mean <= inputs.allowed:
        return wanted  # default clocks have been measured since: those clocks were not late
    return min(wanted, aim(replace(pace, held=(ceiling.predicted, measured)), careful=False))


def _peer_s(inputs: PlanningInput) -> float | None:
    """The straggler's iteration time, where waiting for it is once an iteration."""
    pipeline = inputs.job.policy.pipeline
    if pipeline is None or pipeline.sync != "iteration":
        return None
    return inputs.job.measured.peer_iteration_time_s


def goal_of(
    inputs: PlanningInput, state: PlannerState, pace: Pace, deadline_s: float, *, late: bool
) -> Asking[tuple[Goal, float, float]]:
    """The solver's goal in model seconds, what it promises in real ones, and its `own_aim`.

    With an own deadline D and a straggler that takes T', T = max(T', min(D, T_E)): the plan
    of a lone pipeline within D ends at min(D, T_E), so a straggler slower than that plan is
    waited for anyway, and one faster than it changes nothing.
    """
    assert state.costs is not None
    aim = own_aim(inputs, state, pace, late=late)
    own = Goal(pace.modelled_s * math.exp(aim) * (1.0 + ROUNDING))
    peer_s = _peer_s(inputs)
    if peer_s is None:
        return own, deadline_s, aim
    choice = state.choice
    jitter, late_ratio = state.jitter, 1.0
    lone: Solution | Infeasible
    lone = yield Question(state.costs, own, choice.granularity, jitter, choice.limits)
    lone_s = lone.fastest_s if isinstance(lone, Infeasible) else lone.iteration_time_s
    if not isinstance(lone, Infeasible) and not jitter.still:
        spread: Spread = yield Times(state.costs, jitter, lone.clocks)
        late_ratio = max(1.0, spread.mean_s / lone_s)
    # Jitter is a matter of a lone pipeline: one that waits is asked on mean times, and the
    # lateness of the lone plan comes off, which has used up more of its slack.
    peer_goal_s = pace.goal_s(peer_s * (1.0 - PEER_MARGIN_RATIO), careful=False)
    wanted_s = peer_goal_s / late_ratio
    if wanted_s <= lone_s:
        return own, deadline_s, aim
    held = state.goal
    if (
        held is not None
        and held.waits
        and 0.0 <= 1.0 - held.deadline_s / wanted_s <= GOAL_SLACK_RATIO_PEER
    ):
        wanted_s = held.deadline_s
    return Goal(wanted_s, waits=True), peer_s, aim


def dwell_s(inputs: PlanningInput) -> float:
    """Least time between two lowerings: the operator's setting, or a site's if longer."""
    sites = (
        inputs.view.gpus[uuid].description.min_dwell_s
        for uuid in inputs.job.placement.uuids
        if uuid in inputs.view.gpus
    )
    return max((inputs.job.policy.clocks.min_dwell_s, *sites))
