"""What one job saved in a period: measured ratios, and the joules that they mean.

Energy under plans counts where it was measured in windows, and between two windows of one plan,
which is assumed to be like them: one generation at both ends means that its clocks held in between.
Nothing else is counted.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from joulecut_controller.trust.interval import Interval
from joulecut_controller.trust.paired_difference import usable_windows
from joulecut_controller.trust.saving import Saving, by_shape
from joulecut_controller.trust.window import MeasuredWindow

# Windows are taken around hold-outs, which at a share of 1 % may be eighteen hours apart. A plan
# applied again gets a new generation, so an equal generation proves the time between; a day bounds
# what one mistake can add.
BETWEEN_S_MAX = 86_400.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Energy of all the job's GPUs (J), time on the wall (s) and iterations, under plans.
    `measured_j` is the energy in windows; the rest is assumed.
    """

    energy_j: float = 0.0
    measured_j: float = 0.0
    time_s: float = 0.0
    iterations: float = 0.0
    iterating_s: float = 0.0  # of the time, what iterations of training took

    def plus(self, other: "Usage") -> "Usage":
        return Usage(
            self.energy_j + other.energy_j,
            self.measured_j + other.measured_j,
            self.time_s + other.time_s,
            self.iterations + other.iterations,
            self.iterating_s + other.iterating_s,
        )


@dataclass(frozen=True, slots=True)
class JobSaving:
    """A job's shapes, the oldest first, and sums over those whose ratio is known; None where it is
    known for none. `measured_j` is the part of `saved_j` in windows, `predicted_j` what plans
    promised for the energy of all of it, where they did.
    """

    shapes: tuple[Saving, ...] = ()
    usage: Usage = Usage()
    uncounted_j: float = 0.0  # spent under plans in shapes whose ratio is not known
    saved_j: Interval | None = None
    measured_j: Interval | None = None
    longer_gpu_s: Interval | None = None

    @property
    def newest(self) -> Saving | None:
        return max(self.shapes, key=lambda one: one.ended_unix_s, default=None)

    @property
    def predicted_j(self) -> float:
        ratio = self.newest.predicted_saved_ratio if self.newest and self.saved_j else None
        return 0.0 if ratio is None or ratio >= 1.0 else self.usage.energy_j * ratio / (1.0 - ratio)


def job_saving(windows: Iterable[MeasuredWindow]) -> JobSaving:
    """Of one job's windows."""
    given = tuple(windows)
    shapes, times = by_shape(given), plan_times(usable_windows(given))
    usage, uncounted_j = Usage(), 0.0
    saved, measured, longer = list[Interval](), list[Interval](), list[Interval]()
    for one in shapes:
        time = times.get((one.shape, one.phase), Usage())
        usage = usage.plus(time)
        if one.saved_ratio is None or one.slowdown_ratio is None:
            uncounted_j += time.energy_j
            continue
        saved.append(saved_j(one.saved_ratio, time.energy_j))
        measured.append(saved_j(one.saved_ratio, time.measured_j))
        longer.append(longer_s(one.slowdown_ratio, time).scaled(one.gpus))
    return JobSaving(shapes, usage, uncounted_j, *map(total, (saved, measured, longer)))


def plan_times(windows: Sequence[MeasuredWindow]) -> dict[tuple[str, str], Usage]:
    """What was spent under plans by shape and phase, of windows as `usable_windows` gives them.

    Time between two windows of one plan counts where no window of another phase lies in it. A
    window that begins before the one before it has ended (a clock was set back) counts for the part
    that is left.
    """
    times: dict[tuple[str, str], Usage] = {}
    reached_s = -math.inf
    last: MeasuredWindow | None = None
    for window in windows:
        key = (window.shape, window.phase)
        usage = times.get(key, Usage())
        span_s = window.ended_unix_s - window.begun_unix_s
        fresh = min(1.0, max(0.0, (window.ended_unix_s - reached_s) / span_s))
        if window.arm == "plan":
            seen = _usage(window, fresh * span_s)
            usage = usage.plus(replace(seen, measured_j=seen.energy_j))
            gap_s = window.begun_unix_s - reached_s
            if last and _same(last, window) and 0.0 < gap_s <= BETWEEN_S_MAX:
                usage = usage.plus(_usage(last, gap_s / 2.0)).plus(_usage(window, gap_s / 2.0))
        times[key] = usage
        if fresh > 0.0:
            reached_s = max(reached_s, window.ended_unix_s)
            last = window if window.arm == "plan" else None
    return times


def _same(one: MeasuredWindow, other: MeasuredWindow) -> bool:
    """Whether both are of one plan, shape and phase."""
    return (one.generation, one.shape, one.phase) == (other.generation, other.shape, other.phase)


def _usage(window: MeasuredWindow, span_s: float) -> Usage:
    """What so much time like this window takes; iterations left out took some of it."""
    iterations = window.iterations * span_s / (window.ended_unix_s - window.begun_unix_s)
    return Usage(
        energy_j=iterations * window.energy_j,
        time_s=span_s,
        iterations=iterations,
        iterating_s=iterations * window.time_mean_s,
    )


def saved_j(saved_ratio: Interval, energy_j: float) -> Interval:
    """Joules that default clocks would have taken more for the same iterations.

    With r the saved ratio, a plan's energy E stands for E / (1 - r) at default clocks, so that
    E * r / (1 - r) was saved.
    """
    return saved_ratio.mapped(lambda r: energy_j * r / (1.0 - r))


def longer_s(slowdown_ratio: Interval, usage: Usage) -> Interval:
    """Seconds that the same iterations would have taken less at default clocks.

    With s the slowdown, iterations that took t would have taken t / (1 + s).
    """
    return slowdown_ratio.mapped(lambda s: usage.iterating_s * s / (1.0 + s))


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
