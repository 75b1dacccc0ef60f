"""A plan suspended by a veto, and resumed after it.

What was learnt of the job stays, and the same clocks resume unless a clearly better plan is known
by then. Pure.
"""

from dataclasses import replace

from joulecut_controller.plan.evaluation import Clocks, Comparison, Evaluation
from joulecut_controller.plan.goal import ROUNDING, dwell_s
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput, SuspendedPlan
from joulecut_controller.plan.solver_cache import Answers
from joulecut_controller.plan.veto import Veto
from joulecut_engine.optimize.problem import Solution

SHORT: dict[str, str] = {
    "default-window": "the window at default clocks",
    "silent": "the silence",
    "stale": "the silence of an agent",
    "layout": "the search for the job's GPUs",
    "phase": "the other phase",
}


def suspend(state: PlannerState, veto: Veto, now_s: float) -> PlannerState:
    """Default clocks; the clocks before are kept to be resumed."""
    suspended = state.suspended
    if suspended is None and state.clocks is not None:
        ended = SHORT[veto.kind]
        suspended = SuspendedPlan(state.clocks, state.goal, now_s, ended, state.gap_ratio)
    return replace(state, clocks=None, goal=None, suspended=suspended)


def rest_s(suspended: SuspendedPlan, inputs: PlanningInput) -> float:
    """Seconds that default clocks have to stay, by the dwell."""
    return suspended.since_s + dwell_s(inputs) - inputs.view.now_s


def as_before(
    suspended: SuspendedPlan,
    comparison: Comparison,
    answer: Solution,
    solver: Answers,
    *,
    gain_min: float,
    fit_ratio: float,
) -> tuple[Comparison, Solution]:
    """The suspended clocks, unless the solver's answer saves `gain_min` of the baseline's energy.

    Like a running plan they may exceed the goal by `fit_ratio`, since what is measured again is
    never the same to the last digit; the goal is then relaxed to theirs.
    """
    kept = comparison.appraised(suspended.clocks, solver)
    asked = comparison.appraised(tuple(option.clock_mhz for option in answer.clocks), solver)
    if kept is None or asked is None:
        return comparison, answer
    over = kept.held_s / comparison.goal.deadline_s
    gain = (comparison.cost_j(kept) - comparison.cost_j(asked)) / comparison.baseline_j
    if over > 1.0 + fit_ratio or gain >= gain_min:
        return comparison, answer
    if over > 1.0:
        over *= 1.0 + ROUNDING
        goal = replace(comparison.goal, deadline_s=comparison.goal.deadline_s * over)
        comparison = replace(comparison, goal=goal, promised_s=comparison.promised_s * over)
    return comparison, as_solution(answer, kept, comparison)


def said_again(clocks: Clocks | None, suspended: SuspendedPlan, forecast: Forecast | None) -> str:
    """The reason of a plan that resumes the same clocks; empty where it has others."""
    if forecast is None or clocks != suspended.clocks:
        return ""
    again = "is over, the same clocks again" if suspended.goal else "goes on"
    return (
        f"{suspended.ended} {again}: predicted "
        f"{forecast.iteration_time_s:.4g} s an iteration ({forecast.slowdown_ratio:+.2%}), "
        f"{forecast.saved_ratio:.1%} less energy"
    )


def as_solution(answer: Solution, after: Evaluation, comparison: Comparison) -> Solution:
    """Other clocks with the solver's bound, which holds for every plan of this goal."""
    return replace(
        answer,
        clocks=after.options,
        start_s=after.start_s,
        iteration_time_s=after.iteration_time_s,
        energy_j=comparison.pipeline_j(after),
    )
