"""A forest of what the physics leave over, fitted to other work.

A clock that saturates below its cap, or a voltage table with steps, is alike for all work on a
card and partly on cards of one build. Features are ratios that mean the same everywhere, never
names.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from joulecut_engine.estimate.card import Card
from joulecut_engine.estimate.evidence import Evidence
from joulecut_engine.estimate.forest import forest
from joulecut_engine.estimate.physics import Floats, Physics
from joulecut_engine.estimate.work_fit import log_residuals

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor

ROWS_MIN = 8  # rows a forest needs
RESIDUAL_MAX = 0.25  # a row further off is another regime
UNCAPPED = 1.3  # of the highest clock: stands for a cap that is never met


def residual_forest(
    evidence: Sequence[Evidence], curves: Sequence[Physics]
) -> "RandomForestRegressor":
    """Forest of log(measured / physics) of time and power; ROWS_MIN rows at least (`enough`)."""
    targets = np.concatenate(
        [log_residuals(one, curve) for one, curve in zip(evidence, curves, strict=True)]
    )
    return forest(
        features(evidence, curves, [one.sweep.clocks_mhz for one in evidence]),
        np.clip(targets, -RESIDUAL_MAX, RESIDUAL_MAX),
    )


def enough(evidence: Sequence[Evidence]) -> bool:
    return sum(one.sweep.clocks_mhz.size for one in evidence) >= ROWS_MIN


def features(
    evidence: Sequence[Evidence], curves: Sequence[Physics], clocks_mhz: Sequence[Floats]
) -> Floats:
    """One row per asked clock of each piece of evidence, of shape (rows, features)."""
    return np.concatenate(
        [
            _rows(one, curve, asked)
            for one, curve, asked in zip(evidence, curves, clocks_mhz, strict=True)
        ]
    )


def _rows(one: Evidence, curve: Physics, asked_mhz: Floats) -> Floats:
    top_mhz = curve.clock_max_mhz
    cap_mhz = min(curve.clock_cap_mhz, UNCAPPED * top_mhz)
    limit_w = _limit_w(one.card, curve)
    constant = np.concatenate(
        [
            [one.work.kind in {"backward", "input", "weight"}],
            [one.work.kind not in {"forward", "backward", "input", "weight"}],
            np.zeros(5) if one.card is None else one.card.ratios(),
        ]
    )
    return np.column_stack(
        [
            asked_mhz / top_mhz,
            asked_mhz / curve.clock_knee_mhz,
            np.minimum(asked_mhz / cap_mhz, 1.0),
            asked_mhz > cap_mhz,
            np.full(asked_mhz.size, curve.clock_share),
            curve.power_w(asked_mhz) / limit_w,
            np.full(asked_mhz.size, curve.power_static_w / limit_w),
            np.tile(constant, (asked_mhz.size, 1)),
        ]
    )


def _limit_w(card: Card | None, curve: Physics) -> float:
    """The card's limit, or the work's highest power if that is larger or the card is unknown."""
    drawn_w = float(curve.power_w(np.array([curve.clock_max_mhz]))[0])
    return drawn_w if card is None else max(card.power_limit_w, drawn_w)
