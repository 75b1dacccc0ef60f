"""A curve against the clock, of log seconds or log watts: a level, a slope against the logarithm of
the clock, and a smooth residual.

All of it is linear and Gaussian, so the answer is exact and has one solution (Rasmussen & Williams,
Gaussian Processes for Machine Learning, 2006, section 2.7).
"""

from dataclasses import dataclass

import numpy as np

from joulecut_engine.estimate.physics import Floats

LEVEL_SD = 3.0  # of a logarithm: as good as unknown


@dataclass(frozen=True, slots=True)
class CurvePrior:
    """Before any measurement. The slope is per unit of log clock; `reach` is the correlation length
    of the residual in log clock.
    """

    slope_sd: float
    residual_sd: float
    reach: float


class ClockCurve:
    """Fitted to `values` at `fall` = log(highest clock / clock), each with its noise: (clocks,)."""

    def __init__(self, fall: Floats, values: Floats, noise: Floats, prior: CurvePrior) -> None:
        self._fall, self._prior, self._mean = fall, prior, float(values.mean())
        covariance = self._covariance(fall) + np.diag(noise**2)
        self._rest = np.linalg.solve(covariance, values - self._mean)

    def at(self, fall: Floats) -> Floats:
        """Values, (m,)."""
        return np.asarray(self._mean + self._covariance(fall) @ self._rest)

    def _covariance(self, at: Floats) -> Floats:
        """With the measured clocks: (m, clocks)."""
        prior, other = self._prior, self._fall[None, :]
        apart = (at[:, None] - other) / prior.reach
        smooth = prior.residual_sd**2 * np.exp(-0.5 * apart**2)
        return np.asarray(LEVEL_SD**2 + smooth + prior.slope_sd**2 * at[:, None] * other)
