"""Smoothed residuals between measured clocks, and how wide a band must be.

A sweep taken at its word makes the planner pick the clock with the luckiest measurement; residuals
ignored lose what the form cannot express. A Gaussian process with a Matern 5/2 kernel weighs both:
it interpolates five clocks, averages a dense noisy sweep, and tends to zero far from data. On the
public sweeps with five probed clocks it lowers the time error from 0.43 % to 0.17 % (A100) and
0.95 % to 0.64 % (A40).

Bands are conformal by workload: bands calibrated on random rows hold 72-85 % of the next workload
instead of 90 %, because rows of one workload resemble each other. So each workload is judged by
the left-out errors of the others, and by its own. Clocks left out of a dense sweep have near
neighbours; a curve with few clocks is judged by the others thinned to as few.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.estimate.estimator import NOMINAL, NOMINAL_SDS
from joulecut_engine.estimate.physics import Floats

REACH_RATIO = 0.12  # correlation length of residuals, of the highest clock
# Relative standard deviations on the public sweeps: residuals of the form, and noise between
# neighbouring clocks.
TIME_LEFT, TIME_NOISE = 0.005, 0.001
POWER_LEFT, POWER_NOISE = 0.01, 0.004
LEFT_GROWTH = 1.5  # a few residuals underestimate their spread
DENSE_MIN = 12  # points from which differences of neighbours give the noise
DENSE_RATIO = 0.25  # of the reach: neighbours further apart differ by more than noise
SECOND_DIFFERENCE = 1.5**0.5  # sd of a point against its neighbours' mean, per noise sd
MAD_TO_SD = 1.4826


@dataclass(frozen=True, slots=True)
class Smooth:
    """Gaussian process on the residuals (logarithms) of one curve at its clocks (n,)."""

    clocks_mhz: Floats
    reach_mhz: float
    left: float  # standard deviation of residuals
    inverse: Floats  # of the covariance of the measurements, (n, n)
    pull: Floats  # inverse @ residuals
    noise: float  # standard deviation of one measurement

    def mean(self, at_mhz: Floats) -> Floats:
        return np.asarray(self._covariance(at_mhz) @ self.pull)

    def sd(self, at_mhz: Floats) -> Floats:
        """Standard deviation of a new measurement there, with its noise."""
        toward = self._covariance(at_mhz)
        known = ((toward @ self.inverse) * toward).sum(axis=1)
        return np.asarray(np.sqrt(np.maximum(self.left**2 - known, 0.0) + self.noise**2))

    def left_out(self) -> Floats:
        """Leave-one-out error of each measurement, in standard deviations."""
        return np.asarray(np.abs(self.pull) / np.sqrt(np.diag(self.inverse)))

    def _covariance(self, at_mhz: Floats) -> Floats:
        return self.left**2 * _matern(at_mhz[:, None] - self.clocks_mhz, self.reach_mhz)


def smooth(
    clocks_mhz: Floats,
    residual: Floats,
    *,
    top_mhz: float,
    left: float,
    noise: float,
    noises: Floats | None = None,
) -> Smooth:
    """Smooth residuals (n,). `left`, `noise` as above; `noises` (n,) if known per measurement."""
    reach_mhz = REACH_RATIO * top_mhz
    spread = max(left, LEFT_GROWTH * float(np.sqrt(np.mean(residual**2))))
    own = max(noise, _roughness(clocks_mhz, residual, reach_mhz))
    each = np.full_like(residual, own) if noises is None else np.hypot(noise, noises)
    covariance = spread**2 * _matern(clocks_mhz[:, None] - clocks_mhz, reach_mhz)
    inverse: Floats = np.linalg.inv(covariance + np.diag(each**2)).astype(np.float64)
    return Smooth(
        clocks_mhz, reach_mhz, spread, inverse, inverse @ residual, float(np.median(each))
    )


def unexplained(apart_mhz: Floats, top_mhz: float) -> Floats:
    """Share of a residual's standard deviation left by one exact measurement `apart_mhz` away.

    In [0, 1): the conditional deviation of the Gaussian process.
    """
    return np.asarray(np.sqrt(1.0 - _matern(apart_mhz, REACH_RATIO * top_mhz) ** 2))


def _matern(apart_mhz: Floats, reach_mhz: float) -> Floats:
    near = np.sqrt(5.0) * np.abs(apart_mhz) / reach_mhz
    return np.asarray((1.0 + near + near * near / 3.0) * np.exp(-near))


def _roughness(clocks_mhz: Floats, residual: Floats, reach_mhz: float) -> float:
    """Noise of one measurement from second differences; 0 if clocks are too far apart."""
    if clocks_mhz.size < DENSE_MIN:
        return 0.0
    if float(np.median(np.diff(clocks_mhz))) > DENSE_RATIO * reach_mhz:
        return 0.0
    between = residual[1:-1] - 0.5 * (residual[:-2] + residual[2:])
    return MAD_TO_SD * float(np.median(np.abs(between))) / SECOND_DIFFERENCE


JUDGES_MIN = 8  # workloads whose errors give a quantile
FEW_JUDGES_RATIO = 1.2  # of the largest error of fewer; stages of one model agree better than that
SCALES_MIN = 10  # scores for a quantile of their own
CLOCKS_MIN = 4  # for leave-one-out errors
# Half widths with too few clocks for that: 90 % of the public stages stay within them
# (docs/predictors.md), without and with other work swept on the card.
FLOORS_ALONE = {1: 0.2, 2: 0.08, 3: 0.05}
FLOORS_SWEPT = {
    1: 0.12,
    2: 0.075,
    3: 0.04,
}  # 2: of 21 applications, left out in turn
# Between two such clocks at least this share of the logarithm by which time changes from one to
# the other: probes far apart say less about the middle.
BETWEEN_SHARE = 0.15
# Numbers of a time curve that the form takes from the same clocks: t_fmax, k, f_cap.
FREE_NUMBERS = 3
FLOOR = 0.003  # neighbouring clocks scatter by 0.2 %: no band is narrower than that
FLOOR_FEW, CLOCKS_FEW = 0.005, 12  # between clocks that stand far apart a little more

# A sweep with this many times the clocks of a curve shows the errors between so few clocks.
DENSER = 2
# Its form was fitted to all its clocks: as if one of the few were given.
GIVEN = 1

# Under the power cap the clock wanders: neighbours on the A40's plateau differ by 0.3-0.7 %.
FLOOR_CAPPED = 0.01


def floor_of(count: int, *, swept: bool) -> float:
    """Smallest half width (a logarithm) with `count` clocks.

    `swept` says that other work was swept on the same card.
    """
    floors = FLOORS_SWEPT if swept else FLOORS_ALONE
    return floors.get(count, FLOOR_FEW if count < CLOCKS_FEW else FLOOR)


def between(clocks_mhz: Floats, time_s: Floats, at_mhz: Floats) -> Floats:
    """Half width (a logarithm) at each asked clock between two of fewer than CLOCKS_MIN clocks.

    `time_s` are those of `clocks_mhz`, ascending. Zero elsewhere.
    """
    half = np.zeros_like(at_mhz)
    if not 1 < clocks_mhz.size < CLOCKS_MIN:
        return half
    apart = BETWEEN_SHARE * np.abs(np.diff(np.log(time_s)))
    above = np.searchsorted(clocks_mhz, at_mhz)
    inside = (above > 0) & (above < clocks_mhz.size) & ~np.isin(at_mhz, clocks_mhz)
    half[inside] = apart[above[inside] - 1]
    return half


def floor_by_others(missed: Sequence[Floats]) -> float:
    """Half width (a logarithm) for a curve with two or three clocks.

    `missed` are errors of other workloads on its card, fitted to as few clocks; one array each. Of
    few workloads the largest error counts, with a margin: the next workload may be further off.
    """
    errors = np.concatenate(missed)
    if len(missed) < JUDGES_MIN:
        return FEW_JUDGES_RATIO * float(errors.max())
    return float(np.quantile(errors, NOMINAL))


def few_places(dense_mhz: Floats, few_mhz: Floats) -> NDArray[np.int64]:
    """Clocks of a dense sweep in the places of a few, as indices, ascending."""
    places = few_mhz / few_mhz[-1] * dense_mhz[-1]
    return np.unique(np.abs(dense_mhz[None, :] - places[:, None]).argmin(axis=1))


def time_scales(workloads: Sequence[str], left: Sequence[Smooth]) -> list[float]:
    """Standard deviations that each curve's band needs, in order."""
    scores = [_scores(one) for one in left]
    thinned: dict[tuple[int, tuple[float, ...]], Floats] = {}
    scales = []
    for name, curve in zip(workloads, left, strict=True):
        others = [i for i, other in enumerate(workloads) if other != name]
        own = _pool(s for s, other in zip(scores, workloads, strict=True) if other == name)
        alike = [_thinned(thinned, i, left[i], curve) for i in others]
        quantiles = [_quantile(_pool(scores[i] for i in others)), _quantile(own)]
        scales.append(max(NOMINAL_SDS, *quantiles, _quantile(_pool(alike))))
    return scales


def _thinned(
    made: dict[tuple[int, tuple[float, ...]], Floats], at: int, dense: Smooth, few: Smooth
) -> Floats:
    """Errors of a dense curve between clocks placed like those of a curve with few.

    In standard deviations; cached in `made` by the curve's number `at`. Empty if not dense.
    """
    count = few.clocks_mhz.size
    if not CLOCKS_MIN <= count < CLOCKS_FEW or dense.clocks_mhz.size < DENSER * count:
        return np.zeros(0)
    key = (at, tuple(few.clocks_mhz / few.clocks_mhz[-1]))
    if key not in made:
        taken = few_places(dense.clocks_mhz, few.clocks_mhz)
        rest = np.setdiff1d(np.arange(dense.clocks_mhz.size), taken)
        residual: Floats = np.linalg.solve(dense.inverse, dense.pull).astype(np.float64)
        sparse = smooth(
            dense.clocks_mhz[taken],
            residual[taken],
            top_mhz=dense.reach_mhz / REACH_RATIO,
            left=TIME_LEFT,
            noise=TIME_NOISE,
        )
        missed = residual[rest] - sparse.mean(dense.clocks_mhz[rest])
        given = float(np.sqrt(taken.size / (taken.size - GIVEN)))
        made[key] = given * np.abs(missed) / sparse.sd(dense.clocks_mhz[rest])
    return made[key]


def _scores(one: Smooth) -> Floats:
    """Leave-one-out errors of inner clocks, in standard deviations.

    The outermost clocks do not count: no clock beyond them is chosen.
    """
    if one.clocks_mhz.size < CLOCKS_MIN:
        return np.zeros(0)
    clocks = one.clocks_mhz.size
    return one.left_out()[1:-1] * float(np.sqrt(clocks / (clocks - FREE_NUMBERS)))


def _pool(parts: Iterable[Floats]) -> Floats:
    found = list(parts)
    return np.concatenate(found) if found else np.zeros(0)


def _quantile(scores: Floats) -> float:
    """Conformal quantile NOMINAL of distinct scores; 0 with fewer than SCALES_MIN.

    Stages with equal rows have equal scores, which count once.
    """
    scores = np.unique(scores)
    if scores.size < SCALES_MIN:
        return 0.0
    rank = min(scores.size, int(np.ceil(NOMINAL * (scores.size + 1))))
    return float(scores[rank - 1])
