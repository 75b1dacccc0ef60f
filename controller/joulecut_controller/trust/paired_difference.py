"""Paired difference of one hold-out and the plan's windows around it, so that slow drift cancels.

A job's energy per iteration drifts (rooms warm up, sequences grow, other jobs load the
switch), so the mean of all windows at default clocks says little about the mean of all under
a plan. The difference is the logarithm of a ratio, with the plan's level interpolated linearly
between its windows before and after: a linear drift cancels exactly. A hold-out with a step of the
job's work beside it is not compared: the plan's own windows show the step, so that leaving it out
favours no result.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from joulecut_controller.chunk import robust
from joulecut_controller.trust.window import MeasuredWindow

NEIGHBOURS = 2  # on each side: more would lower the variance by a tenth, and reach further
REACH_S = 3600.0  # windows further away do not compare with a hold-out of minutes;
REACH_SPANS = 4.0  # a longer one has its neighbours as many of its lengths away at most
WINDOW_S_MAX = 86_400.0  # longer, and a wall clock was set in the middle of it
NUMBER_MAX = 1e15  # joules or seconds of an iteration: more is damage, and breaks sums
OVERLAP_S = 1.0  # of neighbouring windows, by rounding
STEP_RATIO_MIN = 0.02  # a smaller step between the plan's windows moves a difference by a point
STEP_DEVIATIONS = 4.0  # of the usual change from before a hold-out to after it


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """One hold-out against the plan at its time, as logarithms of plan over default.

    `level_*` are the hold-out's own logarithms; `span_s` is how long it was; `step_*` the plan's
    after it over before it.
    """

    at_unix_s: float
    span_s: float
    energy_log: float
    time_log: float
    level_energy_log: float
    level_time_log: float
    step_energy_log: float
    step_time_log: float
    neighbours_unix_s: tuple[float, float]  # the middle of the first, and of the last


def usable_windows(windows: Iterable[MeasuredWindow]) -> tuple[MeasuredWindow, ...]:
    """Those that hold a measurement, each once, by time."""
    unique = {
        (
            window.job,
            window.shape,
            window.phase,
            window.arm,
            window.begun_unix_s,
            window.ended_unix_s,
        ): window
        for window in windows
        if 0.0 < window.energy_j < NUMBER_MAX
        and 0.0 < window.time_mean_s < NUMBER_MAX
        and window.iterations > 0
        and 0.0 < window.ended_unix_s - window.begun_unix_s <= WINDOW_S_MAX
    }
    return tuple(sorted(unique.values(), key=lambda window: window.middle_unix_s))


def paired_differences(windows: Sequence[MeasuredWindow]) -> tuple[PairedDifference, ...]:
    """Every hold-out of one shape and phase that has windows of a plan on both sides, by time, but
    for those beside a step.

    `windows` as `usable_windows` gives them.
    """
    plan = [window for window in windows if window.arm == "plan"]
    mids_s = [window.middle_unix_s for window in plan]
    found = []
    for held in _holdouts(windows):
        begun_s, ended_s = held[0].begun_unix_s, max(window.ended_unix_s for window in held)
        middle_s = statistics.fmean([window.middle_unix_s for window in held])
        place = bisect_left(mids_s, middle_s)
        reach_s = max(REACH_S, REACH_SPANS * (ended_s - begun_s))
        before = [
            window
            for window in reversed(plan[max(0, place - 2 * NEIGHBOURS) : place])
            if begun_s - reach_s <= window.middle_unix_s
            and window.ended_unix_s <= begun_s + OVERLAP_S
        ][:NEIGHBOURS]
        after = [
            window
            for window in plan[place : place + 2 * NEIGHBOURS]
            if window.middle_unix_s <= ended_s + reach_s
            and window.begun_unix_s >= ended_s - OVERLAP_S
        ][:NEIGHBOURS]
        if before and after:
            found.append(_difference(held, before, after, middle_s))
    steps = _steps([one.step_energy_log for one in found])
    slower = _steps([one.step_time_log for one in found])
    return tuple(one for one, *step in zip(found, steps, slower, strict=True) if not any(step))


def _steps(changes: Sequence[float]) -> list[bool]:
    """Which of the changes around hold-outs are beyond drift and noise."""
    middle, sd = robust(changes) if changes else (0.0, 0.0)
    return [abs(one - middle) > max(STEP_RATIO_MIN, STEP_DEVIATIONS * sd) for one in changes]


def _difference(
    held: Sequence[MeasuredWindow],
    before: Sequence[MeasuredWindow],
    after: Sequence[MeasuredWindow],
    middle_s: float,
) -> PairedDifference:
    earlier_s = statistics.fmean([window.middle_unix_s for window in before])
    later_s = statistics.fmean([window.middle_unix_s for window in after])
    share = (middle_s - earlier_s) / (later_s - earlier_s)

    def level(first: Sequence[float], second: Sequence[float]) -> float:
        """Of the plan's logarithms, without their drift: the logarithm of a mean, as a hold-out's
        own is, since a mean of logarithms is lower by half of their variance.
        """
        per_s = (statistics.fmean(second) - statistics.fmean(first)) / (later_s - earlier_s)
        sides = [
            statistics.fmean(
                [
                    math.exp(v - per_s * (w.middle_unix_s - middle_s))
                    for v, w in zip(logs, of, strict=True)
                ]
            )
            for logs, of in ((first, before), (second, after))
        ]
        return math.log((1.0 - share) * sides[0] + share * sides[1])

    energies, times = (
        [[math.log(getattr(one, name)) for one in side] for side in (before, after, held)]
        for name in ("energy_j", "time_mean_s")
    )
    level_energy, level_time = statistics.fmean(energies[2]), statistics.fmean(times[2])
    return PairedDifference(
        at_unix_s=middle_s,
        neighbours_unix_s=(before[-1].middle_unix_s, after[-1].middle_unix_s),
        span_s=sum(window.ended_unix_s - window.begun_unix_s for window in held),
        energy_log=level(energies[0], energies[1]) - level_energy,
        time_log=level(times[0], times[1]) - level_time,
        level_energy_log=level_energy,
        level_time_log=level_time,
        step_energy_log=statistics.fmean(energies[1]) - statistics.fmean(energies[0]),
        step_time_log=statistics.fmean(times[1]) - statistics.fmean(times[0]),
    )


def _holdouts(windows: Sequence[MeasuredWindow]) -> list[list[MeasuredWindow]]:
    """Windows at default clocks, those that follow each other in one piece together."""
    pieces: list[list[MeasuredWindow]] = []
    before: MeasuredWindow | None = None
    for window in windows:
        if window.arm == "default":
            joined = (
                before is not None
                and before.arm == "default"
                and window.begun_unix_s - before.ended_unix_s <= REACH_S
            )
            if joined:
                pieces[-1].append(window)
            else:
                pieces.append([window])
        before = window
    return pieces
