"""Thermal time constant of a job's GPUs, and the warm-up that windows need because of it.

Leakage follows temperature, and temperature lags behind a change of clocks as
1 - exp(-t / time constant). What a window still holds of that change is a bias that no interval
shows. The time constant is fitted to temperatures after changes of clocks. Pure.
"""

import math
import statistics
from collections.abc import Iterable, Sequence

import numpy as np

from joulecut_controller.trust.switchback import WARM_UP_S

# 5 % of the change is left then: with 5 K and 0.15 %/K of leakage, and a quarter of a window's
# length as time constant, a hundredth of a point on the saving.
WARM_UP_TIME_CONSTANTS = 3.0
WARM_UP_DOUBLINGS_MAX = 2  # slower changes are those of the room, and cancel
FITTED_S = np.geomspace(5.0, 300.0, 42)  # 10 % apart
CHANGE_CELSIUS_MIN = 1.0  # sensors have whole degrees; a smaller change moves leakage by 0.1 %
SAMPLES_MIN = 10
SPREAD_MIN = 1e-9  # of a curve that is flat over the trace: it fits nothing


def time_constant_s(trace: Sequence[tuple[float, float]]) -> float | None:
    """Of pairs of seconds since a change of clocks and degrees; None where no change shows."""
    if len(trace) < SAMPLES_MIN:
        return None
    at_s, celsius = np.array(trace).T
    falls = np.exp(-at_s / FITTED_S[:, None])
    falls -= falls.mean(axis=1, keepdims=True)
    spread = np.maximum((falls**2).sum(axis=1), SPREAD_MIN)
    slopes = falls @ celsius / spread
    best = int((slopes**2 * spread).argmax())  # what it explains of the scatter
    changed = abs(slopes[best]) * float(np.ptp(falls[best]))
    return float(FITTED_S[best]) if changed >= CHANGE_CELSIUS_MIN else None


def warm_up_s(time_constants_s: Iterable[float | None]) -> float:
    """The usual warm-up, or twice or four times that where the heat sinks are slower.

    In steps of two, so that windows of one job stay comparable and slots seldom move.
    """
    known = [one for one in time_constants_s if one is not None]
    if not known:
        return WARM_UP_S
    wanted_s = WARM_UP_TIME_CONSTANTS * statistics.median(known)
    doublings = math.ceil(math.log2(max(1.0, wanted_s / WARM_UP_S)))
    return float(WARM_UP_S * 2 ** min(doublings, WARM_UP_DOUBLINGS_MAX))
