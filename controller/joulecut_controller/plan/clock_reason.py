"""Why a GPU has its clock and no lower one, and what the next clocks would cost.

Read off the plan itself: each stretch at one clock is moved by one step, and the iteration computed
again. Seconds and joules are those of one iteration of the whole job, predicted.
"""

from dataclasses import replace

from joulecut_controller.plan.evaluation import Comparison, Evaluation
from joulecut_controller.plan.plan import Binding, ClockReason
from joulecut_engine.optimize.clock_steps import ClockStep, Stretch, stretches_of

ROUNDING = 1e-9  # deadlines are held to this, relative
CRITICAL_RATIO = 1e-6  # of an iteration: less slack than that is arithmetic


def clock_reasons(
    comparison: Comparison, after: Evaluation, min_mhz: int, *, held_back: bool
) -> tuple[tuple[ClockReason, ...], ...]:
    """By stage of the costs' graph. `min_mhz` is the policy's lowest clock; `held_back`: lower
    clocks wait for the dwell."""
    problem = comparison.costs.problem
    found: list[list[ClockReason]] = [[] for _ in problem.graph.order]
    for one in stretches_of(problem, after.options, comparison.goal):
        binds, why = _why_not_lower(one, comparison, after, min_mhz, held_back=held_back)
        found[one.stage].append(
            ClockReason(
                one.stage,
                comparison.ratio * one.offset_s,
                one.clock_mhz,
                comparison.ratio * one.slack_s,
                _real(one.lower, comparison),
                _real(one.higher, comparison),
                binds,
                why,
            )
        )
    return tuple(map(tuple, found))


def sentence_of(reasons: tuple[ClockReason, ...]) -> str:
    """One sentence for a GPU: of several clocks the lowest speaks."""
    if not reasons:
        return "its work has no clock of its own"
    lowest = min(reasons, key=lambda one: one.clock_mhz)
    highest_mhz = max(one.clock_mhz for one in reasons)
    span = f"{lowest.clock_mhz} to {highest_mhz} MHz; at the lowest: "
    return f"{span if highest_mhz > lowest.clock_mhz else ''}{lowest.text}"


def _real(step: ClockStep | None, comparison: Comparison) -> ClockStep | None:
    width, ratio = comparison.costs.width, comparison.ratio
    return step and replace(step, time_s=ratio * step.time_s, energy_j=width * step.energy_j)


def _why_not_lower(
    one: Stretch, comparison: Comparison, after: Evaluation, min_mhz: int, *, held_back: bool
) -> tuple[Binding, str]:
    critical = one.slack_s <= CRITICAL_RATIO * after.iteration_time_s
    waits = "on the critical path" if critical else f"waits {_time(comparison.ratio * one.slack_s)}"
    step = _real(one.lower, comparison)
    if step is None or one.lower is None:
        least = "policy's clocks.min_mhz" if one.clock_mhz == min_mhz else "lowest clock known"
        return "floor", f"{waits}; {one.clock_mhz} MHz is the {least}"
    goal_s = comparison.goal.deadline_s * (1.0 + ROUNDING)
    late_s = comparison.ratio * (after.mean_s + one.lower.time_s - goal_s)
    then = f"{waits}; {step.clock_mhz} MHz would"
    if late_s > 0.0:
        return "deadline", f"{then} be {_time(late_s)} late"
    if step.energy_j >= 0.0:
        return "energy", f"{then} take {_energy(step.energy_j)} more"
    saves = f"{then} save {_energy(-step.energy_j)} more"
    if held_back:
        return "dwell", f"{saves}, after the dwell"
    if not comparison.jitter.still:
        return "jitter", f"{saves}, but may be late by jitter"
    return "gap", f"{saves}: within the gap of the search"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"


def _energy(joules: float) -> str:
    return f"{joules:,.0f} J" if joules >= 100.0 else f"{joules:.2g} J"
