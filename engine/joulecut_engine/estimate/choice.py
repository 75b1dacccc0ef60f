"""Which clock a prediction would pick under a slowdown budget.

Never one below the lowest that was measured: beyond it errors are two to ten times as large.
"""

from dataclasses import dataclass

import numpy as np

from joulecut_engine.estimate.estimator import Prediction


@dataclass(frozen=True, slots=True)
class Choice:
    """A clock, and what it is predicted to change against the baseline clock (ratios)."""

    clock_mhz: int
    slowdown_ratio: float
    saved_ratio: float


def choose(
    predicted: Prediction,
    budget: float,
    *,
    known_mhz: tuple[int, ...],
    sure: bool = False,
) -> Choice:
    """The clock of least predicted energy whose slowdown is within `budget` (a ratio).

    The baseline is the highest clock predicted. `sure` asks the upper edge of the band to
    stay within the budget too, as enforcing does. Nothing below `known_mhz` is chosen;
    where nothing is left, the baseline. Raises ValueError without clocks.
    """
    if not predicted.clocks_mhz or not known_mhz:
        raise ValueError("no clock to choose from")
    clocks = np.array(predicted.clocks_mhz)
    base = int(clocks.argmax())
    energy_j = predicted.time_s * predicted.power_w
    limit_s = predicted.time_s[base] * (1.0 + budget)
    against_s = predicted.time_high_s if sure else predicted.time_s
    fits = (clocks >= min(known_mhz)) & (against_s <= limit_s)
    fits[base] = True
    pick = int(np.where(fits, energy_j, np.inf).argmin())
    return Choice(
        clock_mhz=int(clocks[pick]),
        slowdown_ratio=float(predicted.time_s[pick] / predicted.time_s[base]) - 1.0,
        saved_ratio=1.0 - float(energy_j[pick] / energy_j[base]),
    )
