"""Curves against the clock, many at once: of one kind of number (log seconds, log watts), one curve
per stage and operation.

A curve is a level, a slope against the logarithm of the clock, and a smooth residual. Slopes are
pooled: each is drawn around the mean slope of its group, so a stage lowered once says much about
its peers. Everything a window has in common (slow iterations, drift) is one more unknown per
window: curves that were not lowered in it show how much that is. Columns of the caller are further
unknowns that all curves share. All of it is linear and Gaussian, so the answer is exact and has one
solution.

Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, section 2.7.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEVEL_SD = 3.0  # of a logarithm: as good as unknown
# Clocks that a power cap hides below the default show no effect. How far they reach is searched by
# parts of the measured range, then by steps (logarithms), and counts where it explains the windows
# so much better.
HIDDEN_PARTS = (0.3, 0.6, 1.0)
HIDDEN_STEPS = (0.02, 0.01, 0.005)
HIDDEN_WORTH = 1.0


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


@dataclass(frozen=True, slots=True)
class CurveValues:
    """Measured `values` (curves, windows) at `fall` = log(default clock / clock) of the same shape.

    `group` numbers the group of each curve; `common_sd` (windows,) is the prior standard deviation
    of what each window has in common. `columns` (curves, windows, count) times unknowns with
    standard deviations `columns_sd` (count,) are part of the values. `noise` (windows,) is that of
    one value of each window; absent, the prior's.
    """

    fall: Floats
    values: Floats
    group: Ints
    common_sd: Floats
    columns: Floats
    columns_sd: Floats
    noise: Floats | None = None


class ClockCurves:
    """Fit to measured values. Down to `flat` of its group (groups,), a fall, the clock changes
    nothing, as under a power cap. `factors` are estimates of the columns' unknowns.
    """

    def __init__(self, given: CurveValues, prior: CurvePrior, flat: Floats) -> None:
        groups, (curves, windows) = len(flat), given.fall.shape
        self.flat = flat
        self._prior, self._group = prior, given.group
        self._fall = fall = self._effective(given.fall)
        # Unknowns of all curves: slopes by group, what each window has in common, and the columns.
        design = np.zeros((curves, windows, groups + windows + len(given.columns_sd)))
        design[np.arange(curves), :, given.group] = fall
        design[:, :, groups : groups + windows] = np.eye(windows)
        design[:, :, groups + windows :] = given.columns
        level = given.values.mean(axis=1, keepdims=True)
        self._level = level[:, 0]
        left = given.values - level - prior.slope * fall
        covariance = self._covariance(fall, fall) + LEVEL_SD**2
        noise = np.full(windows, prior.noise) if given.noise is None else given.noise
        covariance += np.diag(noise**2)
        self._weight = np.linalg.inv(covariance)
        weighted = self._weight @ design
        precision = np.einsum("cwi,cwj->ij", design, weighted)
        slopes_sd = np.full(groups, prior.slope_sd)
        before = np.concatenate([slopes_sd, given.common_sd, given.columns_sd]) ** -2.0
        self._shared_covariance = np.linalg.inv(precision + np.diag(before))
        pull = np.einsum("cwi,cw->i", weighted, left)
        shared = self._shared_covariance @ pull
        self._slopes = prior.slope + shared[:groups]
        columns = slice(groups + windows, None)
        self.factors = shared[columns]
        self._weighted = weighted
        rest = left - design @ shared
        self._rest = np.einsum("cvw,cw->cv", self._weight, rest)
        self.misfit = float(np.einsum("cv,cv->", self._rest, rest) + (shared**2 * before).sum())

    def _effective(self, fall: Floats) -> Floats:
        return np.where(fall < 0.0, fall, np.maximum(0.0, fall - self.flat[self._group, None]))

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

    def changes(self, fall: Floats, columns: Floats | None = None) -> tuple[Floats, Floats]:
        """Values at `fall` (curves, m) less those at default clocks, and standard deviations.

        `columns` (curves, m, count) are those of the values asked for; absent: zero.
        """
        fall, zero = self._effective(fall), np.zeros((len(fall), 1))
        near = self._covariance(fall, self._fall) - self._covariance(zero, self._fall)
        mean = self._slopes[self._group, None] * fall
        mean += np.einsum("cmw,cw->cm", near, self._rest)
        shared = -near @ self._weighted
        shared[np.arange(len(fall)), :, self._group] += fall
        if columns is not None:
            mean += columns @ self.factors
            shared[:, :, shared.shape[2] - len(self.factors) :] += columns
        own = (
            2.0
            * self._prior.residual_sd**2
            * (1.0 - np.exp(-0.5 * (fall / self._prior.reach) ** 2))
            + (self._prior.slope_sd_own * fall) ** 2
        )
        own -= np.einsum("cmv,cmv->cm", near @ self._weight, near)
        spread = np.einsum("cmi,cmi->cm", shared @ self._shared_covariance, shared)
        return mean, np.sqrt(np.maximum(own, 0.0) + spread)


def below_cap(given: CurveValues, prior: CurvePrior, flat_max: float = np.inf) -> ClockCurves:
    """Curves that are flat down to a fall, by group, where this explains the values best."""
    groups, furthest = int(given.group.max()) + 1, min(flat_max, float(given.fall.max()))
    best = ClockCurves(given, prior, np.zeros(groups))
    if furthest <= 0.0:
        return best
    for part in HIDDEN_PARTS:
        other = ClockCurves(given, prior, np.full(groups, part * furthest))
        if other.misfit < best.misfit - HIDDEN_WORTH:
            best = other
    for step, one in itertools.product(HIDDEN_STEPS, range(groups)):
        for edge in (best.flat[one] + step, best.flat[one] - step):
            flat = best.flat.copy()
            flat[one] = min(furthest, max(0.0, edge))
            other = ClockCurves(given, prior, flat)
            if other.misfit < best.misfit - HIDDEN_WORTH:
                best = other
                break
    return best
