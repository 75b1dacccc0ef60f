"""Predicts the curve of a new job from its figures at default clocks and the fleet's finished jobs.

Two shares describe a job: of its time, what follows the clock; of its power, what does not. A
random forest over jobs and cards predicts both, beside physics alone and the mean of the fleet. On
public sweeps no prior, not even the true curve, saves a probe at equal safety (docs/predictors.md).
So the predictions decide nothing. They are compared with the shares measured later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from joulecut_engine.estimate.card import find_card
from joulecut_engine.estimate.fitting import KNEE_PRIOR_RATIO, SLOPE_PRIOR_PER_GHZ
from joulecut_engine.estimate.physics import Floats, switching

Predictor = Literal["forest", "physics", "mean"]

TREES, LEAF_MIN, FEATURES_SHARE = 100, 2, 0.5  # of the study in benchmarks/fleet_prior.py
SEED = 0  # same jobs, same numbers
FINISHED_MIN = 3  # jobs; fewer are no fleet
FALL_MIN = 0.05  # of the clock: less does not show what follows it
UNKNOWN = -1.0  # in place of a figure that is not reported; trees split it off


@dataclass(frozen=True, slots=True)
class CurveShares:
    """Of the time, what follows the clock; of the power of whole iterations, what does not."""

    time: float
    power: float


# Of GPUs in general: memory-bound work follows the clock by 0.3, dense arithmetic by 0.9; static
# power and waiting are a third.
PHYSICS = CurveShares(0.7, 0.3)


@dataclass(frozen=True, slots=True)
class Shown:
    """Figures of a job at default clocks, as means over its GPUs; None where not reported.

    `clock_ratio` is of the card's highest clock, `power_ratio` of its power limit, `busy_ratio` the
    share of an iteration in which operations run. The last two are utilisations by the driver.
    """

    card: str  # the driver's model name
    clock_ratio: float
    power_ratio: float
    busy_ratio: float | None = None
    gpu_ratio: float | None = None
    memory_ratio: float | None = None

    def features(self) -> Floats:
        """The card counts as ratios of its data sheet, never by name."""
        figures = (
            self.clock_ratio,
            self.power_ratio,
            self.busy_ratio,
            self.gpu_ratio,
            self.memory_ratio,
        )
        card = find_card(self.card)
        sheet = np.zeros(5) if card is None else card.ratios()
        return np.concatenate([[UNKNOWN if one is None else one for one in figures], sheet])


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job whose curve is known."""

    shown: Shown
    shares: CurveShares


def measured_shares(
    clock_ratios: Floats, time_ratios: Floats, power_ratios: Floats, clock_max_mhz: float
) -> CurveShares | None:
    """Least squares through default clocks; None if no clock was clearly lower.

    `clock_ratios` (windows, stages) are of default clocks, times and powers (windows,) of those
    there. Stages count alike, and voltage follows the clock as on cards in general.
    """
    stretch = (1.0 / clock_ratios - 1.0).mean(axis=1)
    if stretch.max(initial=0.0) < FALL_MIN:
        return None
    knee_mhz = KNEE_PRIOR_RATIO * clock_max_mhz
    moved = switching(clock_ratios * clock_max_mhz, knee_mhz, SLOPE_PRIOR_PER_GHZ)
    full = switching(np.array(clock_max_mhz), knee_mhz, SLOPE_PRIOR_PER_GHZ)
    fall = 1.0 - (moved / full).mean(axis=1)
    time = float(stretch @ (time_ratios - 1.0) / (stretch @ stretch))
    power = 1.0 - float(fall @ (1.0 - power_ratios) / (fall @ fall))
    return CurveShares(min(1.0, max(0.0, time)), min(1.0, max(0.0, power)))


def predictions(finished: Sequence[FinishedJob], shown: Shown) -> dict[Predictor, CurveShares]:
    """The shares of a new job by every predictor; of a small fleet by physics alone."""
    found: dict[Predictor, CurveShares] = {"physics": PHYSICS}
    if len(finished) < FINISHED_MIN:
        return found
    # Loading takes a second, and most passes need no forest.
    from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415

    known = np.array([(one.shares.time, one.shares.power) for one in finished])
    rows = np.array([one.shown.features() for one in finished])
    forest = RandomForestRegressor(
        TREES, min_samples_leaf=LEAF_MIN, max_features=FEATURES_SHARE, random_state=SEED
    ).fit(rows, known)
    found["mean"] = CurveShares(*map(float, known.mean(axis=0)))
    found["forest"] = CurveShares(*map(float, forest.predict(shown.features()[None])[0]))
    return found


def errors(
    scored: Sequence[tuple[Mapping[Predictor, CurveShares], CurveShares]],
) -> dict[Predictor, CurveShares]:
    """Mean absolute errors, over jobs that every predictor predicted; empty without any."""
    if not scored:
        return {}
    return {
        name: CurveShares(
            float(np.mean([abs(said[name].time - known.time) for said, known in scored])),
            float(np.mean([abs(said[name].power - known.power) for said, known in scored])),
        )
        for name in scored[0][0]
    }
