"""The planner: one decision per job and pass: keep its clocks, change them, or default clocks.

Pure: inputs and the state of the last pass in, a decision out; on the way it yields its questions
to the solver. Numbers, the guard and commands come later. Every "no change" has a reason that an
operator can read.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from joulecut_controller.plan.actions import actions_for
from joulecut_controller.plan.clock_reason import clock_reasons
from joulecut_controller.plan.costs import Costs, price
from joulecut_controller.plan.evaluation import (
    Comparison,
    Evaluation,
    at_default,
    default_clocks,
    evaluate,
    forecast,
    slowest_within,
    with_jitter,
    without_limits,
)
from joulecut_controller.plan.goal import (
    ALLOWED_STEP,
    FIT_RATIO,
    ROUNDING,
    dwell_s,
    goal_of,
    is_late,
    lateness,
    pace_of,
)
from joulecut_controller.plan.granularity import (
    LATE_AGAIN_S,
    Steps,
    choose_granularity,
    shortest_s,
    stretches_s,
    timed_steps,
)
from joulecut_controller.plan.jitter import STILL, jitter_of
from joulecut_controller.plan.pace import (
    BESIDE_RATIO_MAX,
    DOUBT_STDERRS,
    EXPLAINED_RATIO,
    RATE_BESIDE_RATIO_MAX,
    significantly_above,
)
from joulecut_controller.plan.plan import Basis, Forecast, Plan
from joulecut_controller.plan.planning_input import (
    Lateness,
    PlannerState,
    PlanningInput,
)
from joulecut_controller.plan.solver_cache import Asking, Question, Soon
from joulecut_controller.plan.veto import Veto, first, releases
from joulecut_controller.view import JobState
from joulecut_engine.estimate.estimator import Estimator
from joulecut_engine.graph.pipeline import EVALUATION
from joulecut_engine.optimize.problem import Infeasible, Solution

# A new plan must promise this much more of the baseline's energy than the running one: a third of
# what a prediction of power is off by, so that plans are not swapped for noise.
IMPROVEMENT_RATIO_MIN = 0.003

# Of the iteration time that a power budget asks for: clocks faster by more draw too much.
ALLOTTED_ROOM = 0.005

# Clocks that keep their deadline are replaced by better ones after so many iterations, which show
# what they cost, and no more often than this: sixty times an hour at most. First clocks by a wide
# band use less than this share of the slowdown allowed, and do not wait as long.
BETTER_ITERATIONS, BETTER_S = 32, 60.0
FAR_SHARE = 0.75

Verdict = Literal["default", "keep", "change"]


@dataclass(frozen=True, slots=True)
class Decision:
    """`topic` is one stable word for the reason. `late`: the running plan misses its deadline.

    `plan` is a draft of generation 0 where clocks are to be changed; `solved` is what it was
    compared in and the clocks before it, None of a trial.
    """

    verdict: Verdict
    topic: str
    reason: str
    state: PlannerState
    plan: Plan | None = None
    late: bool = False
    solved: tuple[Comparison, Evaluation] | None = None


def decide(inputs: PlanningInput, state: PlannerState, estimator: Estimator) -> Asking[Decision]:
    """One job, one pass. The clocks stay while an answer is waited for."""
    if state.mode != inputs.mode:  # a recommended plan does not run; its goal stays
        state = replace(state, mode=inputs.mode, clocks=None)
        state = replace(state, changed_s=float("-inf"), suspended="")
    against = vetoes(inputs)
    if (veto := first(against)) is not None:
        if any(one.kind == "profile" for one in against):
            state = replace(state, costs=None)  # of a profile that was taken away
        if releases(against):
            return _give_back(state, veto.kind, veto.text)
        return Decision("default", veto.kind, veto.text, state.after(veto, inputs.view.now_s))
    wait_s = state.changed_s + dwell_s(inputs) - inputs.view.now_s
    if state.suspended and wait_s > 0.0:
        words = f"{state.suspended} is over; clocks are not lowered for {math.ceil(wait_s)} s yet"
        return Decision("default", "dwell", words, state)
    gpus, held = inputs.view.gpus, state.costs
    priced = price(inputs.job, gpus, estimator, inputs.host_power_w, held=held)
    if isinstance(priced, str):
        return _give_back(state, "evidence", priced)
    # A power limit may have slowed the baseline. Before its first costs that cannot be seen.
    inputs = replace(inputs, job=without_limits(inputs.job, inputs.view.gpus, priced))
    choice = choose_granularity(inputs.job, inputs.view, state.choice, dwell_s(inputs))
    return (yield from _within_reach(inputs, replace(state, costs=priced, choice=choice), priced))


def given_up(state: PlannerState, veto: Veto) -> Decision:
    """Default clocks for a job that could not be planned."""
    return _give_back(state, veto.kind, veto.text)


def _give_back(state: PlannerState, topic: str, reason: str) -> Decision:
    state = replace(state, clocks=None, goal=None, suspended="")
    return Decision("default", topic, reason, state)


def vetoes(inputs: PlanningInput) -> tuple[Veto, ...]:
    """Everything that forbids a plan before anything is computed."""
    return (*inputs.vetoes, *_own_vetoes(inputs))


def _own_vetoes(inputs: PlanningInput) -> Iterator[Veto]:
    """Those that follow from the picture of the job."""
    job, policy, phase = inputs.job, inputs.job.policy, inputs.job.measured.phase
    if inputs.mode == "off":
        yield Veto("off", "mode is off")
    if policy.pipeline is None:
        yield Veto("pipeline", "the policy gives no pipeline for this job: no change")
    if policy.profile is None:
        words = "no profile, and its work at default clocks is not known yet: no change"
        yield Veto("profile", words)
    if job.placement.complaint:
        yield Veto("layout", f"{job.placement.complaint}: no change")
    if job.placement.silent:
        age_s = job.placement.report_age_s
        heard = f"has been silent for {age_s:.0f} s" if age_s < math.inf else "has not reported yet"
        yield Veto("silent", f"the job {heard}: default clocks")
    if stale := _stale(inputs):
        yield Veto("stale", f"no current reading of GPU {stale}: default clocks")
    evaluated = policy.pipeline is not None and policy.pipeline.schedule == EVALUATION
    if phase.kind == "evaluate" and not evaluated:
        named = f"the job is in a phase of {phase.kind} ({phase.shape})"
        yield Veto("phase", f"{named}: default clocks")
    if inputs.other_phase:
        yield Veto("phase", "another phase of the job has begun: default clocks first")
    if job.measured.baseline is None:
        progress = job.measured.external_lock or inputs.baseline_progress
        yield Veto("baseline", f"measuring the baseline ({progress})")


def _stale(inputs: PlanningInput) -> str:
    """The first GPU of the job without a current reading."""
    for uuid in (uuid for stage in inputs.job.placement.stages for uuid in stage):
        gpu = inputs.view.gpus.get(uuid)
        if gpu is None or gpu.snapshot is None or gpu.age_s > inputs.stale_s:
            return f"{gpu.node}/{gpu.description.index}" if gpu else uuid
    return ""


def _within_reach(inputs: PlanningInput, state: PlannerState, costs: Costs) -> Asking[Decision]:
    """Checks the model against the baseline and the target against both, then solves."""
    job, baseline = inputs.job, inputs.job.measured.baseline
    assert baseline is not None
    default = at_default(costs)
    unexplained = _unexplained(job, default.iteration_time_s)
    if unexplained:
        return _give_back(state, "explained", unexplained)
    base_s, deadline_s = inputs.default_s, inputs.deadline_s
    if significantly_above(base_s, baseline.stderr_ratio, inputs.deadline_s):
        return _give_back(
            state,
            "unreachable",
            f"target unreachable: {job.policy.slo.given_as} asks for {deadline_s:.4g} s an "
            f"iteration, default clocks give {base_s:.4g} s: no change",
        )
    state = replace(state, jitter=jitter_of(job, state.jitter))
    default = yield from with_jitter(default, costs, state.jitter)
    held = evaluate(costs, state.clocks) if state.clocks and inputs.mode == "enforce" else None
    if held is not None:
        held = yield from with_jitter(held, costs, state.jitter)
    state = _in_force(inputs, state)
    pace, late = pace_of(inputs, state, default, held), is_late(inputs)
    state = replace(state, late=lateness(inputs, state, pace, late=late))
    goal, promised_s, aim = yield from goal_of(inputs, state, pace, deadline_s, late=late)
    jitter, choice = STILL if goal.waits else state.jitter, state.choice
    comparison = Comparison(
        costs, goal, default, pace, promised_s, jitter, choice.granularity, choice.limits
    )
    moved = abs(inputs.allowed - state.allowed) > ALLOWED_STEP
    # A recommendation may wait for the better plan.
    hurries = inputs.mode == "enforce" and (not state.runs or moved or late)
    if hurries and choice.granularity == "changes" and not (yield Soon(_asked(comparison))):
        # One clock per GPU takes a tenth of a second of a processor, others take seconds.
        why = f"not {choice.name} yet: its plan is being computed"
        quick = replace(state, choice=replace(choice, granularity="gpu", why=why))
        if quick.suspended:
            quick = replace(quick, clocks=None, suspended="")
        coarse = replace(comparison, granularity="gpu")
        first_answer = yield from _solved(inputs, quick, coarse, aim, late=late)
        if first_answer.plan is not None:
            return first_answer
    return (yield from _solved(inputs, state, comparison, aim, late=late))


def _asked(comparison: Comparison) -> Question:
    return Question(
        comparison.costs,
        comparison.goal,
        comparison.granularity,
        comparison.jitter,
        comparison.limits,
    )


def _solved(
    inputs: PlanningInput,
    state: PlannerState,
    comparison: Comparison,
    aim: float,
    *,
    late: bool,
) -> Asking[Decision]:
    """The answer to what is compared, against the clocks held."""
    choice, held_clocks = state.choice, state.clocks
    answer: Solution | Infeasible = yield _asked(comparison)
    if isinstance(answer, Infeasible):
        reason = _unmet(inputs, state, comparison, answer)
        if choice.timed and state.late.count:
            # Changes came late, beside iterations that begin irregularly: one clock may be on time.
            left = replace(choice, late_until_s=inputs.view.now_s + LATE_AGAIN_S)
            state = replace(state, choice=left, late=Lateness())
        return _give_back(state, "room", reason)
    again = ""
    if state.suspended:
        comparison, answer, again = yield from _as_before(state, comparison, answer)
        state = replace(state, clocks=None, suspended="")
    state = replace(state, goal=comparison.goal, aim=aim)
    decision = yield from _compare(inputs, state, comparison, answer, late=late, again=again)
    if decision.state.clocks != held_clocks:  # the measured slowdown is of other clocks
        decision = replace(decision, state=replace(decision.state, setting=None))
    return decision


def _as_before(
    state: PlannerState, comparison: Comparison, answer: Solution
) -> Asking[tuple[Comparison, Solution, str]]:
    """The suspended clocks, unless the solver's answer is clearly better; with words of them.

    Like a running plan they may be later than promised by FIT_RATIO, since what is measured again
    is never the same to the last digit; the promise is then theirs.
    """
    kept = yield from comparison.appraised(state.clocks or ())
    asked = yield from comparison.appraised(tuple(option.clock_mhz for option in answer.clocks))
    if kept is None or asked is None:
        return comparison, answer, ""
    gain = (comparison.cost_j(kept) - comparison.cost_j(asked)) / comparison.baseline_j
    late = kept.mean_s > comparison.goal.deadline_s * (1.0 + ROUNDING)
    again = not late and gain < IMPROVEMENT_RATIO_MIN
    over = comparison.real_s(kept if again else asked) / comparison.promised_s
    if 1.0 < over <= 1.0 + FIT_RATIO:
        comparison = replace(comparison, promised_s=comparison.promised_s * over)
    if not again:
        return comparison, answer, ""
    words = f"{state.suspended} is over, the same clocks again; "
    return comparison, comparison.as_solution(answer, kept), words


def _in_force(inputs: PlanningInput, state: PlannerState) -> PlannerState:
    """With the setting of the plan whose clocks run."""
    known = inputs.job.measured.reference
    if known is None or not state.runs or not inputs.measured_applied:
        return state
    return replace(state, setting=known.setting or None)


def _compare(
    inputs: PlanningInput,
    state: PlannerState,
    comparison: Comparison,
    answer: Solution,
    *,
    late: bool,
    again: str,
) -> Asking[Decision]:
    """The solver's answer against the present clocks: changed only for enough gain or a late plan,
    lowered only after the dwell.
    """
    costs, answer = comparison.costs, _with_less_power(inputs, state, comparison, answer)
    new = solved = tuple(option.clock_mhz for option in answer.clocks)
    held = state.clocks or default_clocks(costs)
    before: Evaluation | None = comparison.default
    if state.clocks is not None:
        before = yield from comparison.appraised(state.clocks)
    if before is None:  # the held clocks left the bounds, or the graph changed
        return _give_back(state, "bounds", "the clocks held are no longer among those allowed")
    carried = state.clocks is None or _carried(inputs, state)
    limit_s = comparison.goal.deadline_s * (1.0 + FIT_RATIO)
    # Clocks that were measured are judged by that.
    fits = carried and not late and (comparison.pace.holds or before.mean_s <= limit_s)
    after = yield from comparison.appraised(new)
    assert after is not None
    gain = (comparison.cost_j(before) - comparison.cost_j(after)) / comparison.baseline_j
    asked = costs.asked_mhz(new)
    held_asked = state.asked if state.clocks else {}
    slower = [u for u, mhz in asked.items() if mhz > held_asked.get(u, mhz)]
    same = new == held and not slower and bool(state.clocks or not costs.own_mhz)
    # Measured clocks are replaced only by clocks that keep the deadline by their margin, or are no
    # slower.
    early = state.clocks is not None and _early(inputs, state, comparison)
    daring = state.clocks is not None and _dares(inputs, comparison, before, after)
    worse = early or daring or gain < IMPROVEMENT_RATIO_MIN
    if inputs.allotted_s is not None:  # clocks that are too fast draw too much
        worse &= before.mean_s >= (1.0 - ALLOTTED_ROOM) * comparison.goal.deadline_s
    if same or (fits and worse and not (new == held and slower)):
        return _keep(state, gain)
    lowers = any(a < b for a, b in zip(new, held, strict=True)) or state.clocks is None
    waits_s = state.changed_s + dwell_s(inputs) - inputs.view.now_s
    unknown = lowers and inputs.unknown
    if unknown or (lowers and waits_s > 0):
        if fits:
            wait = "default clocks are measured first"
            if not unknown:
                wait = f"clocks are not lowered for {math.ceil(waits_s)} s yet"
            words = f"{gain:.1%} more could be saved; {wait}"
            return Decision("keep", "dwell", words, state, late=late)
        if state.choice.timed or not carried:  # the higher of two schedules changes too often
            new = default_clocks(costs)
        else:
            new = tuple(max(a, b) for a, b in zip(new, held, strict=True))
        after = yield from comparison.appraised(new)
        assert after is not None
        answer = comparison.as_solution(answer, after)
    steps, shortest_step_s = _changes(inputs, answer, comparison, after)
    min_mhz, choice = inputs.job.policy.clocks.min_mhz, state.choice
    reasons = clock_reasons(comparison, after, min_mhz, held_back=new != solved)
    promised = forecast(comparison, answer, after)
    words = again + _sentence(inputs, promised, comparison, late)
    draft = Plan(
        job=inputs.job.policy.name,
        mode=inputs.mode,
        granularity=choice.granularity,
        actions=actions_for(costs, new, inputs.running, steps=steps, reasons=reasons),
        reason=words,
        deadline_s=comparison.promised_s,
        forecast=promised,
        solution=answer,
        granularity_why=choice.why,
        shortest_step_s=shortest_step_s,
        basis=Basis(costs.problem, comparison.goal),
        clock_reasons=tuple(chain(*reasons)),
    )
    changes = max(map(len, steps)), shortest_step_s
    state = replace(state, clocks=new, asked=costs.asked_mhz(new), changes=changes)
    state = replace(state, allowed=inputs.allowed, changed_s=inputs.view.now_s)
    return Decision("change", "plan", words, state, draft, late, (comparison, before))


def _with_less_power(
    inputs: PlanningInput, state: PlannerState, comparison: Comparison, answer: Solution
) -> Solution:
    """Slower clocks where a power budget asks for more time than the plan of least energy takes."""
    if inputs.allotted_s is None or state.choice.timed or comparison.goal.waits:
        return answer
    costs, solved = comparison.costs, tuple(option.clock_mhz for option in answer.clocks)
    clocks = slowest_within(costs, solved, comparison.goal.deadline_s)
    made = evaluate(costs, clocks)
    return answer if clocks == solved or made is None else comparison.as_solution(answer, made)


def _early(inputs: PlanningInput, state: PlannerState, comparison: Comparison) -> bool:
    """Whether measured clocks have run too short for better ones to be known. Another promise waits
    for nothing, and nothing waits for a first answer of one clock per GPU.
    """
    pace, seen = comparison.pace, inputs.job.measured.current_iterations
    first = state.choice.timed and not state.changes[0]
    if first or not pace.holds or comparison.goal.waits:
        return False
    if abs(inputs.allowed - state.allowed) > ALLOWED_STEP:
        return False
    _, measured = pace.held
    waits = inputs.view.now_s - state.changed_s < BETTER_S
    near = measured.mean > FAR_SHARE * inputs.allowed
    return seen < BETTER_ITERATIONS or (waits and near)


def _dares(
    inputs: PlanningInput, comparison: Comparison, before: Evaluation, after: Evaluation
) -> bool:
    """Whether clocks may be late that replace measured ones."""
    pace = comparison.pace
    if not pace.holds or comparison.goal.waits:
        return False
    surely_s = pace.goal_s(inputs.deadline_s, careful=True)
    late = comparison.real_s(after) > comparison.promised_s
    return late or after.mean_s > max(surely_s, before.mean_s) * (1.0 + FIT_RATIO)


def _unmet(
    inputs: PlanningInput, state: PlannerState, comparison: Comparison, none: Infeasible
) -> str:
    """Why no clocks below the default ones keep the deadline, and what would make room."""
    choice, promised_s = state.choice, comparison.promised_s
    known, late = inputs.job.measured.reference, state.late
    left_s = late.until_s - inputs.view.now_s
    ran = known.settings.get(late.setting) if known and late.setting and left_s > 0.0 else None
    if ran and comparison.goal.deadline_s < comparison.pace.modelled_s:
        # If all clocks missed the model by as much, not even the default ones would be in time.
        why = (
            f"clocks tried slow the job by {math.expm1(ran.mean):.1%}, the model says "
            f"{math.expm1(late.predicted):.1%}; lower ones are tried again in {math.ceil(left_s)} s"
        )
    else:  # the edge of the goal, in model seconds, is that of the promise, in real ones
        least_s = promised_s * none.fastest_s / none.deadline_s
        why = f"granularity {choice.name} takes {least_s:.4g} s at least"
    finer = f"; {choice.why}" if choice.why else ""
    return (
        f"no clocks but the default ones keep {promised_s:.4g} s an iteration: {why} "
        f"(raise {inputs.job.policy.slo.given_as}{finer}): no change"
    )


def _changes(
    inputs: PlanningInput, plan: Solution, comparison: Comparison, after: Evaluation
) -> tuple[tuple[Steps, ...], float]:
    """The changes of each stage where the plan has any, and the shortest measured seconds between
    two of them."""
    problem, iteration_s = comparison.costs.problem, comparison.real_s(after)
    own_s = comparison.pace.real_s(after.mean_s)
    least_s = shortest_s(inputs.job, inputs.view.gpus)
    steps = timed_steps(problem, plan, own_s=own_s, iteration_s=iteration_s, shortest_s=least_s)
    stretches = [stretches_s(tuple(one.offset_s for one in each), iteration_s) for each in steps]
    return steps, min((min(each) for each in stretches if each), default=0.0)


def _carried(inputs: PlanningInput, state: PlannerState) -> bool:
    """Whether the held clocks change no more often than the granularity allows now, and stay long
    enough at each clock for the measured timing."""
    (count, stretch_s), choice = state.changes, state.choice
    if not count:
        return True
    allowed = choice.timed and count <= choice.limits.per_iteration
    return allowed and stretch_s >= shortest_s(inputs.job, inputs.view.gpus)


def _unexplained(job: JobState, modelled_s: float) -> str:
    """Why the graph does not describe this job; empty where it does. Where the job's operations
    are measured, what is missing is what the graph has not: communication and the optimizer.
    """
    baseline, profile = job.measured.baseline, job.policy.profile
    assert baseline is not None
    if profile is not None and profile.predicted:
        return ""  # its level is the job's own
    measured_s, beside = baseline.time_mean_s, BESIDE_RATIO_MAX
    least = EXPLAINED_RATIO + DOUBT_STDERRS * baseline.stderr_ratio + baseline.work_sd_ratio
    if not job.measured.time_ratios:  # of a rate alone nothing says what its work is
        least = beside = RATE_BESIDE_RATIO_MAX
    most = max(beside, least)
    if modelled_s * (1.0 - least) <= measured_s <= modelled_s * (1.0 + most):
        return ""
    return (
        f"the pipeline graph predicts {modelled_s:.4g} s an iteration, but {measured_s:.4g} s were "
        f"measured (allowed {least:.0%} less, {most:.0%} more): no change"
    )


def _keep(state: PlannerState, gain: float) -> Decision:
    if state.clocks is None:
        return Decision(
            "keep", "nothing", f"default clocks are best: {max(gain, 0.0):.1%} to save", state
        )
    return Decision("keep", "steady", "plan unchanged", state)


def _sentence(inputs: PlanningInput, figures: Forecast, comparison: Comparison, late: bool) -> str:
    deadline_s = comparison.promised_s
    slo = inputs.job.policy.slo
    why = "slower than allowed, so clocks are raised; " if late else ""
    if comparison.goal.waits:
        why += f"a sibling takes {deadline_s:.4g} s and is waited for; "
    elif inputs.allotted_s is not None and deadline_s >= inputs.allotted_s:
        why += f"the power budget asks for {deadline_s:.4g} s; "
    else:
        why += f"{slo.given_as} allows {deadline_s:.4g} s; "
    return (
        f"{why}predicted {figures.iteration_time_s:.4g} s an iteration "
        f"({figures.slowdown_ratio:+.2%}), {figures.saved_ratio:.1%} less energy"
    )
