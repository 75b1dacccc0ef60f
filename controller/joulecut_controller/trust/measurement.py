"""Measurement of one window: iteration times, and the energy of training steps alone.

A checkpoint or an evaluation falls into a window by chance, so it is left out with its energy:
mean power is taken over the time between counter samples in which only training ran. Lost reports
then do no harm either. Pure and bounded.
"""

import math
import statistics
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from joulecut_controller.view import GpuView

ITERATIONS_MIN = 8  # fewer give no standard deviation
ITERATIONS_MAX = 16_384  # five minutes of 20 ms each; a longer window ends there
SAMPLES_KEPT = 256  # of a GPU's counter: a minute of a pass a second, and thinned from there
# Six standard deviations, and a tenth of an iteration at least: iterations with their usual
# noise stay in, since leaving out their slow half would flatter both arms differently.
FAR_DEVIATIONS = 6.0
FAR_RATIO_MIN = 0.1
DEVIATION_OF_MEDIAN = 1.4826  # a normal distribution's deviation over its median deviation
LEFT_OUT_RATIO_MAX = 0.25  # of the iterations; with more no duration is usual
# A job whose steps change in the middle (longer sequences, larger batches) has no mean.
PACE_RATIO_MAX = 0.03
PACE_STDERRS = 6.0
COVERED_RATIO_MIN = 0.5  # of the time must be known from the energy counters

Unmeasured = Literal["short", "irregular", "pace", "counter"]
Span = tuple[float, float]
Phase = tuple[str, str]  # shape and phase


@dataclass(frozen=True, slots=True)
class EndedIteration:
    """An iteration as the job reported it; times on our monotonic clock. `peer_s` is that of the
    sibling pipeline it waited for, `phase` its shape and phase.
    """

    number: int
    arrived_s: float
    duration_s: float
    span_s: float = 0.0  # of a mean over many iterations
    peer_s: float | None = None
    phase: Phase = ("", "")

    @property
    def began_s(self) -> float:
        return self.arrived_s - max(self.duration_s, self.span_s)


@dataclass(frozen=True, slots=True)
class WindowMeans:
    """Means of a window per iteration, as in `trust.window`; `begun_s` and `ended_s` are monotonic.

    `energy_j` is None where the counters cover too little. `ran` counts all iterations, whole or
    not within the window. `fault` says why the window is no measurement of one steady job; its sums
    are right all the same.
    """

    begun_s: float
    ended_s: float
    iterations: int
    left_out: int
    time_mean_s: float
    time_sd_s: float
    ran: float
    energy_j: float | None
    temperature_celsius: float | None
    fault: Unmeasured | Literal[""] = ""


@dataclass(slots=True)
class _Counter:
    """One GPU's energy counter by time, and its mean temperature."""

    at_s: "array[float]" = field(default_factory=lambda: array("d"))
    energy_j: "array[float]" = field(default_factory=lambda: array("d"))
    spacing_s: float = 0.0
    latest: tuple[float, float] | None = None
    celsius_sum: float = 0.0
    celsius_count: int = 0

    def see(self, taken_s: float, energy_j: float) -> None:
        if self.latest and taken_s <= self.latest[0]:
            return  # the sample of the last pass again
        if self.latest and energy_j < self.latest[1]:  # the driver was loaded again
            self.at_s, self.energy_j = array("d"), array("d")
        self.latest = (taken_s, energy_j)
        if self.at_s and taken_s - self.at_s[-1] < self.spacing_s:
            return
        self.at_s.append(taken_s)
        self.energy_j.append(energy_j)
        if len(self.at_s) >= SAMPLES_KEPT:
            self.at_s, self.energy_j = self.at_s[::2], self.energy_j[::2]
            self.spacing_s = (self.at_s[-1] - self.at_s[0]) / (len(self.at_s) - 1)

    def power_w(self, spans: Sequence[Span], ends_s: Sequence[float]) -> float | None:
        """Mean power over the whole iterations of the spans; `ends_s` is when iterations ended.

        A span counts from its first sample on, and from there from the next end of an
        iteration on; likewise backwards. What ran beside it has then no part in it.
        """
        at_s, energy_j = list(self.at_s), list(self.energy_j)
        if self.latest and at_s and self.latest[0] > at_s[-1]:
            at_s.append(self.latest[0])
            energy_j.append(self.latest[1])
        joules = seconds = 0.0
        for begin_s, end_s in spans:
            first, last = bisect_left(at_s, begin_s), bisect_right(at_s, end_s) - 1
            if first >= last:
                continue
            head, tail = bisect_left(ends_s, at_s[first]), bisect_right(ends_s, at_s[last]) - 1
            if head < tail:
                from_s, to_s = ends_s[head], ends_s[tail]
                joules += _at(at_s, energy_j, to_s) - _at(at_s, energy_j, from_s)
                seconds += to_s - from_s
        whole_s = sum(end_s - begin_s for begin_s, end_s in spans)
        return joules / seconds if seconds >= COVERED_RATIO_MIN * whole_s > 0.0 else None


class WindowMeasurement:
    """Everything observed since `opened_s` of these GPUs. `lag_s`: longest delay of a report."""

    def __init__(self, opened_s: float, uuids: Iterable[str], *, lag_s: float) -> None:
        self.opened_s = opened_s
        self._lag_s = lag_s
        self._ended: list[EndedIteration] = []
        self._cut = 0  # iterations that began before it
        self._counters = {uuid: _Counter() for uuid in uuids}

    @property
    def gpus(self) -> int:
        return len(self._counters)

    @property
    def full(self) -> bool:
        """Whether it takes no more iterations, however long it goes on."""
        return len(self._ended) >= ITERATIONS_MAX

    def take(self, ended: Iterable[EndedIteration]) -> None:
        """Adds iterations; those that began before the window only count as run."""
        for one in ended:
            if one.began_s - self._lag_s < self.opened_s:
                self._cut += 1
            elif not self.full:
                self._ended.append(one)

    def see(self, gpus: Mapping[str, GpuView], now_s: float) -> float | None:
        """Notes energy counters and temperatures of this pass. Returns the mean temperature, None
        where a GPU shows none.
        """
        shown_celsius = []
        for uuid, counter in self._counters.items():
            gpu = gpus.get(uuid)
            shown = gpu.snapshot if gpu else None
            if gpu is None or shown is None:
                continue
            if shown.energy_j is not None:
                counter.see(now_s - gpu.age_s, shown.energy_j)
            if shown.temperature_celsius is not None:
                shown_celsius.append(shown.temperature_celsius)
                counter.celsius_sum += shown.temperature_celsius
                counter.celsius_count += 1
        complete = len(shown_celsius) == len(self._counters) > 0
        return statistics.fmean(shown_celsius) if complete else None

    def figures(self) -> WindowMeans | Unmeasured:
        """The means, or one word for why there are none."""
        if len(self._ended) < ITERATIONS_MIN:
            return "short"
        ended = sorted(self._ended, key=lambda one: one.arrived_s)
        usual_s = statistics.median(one.duration_s for one in ended)
        off_s = statistics.median(abs(one.duration_s - usual_s) for one in ended)
        far_s = max(FAR_DEVIATIONS * DEVIATION_OF_MEDIAN * off_s, FAR_RATIO_MIN * usual_s)
        kept = [one for one in ended if abs(one.duration_s - usual_s) <= far_s]
        if len(kept) < ITERATIONS_MIN:
            return "irregular"
        odd = [one for one in ended if abs(one.duration_s - usual_s) > far_s]
        times_s = [one.duration_s for one in kept]
        mean_s = statistics.fmean(times_s)
        pauses = self._pauses(ended, mean_s, far_s)
        left_out = len(odd) + len(pauses)
        holes = [(one.began_s - self._lag_s, one.arrived_s + self._lag_s) for one in odd] + pauses
        power_w = self._power_w(ended[0].began_s, ended, sorted(holes))
        fault: Unmeasured | Literal[""] = ""
        if left_out > LEFT_OUT_RATIO_MAX * len(ended):
            fault = "irregular"
        elif _changes_pace(times_s):
            fault = "pace"
        elif power_w is None:
            fault = "counter"
        # An iteration with a checkpoint in it did its work; one cut short did a part of it.
        odd_ran = sum(min(1.0, one.duration_s / usual_s) for one in odd)
        return WindowMeans(
            begun_s=ended[0].began_s,
            ended_s=ended[-1].arrived_s,
            iterations=len(kept),
            left_out=left_out,
            time_mean_s=mean_s,
            time_sd_s=statistics.stdev(times_s),
            ran=len(kept) + odd_ran + self._cut,
            energy_j=None if power_w is None else power_w * mean_s,
            temperature_celsius=self._celsius(),
            fault=fault,
        )

    def _pauses(self, ended: Sequence[EndedIteration], usual_s: float, far_s: float) -> list[Span]:
        """Times between iterations in which the job did something else.

        Reports travel in batches, so a gap as long as their lag means nothing; one as long as
        the iterations whose reports are missing is theirs.
        """
        pauses = []
        for before, after in pairwise(ended):
            missing = max(0, after.number - before.number - 1)
            begins_s = after.began_s
            if begins_s - before.arrived_s > missing * usual_s + self._lag_s + far_s:
                pauses.append((before.arrived_s - self._lag_s, begins_s + self._lag_s))
        return pauses

    def _power_w(
        self, begun_s: float, ended: Sequence[EndedIteration], holes: Sequence[Span]
    ) -> float | None:
        """The sum of the GPUs' mean powers outside the holes; a part is no sum."""
        spans, since_s = [], begun_s
        ends_s = [one.arrived_s for one in ended]
        for hole_begins_s, hole_ends_s in holes:
            if hole_begins_s > since_s:
                spans.append((since_s, hole_begins_s))
            since_s = max(since_s, hole_ends_s)
        if ends_s[-1] > since_s:
            spans.append((since_s, ends_s[-1]))
        powers = [counter.power_w(spans, ends_s) for counter in self._counters.values()]
        known = [power for power in powers if power is not None]
        return sum(known) if known and len(known) == len(powers) else None

    def _celsius(self) -> float | None:
        reported = [
            c.celsius_sum / c.celsius_count for c in self._counters.values() if c.celsius_count
        ]
        return statistics.fmean(reported) if reported else None


def _changes_pace(durations_s: Sequence[float]) -> bool:
    half = len(durations_s) // 2
    first, second = durations_s[:half], durations_s[half:]
    apart_s = abs(statistics.fmean(first) - statistics.fmean(second))
    doubt_s = math.sqrt(
        statistics.variance(first) / len(first) + statistics.variance(second) / len(second)
    )
    far_s = max(PACE_RATIO_MAX * statistics.fmean(durations_s), PACE_STDERRS * doubt_s)
    return apart_s > far_s


def _at(at_s: Sequence[float], energy_j: Sequence[float], when_s: float) -> float:
    """The counter at a time within the samples, in a straight line between them."""
    after = bisect_left(at_s, when_s)
    if at_s[after] == when_s:
        return energy_j[after]
    share = (when_s - at_s[after - 1]) / (at_s[after] - at_s[after - 1])
    return energy_j[after - 1] + share * (energy_j[after] - energy_j[after - 1])
