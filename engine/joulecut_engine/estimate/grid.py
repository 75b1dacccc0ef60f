"""A curve evaluated over a grid of clocks, and predictions for one GPU."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from joulecut_engine.estimate.bias import GpuBias
from joulecut_engine.estimate.estimator import Prediction
from joulecut_engine.estimate.physics import Floats

GRIDS_MAX = 8_192  # a grid of 81 clocks takes three kilobytes


@dataclass(frozen=True, slots=True)
class Grid:
    """Arrays over the clocks."""

    time_s: Floats
    power_w: Floats
    half: Floats  # half width of the band, a logarithm
    edge_s: Floats  # time at the nearest measured clock, for clocks outside
    stretch: Floats  # that clock over the asked one; 1 inside

    def band_s(self, scatter: float) -> tuple[Floats, Floats]:
        """Low and high time at each clock.

        `scatter` (half width, a logarithm) is the GPU's own around its bias and adds in
        quadrature. Outside the measured clocks the share of the work that follows the clock is
        unknown, so the band spans all and none of it.
        """
        wide = np.exp(np.hypot(self.half, scatter))
        low_s, high_s = self.time_s / wide, self.time_s * wide
        outside = self.stretch != 1.0
        if not outside.any():
            return low_s, high_s
        low_out = np.minimum(low_s, self.edge_s / wide * np.minimum(1.0, self.stretch))
        high_out = np.maximum(high_s, self.edge_s * wide * np.maximum(1.0, self.stretch))
        return np.where(outside, low_out, low_s), np.where(outside, high_out, high_s)

    def predicted(self, clocks_mhz: tuple[int, ...], bias: GpuBias, scatter: float) -> Prediction:
        """The curve of one GPU: with its bias, and its scatter in the band."""
        factor = np.exp(bias.time.mean)
        low_s, high_s = self.band_s(scatter)
        return Prediction(
            clocks_mhz=clocks_mhz,
            time_s=self.time_s * factor,
            power_w=self.power_w * np.exp(bias.power.mean),
            time_low_s=low_s * factor,
            time_high_s=high_s * factor,
        )


class Curve(Protocol):
    """Time, power and band of one kind of work over the clock."""

    def grid(self, clocks_mhz: Floats) -> Grid: ...


class Grids:
    """Curves at the clocks last asked for: the same few are asked of all GPUs in every pass, and
    a curve takes a tenth of a millisecond.
    """

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, Grid] = OrderedDict()

    def of(self, work: Hashable, curve: Curve, clocks_mhz: tuple[int, ...]) -> Grid:
        """The grid of `work`, whose curve is `curve` until `clear`. Raises ValueError if a clock
        is not above 0.
        """
        key = (work, clocks_mhz)
        found = self._made.get(key)
        if found is not None:
            self._made.move_to_end(key)
            return found
        if any(clock <= 0 for clock in clocks_mhz):
            raise ValueError("clocks must be above 0 MHz")
        found = self._made[key] = curve.grid(np.asarray(clocks_mhz, dtype=np.float64))
        while len(self._made) > GRIDS_MAX:
            self._made.popitem(last=False)
        return found

    def clear(self) -> None:
        self._made.clear()
