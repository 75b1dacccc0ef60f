"""Measured windows of one job without a profile: the whole memory of learning.

Everything else is computed from the log again, so a restarted controller continues with the same
numbers. The log is bounded, refuses impossible windows, and follows a job whose iterations become
longer or shorter by a common factor. It is emptied where the job has changed otherwise.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from joulecut_controller.chunk import robust
from joulecut_engine.graph.pipeline import Pipeline

# Iterations of seconds vary with network and storage: a slow one is followed by another. With a
# correlation of 0.6 the error of a mean is twice that of independent ones.
MEMORY, LONG_ITERATION_S = 2.0, 1.0
TIME_NOISE_MIN = 1e-4  # of a mean iteration time: clocks of computers are no better over a window


@dataclass(frozen=True, slots=True)
class Measurement:
    """One window of iterations at one set of clocks (MHz, observed, by stage).

    `energy_j` is per iteration and GPU, by stage. `busy_s` is the mean time of one operation by
    stage and kind (order of `reported_kinds`); empty at L1, where `operation_sd_ratio` is None too.
    Spreads are beside what all GPUs have in common. Of a rate alone `time_sd_s` is that of as many
    independent iterations with the same error of the mean.
    """

    clocks_mhz: tuple[int, ...]
    iterations: int
    time_s: float
    time_sd_s: float
    energy_j: tuple[float, ...]
    busy_s: tuple[tuple[float, ...], ...] = ()
    operation_sd_ratio: float | None = None  # of one operation; None if not reported
    gpu_sd_ratio: float | None = None  # of all that one GPU does in an iteration, likewise

    def scaled(self, ratio: float) -> "Measurement":
        """The same of a job whose iterations take `ratio` times as long."""
        return replace(
            self,
            time_s=ratio * self.time_s,
            time_sd_s=ratio * self.time_sd_s,
            energy_j=tuple(ratio * joules for joules in self.energy_j),
            busy_s=tuple(tuple(ratio * s for s in each) for each in self.busy_s),
        )

    @property
    def stderr_ratio(self) -> float:
        """Of `time_s`."""
        memory = MEMORY if self.time_s >= LONG_ITERATION_S and not self.busy_s else 1.0
        error = memory * self.time_sd_s / self.time_s / self.iterations**0.5
        return float(max(TIME_NOISE_MIN, error))


@dataclass(frozen=True, slots=True)
class JobConstants:
    """Numbers of a job that need no window.

    `default_mhz` is the clock each stage runs at without a lock; a power cap holds it below the
    highest clock.
    """

    pipeline: Pipeline
    default_mhz: tuple[int, ...]
    clock_max_mhz: int
    blocking_power_w: float  # 0 if unknown


@dataclass(frozen=True, slots=True)
class ProbedJob:
    """A job without a profile, as probing has measured it so far.

    `grids_mhz` are the allowed clocks by stage, ascending, ending with the default; `alike` numbers
    the kind of GPU by stage; `window_s` is how long the next window takes, waits included.
    """

    constants: JobConstants
    grids_mhz: tuple[tuple[int, ...], ...]
    alike: tuple[int, ...]
    measurements: tuple[Measurement, ...]
    window_s: float


MEASUREMENTS_MAX = 96  # distinct settings; a job of 8 stages needs about 40
ITERATIONS_MAX = 800  # of one setting: later windows still count a sixteenth ...
STDERR_ENOUGH = 0.0005  # ... or as many as give this error; a hundredth of a usual budget
ITERATIONS_MIN = 8  # fewer give no useful standard deviation ...
ITERATIONS_MIN_DETAILED = 5  # ... but each has hundreds of operations, where they are reported
# A window that differs by more from an earlier one at the same clocks is of a changed job.
MOVED_RATIO = 0.015
MOVED_STDERRS = 5.0
# The same of default clocks, which every deadline rests on.
BASELINE_MOVED_RATIO = 0.005
BASELINE_MOVED_STDERRS = 3.0
VERSION = 1
# Time of work over its clock, on logarithms: public sweeps have 0.25 to 0.93.
CLOCK_SHARE = 0.75

# A window lasts 50 iterations; of slow jobs fewer, so that learning takes minutes and not hours.
WINDOW_ITERATIONS = 50
WINDOW_S = 12.0
FIRST_WINDOW_S = 8.0  # of the first, large steps, whose effect stands out of the noise sooner


def window_iterations(iteration_s: float, *, detailed: bool = False, first: bool = False) -> int:
    """Iterations per window, by the time of one iteration; `detailed` with operations reported,
    `first` of a step that other jobs let be large.
    """
    lasts_s = FIRST_WINDOW_S if first else WINDOW_S
    fit = int(lasts_s / iteration_s) if iteration_s > 0.0 else WINDOW_ITERATIONS
    least = ITERATIONS_MIN_DETAILED if detailed else ITERATIONS_MIN
    return max(least, min(WINDOW_ITERATIONS, fit))


HICCUP_SDS = 4.0  # an iteration farther from the median had a hiccup, which no clock explains


def without_hiccups(times_s: Sequence[float]) -> list[float]:
    """Times of usual iterations; all where half or more are equal."""
    middle, sd = robust(times_s)
    if sd <= 0.0:
        return list(times_s)
    return [time_s for time_s in times_s if abs(time_s - middle) <= HICCUP_SDS * sd]


@dataclass(frozen=True, slots=True)
class MeasurementLog:
    """Measurements of a job in one `shape` (pipeline, GPUs), one per setting, oldest first."""

    shape: str = ""
    measurements: tuple[Measurement, ...] = ()
    restarts: int = 0  # how often the job had changed

    def add(
        self, measurement: Measurement, *, at_default: bool = False
    ) -> tuple["MeasurementLog", str]:
        """The log with one more window; and why it was refused or the log was emptied, if so.

        One `at_default` clocks belongs to the first, whatever clocks these are today.
        """
        complaint = _complaint(measurement)
        if complaint:
            return self, f"window refused: {complaint}"
        return self._with(measurement, at_default=at_default)

    def _with(self, measurement: Measurement, *, at_default: bool) -> tuple["MeasurementLog", str]:
        same = (r for r in self.measurements if r.clocks_mhz == measurement.clocks_mhz)
        old = self.measurements[0] if at_default and self.measurements else next(same, None)
        if old is not None and bool(old.busy_s) == bool(measurement.busy_s):
            moved = measurement.time_s / old.time_s - 1.0
            doubt = math.hypot(old.stderr_ratio, measurement.stderr_ratio)
            by_chance = max(BASELINE_MOVED_RATIO, BASELINE_MOVED_STDERRS * doubt)
            if old is self.measurements[0]:
                if abs(moved) > by_chance or self._held_lower(measurement) != 1.0:
                    return self._scaled(measurement)
                measurement = _merged(old, measurement)
            elif abs(moved) > by_chance and measurement.busy_s:
                pass  # its curves are ratios, which hold; the newest window counts alone
            elif abs(moved) > max(MOVED_RATIO, MOVED_STDERRS * doubt):
                new = replace(self, measurements=(), restarts=self.restarts + 1)
                return new, (
                    f"iteration time changed by {moved:+.1%} at the same clocks: what was learnt "
                    "no longer holds, learning starts again"
                )
            else:
                measurement = _merged(old, measurement)
        others = (r for r in self.measurements if r is not old)
        kept = [r for r in others if r.clocks_mhz != measurement.clocks_mhz]
        if kept and bool(kept[0].busy_s) != bool(measurement.busy_s):
            if measurement.clocks_mhz != self.measurements[0].clocks_mhz:
                return (
                    replace(self, measurements=()),
                    "the job reports other numbers than before: learning starts again",
                )
            kept = []  # the job began or stopped reporting its operations
        if len(kept) >= MEASUREMENTS_MAX:
            del kept[1]  # the first one is the baseline
        where = next((i for i, r in enumerate(self.measurements) if r is old), len(kept))
        kept.insert(min(where, len(kept)), measurement)
        return replace(self, measurements=tuple(kept)), ""

    def _held_lower(self, default: Measurement) -> float:
        """Clocks of the newest window at default clocks over those of the first one, which heat or
        a power limit moves; 1 where operations are not known.
        """
        if not default.busy_s:
            return 1.0
        clocks = zip(default.clocks_mhz, self.measurements[0].clocks_mhz, strict=True)
        return statistics.median(now / before for now, before in clocks)

    def _scaled(self, default: Measurement) -> tuple["MeasurementLog", str]:
        """The log of a job that takes another time at default clocks now.

        All clocks are taken to have changed by this ratio until a window measures another: less
        what the default clocks' own change explains. Slowdowns relative to default clocks, and
        their uncertainty, stay as they are.
        """
        first, held = self.measurements[0], self._held_lower(default)
        ratio = default.time_s / first.time_s
        scaled = [one.scaled(ratio * held**CLOCK_SHARE) for one in self.measurements]
        scaled[0] = replace(first.scaled(ratio), clocks_mhz=default.clocks_mhz)
        if held != 1.0:
            scaled[0] = default
        words = f"iteration time at default clocks changed by {ratio - 1.0:+.1%}"
        return replace(self, measurements=tuple(scaled)), words

    def state(self) -> str:
        """The log as text for a store."""
        kept = _Kept(VERSION, self.shape, self.measurements, self.restarts)
        return msgspec.json.encode(kept).decode()

    @classmethod
    def restored(cls, text: str, shape: str) -> "MeasurementLog":
        """Read `state()` back; an empty log if the text is damaged or of another shape."""
        try:
            held = msgspec.json.decode(text, type=_Kept)
        except (msgspec.MsgspecError, UnicodeError):
            return cls(shape)
        known = held.version == VERSION and held.shape == shape
        if not known or any(_complaint(one) for one in held.readings):
            return cls(shape)
        return cls(shape, held.readings[:MEASUREMENTS_MAX], held.restarts)


class _Kept(msgspec.Struct):
    """A log as the store has it."""

    version: int
    shape: str
    readings: tuple[Measurement, ...]
    restarts: int


def _complaint(measurement: Measurement) -> str:
    """Why a window is impossible; empty if it is fine."""
    numbers = [
        measurement.time_s,
        *measurement.energy_j,
        *(s for each in measurement.busy_s for s in each),
    ]
    stages = len(measurement.clocks_mhz)
    if not all(math.isfinite(n) and n > 0.0 for n in numbers):
        return "a time or an energy is not above 0"
    spreads = (
        measurement.time_sd_s,
        measurement.operation_sd_ratio or 0.0,
        measurement.gpu_sd_ratio or 0.0,
    )
    if not all(math.isfinite(spread) and spread >= 0.0 for spread in spreads):
        return "its spread is not a number"
    least = ITERATIONS_MIN_DETAILED if measurement.busy_s else ITERATIONS_MIN
    if measurement.iterations < least:
        return f"only {measurement.iterations} iterations"
    if len(measurement.energy_j) != stages or (
        measurement.busy_s and len(measurement.busy_s) != stages
    ):
        return "it does not cover every stage"
    if min(measurement.clocks_mhz, default=0) <= 0:
        return "a clock is unknown"
    return ""


def _merged(old: Measurement, new: Measurement) -> Measurement:
    """Two windows as one, weighted by iterations."""
    total = old.iterations + new.iterations
    share = new.iterations / total

    def mean(a: float, b: float) -> float:
        return a + share * (b - a)

    time_s = mean(old.time_s, new.time_s)
    sd_s = math.sqrt(mean(old.time_sd_s**2, new.time_sd_s**2))
    enough = math.ceil((sd_s / time_s / STDERR_ENOUGH) ** 2)

    def spread(a: float | None, b: float | None) -> float | None:
        if a is None or b is None:  # too few iterations in one of them
            return b if a is None else a
        return math.sqrt(mean(a**2, b**2))

    return Measurement(
        new.clocks_mhz,
        min(total, max(ITERATIONS_MAX, enough)),
        time_s,
        sd_s,
        tuple(map(mean, old.energy_j, new.energy_j)),
        tuple(tuple(map(mean, a, b)) for a, b in zip(old.busy_s, new.busy_s, strict=True)),
        spread(old.operation_sd_ratio, new.operation_sd_ratio),
        spread(old.gpu_sd_ratio, new.gpu_sd_ratio),
    )
