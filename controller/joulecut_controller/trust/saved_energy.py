"""Joules saved since this controller began, and the slowdown against adjacent default windows.

A window under a plan is credited with the difference between what its counted work takes at default
clocks and what it took, both from the energy counters; what it takes at default clocks is the level
of the default windows around it, of the same shape and phase. Nothing is credited without such a
window. A plan that costs energy lowers the sum. Neither predictor nor inferred work has a part in
it. Pure.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from joulecut_controller.trust.interval import Interval
from joulecut_controller.trust.level import Level, Point
from joulecut_controller.trust.measured_windows import TimedWindow
from joulecut_controller.trust.seen import PlanInForce
from joulecut_wire.assumed import COUNTER_STEP_S

# A window before the warm-up has cooler GPUs than default clocks have in the long run: 5 K and
# 0.15 %/K of leakage, half of it in the mean of a window.
COLD_SD = 0.004
CREDITS_KEPT = (
    128  # half a day of windows; after that a default window to come changes nothing any more
)
# Standard deviation of the newest level, a ratio, beyond which joules are not called measured: at
# a saving of a tenth they would be off by a tenth. Jobs whose work varies take some windows for it.
LEVEL_SD_MAX = 0.01
REFERENCES_KEPT = 64
PHASES_KEPT = 16
REACH_S = 3600.0  # a window under a plan so far from a default window is no neighbour of it
NORMAL_95 = 1.96

Key = tuple[str, str]  # shape and phase


@dataclass(frozen=True, slots=True)
class _Credit:
    """A window under a plan."""

    key: Key
    at_s: float
    span_s: float
    work: float
    energy_per_work_j: float
    predicted_j: float


class SavedEnergy:
    """Of one job. `predicted_j` is what plans' forecasts promise for all time under plans,
    `controlled_s` that time.
    """

    def __init__(self) -> None:
        self.predicted_j = self.controlled_s = 0.0
        self._references: OrderedDict[Key, deque[Point]] = OrderedDict()  # the newest last
        self._credits: deque[_Credit] = deque()
        # Joules saved, joules predicted and seconds that no default window to come changes.
        self._settled = (0.0, 0.0, 0.0)

    def promise(self, plan: PlanInForce, iterations: int) -> None:
        """What a plan's forecast says of iterations under it."""
        self.predicted_j += iterations * plan.saved_j

    def see(self, window: TimedWindow) -> None:
        """A window that ended."""
        key = _key(window)
        if window.mark.arm == "plan":
            self._credits.extend(_credits(window))
            if len(self._credits) > CREDITS_KEPT:
                self._settle([self._credits.popleft()])
        elif window.means.energy_j:
            point = energy_point(window)
            self._references.setdefault(key, deque(maxlen=REFERENCES_KEPT)).append(point)
            self._references.move_to_end(key)
            if len(self._references) > PHASES_KEPT:
                oldest = next(iter(self._references))
                self._settle([one for one in self._credits if one.key == oldest])
                self._credits = deque(one for one in self._credits if one.key != oldest)
                del self._references[oldest]

    def measured(self, opened: TimedWindow | None = None) -> tuple[float, float, float] | None:
        """Joules saved, signed, what plans promised of the same windows, and their share of the
        time under plans; None where nothing was paired. `opened` is the window that is open.
        """
        begun = _credits(opened) if opened and opened.mark.arm == "plan" else []
        new = self._totals([*self._credits, *begun])
        saved_j, predicted_j, known_s = map(sum, zip(new, self._settled, strict=True))
        if not known_s:
            return None
        share = min(1.0, known_s / self.controlled_s) if self.controlled_s > 0.0 else 0.0
        return saved_j, predicted_j, share

    def _settle(self, old: Sequence[_Credit]) -> None:
        saved_j, predicted_j, known_s = map(sum, zip(self._totals(old), self._settled, strict=True))
        self._settled = (saved_j, predicted_j, known_s)

    def _totals(self, given: Sequence[_Credit]) -> tuple[float, float, float]:
        """Of the windows whose phase has default windows that are precise enough."""
        levels = {key: Level(points) for key, points in self._references.items()}
        known = {k for k, level in levels.items() if level.newest.variance <= LEVEL_SD_MAX**2}
        paired = [(one, levels[one.key].at(one.at_s)) for one in given if one.key in known]
        saved_j = math.fsum(
            one.work * (math.exp(default.value) - one.energy_per_work_j) for one, default in paired
        )
        predicted_j = math.fsum(one.predicted_j for one, _ in paired)
        return saved_j, predicted_j, math.fsum(one.span_s for one, _ in paired)


def _key(window: TimedWindow) -> Key:
    return window.mark.shape, window.mark.phase


def _credits(window: TimedWindow) -> list[_Credit]:
    """The window's, or none without its energy."""
    means = window.means
    if means.energy_j is None:
        return []
    span_s, each_j = means.ended_s - means.begun_s, means.energy_j / means.work
    predicted_j = means.iterations * (window.plan.saved_j if window.plan else 0.0)
    return [_Credit(_key(window), window.middle_s, span_s, means.work_done, each_j, predicted_j)]


def energy_point(window: TimedWindow) -> Point:
    """Energy per counted work, with its doubt."""
    means = window.means
    assert means.energy_j is not None
    step = COUNTER_STEP_S / (means.ended_s - means.begun_s)
    cold = 0.0 if window.mark.warm else COLD_SD
    value = math.log(means.energy_j / means.work)
    return Point(window.middle_s, value, _time_variance(window) + step**2 + cold**2)


def paired_slowdown(windows: Sequence[TimedWindow], now: TimedWindow) -> Interval | None:
    """Slowdown of the clocks of `now` against the default windows beside them, as a ratio with its
    95 % interval; None without such a pair. `windows` and `now` in order of their times.

    Each default window is compared with the nearest windows of these clocks before and after it, so
    that the job's own drift cancels; the newest pair counts most.
    """
    of_phase = [one for one in (*windows, now) if _key(one) == _key(now)]
    lowered = [o for o in of_phase if o.mark.arm == "plan" and o.clocks == now.clocks]
    pairs = []
    for held in of_phase:
        if held.mark.arm != "default":
            continue
        near = [o for o in lowered if abs(o.middle_s - held.middle_s) < REACH_S]
        before = [o for o in near if o.middle_s < held.middle_s][-1:]
        after = [o for o in near if o.middle_s > held.middle_s][:1]
        sides = [time_point(one) for one in (*before, *after)]
        if sides:
            level, default = Level(sides).at(held.middle_s), time_point(held)
            variance = level.variance + default.variance
            pairs.append(Point(held.middle_s, level.value - default.value, variance))
    if not pairs:
        return None
    found = Level(pairs).newest
    half = NORMAL_95 * math.sqrt(found.variance)
    return Interval(*(math.expm1(found.value + part) for part in (0.0, -half, half)))


def time_point(window: TimedWindow) -> Point:
    """Seconds per counted work, with their doubt."""
    means = window.means
    return Point(window.middle_s, math.log(means.time_mean_s / means.work), _time_variance(window))


def _time_variance(window: TimedWindow) -> float:
    means = window.means
    return (means.time_sd_s / means.time_mean_s) ** 2 / means.iterations
