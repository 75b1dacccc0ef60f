"""DOC bands"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_engine.estimate.estimator import NOMINAL
from joulecut_engine.estimate.physics import Floats

REACH_RATIO = 0.12  # of the highest clock: how far leftovers resemble each other
# Standard deviations, relative. Leftovers: what the form misses on public sweeps; noise:
# what neighbouring clocks of the same sweeps differ by at random.
TIME_LEFT, TIME_NOISE = 0.005, 0.001
POWER_LEFT, POWER_NOISE = 0.01, 0.004
LEFT_GROWTH = 1.5  # few leftovers understate how large others are
DENSE_MIN = 12  # points from which neighbours tell the noise
DENSE_RATIO = 0.25  # of the reach: neighbours further apart differ by more than noise
SECOND_DIFFERENCE = 1.5**0.5  # sd of a point against its neighbours' mean, per noise sd
MAD_TO_SD = 1.4826


@dataclass(frozen=True, slots=True)
class Smooth:
    """Leftovers of one curve, smoothed. Logarithms; arrays over its own clocks (n,)."""

    clocks_mhz: Floats
    reach_mhz: float
    left: float  # standard deviation of leftovers
    inverse: Floats  # of the covariance of the measurements, (n, n)
    pull: Floats  # inverse @ leftovers
    noise: float  # standard deviation of one measurement

    def mean(self, at_mhz: Floats) -> Floats:
        return np.asarray(self._covariance(at_mhz) @ self.pull)

    def sd(self, at_mhz: Floats) -> Floats:
        """Of a new measurement there, its own noise included."""
        toward = self._covariance(at_mhz)
        known = ((toward @ self.inverse) * toward).sum(axis=1)
        return np.asarray(np.sqrt(np.maximum(self.left**2 - known, 0.0) + self.noise**2))

    def left_out(self) -> Floats:
        """Each measurement against what the others say of it, in standard deviations."""
        return np.asarray(np.abs(self.pull) / np.sqrt(np.diag(self.inverse)))

    def _covariance(self, at_mhz: Floats) -> Floats:
        return self.left**2 * _matern(at_mhz[:, None] - self.clocks_mhz, self.reach_mhz)


def smooth(
    clocks_mhz: Floats,
    leftover: Floats,
    *,
    top_mhz: float,
    left: float,
    noise: float,
    noises: Floats | None = None,
) -> Smooth:
    """Smooths `leftover` (n,). `left`, `noise` as above; `noises` (n,) where known."""
    reach_mhz = REACH_RATIO * top_mhz
    spread = max(left, LEFT_GROWTH * float(np.sqrt(np.mean(leftover**2))))
    own = max(noise, _roughness(clocks_mhz, leftover, reach_mhz))
    each = np.full_like(leftover, own) if noises is None else np.hypot(noise, noises)
    covariance = spread**2 * _matern(clocks_mhz[:, None] - clocks_mhz, reach_mhz)
    inverse: Floats = np.linalg.inv(covariance + np.diag(each**2)).astype(np.float64)
    return Smooth(
        clocks_mhz, reach_mhz, spread, inverse, inverse @ leftover, float(np.median(each))
    )


def untold(apart_mhz: Floats, top_mhz: float) -> Floats:
    """Share of a leftover's standard deviation, in [0, 1), that one exact measurement so far
    away does not tell (conditional variance of a Gaussian process).
    """
    return np.asarray(np.sqrt(1.0 - _matern(apart_mhz, REACH_RATIO * top_mhz) ** 2))


def _matern(apart_mhz: Floats, reach_mhz: float) -> Floats:
    near = np.sqrt(5.0) * np.abs(apart_mhz) / reach_mhz
    return np.asarray((1.0 + near + near * near / 3.0) * np.exp(-near))


def _roughness(clocks_mhz: Floats, leftover: Floats, reach_mhz: float) -> float:
    """Noise of one measurement as neighbours tell it; 0 where they stand too far apart."""
    if clocks_mhz.size < DENSE_MIN:
        return 0.0
    if float(np.median(np.diff(clocks_mhz))) > DENSE_RATIO * reach_mhz:
        return 0.0
    between = leftover[1:-1] - 0.5 * (leftover[:-2] + leftover[2:])
    return MAD_TO_SD * float(np.median(np.abs(between))) / SECOND_DIFFERENCE


SCALE_MIN = 1.645  # two-sided 90 % of a normal distribution: measurements may be lucky
SCALES_MIN = 10  # scores from which their own quantile counts
CLOCKS_MIN = 4  # fewer leave nothing to judge by
# Half widths where the clocks are too few to judge themselves: what 90 % of the public
# stages stayed within (docs/predictors.md), alone and with other work of the card at hand.
FLOORS_ALONE = {1: 0.2, 2: 0.08, 3: 0.05}
FLOORS_TAUGHT = {1: 0.12, 2: 0.075, 3: 0.04}  # two: of 21 applications, each left out in turn
# And between two of those clocks no less than this share of what the time changes from one
# to the other (a logarithm): who probes a card's whole range knows less of its middle.
BETWEEN_SHARE = 0.15
# The form took three numbers of a time curve (t_fmax, k, f_cap) from the same clocks.
FREE_NUMBERS = 3
FLOOR = 0.003  # neighbouring clocks scatter by 0.2 %: no band is narrower than that
FLOOR_FEW, CLOCKS_FEW = 0.005, 12  # between clocks that stand far apart a little more

# A sweep with so many times the clocks of a curve can show what is missed between that many.
DENSER = 2
# Its form was fitted to all of its clocks, not to the few: as if one of them had been given.
GIVEN = 1

# Held by the power cap the clock wanders: neighbours on the A40's plateau differ by 0.3-0.7 %.
FLOOR_CAPPED = 0.01


def few_clocks(count: int, *, taught: bool) -> float:
    """The narrowest half width (a logarithm) that so many clocks can have."""
    floors = FLOORS_TAUGHT if taught else FLOORS_ALONE
    return floors.get(count, FLOOR_FEW if count < CLOCKS_FEW else FLOOR)


def between(clocks_mhz: Floats, time_s: Floats, at_mhz: Floats) -> Floats:
    """Half widths (logarithms) at each asked clock that lies between two of too few clocks.

    `time_s` are those of `clocks_mhz`, ascending. Zeros where the clocks judge themselves, at a
    measured clock, and beyond them.
    """
    half = np.zeros_like(at_mhz)
    if not 1 < clocks_mhz.size < CLOCKS_MIN:
        return half
    apart = BETWEEN_SHARE * np.abs(np.diff(np.log(time_s)))
    above = np.searchsorted(clocks_mhz, at_mhz)
    inside = (above > 0) & (above < clocks_mhz.size) & ~np.isin(at_mhz, clocks_mhz)
    half[inside] = apart[above[inside] - 1]
    return half


def time_scales(workloads: Sequence[str], left: Sequence[Smooth]) -> list[float]:
    """Standard deviations that each curve's band needs; one per curve, in its order."""
    scores = [_scores(one) for one in left]
    thinned: dict[tuple[int, tuple[float, ...]], Floats] = {}
    scales = []
    for name, curve in zip(workloads, left, strict=True):
        others = [i for i, other in enumerate(workloads) if other != name]
        own = _pool(s for s, other in zip(scores, workloads, strict=True) if other == name)
        alike = [_thinned(thinned, i, left[i], curve) for i in others]
        quantiles = [_quantile(_pool(scores[i] for i in others)), _quantile(own)]
        scales.append(max(SCALE_MIN, *quantiles, _quantile(_pool(alike))))
    return scales


def _thinned(
    made: dict[tuple[int, tuple[float, ...]], Floats], at: int, dense: Smooth, few: Smooth
) -> Floats:
    """What the `dense` curve, number `at`, is off by between its clocks that lie as those of `few`
    do, in standard deviations; kept in `made`. Nothing where it is not dense.
    """
    count = few.clocks_mhz.size
    if not CLOCKS_MIN <= count < CLOCKS_FEW or dense.clocks_mhz.size < DENSER * count:
        return np.zeros(0)
    places = few.clocks_mhz / few.clocks_mhz[-1]
    key = (at, tuple(places))
    if key not in made:
        own = dense.clocks_mhz / dense.clocks_mhz[-1]
        taken = np.unique(np.abs(own[None, :] - places[:, None]).argmin(axis=1))
        rest = np.setdiff1d(np.arange(own.size), taken)
        leftover = np.linalg.solve(dense.inverse, dense.pull)
        sparse = smooth(
            dense.clocks_mhz[taken],
            leftover[taken],
            top_mhz=dense.reach_mhz / REACH_RATIO,
            left=TIME_LEFT,
            noise=TIME_NOISE,
        )
        missed = leftover[rest] - sparse.mean(dense.clocks_mhz[rest])
        given = float(np.sqrt(taken.size / (taken.size - GIVEN)))
        made[key] = given * np.abs(missed) / sparse.sd(dense.clocks_mhz[rest])
    return made[key]


def _scores(one: Smooth) -> Floats:
    """What each inner clock is off by, in standard deviations, when it is left out.

    The outermost clocks are left out of this: nothing is chosen beyond them.
    """
    if one.clocks_mhz.size < CLOCKS_MIN:
        return np.zeros(0)
    clocks = one.clocks_mhz.size
    return one.left_out()[1:-1] * float(np.sqrt(clocks / (clocks - FREE_NUMBERS)))


def _pool(parts: Iterable[Floats]) -> Floats:
    found = list(parts)
    return np.concatenate(found) if found else np.zeros(0)


def _quantile(scores: Floats) -> float:
    """The conformal quantile: the next larger of so many; 0 where there are too few.

    Stages with the same rows have the same scores, which count once.
    """
    scores = np.unique(scores)
    if scores.size < SCALES_MIN:
        return 0.0
    rank = min(scores.size, int(np.ceil(NOMINAL * (scores.size + 1))))
    return float(scores[rank - 1])
