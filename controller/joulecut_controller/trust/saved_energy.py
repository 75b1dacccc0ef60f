"""Joules saved since this controller began.

A window under a plan is credited with the difference between what its iterations take at default
clocks and what they took, both from the energy counters. What they take at default clocks lies on
straight lines between the default windows of the same shape and phase: the noise of one window
averages out over all. Nothing is credited without such a window. A plan that costs energy lowers
the sum. Neither predictor nor inferred work has a part in it. Pure.
"""

import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from joulecut_controller.trust.seen import PlanInForce
from joulecut_controller.trust.window import MeasuredWindow
from joulecut_wire.assumed import COUNTER_STEP_S

# A window before the warm-up has cooler GPUs than default clocks have in the long run: 5 K and
# 0.15 %/K of leakage, half of it in the mean of a window.
COLD_SD = 0.004
PLANS_KEPT = 128  # half a day; after that a default window to come changes nothing any more
DEFAULTS_KEPT = 512
# Standard error of a phase's default windows together, a ratio, beyond which joules are not called
# measured: at a saving of a tenth they would be off by a tenth. Jobs whose work varies take some
# windows for it.
DOUBT_MAX = 0.01


class SavedEnergy:
    """Of one job, from its windows in the order of their times. `predicted_j` is what plans'
    forecasts promise for all time under plans, `controlled_s` that time.
    """

    def __init__(self) -> None:
        self.predicted_j = self.controlled_s = 0.0
        self._plans: deque[MeasuredWindow] = deque()
        self._defaults: deque[MeasuredWindow] = deque(maxlen=DEFAULTS_KEPT)
        # Joules saved, joules predicted and seconds that no default window to come changes.
        self._settled = self._paired = (0.0, 0.0, 0.0)  # the latter of all windows

    def promise(self, plan: PlanInForce, iterations: int) -> None:
        """What a plan's forecast says of iterations under it."""
        self.predicted_j += iterations * plan.saved_j

    def see(self, window: MeasuredWindow) -> None:
        """A window that ended."""
        if window.arm == "default":
            self._defaults.append(window)
        else:
            self._plans.append(window)
        if len(self._plans) > PLANS_KEPT:
            self._settled = self._totals([self._plans.popleft()])
        self._paired = self._totals(self._plans)

    def measured(self) -> tuple[float, float, float] | None:
        """Joules saved, signed, what plans promised of the same windows, and their share of the
        time under plans; None where nothing was paired.
        """
        saved_j, predicted_j, known_s = self._paired
        if not known_s:
            return None
        share = min(1.0, known_s / self.controlled_s) if self.controlled_s > 0.0 else 0.0
        return saved_j, predicted_j, share

    def _totals(self, given: Iterable[MeasuredWindow]) -> tuple[float, float, float]:
        """Of what is settled, and of the windows whose phase has default windows that are precise
        enough.
        """
        by_phase: dict[tuple[str, str], list[MeasuredWindow]] = {}
        for held in sorted(self._defaults, key=lambda one: one.middle_unix_s):
            if held.energy_j:
                by_phase.setdefault((held.shape, held.phase), []).append(held)
        known = {
            key: ([one.middle_unix_s for one in held], [one.energy_j for one in held])
            for key, held in by_phase.items()
            if math.hypot(*map(_doubt, held)) <= DOUBT_MAX * len(held)
        }
        saved_j, predicted_j, known_s = self._settled
        for one in given:
            at_default = known.get((one.shape, one.phase))
            if at_default is None or not one.energy_j:
                continue
            saved_j += one.ran * (float(np.interp(one.middle_unix_s, *at_default)) - one.energy_j)
            predicted_j += one.iterations * one.promised_j
            known_s += one.ended_unix_s - one.begun_unix_s
        return saved_j, predicted_j, known_s


def _doubt(window: MeasuredWindow) -> float:
    """Standard error of a default window's energy per iteration, as a ratio."""
    step = COUNTER_STEP_S / (window.ended_unix_s - window.begun_unix_s)
    cold = 0.0 if window.warm else COLD_SD
    noise = window.time_sd_s / window.time_mean_s / math.sqrt(window.iterations)
    return math.hypot(noise, step, cold)
