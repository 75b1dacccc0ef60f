"""Curves of sweeps with bands: the engine's curves, judged at clocks that were left out.

Bands calibrated on random rows hold 72-85 % of the next workload instead of 90 %, because rows of
one workload resemble each other. So each workload is judged by the errors of the others, and by its
own. Pure: the same evidence gives the same bytes.

    curves = fit_judged(evidence)
    curve = curves[Work("gpt3", 0, "forward")]
    curve.time_s(clocks), curve.power_w(clocks), curve.band_s(clocks, scatter=0.0)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_engine.estimate.card import Card
from joulecut_engine.estimate.estimator import NOMINAL, NOMINAL_SDS
from joulecut_engine.estimate.evidence import Evidence, Work
from joulecut_engine.estimate.physics import Floats
from joulecut_engine.estimate.smooth import REACH_RATIO, matern
from joulecut_engine.estimate.work_fit import WorkCurve, fit_work, log_residuals

SCORES_MIN = 10  # errors for a quantile of their own
CLOCKS_MIN = 4  # for leave-one-out errors
# Half widths with too few clocks for that, without and with other work of the card: 90 % of the
# public stages stay within them, and of 21 applications, left out in turn, 88 % at two clocks and
# 90 at three (docs/predictors.md).
FLOORS_ALONE = {1: 0.2, 2: 0.08, 3: 0.05}
FLOORS_SWEPT = {1: 0.12, 2: 0.08, 3: 0.04}
# Between two such clocks at least this share of the logarithm by which time changes from one to
# the other: probes far apart say less about the middle.
BETWEEN_SHARE = 0.15
# Numbers of a time curve that the form takes from the same clocks: t_fmax, k, f_cap.
FREE_NUMBERS = 3
FLOOR = 0.003  # neighbouring clocks scatter by 0.2 %: no band is narrower than that
FLOOR_FEW, CLOCKS_FEW = 0.005, 12  # between clocks that stand far apart a little more
# Under the power cap the clock wanders: neighbours on the A40's plateau differ by 0.3-0.7 %.
FLOOR_CAPPED = 0.01


@dataclass(frozen=True, slots=True)
class JudgedCurve(WorkCurve):
    """With a band."""

    scale: float  # standard deviations that hold NOMINAL of left-out measurements
    floor: float  # smallest half width of the band (a logarithm)

    def band_s(self, clocks_mhz: Floats, scatter: float) -> tuple[Floats, Floats]:
        """Low and high time at each clock (n,), which is above 0.

        `scatter` (half width, a logarithm) adds in quadrature. Outside the measured clocks the
        share of the work that follows the clock is unknown, so the band spans all and none of it.
        """
        edges = np.clip(clocks_mhz, self.clock_min_mhz, self.clock_max_mhz)
        capped = clocks_mhz > self.physics.clock_cap_mhz
        floor = np.where(capped, max(self.floor, FLOOR_CAPPED), self.floor)
        floor = np.maximum(
            floor, between(self.clocks_mhz, self.time_s(self.clocks_mhz), clocks_mhz)
        )
        wide = np.exp(np.hypot(np.maximum(floor, self.scale * self.time_left.sd(edges)), scatter))
        time_s, edge_s = self.time_s(clocks_mhz), self.time_s(edges)
        stretch = edges / clocks_mhz  # 1 inside
        low_s = np.minimum(time_s / wide, edge_s / wide * np.minimum(1.0, stretch))
        high_s = np.maximum(time_s * wide, edge_s * wide * np.maximum(1.0, stretch))
        outside = stretch != 1.0
        return np.where(outside, low_s, time_s / wide), np.where(outside, high_s, time_s * wide)


def fit_judged(evidence: Iterable[Evidence]) -> dict[Work, JudgedCurve]:
    """Fit all evidence together. Raises ValueError as `fit_work`."""
    pieces = tuple(evidence)
    if not pieces:
        return {}
    curves = fit_work(pieces)
    scores = {one.work: _scores(one, curves[one.work]) for one in pieces}
    found = {}
    for one in pieces:
        curve, own = curves[one.work], one.work.workload
        mine = [score for work, score in scores.items() if work.workload == own]
        others = [score for work, score in scores.items() if work.workload != own]
        found[one.work] = JudgedCurve(
            curve.physics, curve.time_left, curve.power_left,
            scale=max(NOMINAL_SDS, _quantile(mine), _quantile(others)),
            floor=floor_of(one.sweep.clocks_mhz.size, swept=_swept_elsewhere(one, pieces)),
        )  # fmt: skip
    return found


def _scores(one: Evidence, curve: WorkCurve) -> Floats:
    """Errors of time in standard deviations: each inner clock against the others, widened for the
    numbers that the form took from them. The outermost clocks do not count: no clock beyond them is
    chosen.
    """
    count = one.sweep.clocks_mhz.size
    if count < CLOCKS_MIN:
        return np.zeros(0)
    errors, sd = curve.time_left.left_out(log_residuals(one, curve.physics)[:, :1])
    widened = float(np.sqrt(count / (count - FREE_NUMBERS)))
    return np.asarray(widened * np.abs(errors[1:-1, 0]) / sd[1:-1])


def _quantile(pool: Sequence[Floats]) -> float:
    """Conformal quantile NOMINAL of distinct scores; 0 with fewer than SCORES_MIN.

    Stages with equal rows have equal scores, which count once.
    """
    scores = np.unique(np.concatenate(pool)) if pool else np.zeros(0)
    if scores.size < SCORES_MIN:
        return 0.0
    rank = min(scores.size, int(np.ceil(NOMINAL * (scores.size + 1))))
    return float(scores[rank - 1])


def _swept_elsewhere(one: Evidence, pieces: Sequence[Evidence]) -> bool:
    """Whether other work was swept on the same card at more clocks."""

    def card(some: Evidence) -> tuple[Card | None, float]:
        return some.card, some.top_mhz

    return any(
        card(other) == card(one)
        and other.work.workload != one.work.workload
        and other.sweep.clocks_mhz.size > one.sweep.clocks_mhz.size
        for other in pieces
    )


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


def unexplained(apart_mhz: Floats, top_mhz: float) -> Floats:
    """Share of a residual's standard deviation left by one exact measurement `apart_mhz` away.

    In [0, 1): the conditional deviation of the Gaussian process.
    """
    return np.asarray(np.sqrt(1.0 - matern(apart_mhz, REACH_RATIO * top_mhz) ** 2))
