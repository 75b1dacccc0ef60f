"""Bayesian least squares with a smooth residual, for a job's numbers.

A few measurements cannot determine a dozen numbers, so each has a prior mean and standard
deviation. What the model cannot express is kept as a Gaussian process over clocks, so predictions
near a measured point agree with it. Gauss-Newton with halved steps; same input, same bytes.

Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, section 2.7 (explicit basis
functions).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Model = Callable[[Floats], Floats]  # numbers (count, guesses) -> predictions (rows, guesses)

ROUNDS = 8  # Gauss-Newton converges in three to five; a bound is a bound
HALVINGS = 5
ROUGHNESS = (10.0, 1.0)  # factors on the standard deviations, one descent each
SETTLED = 1e-4  # smallest useful step, in prior standard deviations
# Iteration time has kinks where another stage becomes the slowest. Differences over half a
# standard deviation see beyond them.
STEP = 0.5
STEP_MIN = 1e-5


@dataclass(frozen=True, slots=True)
class Prior:
    """Mean and standard deviation of each number before any measurement, shape (count,)."""

    mean: Floats
    sd: Floats

    def misfit(self, numbers: Floats) -> Floats:
        """Chi-squared of numbers of shape (count,) or (count, guesses)."""
        return np.asarray((((numbers.T - self.mean) / self.sd) ** 2).sum(axis=-1))


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of the model that share one residual, with their measurements.

    `rows` index the predictions; `noise` holds variances of the measurements (n,), `residual` the
    prior covariance of the residual (n, n).
    """

    rows: NDArray[np.int64]
    measured: Floats
    noise: Floats
    residual: Floats


@dataclass(frozen=True, slots=True)
class Fitted:
    """Numbers, their covariance, and per block whitener and residuals.

    `steps` are the differences of every derivative of this fit: a model with kinks has other
    derivatives over other steps.
    """

    numbers: Floats
    covariance: Floats
    steps: Floats
    whiteners: tuple[Floats, ...]
    residuals: tuple[Floats, ...]
    slopes: tuple[Floats, ...]  # by block, of shape (n, count)

    @property
    def misfit(self) -> float:
        """Chi-squared of the measurements, without the prior."""
        return float(
            sum(
                np.sum((white @ left) ** 2)
                for white, left in zip(self.whiteners, self.residuals, strict=True)
            )
        )

    def residual(self, block: int, nearness: Floats) -> Floats:
        """Residual at new points, from their covariance with the block's: (m, n) -> (m,)."""
        white = self.whiteners[block]
        return np.asarray(nearness @ (white.T @ (white @ self.residuals[block])))

    def variance(self, block: int, nearness: Floats, own: float | Floats, slopes: Floats) -> Floats:
        """Variance of a prediction at new points (m,).

        `own` is the residual's prior variance, `slopes` (m, count) the model's derivatives there.
        """
        white = self.whiteners[block]
        near = nearness @ white.T
        open_slopes = slopes - near @ (white @ self.slopes[block])
        known = own - np.einsum("ij,ij->i", near, near)
        return np.asarray(
            np.maximum(known, 0.0)
            + np.einsum("ij,jk,ik->i", open_slopes, self.covariance, open_slopes)
        )


def slopes_of(model: Model, at: Floats, steps: Floats) -> Floats:
    """Central differences: (rows, count)."""
    count = len(at)
    offsets = np.diag(steps)
    both = model(np.concatenate([at[:, None] + offsets, at[:, None] - offsets], axis=1))
    return np.asarray((both[:, :count] - both[:, count:]) / (2.0 * steps))


def fit(model: Model, prior: Prior, blocks: Sequence[Block], start: Floats | None = None) -> Fitted:
    """Most probable numbers, by Gauss-Newton with halved steps from the prior's mean.

    The first descent takes measurements for ten times as noisy: a direct one ends in the first
    local minimum between kinks. A good `start` needs one descent only.
    """
    at = prior.mean.copy() if start is None else start
    precision = np.diag(1.0 / prior.sd**2)
    for roughness in ROUGHNESS if start is None else ROUGHNESS[-1:]:
        whiteners = tuple(
            np.asarray(np.linalg.inv(np.linalg.cholesky(b.residual + np.diag(b.noise)))) / roughness
            for b in blocks
        )
        at, precision = _descend(model, prior, blocks, whiteners, at=at, precision=precision)
    steps = _steps(precision)
    here, slopes = model(at[:, None])[:, 0], slopes_of(model, at, steps)
    precision, _ = _normal(prior, at, slopes, here, blocks=blocks, whiteners=whiteners)
    return Fitted(
        at,
        np.asarray(np.linalg.inv(precision), dtype=np.float64),
        steps,
        whiteners,
        tuple(b.measured - here[b.rows] for b in blocks),
        tuple(slopes[b.rows] for b in blocks),
    )


def _descend(
    model: Model,
    prior: Prior,
    blocks: Sequence[Block],
    whiteners: Sequence[Floats],
    *,
    at: Floats,
    precision: Floats,
) -> tuple[Floats, Floats]:
    """Numbers of lower cost than `at`, and their precision."""

    def cost_of(predicted: Floats, numbers: Floats) -> float:
        far = (numbers - prior.mean) / prior.sd
        misfit = sum(
            float(np.sum((white @ (b.measured - predicted[b.rows])) ** 2))
            for b, white in zip(blocks, whiteners, strict=True)
        )
        return misfit + float(far @ far)

    here = model(at[:, None])[:, 0]
    cost = cost_of(here, at)
    for _ in range(ROUNDS):
        slopes = slopes_of(model, at, _steps(precision))
        precision, pull = _normal(prior, at, slopes, here, blocks=blocks, whiteners=whiteners)
        move = np.linalg.solve(precision, pull)
        there = at + move * 0.5 ** np.arange(HALVINGS)[:, None]
        predicted = model(there.T)
        costs = [
            cost_of(predicted[:, i], there[i]) if np.isfinite(predicted[:, i]).all() else np.inf
            for i in range(HALVINGS)
        ]
        best = int(np.argmin(costs))
        if not costs[best] < cost:
            break
        moved = float(np.max(np.abs(there[best] - at) / prior.sd))
        at, here, cost = there[best], predicted[:, best], costs[best]
        if moved <= SETTLED:
            break
    return at, precision


def _steps(precision: Floats) -> Floats:
    return np.maximum(STEP_MIN, STEP * np.sqrt(np.diag(np.linalg.inv(precision))))


def _normal(
    prior: Prior,
    at: Floats,
    slopes: Floats,
    here: Floats,
    *,
    blocks: Sequence[Block],
    whiteners: Sequence[Floats],
) -> tuple[Floats, Floats]:
    """Normal equations of one step: precision matrix and right-hand side."""
    precision = np.diag(1.0 / prior.sd**2)
    pull = (prior.mean - at) / prior.sd**2
    for block, white in zip(blocks, whiteners, strict=True):
        leaning = white @ slopes[block.rows]
        precision = precision + leaning.T @ leaning
        pull = pull + leaning.T @ (white @ (block.measured - here[block.rows]))
    return precision, pull


class ClockKernel:
    """Covariances (Gaussian kernel) of clocks with the clocks of measurements (n, stages).

    Above `default_mhz` all clocks are one. Distances are shares of `clock_max_mhz`.
    """

    def __init__(self, measured_mhz: Floats, default_mhz: Floats, clock_max_mhz: float) -> None:
        self._default, self._top = default_mhz, clock_max_mhz
        self._measured = self.seen(measured_mhz)

    def seen(self, clocks_mhz: Floats) -> Floats:
        return np.asarray(np.minimum(clocks_mhz, self._default) / self._top)

    def all(self, clocks_mhz: Floats, sd: float, reach: float) -> Floats:
        """Covariance of a residual that depends on all stages' clocks: (m, n)."""
        apart = (self.seen(clocks_mhz)[:, None, :] - self._measured) / reach
        return np.asarray(sd**2 * np.exp(-0.5 * (apart**2).sum(axis=2)))

    def one(self, clocks_mhz: Floats, stage: int, sd: float, reach: float) -> Floats:
        """Covariance of a residual that depends on one stage's clock: (m, n)."""
        apart = (self.seen(clocks_mhz)[:, None, stage] - self._measured[None, :, stage]) / reach
        return np.asarray(sd**2 * np.exp(-0.5 * apart**2))
