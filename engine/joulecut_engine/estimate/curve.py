"""What one kind of work costs at any clock: physics, bent towards what was measured.

Taking a sweep at its word would let the planner pick whichever clock was measured lucky;
taking only the physics would miss what the form cannot say (another kernel chosen above
some clock). So the prediction is physics times a smoothed residual: the mean of the
residuals nearby, Gaussian in clock, with `SHRINKAGE` measurements' worth of "none".
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from joulecut_engine.estimate.grid import Floats
from joulecut_engine.estimate.physics import Physics, Sweep

# A lone measurement keeps 1/(1 + 0.5) = two thirds of its distance from the physics; in a
# sweep at every 15 MHz a single one keeps a quarter, its neighbours decide the rest. Both
# found by leaving out each clock of the public A100 and A40 sweeps in turn.
SHRINKAGE = 0.5
REACH_MHZ_MIN = 22.5  # standard deviation: one and a half steps of a clock table
REACH_PER_SPACING = 0.5  # in sparser sweeps, of the usual distance between clocks

BAND_SHARE = 90.0  # percent of left-out measurements that lie within the band
BAND_MIN = 0.003  # neighbouring clocks scatter by 0.2 %: no band is narrower than that
BAND_MIN_FEW, CLOCKS_FEW = 0.006, 12  # between clocks that stand far apart more
# Free numbers of the time curve (t_fmax, k, f_cap); fewer measurements tell nothing of
# the error. From 2 or 3 clocks the public sweeps are missed by 1-3 %, from 1 by 10-20 %.
FREE_NUMBERS = 3
BAND_FEW = 0.05
BAND_ONE = 0.2


class Priced(Protocol):
    """A fitted curve, whatever it was fitted with: what estimators predict from."""

    @property
    def clocks_mhz(self) -> Floats:
        """The clocks it was fitted to, ascending."""
        ...

    def time_s(self, clocks_mhz: Floats) -> Floats: ...

    def power_w(self, clocks_mhz: Floats) -> Floats: ...

    def band_s(self, clocks_mhz: Floats, scatter: float) -> tuple[Floats, Floats]:
        """Low and high time; `scatter` as `Curve.band_s` has it."""
        ...


@dataclass(frozen=True, slots=True)
class Curve:
    """One (stage, kind) of a profile. Residuals are logarithms, of shape (n,)."""

    physics: Physics
    clocks_mhz: Floats
    time_residual: Floats
    power_residual: Floats
    reach_mhz: float  # how far a residual speaks for its neighbours
    band: float  # half width of the band, as a logarithm

    @property
    def clock_min_mhz(self) -> float:
        return float(self.clocks_mhz.min())

    @property
    def clock_max_mhz(self) -> float:
        return float(self.clocks_mhz.max())

    def time_s(self, clocks_mhz: Floats) -> Floats:
        nearby = self._nearby(self.time_residual, clocks_mhz)
        return np.asarray(self.physics.time_s(clocks_mhz) * np.exp(nearby))

    def power_w(self, clocks_mhz: Floats) -> Floats:
        nearby = self._nearby(self.power_residual, clocks_mhz)
        return np.asarray(self.physics.power_w(clocks_mhz) * np.exp(nearby))

    def straightened(self) -> "Curve":
        """The physics alone; the band is as wide as the physics miss the measurements."""
        missed = float(np.percentile(np.abs(self.time_residual), BAND_SHARE))
        none = np.zeros_like(self.time_residual)
        return replace(self, time_residual=none, power_residual=none, band=max(self.band, missed))

    def _nearby(self, residual: Floats, at_mhz: Floats) -> Floats:
        return _mean(_weights(self.clocks_mhz, at_mhz, self.reach_mhz), residual)

    def band_s(self, clocks_mhz: Floats, scatter: float) -> tuple[Floats, Floats]:
        """Low and high time at each clock, before any bias.

        `scatter` (a logarithm, half width) is what the GPU itself showed around its bias;
        it adds in quadrature. Beyond the measured clocks nobody knows how much of the work
        follows the clock, so the band opens to all or nothing of it.
        """
        half = float(np.hypot(self.band, scatter))
        time_s = self.time_s(clocks_mhz)
        low_s, high_s = time_s * np.exp(-half), time_s * np.exp(half)
        edges = np.clip(clocks_mhz, self.clock_min_mhz, self.clock_max_mhz)
        outside = edges != clocks_mhz
        edge_s, stretch = self.time_s(edges), edges / clocks_mhz
        low_out = np.minimum(low_s, edge_s * np.exp(-half) * np.minimum(1.0, stretch))
        high_out = np.maximum(high_s, edge_s * np.exp(half) * np.maximum(1.0, stretch))
        return np.where(outside, low_out, low_s), np.where(outside, high_out, high_s)


def bend(physics: Physics, sweep: Sweep) -> Curve:
    """The curve of a sweep whose physics are fitted."""
    time_residual = np.log(sweep.time_s / physics.time_s(sweep.clocks_mhz))
    distinct = np.unique(sweep.clocks_mhz)
    spacing_mhz = float(np.median(np.diff(distinct))) if distinct.size > 1 else 0.0
    reach_mhz = max(REACH_MHZ_MIN, REACH_PER_SPACING * spacing_mhz)
    return Curve(
        physics=physics,
        clocks_mhz=sweep.clocks_mhz,
        time_residual=time_residual,
        power_residual=np.log(sweep.power_w / physics.power_w(sweep.clocks_mhz)),
        reach_mhz=reach_mhz,
        band=_band(sweep.clocks_mhz, time_residual, reach_mhz),
    )


def _weights(clocks_mhz: Floats, at_mhz: Floats, reach_mhz: float) -> Floats:
    """How much each measurement says about each clock asked: shape (asked, measured)."""
    return np.asarray(np.exp(-0.5 * ((at_mhz[:, None] - clocks_mhz) / reach_mhz) ** 2))


def _mean(weight: Floats, residual: Floats) -> Floats:
    return np.asarray((weight @ residual) / (weight.sum(axis=1) + SHRINKAGE))


def _band(clocks_mhz: Floats, residual: Floats, reach_mhz: float) -> float:
    """How far measurements lie from what their neighbours and the physics say of them.

    Widened for the numbers that the fit took from the same measurements.
    """
    n = residual.size
    if n <= FREE_NUMBERS:
        return BAND_FEW if n > 1 else BAND_ONE
    weight = _weights(clocks_mhz, clocks_mhz, reach_mhz)
    np.fill_diagonal(weight, 0.0)
    left_out = np.abs(residual - _mean(weight, residual))
    widened = float(np.percentile(left_out, BAND_SHARE)) * float(np.sqrt(n / (n - FREE_NUMBERS)))
    return max(BAND_MIN_FEW if n < CLOCKS_FEW else BAND_MIN, widened)
