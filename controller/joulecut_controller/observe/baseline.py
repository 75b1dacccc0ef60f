"""Baseline of one job: an iteration at default clocks, and whether it still holds.

Default clocks are measured before a plan, in hold-out windows, and in short windows. The reference
says what they would take now; the baseline has the spread, energy and work of a whole window of
them, at the reference's level. It ends with a shift of the job's pace at unchanged clocks.
"""

import math
from dataclasses import dataclass, replace

from joulecut_controller.observe.measurement_window import ITERATIONS_KEPT
from joulecut_controller.reference.reference import JUMP_MIN, Answer
from joulecut_controller.trust import short_window
from joulecut_controller.view import BaselineDrift, GpuShift, Window

BASELINE_ITERATIONS_MIN = 30  # below that the standard deviation itself is a guess
# Of long iterations fewer, so that a baseline takes a minute and not an hour.
BASELINE_LONG_MIN, BASELINE_LONG_S = 8, 60.0


@dataclass(frozen=True, slots=True)
class Recalled:
    """A baseline that an earlier controller measured. `age_s` is infinite where it is not known, or
    where the job has changed since.
    """

    window: Window
    age_s: float = math.inf


class Baseline:
    """`window` is None before the first measurement."""

    def __init__(self, recalled: Recalled | None, now_s: float) -> None:
        """With a recalled one a plan may go on."""
        self.window = recalled.window if recalled else None
        self._level: float | None = None  # of the reference, when the window was taken
        self._since_s = math.nan
        self._iterations = self._earlier = 0  # at default clocks, and of those in earlier windows
        self.drift = BaselineDrift(now_s - recalled.age_s if recalled else -math.inf)

    def measure(self, seen: Window, known: Answer | None, *, since_s: float, now_s: float) -> bool:
        """Takes the iterations seen at default clocks since `since_s`; whether they are the whole
        baseline now. `known` is what the reference says.
        """
        level = known.default.mean if known else math.log(seen.time_mean_s)
        if self._since_s != since_s:
            self._since_s, self._earlier = since_s, self._iterations
        # A job of short runs adds them up.
        self._iterations = min(self._earlier + seen.iterations, ITERATIONS_KEPT)
        whole = mature(seen)
        long = whole or seen.iterations >= short_window.ITERATIONS
        before = self.window
        if before is None:
            whole = mature(replace(seen, iterations=self._iterations))
        # Ratios of GPUs are part of a baseline.
        again = self.drift.gpu_shift is not None and long
        moved = self._level is not None and abs(level - self._level) > JUMP_MIN and long
        if whole or again or moved:
            self.window = seen if before is None else _with_power(seen, before)
            self._level = level
        elif before is not None:
            if self._level is None:
                self._level = math.log(before.time_mean_s)
            self.window, self._level = _scaled(before, math.exp(level - self._level)), level
        if self.window is not None and (long or whole):
            self.drift = BaselineDrift(now_s)
        return whole or again or moved

    def shift(self, ratio: float, gpu_shift: GpuShift | None = None) -> None:
        """Iterations take `ratio` times as long as before at the same clocks; or one GPU's
        operations do, whether or not the others wait for it.
        """
        drift = self.drift
        if gpu_shift is not None:
            self.drift = replace(drift, gpu_shift=gpu_shift)
            return
        shift_ratio = drift.shift_ratio * ratio
        if abs(math.log(shift_ratio)) < JUMP_MIN:  # it is back
            shift_ratio = 1.0
        self.drift = replace(drift, shift_ratio=shift_ratio)

    def forget(self) -> None:
        """Drops all measurements: they were not taken at default clocks."""
        self.window = self._level = None
        self._iterations = self._earlier = 0
        self.drift = BaselineDrift(-math.inf)


def mature(window: Window) -> bool:
    """Enough of a baseline to plan on, steady or not: what judges by its mean knows its standard
    error, and a plan is a ratio of the baseline.
    """
    return window.iterations >= iterations_needed(window.time_mean_s)


def iterations_needed(iteration_s: float) -> int:
    """The least number of iterations of a baseline."""
    lasting = math.ceil(BASELINE_LONG_S / iteration_s) if iteration_s > 0.0 else ITERATIONS_KEPT
    return min(BASELINE_ITERATIONS_MIN, max(BASELINE_LONG_MIN, lasting))


def progress(iterations: int, current: Window | None) -> str:
    """How far a first baseline is, of `iterations` like those of `current`."""
    needed = iterations_needed(current.time_mean_s if current else 0.0)
    return f"{iterations} of {needed} iterations"


def _scaled(window: Window, ratio: float) -> Window:
    """The window where iterations take `ratio` times as long, at the same power."""
    energy_j = window.energy_j
    return replace(
        window,
        time_mean_s=ratio * window.time_mean_s,
        time_sd_s=ratio * window.time_sd_s,
        energy_j=None if energy_j is None else ratio * energy_j,
    )


def _with_power(seen: Window, before: Window) -> Window:
    """Counters need some seconds; until then the job draws what it drew."""
    if seen.power_w is not None or before.power_w is None:
        return seen
    return replace(seen, power_w=before.power_w, energy_j=before.power_w * seen.time_mean_s)
