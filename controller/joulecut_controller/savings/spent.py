"""Energy that a job spent under plans in a period, and the joules that a saved ratio means.

Three parts stay separate: energy measured in windows; energy between two windows of one plan,
assumed to be like them (one generation at both ends means that its clocks held in between); and
everything else, which is not counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from joulecut_controller.trust.interval import Interval
from joulecut_controller.trust.window import MeasuredWindow

# Windows are taken around hold-outs, which at a share of 1 % may be eighteen hours apart. A plan
# applied again gets a new generation, so an equal generation proves the time between; a day bounds
# what one mistake can add.
BETWEEN_S_MAX = 86_400.0


@dataclass(frozen=True, slots=True)
class Spent:
    """Energy of all the job's GPUs (J), time on the wall (s) and iterations, under plans."""

    energy_j: float = 0.0
    time_s: float = 0.0
    iterations: float = 0.0
    iterating_s: float = 0.0  # of the time, what iterations of training took

    def plus(self, other: "Spent") -> "Spent":
        return Spent(
            self.energy_j + other.energy_j,
            self.time_s + other.time_s,
            self.iterations + other.iterations,
            self.iterating_s + other.iterating_s,
        )


@dataclass(frozen=True, slots=True)
class PlanTime:
    """What was spent under plans of one shape and phase: `measured` in windows, `between` beside
    them.
    """

    measured: Spent = Spent()
    between: Spent = Spent()

    @property
    def all(self) -> Spent:
        return self.measured.plus(self.between)

    def plus(self, other: "PlanTime") -> "PlanTime":
        return PlanTime(self.measured.plus(other.measured), self.between.plus(other.between))


def plan_times(windows: Sequence[MeasuredWindow]) -> dict[tuple[str, str], PlanTime]:
    """By shape and phase, of windows as `usable_windows` gives them.

    Time between two windows of one plan counts where no window of another phase lies in it. A
    window that begins before the one before it has ended (a clock was set back) counts for the part
    that is left.
    """
    times: dict[tuple[str, str], PlanTime] = {}
    reached_s = -math.inf
    last: MeasuredWindow | None = None
    for window in windows:
        key = (window.shape, window.phase)
        measured = between = Spent()
        span_s = window.ended_unix_s - window.begun_unix_s
        fresh = min(1.0, max(0.0, (window.ended_unix_s - reached_s) / span_s))
        if window.arm == "plan":
            measured = _spent(window, fresh * span_s)
            gap_s = window.begun_unix_s - reached_s
            if last and _same(last, window) and 0.0 < gap_s <= BETWEEN_S_MAX:
                between = _spent(last, gap_s / 2.0).plus(_spent(window, gap_s / 2.0))
        times[key] = times.get(key, PlanTime()).plus(PlanTime(measured, between))
        if fresh > 0.0:
            reached_s = max(reached_s, window.ended_unix_s)
            last = window if window.arm == "plan" else None
    return times


def _same(one: MeasuredWindow, other: MeasuredWindow) -> bool:
    """Whether both are of one plan, shape and phase."""
    return (one.generation, one.shape, one.phase) == (other.generation, other.shape, other.phase)


def _spent(window: MeasuredWindow, span_s: float) -> Spent:
    """What so much time like this window takes; iterations left out took some of it."""
    iterations = window.iterations * span_s / (window.ended_unix_s - window.begun_unix_s)
    return Spent(
        energy_j=iterations * window.energy_j,
        time_s=span_s,
        iterations=iterations,
        iterating_s=iterations * window.time_mean_s,
    )


def saved_j(saved_ratio: Interval, spent: Spent) -> Interval:
    """Joules that default clocks would have taken more for the same iterations.

    With r the saved ratio, a plan's energy E stands for E / (1 - r) at default clocks, so that
    E * r / (1 - r) was saved.
    """
    return saved_ratio.mapped(lambda r: spent.energy_j * r / (1.0 - r))


def longer_s(slowdown_ratio: Interval, spent: Spent) -> Interval:
    """Seconds that the same iterations would have taken less at default clocks.

    With s the slowdown, iterations that took t would have taken t / (1 + s).
    """
    return slowdown_ratio.mapped(lambda s: spent.iterating_s * s / (1.0 + s))


def total(parts: Sequence[Interval]) -> Interval | None:
    """The sum of independent estimates: their distances from the middle add as squares. None of
    nothing.
    """
    if not parts:
        return None
    mid = math.fsum(part.mid for part in parts)
    return Interval(
        mid,
        mid - math.hypot(*(part.mid - part.low for part in parts)),
        mid + math.hypot(*(part.high - part.mid for part in parts)),
    )
