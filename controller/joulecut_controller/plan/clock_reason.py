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
    in_order = comparison.granularity != "computation"
    found: list[list[ClockReason]] = [[] for _ in problem.graph.order]
    for one in stretches_of(problem, after.options, comparison.goal, in_order=in_order):
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


def sentence_of(reasons: tuple[ClockReason, ...], *, marked: bool = False) -> str:
    """The reasons of one GPU. Of clocks by operation the lowest speaks."""
    if marked:
        lowest, highest = reasons[0], reasons[-1]
        span = f"{highest.clock_mhz} to {lowest.clock_mhz} MHz by operation"
        return f"{span}; at the lowest: {lowest.text}"
    if len(reasons) > 1:
        parts = (f"{one.clock_mhz} MHz from {one.offset_s:.3g} s: {one.text}" for one in reasons)
        return "; ".join(parts)
    for one in reasons:
        step = one.higher
        return f"{one.text}; {step.clock_mhz} MHz: {_prices(step)}" if step else one.text
    return "its work has no clock of its own"


def _real(step: ClockStep | None, comparison: Comparison) -> ClockStep | None:
    width, ratio = comparison.costs.width, comparison.ratio
    return step and replace(step, time_s=ratio * step.time_s, energy_j=width * step.energy_j)


def _why_not_lower(
    one: Stretch, comparison: Comparison, after: Evaluation, min_mhz: int, *, held_back: bool
) -> tuple[Binding, str]:
    critical = one.slack_s <= CRITICAL_RATIO * after.iteration_time_s
    slack = "on the critical path" if critical else f"slack {_time(comparison.ratio * one.slack_s)}"
    step = _real(one.lower, comparison)
    if step is None or one.lower is None:
        least = "policy's clocks.min_mhz" if one.clock_mhz == min_mhz else "lowest clock known"
        return "floor", f"{slack}: {one.clock_mhz} MHz is the {least}"
    goal_s = comparison.goal.deadline_s * (1.0 + ROUNDING)
    late_s = comparison.ratio * (after.held_s + one.lower.time_s - goal_s)
    then = f"{slack}: {step.clock_mhz} MHz"
    if late_s > 0.0:
        return "deadline", f"{then} is {_time(late_s)} over the deadline ({_prices(step)})"
    if step.energy_j >= 0.0:
        longer = step.time_s > CRITICAL_RATIO * comparison.ratio * after.iteration_time_s
        why = f" while others wait {_time(step.time_s)} longer" if longer else ""
        return "energy", f"{then} takes {_energy(step.energy_j)} more{why}"
    saves = f"{then} saves {_energy(-step.energy_j)} more"
    if held_back:
        return "dwell", f"{saves}, after the dwell"
    if not comparison.jitter.still:
        return "jitter", f"{saves} on mean times: with jitter it is not known to keep the deadline"
    return "gap", f"{saves}: within the gap of the search"


def _prices(step: ClockStep) -> str:
    return f"{_time(step.time_s, '+')}, {_energy(step.energy_j, '+')}"


def _time(seconds: float, sign: str = "") -> str:
    if abs(seconds) >= 1.0:
        return f"{seconds:{sign}.3g} s"
    return f"{1e3 * seconds:{sign}.3g} ms"


def _energy(joules: float, sign: str = "") -> str:
    return f"{joules:{sign},.0f} J" if abs(joules) >= 100.0 else f"{joules:{sign}.2g} J"
