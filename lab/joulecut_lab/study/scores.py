"""How good a prediction is: errors of its numbers, and of the clocks it would choose.

Errors of time and power can cancel in energy and hide a bad choice, so regret (energy above
the best choice within a budget) and overshoot of that budget stand beside them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecut_lab.study.row import Row

Floats = NDArray[np.float64]
BUDGETS = (0.02, 0.05, 0.10)  # slowdowns that people agree to
TARGETS = ("power", "time", "energy")


@dataclass(frozen=True, slots=True)
class Score:
    """`mae` in the target's unit, `mape` a fraction, `r2` of the numbers themselves."""

    mae: float
    mape: float
    r2: float


@dataclass(frozen=True, slots=True)
class Choices:
    """Means over curves and budgets, as fractions."""

    regret: float
    overshoot: float


def score(truth: Floats, said: Floats) -> Score:
    """Arrays of one shape, truth above 0. R2 is 0 where the truth does not vary."""
    error = said - truth
    spread = float(((truth - truth.mean()) ** 2).sum())
    return Score(
        mae=float(np.abs(error).mean()),
        mape=float(np.abs(error / truth).mean()),
        r2=1.0 - float((error**2).sum()) / spread if spread > 0.0 else 0.0,
    )


def targets(rows: Sequence[Row]) -> Mapping[str, Floats]:
    return {
        "power": np.array([row.power_w for row in rows]),
        "time": np.array([row.time_s for row in rows]),
        "energy": np.array([row.energy_j for row in rows]),
    }


def choices(rows: Sequence[Row], time_s: Floats, power_w: Floats) -> Choices | None:
    """What choosing by these predictions costs; None without a curve of two clocks.

    For each curve and budget: the clock of least predicted energy among those predicted
    to keep the budget. Its true energy is held against the best true choice.
    """
    curves: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(rows):
        curves.setdefault(row.setting, []).append(i)
    regrets, overs = [], []
    for places in curves.values():
        if len(places) < 2:
            continue
        true_s = np.array([rows[i].time_s for i in places])
        true_j = np.array([rows[i].energy_j for i in places])
        said_s, said_j = time_s[places], time_s[places] * power_w[places]
        for budget in BUDGETS:
            allowed = said_s <= said_s.min() * (1.0 + budget)
            chosen = int(np.argmin(np.where(allowed, said_j, np.inf)))
            kept = true_s <= true_s.min() * (1.0 + budget)
            best_j = float(true_j[kept].min())
            # A choice that breaks the budget may use less than the best that keeps it.
            regrets.append(max(0.0, float(true_j[chosen]) / best_j - 1.0))
            overs.append(max(0.0, float(true_s[chosen] / true_s.min()) - 1.0 - budget))
    if not regrets:
        return None
    return Choices(float(np.mean(regrets)), float(np.mean(overs)))
