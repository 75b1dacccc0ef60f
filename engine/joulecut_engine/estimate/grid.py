"""A curve evaluated over a grid of clocks, and predictions for one GPU."""

from dataclasses import dataclass

import numpy as np

from joulecut_engine.estimate.bias import GpuBias
from joulecut_engine.estimate.estimator import Prediction
from joulecut_engine.estimate.physics import Floats


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
