"""The measured saving: hold-out windows compared with the plan's windows around them.

A job's energy per iteration drifts, so each hold-out gives one paired difference with the plan's
windows around it; their mean is the effect: a switchback experiment
with randomised order (Bojinov, Simchi-Levi, Zhao, "Design and Analysis of Switchback
Experiments", Management Science 69, 2023). Carry-over is removed by the windows themselves:
their warm-up is not in them. `interval` gives the confidence interval of the mean.

Temperature is *not* held constant: lower clocks make cooler GPUs, which leak less, and that is
part of the saving. The room's temperature cancels like any drift.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from joulecut_controller.trust.interval import (
    Interval,
    count_for,
    mean_interval,
    period_shares,
)
from joulecut_controller.trust.paired_difference import (
    NEIGHBOURS,
    PairedDifference,
    paired_differences,
    usable_windows,
)
from joulecut_controller.trust.window import MeasuredWindow
from joulecut_wire.assumed import COUNTER_STEP_S

HOLDOUTS_MIN = 3  # two differ by chance as little as they like, and Student's factor is 12.7
LOG_HALF_WIDTH_MAX = 0.35  # beyond minus thirty to plus forty per cent nothing was measured
CHANCE_PAIRS_MAX = 0.2  # of pairs: at a share of 5 % one in forty meets by lot, at 20 % two in five
POINT = 0.01  # width of the interval that is promised: one point from end to end
# A counter leaves up to one of its steps at either end of a window: the difference of two uniform
# errors.
COUNTER_STEP_SD_S = COUNTER_STEP_S / math.sqrt(6.0)


@dataclass(frozen=True, slots=True)
class Saving:
    """Saving of one job in one shape and phase. Ratios are fractions of the figures at default
    clocks.

    `saved_ratio` and `slowdown_ratio` are None where they cannot be estimated; `reason` then says
    why. Energies and times are per iteration, of all the job's GPUs: with intervals those of the
    compared windows (geometric means, the plan's at the hold-outs' times), else plain means.
    `holdouts` counts paired differences, `windows_*` all usable windows, `unusable` those without a
    measurement or stored twice. `days` is from the first to the last. `point_in_s` is how much
    longer hold-outs as frequent as these take to an interval of `saved_ratio` that is one point
    wide; 0 where it is.
    """

    job: str
    shape: str
    gpus: int
    begun_unix_s: float
    ended_unix_s: float
    windows_default: int
    windows_plan: int
    holdouts: int = 0
    unusable: int = 0
    saved_ratio: Interval | None = None
    slowdown_ratio: Interval | None = None
    default_energy_j: float | None = None
    plan_energy_j: float | None = None
    default_time_s: float | None = None
    plan_time_s: float | None = None
    predicted_saved_ratio: float | None = None
    predicted_slowdown_ratio: float | None = None
    point_in_s: float | None = None
    reason: str = ""
    phase: str = ""

    @property
    def days(self) -> float:
        return (self.ended_unix_s - self.begun_unix_s) / 86_400.0


def by_shape(windows: Iterable[MeasuredWindow]) -> tuple[Saving, ...]:
    """One job's saving in each of its shapes and phases, oldest first; windows of two are never
    compared.
    """
    shapes: dict[tuple[str, str], list[MeasuredWindow]] = {}
    for window in windows:
        shapes.setdefault((window.shape, window.phase), []).append(window)
    found = []
    for of_shape in shapes.values():
        usable = usable_windows(of_shape)
        if usable:
            found.append(replace(_of_shape(usable), unusable=len(of_shape) - len(usable)))
    return tuple(sorted(found, key=lambda one: one.begun_unix_s))


def _of_shape(windows: Sequence[MeasuredWindow]) -> Saving:
    arms = {arm: [window for window in windows if window.arm == arm] for arm in ("default", "plan")}
    bare = Saving(
        job=windows[-1].job,
        shape=windows[-1].shape,
        phase=windows[-1].phase,
        gpus=windows[-1].gpus,
        begun_unix_s=min(window.begun_unix_s for window in windows),
        ended_unix_s=max(window.ended_unix_s for window in windows),
        windows_default=len(arms["default"]),
        windows_plan=len(arms["plan"]),
        default_energy_j=_weighted(arms["default"], [w.energy_j for w in arms["default"]]),
        plan_energy_j=_weighted(arms["plan"], [w.energy_j for w in arms["plan"]]),
        default_time_s=_weighted(arms["default"], [w.time_mean_s for w in arms["default"]]),
        plan_time_s=_weighted(arms["plan"], [w.time_mean_s for w in arms["plan"]]),
        predicted_saved_ratio=_predicted(arms["default"], arms["plan"], "predicted_energy_j", -1.0),
        predicted_slowdown_ratio=_predicted(arms["default"], arms["plan"], "predicted_time_s", 1.0),
    )
    if not arms["default"]:
        return replace(
            bare, reason="no hold-out window yet: nothing was measured at default clocks"
        )
    if not arms["plan"]:
        return replace(bare, reason="no window under a plan yet")
    found = paired_differences(windows)
    if len(found) < HOLDOUTS_MIN:
        reason = (
            f"{len(found)} hold-outs with windows of a plan before and after, "
            f"{HOLDOUTS_MIN} are needed"
        )
        return replace(bare, holdouts=len(found), reason=reason)
    return _estimated(bare, found)


def _estimated(bare: Saving, found: Sequence[PairedDifference]) -> Saving:
    """A difference counts for the iterations of its part of the period, and its ratio by what they
    take at default clocks: the estimate is the whole period's energy and time, over theirs.
    """
    floor = statistics.fmean([COUNTER_STEP_SD_S / difference.span_s for difference in found])
    at_s = [one.at_unix_s for one in found]
    default_j = np.exp([one.level_energy_log for one in found])
    default_s = np.exp([one.level_time_log for one in found])
    ratio_j = np.exp([one.energy_log for one in found])
    ratio_s = np.exp([one.time_log for one in found])
    iterations = period_shares(at_s) / (default_s * ratio_s)
    shared = _shared(found)
    energy = _log(
        mean_interval(at_s, ratio_j, iterations * default_j, floor_sd=floor, shared=shared)
    )
    time = _log(mean_interval(at_s, ratio_s, iterations * default_s, floor_sd=0.0, shared=shared))
    bare = replace(bare, holdouts=len(found))
    if max(energy.half_width, time.half_width) > LOG_HALF_WIDTH_MAX:
        reason = (
            f"{len(found)} hold-outs that differ too much: energy to {energy.half_width:.0%}, "
            f"time to {time.half_width:.0%}"
        )
        return replace(bare, reason=reason)
    saved = Interval(-math.expm1(energy.mid), -math.expm1(energy.high), -math.expm1(energy.low))
    missing = count_for(POINT / 2.0, len(found), saved.half_width) - len(found)
    default_energy_j = float(iterations @ default_j / iterations.sum())
    default_time_s = float(iterations @ default_s / iterations.sum())
    return replace(
        bare,
        saved_ratio=saved,
        slowdown_ratio=time.mapped(math.expm1),
        default_energy_j=default_energy_j,
        plan_energy_j=default_energy_j * math.exp(energy.mid),
        default_time_s=default_time_s,
        plan_time_s=default_time_s * math.exp(time.mid),
        point_in_s=missing * statistics.median([b - a for a, b in pairwise(at_s)]),
    )


def _log(ratio: Interval) -> Interval:
    """Of a ratio's interval, the logarithm's, which keeps it above zero."""
    mid, half = math.log(ratio.mid), ratio.half_width / ratio.mid
    return Interval(mid, mid - half, mid + half)


def _shared(found: Sequence[PairedDifference]) -> int:
    """Of how many differences after one the first neighbour is not after its last, on average and
    rounded up, but for a few that chance brought together.
    """
    pairs = sum(
        later.neighbours_unix_s[0] <= one.neighbours_unix_s[1]
        for place, one in enumerate(found)
        for later in found[place + 1 : place + 1 + 2 * NEIGHBOURS]
    )
    return math.ceil(pairs / len(found) - CHANCE_PAIRS_MAX)


def _predicted(
    default: Sequence[MeasuredWindow], plan: Sequence[MeasuredWindow], name: str, sign: float
) -> float | None:
    """Plan over default less one, as predicted for the windows that were run; or less it."""
    sides = []
    for arm in (default, plan):
        known = [window for window in arm if (getattr(window, name) or 0.0) > 0.0]
        sides.append(_weighted(known, [getattr(window, name) for window in known]))
    if sides[0] is None or sides[1] is None:
        return None
    return sign * (sides[1] / sides[0] - 1.0)


def _weighted(windows: Sequence[MeasuredWindow], values: Sequence[float]) -> float | None:
    """The mean over iterations; None of nothing."""
    count = sum(window.iterations for window in windows)
    if not count:
        return None
    pairs = zip(windows, values, strict=True)
    return math.fsum(window.iterations * value for window, value in pairs) / count
