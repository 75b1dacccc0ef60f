"""How far cards depart from the form, learnt from other work: the random forest.

What the form cannot say (a clock that saturates below its cap, a voltage table with steps)
is alike for all work on a card, and partly on cards of one build. The forest learns it from
features that mean the same everywhere: ratios, never names.
"""

from collections.abc import Sequence

import numpy as np

from joulecut_controller.predict.card import Card
from joulecut_controller.predict.evidence import Evidence
from joulecut_controller.predict.grid import Floats
from joulecut_controller.predict.physics import Physics

TREES = 40  # twice as many change the public figures by under 0.01 points
LEAF_MIN = 3  # single rows are noise
FEATURES_SHARE = 0.6  # per split; all of them at once make the trees alike
SEED = 0  # same data, same code: same numbers
ROWS_MIN = 8  # fewer rows are no forest
LEFT_MAX = 0.25  # a row further off is another regime and no departure from the form
UNCAPPED = 1.3  # of the highest clock: where a cap would be that is never met

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
    "temperature",
    "log flops",
    "log bytes",
    "intensity",
    "peak ratio",
    "roofline",
    "sequence",
    "width",
    "heads",
    "inner",
    "card: clock",
    "card: limit",
    "card: memory",
    "card: half",
    "card: single",
)


class Residuals:
    """A fitted forest on log(measured / physics) of time and power."""

    def __init__(self, evidence: Sequence[Evidence], curves: Sequence[Physics]) -> None:
        """Raises ValueError where there are fewer than `ROWS_MIN` rows; see `enough`."""
        asked = [one.sweep.clocks_mhz for one in evidence]
        rows = features(evidence, curves, asked)
        targets = np.concatenate(
            [leftovers(one, curve) for one, curve in zip(evidence, curves, strict=True)]
        )
        if rows.shape[0] < ROWS_MIN:
            raise ValueError(f"{rows.shape[0]} rows are no forest; at least {ROWS_MIN}")
        weight = np.concatenate([one.sweep.weights for one in evidence])
        # A second to load: whoever fits a single workload never needs it.
        from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415

        self._forest = RandomForestRegressor(
            n_estimators=TREES,
            min_samples_leaf=LEAF_MIN,
            max_features=FEATURES_SHARE,
            random_state=SEED,
            n_jobs=1,
        )
        self._forest.fit(rows, np.clip(targets, -LEFT_MAX, LEFT_MAX), sample_weight=weight)

    def predict(self, rows: Floats) -> Floats:
        """Logarithms of time and power against the physics, of shape (rows, 2)."""
        return np.asarray(self._forest.predict(rows), dtype=np.float64)

    def importances(self) -> tuple[tuple[str, float], ...]:
        """Features by how much they explain, largest first; shares of 1."""
        found = zip(FEATURES, self._forest.feature_importances_, strict=True)
        return tuple(sorted(((name, float(share)) for name, share in found), key=lambda x: -x[1]))


def enough(evidence: Sequence[Evidence]) -> bool:
    return sum(one.sweep.clocks_mhz.size for one in evidence) >= ROWS_MIN


def leftovers(one: Evidence, curve: Physics) -> Floats:
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
            [one.temperature_c / 100.0],
            _shape(one, top_mhz),
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
    """The card's limit, or what the work draws at most, where nobody knows the card."""
    drawn_w = float(curve.power_w(np.array([curve.clock_max_mhz]))[0])
    return drawn_w if card is None else max(card.power_limit_w, drawn_w)


def _shape(one: Evidence, top_mhz: float) -> Floats:
    shape = one.shape
    roofline = 0.0
    if one.card is not None and shape.flops > 0.0 and shape.bytes_moved > 0.0:
        peak = one.card.half_tflops * 1e12 * (shape.peak_ratio or 1.0)
        compute_s = shape.flops / peak * one.card.clock_max_mhz / top_mhz
        roofline = float(np.log(compute_s / (shape.bytes_moved / (one.card.memory_gb_s * 1e9))))
    intensity = np.log(shape.flops / shape.bytes_moved) if roofline else 0.0
    return np.array(
        [
            np.log1p(shape.flops),
            np.log1p(shape.bytes_moved),
            intensity,
            shape.peak_ratio,
            roofline,
            shape.sequence,
            shape.width,
            shape.heads,
            shape.inner,
        ],
        dtype=np.float64,
    )
