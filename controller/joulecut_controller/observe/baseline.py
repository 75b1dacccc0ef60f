"""Baseline of one job: its iteration time at default clocks, and whether it still holds.

Default clocks are measured before a plan, in hold-out windows, and in short looks. In between the
job may become faster or slower: at unchanged clocks that shows as a shift of its pace, and across
changes of clocks it does not show at all. So a baseline holds for a while, and ends with a shift.
"""

import math
from dataclasses import dataclass, replace

from joulecut_controller.observe.measurement_window import ITERATIONS_KEPT, stderr_s
from joulecut_controller.observe.work import work_over
from joulecut_controller.reference.reference import JUMP_MIN
from joulecut_controller.trust import short_window
from joulecut_controller.view import BaselineDrift, GpuShift, Window, WindowWork

BASELINE_ITERATIONS_MIN = 30  # below that the standard deviation itself is a guess
# Of long iterations fewer, so that a baseline takes a minute and not an hour.
BASELINE_LONG_MIN, BASELINE_LONG_S = 8, 60.0
BASELINE_STDERR_RATIO_MAX = 0.0025  # a tenth of a usual slowdown budget of 2-3 %
# Of iterations that vary more, twice as many: from then on windows at default clocks bring the
# rest, and a plan within a ratio of the baseline does not depend on its level.
BASELINE_NOISY_ITERATIONS = 60
BLEND_ITERATIONS_MIN = 8  # fewer give no standard deviation
DIFFERS_RATIO, DIFFERS_STDERRS = 0.005, 3.0  # beyond them the job has moved since
# What a profile says of clocks is not believed of a job that takes this much longer or shorter.
MOVED_RATIO_MAX = 0.25


@dataclass(frozen=True, slots=True)
class Recalled:
    """A baseline that an earlier controller measured; `first` is that of when the job took its
    shape. `age_s` is infinite where it is not known, or where the job has changed since.
    """

    window: Window
    first: Window
    age_s: float = math.inf


class Baseline:
    """`window` is None before the first measurement."""

    def __init__(
        self, recalled: Recalled | None, now_s: float, first: Window | None = None
    ) -> None:
        """With a recalled one a plan may go on. `first` was measured when the job took its shape,
        in another phase of it.
        """
        self.window = recalled.window if recalled else None
        self.first = recalled.first if recalled else first
        self._before: Window | None = None  # when the window since `_since_s` began
        self._since_s = math.nan
        self._part: Window | None = None  # of earlier windows, too few iterations for a baseline
        self._seen: Window | None = None  # the newest of the window since `_since_s`
        measured_s = now_s - recalled.age_s if recalled else -math.inf
        self.drift = BaselineDrift(measured_s=measured_s, moved_ratio=self._moved_ratio())

    def _moved_ratio(self) -> float:
        if self.window is None or self.first is None:
            return 1.0
        ratio = self.window.time_mean_s / self.first.time_mean_s
        return min(max(ratio, 1.0 - MOVED_RATIO_MAX), 1.0 + MOVED_RATIO_MAX)

    def _moved_work(self) -> float:
        if self.window is None or self.first is None:
            return 1.0
        return work_over(self.window.operations_s, self.first.operations_s) or 1.0

    def measure(self, seen: Window, *, since_s: float, now_s: float) -> bool:
        """Takes the iterations seen at default clocks since `since_s`; whether they are the whole
        baseline now. Too few to replace the one before update it.
        """
        if self._since_s != since_s:
            self._before, self._since_s = self.window, since_s
            if self.window is None and self._seen is not None:
                self._part = _together(self._part, self._seen)
        self._seen = seen
        before = self._before
        if before is None and not mature(seen):  # a job of short runs adds them up
            seen = _together(self._part, seen)
        moved = before is not None and differs(seen, before)
        # Ratios of GPUs are part of a baseline.
        again = self.drift.gpu_shift is not None and seen.iterations >= short_window.ITERATIONS
        replaces = mature(seen) or moved or again
        if replaces:
            self.window = seen if before is None else _with_power(seen, before)
        elif before is not None:
            self.window = blended(before, seen, _wanted(seen))
        if self.window is not None and (seen.iterations >= short_window.ITERATIONS or mature(seen)):
            self.first = self.first or self.window
            self.drift = BaselineDrift(
                measured_s=now_s,
                moved_ratio=self._moved_ratio(),
                moved_work=self._moved_work(),
            )
        return replaces

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
        self.window = self._before = self.first = None
        self.drift = BaselineDrift(measured_s=-math.inf)


def mature(window: Window) -> bool:
    """Enough of a baseline to plan on. What judges by its mean knows its standard error, so long
    iterations need not be as many, nor as steady.
    """
    needed = iterations_needed(window.time_mean_s)
    if needed < BASELINE_ITERATIONS_MIN:
        return window.iterations >= needed
    if window.iterations < BASELINE_ITERATIONS_MIN:
        return False
    return (
        window.stderr_ratio <= BASELINE_STDERR_RATIO_MAX
        or window.iterations >= BASELINE_NOISY_ITERATIONS
    )


def iterations_needed(iteration_s: float) -> int:
    """The least number of iterations of a baseline."""
    lasting = math.ceil(BASELINE_LONG_S / iteration_s) if iteration_s > 0.0 else ITERATIONS_KEPT
    return min(BASELINE_ITERATIONS_MIN, max(BASELINE_LONG_MIN, lasting))


def progress(iterations: int, current: Window | None) -> str:
    """How far a first baseline is, of `iterations` like those of `current`."""
    needed = iterations_needed(current.time_mean_s if current else 0.0)
    if current is None or iterations < needed:
        return f"{iterations} of {needed} iterations"
    known = f"the mean is known to ±{replace(current, iterations=iterations).stderr_ratio:.2%}"
    return f"{iterations} of {BASELINE_NOISY_ITERATIONS} iterations: not steady yet, {known}"


def differs(seen: Window, known: Window) -> bool:
    """Whether default clocks give another pace than before, and not by chance."""
    if seen.iterations < BLEND_ITERATIONS_MIN:
        return False
    doubt_s = DIFFERS_STDERRS * math.hypot(stderr_s(seen), stderr_s(known))
    apart_s = abs(seen.time_mean_s - known.time_mean_s)
    return apart_s > max(DIFFERS_RATIO * known.time_mean_s, doubt_s)


def blended(known: Window, seen: Window, wanted: int) -> Window:
    """A baseline updated by a window too short to replace it: both as one window of at most
    `wanted` iterations, all of the newer ones counted. So the baseline follows a drifting job.
    """
    if seen.iterations < BLEND_ITERATIONS_MIN:
        return known
    older = max(0, min(known.iterations, wanted - seen.iterations))
    share = seen.iterations / (seen.iterations + older)
    variance = (1.0 - share) * known.time_sd_s**2 + share * seen.time_sd_s**2
    return replace(
        seen,
        iterations=seen.iterations + older,
        time_mean_s=known.time_mean_s + share * (seen.time_mean_s - known.time_mean_s),
        time_sd_s=math.sqrt(variance),
        energy_j=_between(known.energy_j, seen.energy_j, share),
        power_w=_between(known.power_w, seen.power_w, share),
        operation_sd_ratio=_between(known.operation_sd_ratio, seen.operation_sd_ratio, share),
        gpu_sd_ratio=_between(known.gpu_sd_ratio, seen.gpu_sd_ratio, share),
        inflation=(1.0 - share) * known.inflation + share * seen.inflation,
        work=_blended_work(known, seen, share),
    )


def _blended_work(known: Window, seen: Window, share: float) -> WindowWork | None:
    """Adjusted times at the work of `seen`. Both ran at default clocks, so that the operations of
    both show by how much the work differs.
    """
    if seen.work is None or known.work is None:
        return seen.work
    longer = work_over(seen.work.operations_s, known.work.operations_s) or 1.0
    mean_s = longer * known.work.mean_s
    variance = (1.0 - share) * (longer * known.work.sd_s) ** 2 + share * seen.work.sd_s**2
    return WindowWork(
        mean_s=mean_s + share * (seen.work.mean_s - mean_s),
        sd_s=math.sqrt(variance),
        sd_ratio=max(known.work.sd_ratio, seen.work.sd_ratio),
        operations_s=seen.work.operations_s,
    )


def _together(part: Window | None, seen: Window) -> Window:
    """Both windows as one; the newer one where they differ."""
    if part is None or differs(seen, part):
        return seen
    return blended(part, seen, part.iterations + seen.iterations)


def _wanted(window: Window) -> int:
    """How many iterations as noisy as these make a baseline."""
    needed = (window.time_sd_s / (BASELINE_STDERR_RATIO_MAX * window.time_mean_s)) ** 2
    return min(max(math.ceil(needed), BASELINE_ITERATIONS_MIN), ITERATIONS_KEPT)


def _with_power(seen: Window, before: Window) -> Window:
    """Counters need some seconds; until then the job draws what it drew."""
    if seen.power_w is not None or before.power_w is None:
        return seen
    return replace(seen, power_w=before.power_w, energy_j=before.power_w * seen.time_mean_s)


def _between(known: float | None, seen: float | None, share: float) -> float | None:
    if known is None or seen is None:
        return known if seen is None else seen
    return known + share * (seen - known)
