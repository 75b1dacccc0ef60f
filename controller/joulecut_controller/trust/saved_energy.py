"""Joules saved since this controller began.

A window under a plan is credited with the difference between what its counted work takes at default
clocks and what it took, both from the energy counters; what it takes at default clocks is the level
of the default windows around it, of the same shape and phase. Nothing is credited without such a
window. A plan that costs energy lowers the sum. Neither predictor nor inferred work has a part in
it. Pure.
"""

import math
from collections import deque
from collections.abc import Sequence

from joulecut_controller.trust.level import Level, Point
from joulecut_controller.trust.measured_windows import TimedWindow
from joulecut_controller.trust.seen import PlanInForce
from joulecut_wire.assumed import COUNTER_STEP_S

# A window before the warm-up has cooler GPUs than default clocks have in the long run: 5 K and
# 0.15 %/K of leakage, half of it in the mean of a window.
COLD_SD = 0.004
PLANS_KEPT = 128  # half a day; after that a default window to come changes nothing any more
DEFAULTS_KEPT = 512
# Standard deviation of the newest level, a ratio, beyond which joules are not called measured: at
# a saving of a tenth they would be off by a tenth. Jobs whose work varies take some windows for it.
LEVEL_SD_MAX = 0.01


class SavedEnergy:
    """Of one job, from its windows in the order of their times. `predicted_j` is what plans'
    forecasts promise for all time under plans, `controlled_s` that time.
    """

    def __init__(self) -> None:
        self.predicted_j = self.controlled_s = 0.0
        self._plans: deque[TimedWindow] = deque()
        self._defaults: deque[TimedWindow] = deque(maxlen=DEFAULTS_KEPT)
        # Joules saved, joules predicted and seconds that no default window to come changes.
        self._settled = (0.0, 0.0, 0.0)

    def promise(self, plan: PlanInForce, iterations: int) -> None:
        """What a plan's forecast says of iterations under it."""
        self.predicted_j += iterations * plan.saved_j

    def see(self, window: TimedWindow) -> None:
        """A window that ended."""
        if window.mark.arm == "default":
            self._defaults.append(window)
            return
        self._plans.append(window)
        if len(self._plans) > PLANS_KEPT:
            self._settled = self._totals([self._plans.popleft()])

    def measured(self, opened: TimedWindow | None = None) -> tuple[float, float, float] | None:
        """Joules saved, signed, what plans promised of the same windows, and their share of the
        time under plans; None where nothing was paired. `opened` is the window that is open.
        """
        begun = [opened] if opened and opened.mark.arm == "plan" else []
        saved_j, predicted_j, known_s = self._totals([*self._plans, *begun])
        if not known_s:
            return None
        share = min(1.0, known_s / self.controlled_s) if self.controlled_s > 0.0 else 0.0
        return saved_j, predicted_j, share

    def _totals(self, given: Sequence[TimedWindow]) -> tuple[float, float, float]:
        """Of what is settled, and of the windows whose phase has default windows that are precise
        enough.
        """
        points: dict[tuple[str, str], list[Point]] = {}
        for held in self._defaults:
            if held.means.energy_j:
                points.setdefault(held.key, []).append(energy_point(held))
        levels = {key: Level(of_phase) for key, of_phase in points.items()}
        saved_j, predicted_j, known_s = self._settled
        for one in given:
            means, level = one.means, levels.get(one.key)
            if level is None or level.newest.variance > LEVEL_SD_MAX**2 or means.energy_j is None:
                continue
            default_j = math.exp(level.at(one.middle_s).value)
            saved_j += means.work_done * (default_j - means.energy_j / means.work)
            predicted_j += means.iterations * (one.plan.saved_j if one.plan else 0.0)
            known_s += means.ended_s - means.begun_s
        return saved_j, predicted_j, known_s


def energy_point(window: TimedWindow) -> Point:
    """Energy per counted work, with its doubt."""
    means = window.means
    assert means.energy_j is not None
    step = COUNTER_STEP_S / (means.ended_s - means.begun_s)
    cold = 0.0 if window.mark.warm else COLD_SD
    value = math.log(means.energy_j / means.work)
    return Point(window.middle_s, value, _time_variance(window) + step**2 + cold**2)


def _time_variance(window: TimedWindow) -> float:
    means = window.means
    return (means.time_sd_s / means.time_mean_s) ** 2 / means.iterations
