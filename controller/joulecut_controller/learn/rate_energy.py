"""Joules of a job that reports its rate alone, by stage and clock.

A GPU's joules less its waiting power over the whole iteration depend on its own clock alone, so
they are one curve per stage. Slopes of GPUs of a kind are pooled.
"""

from collections.abc import Sequence

import numpy as np

from joulecut_controller.learn.clock_curves import (
    CurvePrior,
    CurveValues,
    Floats,
    Ints,
    below_cap,
)
from joulecut_controller.learn.measurement_log import Measurement

# Work and its power above waiting; a window's counters are good to 0.4 %.
ENERGY = CurvePrior(-1.2, 0.5, 0.1, residual_sd=0.015, reach=0.15, noise=0.006)
COMMON_SD = 0.002  # of all GPUs in one window
BLOCKING_UNKNOWN = 0.25  # of the mean power, where the policy does not give it
OWN_MIN = 0.1  # of a GPU's joules, whatever waiting power is given


class RateEnergy:
    """`fall` (windows, stages) is log(default clock / clock), `kinds` numbers GPUs by stage."""

    def __init__(
        self, measurements: Sequence[Measurement], fall: Floats, kinds: Ints, waiting_w: float
    ) -> None:
        joules = np.array([one.energy_j for one in measurements]).T
        times_s = np.array([one.time_s for one in measurements])
        self.waiting_w = waiting_w or BLOCKING_UNKNOWN * float((joules[:, 0] / times_s[0]).mean())
        own = np.maximum(joules - self.waiting_w * times_s, OWN_MIN * joules)
        none = np.zeros((*own.shape, 0))
        common = np.full(len(times_s), COMMON_SD)
        values = CurveValues(fall.T, np.log(own), kinds, common, none, np.zeros(0))
        self._curves = below_cap(values, ENERGY)

    @property
    def hidden(self) -> Floats:
        """Down to which fall a power cap hides the clock, by stage."""
        return self._curves.flat

    def own_j(self, fall: Floats) -> Floats:
        """Joules above waiting at `fall` (stages, clocks): of the same shape."""
        return np.asarray(np.exp(self._curves.levels()[:, None] + self._curves.changes(fall)[0]))
