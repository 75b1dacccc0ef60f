"""A clock schedule timed from the starts of iterations: the clock that is due at a moment.

Pure. A change takes effect between the P5 and the P95 of the set latency after it is sent, at a
place between the earliest and the latest that the known starts allow. The clock due is the highest
of all places that a command sent now may reach: a raise is early and a step down is late, never the
other way round. Without a good start in time, or where the schedule no longer fits the job, it is
the highest clock.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

from joulecut_agent.control.iteration_clock import Prediction
from joulecut_agent.control.mark_schedule import Due
from joulecut_agent.keeper.lease import STEP_S
from joulecut_wire.assumed import SET_LATENCY_S
from joulecut_wire.messages import Setting, TimedStep

TIMED_STEPS_MAX = 64  # sixteen times what a plan has
JITTER_RATIO = 0.5  # of the shortest stretch: beyond, a change may fall into the next one
FIT_RATIO = 0.1  # between measured and expected iteration time; beyond, it is another workload


@dataclass(frozen=True, slots=True)
class SetLatencies:
    """From a command to its clock on one GPU, as measured; zeros while unknown."""

    p5_s: float = 0.0
    p95_s: float = 0.0

    @property
    def spread_s(self) -> float:
        """0 while it is unknown."""
        return self.p95_s - self.p5_s if self.p5_s or self.p95_s else 0.0

    @property
    def raise_ahead_s(self) -> float:
        """How long before its place a raise is sent; a step down is sent `p5_s` before."""
        return self.p95_s or SET_LATENCY_S


def changes_of(steps: tuple[TimedStep, ...]) -> tuple[TimedStep, ...]:
    """The steps that change the clock; the first one of a schedule without any."""
    before = (steps[-1], *steps)
    found = [b for a, b in pairwise(before) if a.clock_max_mhz != b.clock_max_mhz]
    return tuple(found) or steps[:1]


def shortest_stretch_s(setting: Setting) -> float:
    """The shortest time between two changes, over the start of an iteration included."""
    offsets_s = [step.offset_s for step in changes_of(setting.timed_steps)]
    return min(b - a for a, b in pairwise([*offsets_s, offsets_s[0] + setting.iteration_time_s]))


def refuse_timed_steps(setting: Setting) -> str:
    """Reason why the steps of a setting make no schedule, or ""."""
    steps, period_s = setting.timed_steps, setting.iteration_time_s
    if setting.clock_schedule:
        return "both marks and timed steps; allowed: one of them"
    if len(steps) > TIMED_STEPS_MAX:
        return f"{len(steps)} timed steps; allowed: up to {TIMED_STEPS_MAX}"
    if not (math.isfinite(period_s) and period_s > 0.0):
        return "the expected iteration time of the timed steps is not known"
    offsets_s = [step.offset_s for step in steps]
    if not all(a < b for a, b in pairwise([-1e-9, *offsets_s, period_s])):  # NaN is refused too
        return f"timed steps are not ascending offsets from 0 to {period_s:g} s"
    if any(step.clock_max_mhz > setting.clock_max_mhz for step in steps):
        return f"a timed step above {setting.clock_max_mhz} MHz, the clock where the GPU rests"
    return ""


def refuse_uncertainty(shortest_s: float, spread_s: float, jitter_s: float) -> str:
    """Reason why changes cannot be timed well enough for stretches so short, or ""."""
    if not shortest_s >= STEP_S:  # NaN is refused too
        return f"the shortest stretch takes {shortest_s:g} s; allowed: {STEP_S:g} s"
    if spread_s + jitter_s <= JITTER_RATIO * shortest_s:
        return ""
    return (
        f"the shortest stretch takes {shortest_s:g} s; allowed: twice {spread_s + jitter_s:.3g} s"
        f" (spread of the set latency {spread_s:.3g} s, jitter of starts {jitter_s:.3g} s)"
    )


class TimedSchedule:
    """The timed steps of one GPU."""

    def __init__(self, setting: Setting) -> None:
        self._rest_mhz = setting.clock_max_mhz
        self._steps = changes_of(setting.timed_steps)
        self._shortest_s = shortest_stretch_s(setting)
        self._expected_s = setting.iteration_time_s

    def due(self, starts: Prediction | None, latencies: SetLatencies, now_s: float) -> Due:
        if starts is None or not self._fits(starts, latencies):
            return Due(self._rest_mhz, rests=True)
        late_s = max(starts.period_s, self._expected_s) + starts.tolerance_s + starts.delay_s
        deadline_s = starts.start_s + late_s
        if now_s >= deadline_s:
            return Due(self._rest_mhz, rests=True)
        stretches = self._stretches(starts, latencies)
        clocks = [mhz for begin_s, end_s, mhz in stretches if begin_s <= now_s < end_s]
        moments_s = [at_s for begin_s, end_s, _ in stretches for at_s in (begin_s, end_s)]
        next_s = min([at_s for at_s in moments_s if at_s > now_s], default=math.inf)
        return Due(max(clocks, default=self._rest_mhz), min(next_s, deadline_s))

    def _fits(self, starts: Prediction, latencies: SetLatencies) -> bool:
        """Whether starts are regular enough, and the job is the one that was planned for."""
        off_s = abs(starts.period_s - self._expected_s)
        return (
            starts.good
            and starts.delay_s <= 0.5 * starts.period_s
            and off_s <= FIT_RATIO * self._expected_s
            and not refuse_uncertainty(self._shortest_s, latencies.spread_s, starts.jitter_s)
        )

    def _stretches(
        self, starts: Prediction, latencies: SetLatencies
    ) -> list[tuple[float, float, int]]:
        """(begin, end, clock): when a command may take effect in that stretch of the schedule.

        An iteration slower than planned may be so before or after any step: its stretches begin as
        planned and end as much later. A faster one is faster throughout.
        """
        pace = min(1.0, starts.period_s / self._expected_s)
        slack_s = max(0.0, starts.period_s - self._expected_s)
        next_early_s = min(starts.period_s, self._expected_s) - starts.jitter_s
        next_late_s = max(starts.period_s, self._expected_s) + starts.jitter_s
        ahead_s = latencies.raise_ahead_s
        begins = [(-math.inf, self._steps[-1])]  # from the iteration before
        ends_s = []
        for early_s, late_s in ((0.0, 0.0), (next_early_s, next_late_s)):
            for step in self._steps:
                begins.append((early_s + pace * step.offset_s - ahead_s, step))
                ends_s.append(late_s + step.offset_s + slack_s - latencies.p5_s)
        at_s = starts.start_s
        return [
            (at_s + begin_s, at_s + end_s, step.clock_max_mhz)
            for (begin_s, step), end_s in zip(begins, [*ends_s, math.inf], strict=True)
        ]
