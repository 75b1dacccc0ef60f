"""Smoothed residuals between measured clocks, and errors at clocks left out.

A sweep taken at its word makes the planner pick the clock with the luckiest measurement; residuals
ignored lose what the form cannot express. A Gaussian process with a Matern 5/2 kernel weighs both:
it interpolates five clocks, averages a dense noisy sweep, and tends to zero far from data. On the
public sweeps with five probed clocks it lowers the time error from 0.43 % to 0.17 % (A100) and
0.95 % to 0.64 % (A40).

The errors at clocks left out decide two things: how much of the forest counts, and how wide the
band is. Bands calibrated on random rows hold 72-85 % of the next workload instead of 90 %, because
rows of one workload resemble each other. So each workload is judged by the errors of the others,
and by its own. A curve with few clocks is judged by dense sweeps of others, fitted to as few.
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

    def missed(self, values: Floats, at_mhz: Floats, there: Floats) -> Floats:
        """Values `there` (m, k) less those interpolated from `values` (n, k) at the clocks."""
        return np.asarray(there - self._covariance(at_mhz) @ (self.inverse @ values))

    def left_out(self, values: Floats) -> tuple[Floats, Floats]:
        """Each of `values` (n, k) less the interpolation of the others; standard deviations (n,).

        The same covariance serves all columns, so errors of a sum are sums of errors.
        """
        own = np.diag(self.inverse)
        return np.asarray((self.inverse @ values) / own[:, None]), np.asarray(1.0 / np.sqrt(own))

    def _covariance(self, at_mhz: Floats) -> Floats:
        return self.left**2 * _matern(at_mhz[:, None] - self.clocks_mhz, self.reach_mhz)


def smooth(
    clocks_mhz: Floats,
    residual: Floats,
    top_mhz: float,
    *,
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


@dataclass(frozen=True, slots=True)
class Residuals:
    """What the physics leave of one sweep at its clocks (n,), and what the forest says of it.

    `left` and `forest` are logarithms of time and power, (n, 2). `noise` (n,) is that of each
    time where known.
    """

    clocks_mhz: Floats
    top_mhz: float
    left: Floats
    forest: Floats
    noise: Floats | None = None

    def smooths(self, weight: Floats) -> tuple[Smooth, Smooth]:
        """Time and power, less the forest by its `weight` (2,)."""
        time, power = (self.left - weight * self.forest).T
        known, top_mhz, noises = self.clocks_mhz, self.top_mhz, self.noise
        return (
            smooth(known, time, top_mhz, left=TIME_LEFT, noise=TIME_NOISE, noises=noises),
            smooth(known, power, top_mhz, left=POWER_LEFT, noise=POWER_NOISE, noises=noises),
        )


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors (logarithms) of time and power at clocks left out, (m, 2).

    `physics` is without the forest, `forest` what all of it would take off; `sd` (m,) is the
    standard deviation that the smoothing gives the time.
    """

    physics: Floats
    forest: Floats
    sd: Floats

    def time(self, weight: Floats) -> Floats:
        """Absolute errors of time with so much of the forest."""
        return np.asarray(np.abs(self.physics[:, 0] - weight[0] * self.forest[:, 0]))

    def scores(self, weight: Floats) -> Floats:
        """The same in standard deviations."""
        return self.time(weight) / self.sd


NONE_LEFT_OUT = Errors(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0))
NO_FOREST: Floats = np.zeros(2)


def left_out(one: Residuals) -> Errors:
    """Each inner clock against the others, widened for the numbers that the form took from them.

    The outermost clocks do not count: no clock beyond them is chosen.
    """
    count = one.clocks_mhz.size
    if count < CLOCKS_MIN:
        return NONE_LEFT_OUT
    time, power = one.smooths(NO_FOREST)
    (times, sd), (powers, _) = (
        each.left_out(np.column_stack([one.left[:, i], one.forest[:, i]]))
        for i, each in enumerate((time, power))
    )
    widened = float(np.sqrt(count / (count - FREE_NUMBERS)))
    both = widened * np.stack([times, powers], axis=2)[1:-1]
    return Errors(both[:, 0], both[:, 1], sd[1:-1])


def missed(few: Residuals, dense: Residuals) -> Errors:
    """Errors at the clocks of a dense sweep between those of the few that were fitted."""
    inside = (dense.clocks_mhz > few.clocks_mhz[0]) & (dense.clocks_mhz < few.clocks_mhz[-1])
    rest = inside & ~np.isin(dense.clocks_mhz, few.clocks_mhz)
    if not rest.any():
        return NONE_LEFT_OUT
    at_mhz = dense.clocks_mhz[rest]
    smooths = few.smooths(NO_FOREST)
    both = np.stack(
        [
            each.missed(
                np.column_stack([few.left[:, i], few.forest[:, i]]),
                at_mhz,
                np.column_stack([dense.left[rest, i], dense.forest[rest, i]]),
            )
            for i, each in enumerate(smooths)
        ],
        axis=2,
    )
    return Errors(both[:, 0], both[:, 1], smooths[0].sd(at_mhz))


def earned(errors: Iterable[Errors]) -> Floats:
    """Weight of the forest for time and power (2,), in [0, 1]: least squares of these errors.

    0 where the forest was of no help, or nothing was left out.
    """
    product, square = np.zeros(2), np.zeros(2)
    for one in errors:
        product += (one.physics * one.forest).sum(axis=0)
        square += (one.forest**2).sum(axis=0)
    return np.asarray(np.clip(product / np.where(square > 0.0, square, 1.0), 0.0, 1.0))


JUDGES_MIN = 8  # workloads whose errors give a quantile
FEW_JUDGES_RATIO = 1.2  # of the largest error of fewer; stages of one model agree better than that
SCORES_MIN = 10  # errors for a quantile of their own
CLOCKS_MIN = 4  # for leave-one-out errors
# Half widths with too few clocks for that: 90 % of the public stages stay within them
# (docs/predictors.md), without and with other work swept on the card.
FLOORS_ALONE = {1: 0.2, 2: 0.08, 3: 0.05}
FLOORS_SWEPT = {1: 0.12, 2: 0.075, 3: 0.04}  # 2: of 21 applications, left out in turn
# Between two such clocks at least this share of the logarithm by which time changes from one to
# the other: probes far apart say less about the middle.
BETWEEN_SHARE = 0.15
# Numbers of a time curve that the form takes from the same clocks: t_fmax, k, f_cap.
FREE_NUMBERS = 3
FLOOR = 0.003  # neighbouring clocks scatter by 0.2 %: no band is narrower than that
FLOOR_FEW, CLOCKS_FEW = 0.005, 12  # between clocks that stand far apart a little more
# A sweep with this many times the clocks of a curve shows the errors between so few clocks.
DENSER = 2
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


def scale(*pools: Sequence[Floats]) -> float:
    """Standard deviations that hold NOMINAL of each pool of scores; of a normal one at least."""
    return max(NOMINAL_SDS, *(_quantile(pool) for pool in pools))


def _quantile(pool: Sequence[Floats]) -> float:
    """Conformal quantile NOMINAL of distinct scores; 0 with fewer than SCORES_MIN.

    Stages with equal rows have equal scores, which count once.
    """
    scores = np.unique(np.concatenate(pool)) if pool else np.zeros(0)
    if scores.size < SCORES_MIN:
        return 0.0
    rank = min(scores.size, int(np.ceil(NOMINAL * (scores.size + 1))))
    return float(scores[rank - 1])
