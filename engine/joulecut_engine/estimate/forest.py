"""The random forest, and the weight that it earns.

The same data give the same numbers.
"""

from typing import TYPE_CHECKING

import numpy as np

from joulecut_engine.estimate.physics import Floats

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor

TREES = 40  # twice as many change the public figures by under 0.01 points
LEAF_MIN = 2  # jobs: fewer would be a table of them
FEATURES_SHARE = 0.6  # per split; all of them at once make the trees alike
SEED = 0  # same data, same code: same numbers
ROUNDED_TO = 2.0**20  # steps of a millionth


def forest(rows: Floats, targets: Floats) -> "RandomForestRegressor":
    """Taught by `rows` (n, features) and `targets` (n, k). The same data give the same numbers."""
    # Loading takes a second, and a fit of one workload needs no forest.
    from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415

    made = RandomForestRegressor(
        TREES, min_samples_leaf=LEAF_MIN, max_features=FEATURES_SHARE, random_state=SEED
    )
    return made.fit(rounded(rows), rounded(targets))


def rounded(values: Floats) -> Floats:
    """Round to millionths: last bits must not choose between features that order rows alike."""
    return np.round(values * ROUNDED_TO) / ROUNDED_TO


def earned(off: Floats, said: Floats) -> Floats:
    """Weight of the forest for time and power (2,), in [0, 1]: least squares of errors at what was
    left out, (m, 2) each: without the forest, and what all of it would take off. 0 where it was of
    no help, or nothing was left out.
    """
    product, square = (off * said).sum(axis=0), (said**2).sum(axis=0)
    return np.asarray(np.clip(product / np.where(square > 0.0, square, 1.0), 0.0, 1.0))
