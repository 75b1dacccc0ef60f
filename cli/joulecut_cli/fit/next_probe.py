"""Where one more probe would tell most: the clock whose band hides most energy.

A wide band alone is no reason: at a clock that nobody would choose it hides nothing, and
beside a probed one little that the probe did not show. So a clock counts by what it would
save over what is chosen now, if its times were as short as its band allows, for the part
that the nearest probe does not tell. That is optimistic search ("expected improvement":
Jones, Schonlau, Welch 1998) without a distribution: bands are all that is known.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from joulecut_cli import figures
from joulecut_cli.fit.fitted import BUDGETS, Result
from joulecut_engine.estimate.bands import untold
from joulecut_engine.estimate.choice import choose
from joulecut_engine.estimate.estimator import Prediction

GAIN_MIN = (
    0.0005  # of the energy at the highest clocks; less is lost in the noise of one measurement
)


@dataclass(frozen=True, slots=True)
class NextProbe:
    """`gain_ratio`: how much of the energy at the highest clocks it could save, at most."""

    clock_mhz: int
    gain_ratio: float
    shorter_ratio: float  # how much shorter than predicted its times may be for all we know

    @property
    def reason(self) -> str:
        shorter, gain = figures.percent(self.shorter_ratio), figures.percent(self.gain_ratio)
        return (
            f"times {shorter} shorter than predicted are possible there, and would save {gain} more"
        )


def next_probe(fitted: Result) -> NextProbe | None:
    """None where no clock from the lowest probed one up hides `GAIN_MIN` or more.

    Means over `BUDGETS`. Of clocks that hide the same, the highest: it is the quickest to probe.
    """
    gains_j, shorter = dict[int, float](), dict[int, float]()
    spent_j = 0.0
    for predicted in fitted.predicted.values():
        spent_j += float(predicted.time_s[-1] * predicted.power_w[-1])
        for clock, gain_j, ratio in _hidden(predicted, fitted.probes):
            gains_j[clock] = gains_j.get(clock, 0.0) + gain_j
            shorter[clock] = max(shorter.get(clock, 0.0), ratio)
    if not gains_j:
        return None
    best = max(gains_j, key=lambda clock: (gains_j[clock], clock))
    gain_ratio = gains_j[best] / spent_j
    return NextProbe(best, gain_ratio, shorter[best]) if gain_ratio >= GAIN_MIN else None


def _hidden(predicted: Prediction, probes: frozenset[int]) -> Iterator[tuple[int, float, float]]:
    """Of one operation: each unprobed clock, the energy (J) its band hides, and how deep it is."""
    own = tuple(clock for clock in predicted.clocks_mhz if clock in probes)
    clocks = np.asarray(predicted.clocks_mhz, dtype=np.float64)
    apart_mhz = np.abs(clocks[:, None] - np.asarray(own, dtype=np.float64)).min(axis=1)
    deep = np.log(predicted.time_s / predicted.time_low_s) * untold(apart_mhz, float(clocks[-1]))
    short_s = predicted.time_s * np.exp(-deep)
    energy_j, least_j = (time_s * predicted.power_w for time_s in (predicted.time_s, short_s))
    gain_j = np.zeros(clocks.size)
    for budget in BUDGETS:
        chosen = predicted.clocks_mhz.index(choose(predicted, budget, known_mhz=own).clock_mhz)
        within = short_s <= predicted.time_s[-1] * (1.0 + budget)
        gain_j += np.where(within, np.maximum(0.0, energy_j[chosen] - least_j), 0.0) / len(BUDGETS)
    for i, clock in enumerate(predicted.clocks_mhz):
        if clock not in probes and clock > own[0]:
            yield clock, float(gain_j[i]), 1.0 - math.exp(-float(deep[i]))
