"""Random forest, and its features for what the physics leave over, fitted to other work.

A clock that saturates below its cap, or a voltage table with steps, is alike for all work on a
card and partly on cards of one build. Features are ratios that mean the same everywhere, never
names.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from joulecut_engine.estimate.card import Card
from joulecut_engine.estimate.evidence import Evidence
from joulecut_engine.estimate.physics import Floats, Physics

if TYPE_CHECKING:
    from sklearn.tree import DecisionTreeRegressor

TREES = 40  # twice as many change the public figures by under 0.01 points
LEAF_MIN = 3  # single rows are noise
FEATURES_SHARE = 0.6  # per split; all of them at once make the trees alike
SEED = 0  # same data, same code: same numbers
ROWS_MIN = 8  # rows a forest needs
RESIDUAL_MAX = 0.25  # a row further off is another regime
ROUNDED_TO = 2.0**20  # steps of a millionth: sums of them are exact
UNCAPPED = 1.3  # of the highest clock: stands for a cap that is never met

FEATURES = (
    "clock over highest",
    "clock over knee",
    "clock over cap",
    "held by the cap",
    "share that follows the clock",
    "power over limit",
    "static over limit",
    "backward",
    "collective",
    "card: clock",
    "card: limit",
    "card: memory",
    "card: half",
    "card: single",
)


class Forest:
    """Random forest of vectors on rows of features. The same data give the same numbers."""

    def __init__(self, rows: Floats, targets: Floats, weight: Floats) -> None:
        """`rows` (n, features), `targets` (n, k), `weight` (n,) above 0; n >= 1."""
        self._trees = _grown(_rounded(rows), _rounded(targets), weight)

    def predict(self, rows: Floats) -> Floats:
        """Means of the trees, of shape (rows, k)."""
        asked = _rounded(rows).astype(np.float32)
        found = sum(tree.tree_.predict(asked)[:, :, 0] for tree in self._trees)
        return np.asarray(found / TREES)


def residual_forest(evidence: Sequence[Evidence], curves: Sequence[Physics]) -> Forest:
    """Forest of log(measured / physics) of time and power; ROWS_MIN rows at least (`enough`)."""
    targets = np.concatenate(
        [log_residuals(one, curve) for one, curve in zip(evidence, curves, strict=True)]
    )
    return Forest(
        features(evidence, curves, [one.sweep.clocks_mhz for one in evidence]),
        np.clip(targets, -RESIDUAL_MAX, RESIDUAL_MAX),
        np.concatenate([one.sweep.weights for one in evidence]),
    )


def _grown(rows: Floats, targets: Floats, weight: Floats) -> tuple["DecisionTreeRegressor", ...]:
    """Trees of a random forest, each on a bootstrap sample drawn by weight.

    scikit-learn's forest object spends more time on checks and copies than on such small trees,
    and its weighted draw changed between versions; so rows are drawn here.
    """
    # Loading takes a second, and a fit of one workload needs no forest.
    from sklearn import config_context  # noqa: PLC0415
    from sklearn.tree import DecisionTreeRegressor  # noqa: PLC0415

    seeds = np.random.RandomState(SEED).randint(np.iinfo(np.int32).max, size=TREES)
    count, asked, share = rows.shape[0], rows.astype(np.float32), weight / weight.sum()
    trees = []
    with config_context(assume_finite=True, skip_parameter_validation=True):
        for seed in seeds:
            drawn = np.random.RandomState(seed).choice(count, count, p=share)
            tree = DecisionTreeRegressor(
                min_samples_leaf=LEAF_MIN, max_features=FEATURES_SHARE, random_state=int(seed)
            )
            times = np.bincount(drawn, minlength=count).astype(np.float64)
            trees.append(tree.fit(asked, targets, sample_weight=times, check_input=False))
    return tuple(trees)


def _rounded(values: Floats) -> Floats:
    """Round to millionths: last bits must not choose between features that order rows alike."""
    return np.round(values * ROUNDED_TO) / ROUNDED_TO


def enough(evidence: Sequence[Evidence]) -> bool:
    return sum(one.sweep.clocks_mhz.size for one in evidence) >= ROWS_MIN


def log_residuals(one: Evidence, curve: Physics) -> Floats:
    """log(measured / physics) of time and power at the measured clocks, of shape (n, 2)."""
    sweep = one.sweep
    return np.column_stack(
        [
            np.log(sweep.time_s / curve.time_s(sweep.clocks_mhz)),
            np.log(sweep.power_w / curve.power_w(sweep.clocks_mhz)),
        ]
    )


def features(
    evidence: Sequence[Evidence], curves: Sequence[Physics], clocks_mhz: Sequence[Floats]
) -> Floats:
    """One row per asked clock of each piece of evidence, of shape (rows, len(FEATURES))."""
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
