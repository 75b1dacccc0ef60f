"""The clock a prediction would pick under a budget, and where one more probe would help most.

A clock's next-probe value is the energy it would save over today's choice if its times were as
short as its band allows, weighted by the part of the band that the nearest probe leaves open.
A wide band alone is no reason: at a clock that no budget would choose it hides nothing. This is
optimistic search ("expected improvement": Jones, Schonlau, Welch 1998) on bands instead of a
distribution. Between two probes that contradict every curve the band is at least their step.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_cli import figures
from joulecut_engine.estimate.physics import Floats
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_lab.fit.fitted import BUDGETS, Banded, Result
from joulecut_lab.sweep_fit import unexplained

GAIN_MIN = 0.0005  # of the energy at the highest clocks; less is within one measurement's noise


@dataclass(frozen=True, slots=True)
class Choice:
    """A clock, with slowdown and saving against the baseline clock (ratios)."""

    clock_mhz: int
    slowdown_ratio: float
    saved_ratio: float


def choose(predicted: Banded, budget: float, *, known_mhz: tuple[int, ...]) -> Choice:
    """The clock of least predicted energy whose slowdown is within `budget` (a ratio).

    The baseline is the highest predicted clock, and the answer if nothing else fits. No clock
    below `known_mhz` is chosen: errors there are two to ten times as large. Raises ValueError
    without clocks.
    """
    if not predicted.clocks_mhz or not known_mhz:
        raise ValueError("no clock to choose from")
    clocks = np.array(predicted.clocks_mhz)
    base = int(clocks.argmax())
    energy_j = predicted.time_s * predicted.power_w
    limit_s = predicted.time_s[base] * (1.0 + budget)
    fits = (clocks >= min(known_mhz)) & (predicted.time_s <= limit_s)
    fits[base] = True
    pick = int(np.where(fits, energy_j, np.inf).argmin())
    return Choice(
        clock_mhz=int(clocks[pick]),
        slowdown_ratio=float(predicted.time_s[pick] / predicted.time_s[base]) - 1.0,
        saved_ratio=1.0 - float(energy_j[pick] / energy_j[base]),
    )


@dataclass(frozen=True, slots=True)
class NextProbe:
    """`gain_ratio`: how much of the energy at the highest clocks it could save, at most."""

    clock_mhz: int
    gain_ratio: float
    shorter_ratio: float  # how much shorter than predicted its times may be

    @property
    def reason(self) -> str:
        shorter, gain = figures.percent(self.shorter_ratio), figures.percent(self.gain_ratio)
        return (
            f"times {shorter} shorter than predicted are possible there, and would save {gain} more"
        )


def next_probe(fitted: Result) -> NextProbe | None:
    """The most valuable probe above the lowest one; None if none is worth `GAIN_MIN`.

    Means over `BUDGETS`. Ties go to the highest clock, which is the quickest to probe.
    """
    gains_j, shorter = dict[int, float](), dict[int, float]()
    spent_j = 0.0
    for key, predicted in fitted.predicted.items():
        spent_j += float(predicted.time_s[-1] * predicted.power_w[-1])
        jumps = _jumps(predicted, fitted.probed.options.get(key, ()))
        for clock, gain_j, ratio in _hidden(predicted, fitted.probes, jumps):
            gains_j[clock] = gains_j.get(clock, 0.0) + gain_j
            shorter[clock] = max(shorter.get(clock, 0.0), ratio)
    if not gains_j:
        return None
    best = max(gains_j, key=lambda clock: (gains_j[clock], clock))
    gain_ratio = gains_j[best] / spent_j
    return NextProbe(best, gain_ratio, shorter[best]) if gain_ratio >= GAIN_MIN else None


def _jumps(predicted: Banded, probed: Sequence[ClockOption]) -> Floats:
    """How far times may be shorter between two neighbouring probes that no curve joins, by clock.

    Work slows as its clock falls, by at most as much. Logarithms, beyond the bands of both probes;
    another kernel between them makes such a step, and where it lies no fit can know.
    """
    half = dict(
        zip(predicted.clocks_mhz, np.log(predicted.time_s / predicted.time_low_s), strict=True)
    )
    clocks = np.asarray(predicted.clocks_mhz, dtype=np.float64)
    jumps = np.zeros(clocks.size)
    for low, high in itertools.pairwise(sorted(probed)):
        slower = math.log(low.time_s / high.time_s)
        step = max(-slower, slower - math.log(high.clock_mhz / low.clock_mhz))
        between = (clocks > low.clock_mhz) & (clocks < high.clock_mhz)
        jumps[between] = max(0.0, step - half[low.clock_mhz] - half[high.clock_mhz])
    return jumps


def _hidden(
    predicted: Banded, probes: frozenset[int], jumps: Floats
) -> Iterator[tuple[int, float, float]]:
    """Each unprobed clock of an operation, the energy (J) its band hides, and the depth used."""
    own = tuple(clock for clock in predicted.clocks_mhz if clock in probes)
    clocks = np.asarray(predicted.clocks_mhz, dtype=np.float64)
    apart_mhz = np.abs(clocks[:, None] - np.asarray(own, dtype=np.float64)).min(axis=1)
    deep = np.log(predicted.time_s / predicted.time_low_s) * unexplained(
        apart_mhz, float(clocks[-1])
    )
    deep = np.maximum(deep, jumps)
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
