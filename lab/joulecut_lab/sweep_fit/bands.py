"""Errors at clocks left out: how much of the forest counts, and how wide the band is.

Bands calibrated on random rows hold 72-85 % of the next workload instead of 90 %, because rows of
one workload resemble each other. So each workload is judged by the errors of the others, and by its
own. A curve with few clocks is judged by dense sweeps of others, fitted to as few.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.estimate.estimator import NOMINAL, NOMINAL_SDS
from joulecut_engine.estimate.forest import earned as earned_by
from joulecut_engine.estimate.physics import Floats
from joulecut_engine.estimate.smooth import REACH_RATIO, Smooth, matern, smooths


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
        left = self.left - weight * self.forest
        return smooths(self.clocks_mhz, left, self.top_mhz, self.noise)


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
    """Weight of the forest for time and power (2,); 0 where nothing was left out."""
    return earned_by((one.physics, one.forest) for one in errors)


def unexplained(apart_mhz: Floats, top_mhz: float) -> Floats:
    """Share of a residual's standard deviation left by one exact measurement `apart_mhz` away.

    In [0, 1): the conditional deviation of the Gaussian process.
    """
    return np.asarray(np.sqrt(1.0 - matern(apart_mhz, REACH_RATIO * top_mhz) ** 2))


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
