"""Curves against the clock, many at once: of one kind of number (log seconds, log watts), one curve
per stage and operation.

A curve is a level, a slope against the logarithm of the clock, and a smooth residual. Slopes are
pooled: each is drawn around the mean slope of its group, so a stage lowered once says much about
its peers. Everything a window has in common (slow iterations, drift) is one more unknown per
window: curves that were not lowered in it show how much that is. All of it is linear and Gaussian,
so the answer is exact and has one solution.

Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, section 2.7.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEVEL_SD = 3.0  # of a logarithm: as good as unknown


@dataclass(frozen=True, slots=True)
class CurvePrior:
    """Before any measurement. Slopes are per unit of log clock; `reach` is the correlation length
    of the residual in log clock; `noise` of one measured value.
    """

    slope: float
    slope_sd: float
    slope_sd_own: float  # of one curve around its group's mean
    residual_sd: float
    reach: float
    noise: float


class ClockCurves:
    """Fit to measured values (curves, windows), at `fall` = log(default clock / clock) of the same
    shape. `group` numbers the group of each curve; `common_sd` (windows,) is the prior standard
    deviation of what each window has in common. Down to `flat` of its group (a fall) the clock
    changes nothing, as under a power cap.
    """

    def __init__(
        self,
        fall: Floats,
        values: Floats,
        group: Ints,
        *,
        common_sd: Floats,
        prior: CurvePrior,
        flat: Floats,
    ) -> None:
        groups, (curves, windows) = len(flat), fall.shape
        self.flat = flat
        self._group, self._prior = group, prior
        self._fall = fall = self._effective(fall)
        # Unknowns of all curves: slopes by group, then what each window has in common.
        design = np.zeros((curves, windows, groups + windows))
        design[np.arange(curves), :, group] = fall
        design[:, :, groups:] = np.eye(windows)
        level = values.mean(axis=1, keepdims=True)
        self._level = level[:, 0]
        left = values - level - prior.slope * fall
        covariance = self._covariance(fall, fall) + LEVEL_SD**2
        covariance += prior.noise**2 * np.eye(windows)
        self._weight = np.linalg.inv(covariance)
        weighted = self._weight @ design
        precision = np.einsum("cwi,cwj->ij", design, weighted)
        before = np.concatenate([np.full(groups, prior.slope_sd), common_sd]) ** -2.0
        self._shared_covariance = np.linalg.inv(precision + np.diag(before))
        pull = np.einsum("cwi,cw->i", weighted, left)
        shared = self._shared_covariance @ pull
        self._slopes = prior.slope + shared[:groups]
        self._weighted = weighted
        rest = left - design @ shared
        self._rest = np.einsum("cvw,cw->cv", self._weight, rest)
        self.misfit = float(np.einsum("cv,cv->", self._rest, rest) + (shared**2 * before).sum())

    def _effective(self, fall: Floats) -> Floats:
        return np.maximum(0.0, fall - self.flat[self._group, None])

    def _covariance(self, at: Floats, other: Floats) -> Floats:
        """Of two points of each curve, without its level: (curves, m, n)."""
        apart = (at[:, :, None] - other[:, None, :]) / self._prior.reach
        smooth = self._prior.residual_sd**2 * np.exp(-0.5 * apart**2)
        return np.asarray(smooth + self._prior.slope_sd_own**2 * at[:, :, None] * other[:, None, :])

    def levels(self) -> Floats:
        """Values at default clocks: (curves,)."""
        zero = np.zeros((len(self._fall), 1))
        near = self._covariance(zero, self._fall) + LEVEL_SD**2
        return np.asarray(self._level + np.einsum("cmw,cw->cm", near, self._rest)[:, 0])

    def changes(self, fall: Floats) -> tuple[Floats, Floats]:
        """Values at `fall` (curves, m) less those at default clocks, and standard deviations."""
        fall, zero = self._effective(fall), np.zeros((len(fall), 1))
        near = self._covariance(fall, self._fall) - self._covariance(zero, self._fall)
        mean = self._slopes[self._group, None] * fall
        mean += np.einsum("cmw,cw->cm", near, self._rest)
        shared = -near @ self._weighted
        shared[np.arange(len(fall)), :, self._group] += fall
        own = (
            2.0
            * self._prior.residual_sd**2
            * (1.0 - np.exp(-0.5 * (fall / self._prior.reach) ** 2))
            + (self._prior.slope_sd_own * fall) ** 2
        )
        own -= np.einsum("cmv,cmv->cm", near @ self._weight, near)
        spread = np.einsum("cmi,cmi->cm", shared @ self._shared_covariance, shared)
        return mean, np.sqrt(np.maximum(own, 0.0) + spread)
