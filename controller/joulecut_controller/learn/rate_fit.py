"""Least squares with a prior and with a memory for what the model cannot say.

A handful of measurements cannot carry a dozen free numbers, so every number starts from what
is known of GPUs in general, and how far it may stray is part of the fit. What remains between
model and measurement is kept as a smooth residual (a Gaussian process), so that predictions
near a measured point agree with it. Pure and deterministic: same readings, same bytes.

The mathematics is that of a linearised Bayesian regression (Rasmussen & Williams, Gaussian
Processes for Machine Learning, 2006, section 2.7: explicit basis functions).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Model = Callable[[Floats], Floats]  # numbers (count, guesses) -> predictions (rows, guesses)

ROUNDS = 8  # Gauss-Newton converges in three to five; a bound is a bound
HALVINGS = 5
ROUGHNESS = (10.0, 1.0)  # standard deviations are first taken for so many times as large
SETTLED = 1e-4  # a smaller step, in prior standard deviations, changes nothing
# Iteration time has kinks where another stage becomes the slowest. Differences over half of
# what is unknown look beyond them.
STEP = 0.5
STEP_MIN = 1e-5


@dataclass(frozen=True, slots=True)
class Prior:
    """What each number is before any measurement: mean and standard deviation, shape (count,)."""

    mean: Floats
    sd: Floats

    def misfit(self, numbers: Floats) -> Floats:
        """What it speaks against numbers of shape (count,) or (count, guesses): chi squared."""
        return np.asarray((((numbers.T - self.mean) / self.sd) ** 2).sum(axis=-1))


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of the model that share one residual: what was measured, and how it may stray.

    `rows` index the model's predictions; `noise` holds variances of the measurements,
    `residual` the prior covariance of what the model cannot say; shapes (n,), (n,), (n, n).
    """

    rows: NDArray[np.int64]
    measured: Floats
    noise: Floats
    residual: Floats


@dataclass(frozen=True, slots=True)
class Fitted:
    """Numbers, their covariance, and per block the whitener and what is left over.

    `steps` are those that every derivative of this fit is taken over: derivatives of one kinked
    model over other steps would contradict each other.
    """

    numbers: Floats
    covariance: Floats
    steps: Floats
    whiteners: tuple[Floats, ...]
    leftovers: tuple[Floats, ...]
    slopes: tuple[Floats, ...]  # by block, of shape (n, count)

    @property
    def misfit(self) -> float:
        """What the measurements speak against these numbers: chi squared, the prior apart."""
        return float(
            sum(
                np.sum((white @ left) ** 2)
                for white, left in zip(self.whiteners, self.leftovers, strict=True)
            )
        )

    def residual(self, block: int, nearness: Floats) -> Floats:
        """The residual at new points, from their covariance with the block's: (m, n) -> (m,)."""
        white = self.whiteners[block]
        return np.asarray(nearness @ (white.T @ (white @ self.leftovers[block])))

    def variance(self, block: int, nearness: Floats, own: float | Floats, slopes: Floats) -> Floats:
        """Of a prediction at new points: `own` is the residual's prior variance, `slopes` the
        model's derivatives there, of shape (m, count).
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
    """The most probable numbers, by Gauss-Newton with halved steps, from the prior's mean.

    First with the measurements taken for rough, then as they are: over a landscape with kinks
    the direct way ends in the first hollow. From a `start` that fits but for a little, at once.
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
    """Numbers of less misfit than `at`, and their precision."""

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
