"""How wide a band must be, judged by work that the band was not made from.

Random rows of one workload resemble each other, and bands calibrated on them cover 72-85 %
of the next workload instead of 90 %. So every workload is judged by what the others showed
(leave-one-workload-out conformal), and by itself where it is alone. Clocks left out of a dense
sweep have near neighbours, those between five probes have none: where a curve has few clocks,
the others are judged by as few.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from joulecut_engine.estimate.estimator import NOMINAL
from joulecut_engine.estimate.grid import Floats
from joulecut_engine.estimate.smooth import REACH_RATIO, TIME_LEFT, TIME_NOISE, Smooth, smooth

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
