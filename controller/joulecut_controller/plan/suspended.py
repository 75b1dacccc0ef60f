"""Clocks that step aside for a hold-out window, and come back after it as they were.

A window at default clocks is a measurement, not a change of mind: what was learnt of the
plan stands, and unless something better is known by then, the same clocks run again. Pure.
"""

from dataclasses import replace

from joulecut_controller.plan.appraisal import Appraisal, Clocks, appraise, shaken
from joulecut_controller.plan.forecast import Prospect
from joulecut_controller.plan.goal import ROUNDING, dwell_s
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.plan.planning_input import Aside, Case, Standing
from joulecut_controller.plan.solver_cache import Answers
from joulecut_engine.optimize.problem import Solution


def put_aside(standing: Standing, now_s: float) -> Standing:
    """Default clocks run, and what ran before is remembered."""
    aside = standing.aside
    if aside is None and standing.clocks is not None:
        aside = Aside(standing.clocks, standing.goal, now_s)
    return replace(standing, clocks=None, goal=None, aside=aside)


def rest_s(aside: Aside, case: Case) -> float:
    """How long default clocks have to stay for the dwell's sake, in seconds."""
    return aside.since_s + dwell_s(case) - case.view.now_s


def as_before(
    aside: Aside,
    prospect: Prospect,
    answer: Solution,
    answers: Answers,
    *,
    gain_min: float,
    fit_ratio: float,
) -> tuple[Prospect, Solution]:
    """The clocks put aside, in place of a solver's answer that saves hardly more.

    As with a plan that runs, they may be over the goal by `fit_ratio` before measurement has
    judged them: a baseline measured anew is never the same to the last digit, and the goal is
    then theirs. `gain_min` is a share of the baseline's energy.
    """
    made = appraise(prospect.costs, aside.clocks)
    if made is None:
        return prospect, answer
    kept = shaken(made, prospect.costs, prospect.jitter, answers)
    over = kept.held_s / prospect.goal.deadline_s
    asked = appraise(prospect.costs, tuple(option.clock_mhz for option in answer.clocks))
    assert asked is not None
    asked = shaken(asked, prospect.costs, prospect.jitter, answers)
    gain = (prospect.cost_j(kept) - prospect.cost_j(asked)) / prospect.baseline_j
    if over > 1.0 + fit_ratio or gain >= gain_min:
        return prospect, answer
    if over > 1.0:
        over *= 1.0 + ROUNDING
        goal = replace(prospect.goal, deadline_s=prospect.goal.deadline_s * over)
        prospect = replace(prospect, goal=goal, promised_s=prospect.promised_s * over)
    return prospect, as_solution(answer, kept, prospect)


def said_again(choice_clocks: Clocks, aside: Aside, forecast: Forecast) -> str:
    """The reason of a plan that brings the same clocks back; empty where it brings others."""
    if choice_clocks != aside.clocks:
        return ""
    return (
        "the hold-out window is over, the same clocks again: predicted "
        f"{forecast.iteration_time_s:.4g} s an iteration ({forecast.slowdown_ratio:+.2%}), "
        f"{forecast.saved_ratio:.1%} less energy"
    )


def as_solution(answer: Solution, after: Appraisal, prospect: Prospect) -> Solution:
    """Other clocks with the solver's bound, which holds for every plan of this goal."""
    return replace(
        answer,
        clocks=after.options,
        start_s=after.start_s,
        iteration_time_s=after.iteration_time_s,
        energy_j=prospect.cost_j(after),
    )
