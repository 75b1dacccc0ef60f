"""Effect of one component's clock on time and energy of a run: cores, HBM, scale-up, scale-out.

A component that runs faster delivers proportionally more and needs more voltage, so that its
energy per operation or bit rises with the square of it. Idle power does not change: a shorter
iteration spends less of it. The power limit is lifted, so that every effect is the component's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from joulecut_lab.model import formula
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.power import explicit
from joulecut_lab.model.run import Run
from joulecut_lab.model.system import System

Component = Literal["sm", "hbm", "scale_up", "scale_out"]
COMPONENTS: tuple[Component, ...] = get_args(Component)
NAMES = {"sm": "SM", "hbm": "HBM", "scale_up": "scale-up", "scale_out": "scale-out"}
STEP = 0.01  # of a clock, either way, for a derivative
# Relative voltage per relative clock of HBM and links. Assumed: that of SMs between knee and
# highest clock, 0.64 (H100) to 0.87 (A100) at the top and 0 below the knee.
VOLTAGE_SHARE = 0.5
NO_LIMIT_W = 1e9


@dataclass(frozen=True, slots=True)
class Scaled:
    """A run with one component at `factor` times its clock."""

    factor: float
    iteration_time_s: float
    energy_j: float
    host_j: float

    @property
    def total_j(self) -> float:
        return self.energy_j + self.host_j


@dataclass(frozen=True, slots=True)
class Marginal:
    """Relative change of time, energy of the GPUs, and energy with hosts, per relative change of a
    component's clock: -0.3 means that 1 % more clock saves 0.3 %.
    """

    component: Component
    time: float
    energy: float
    total: float


def marginal(architecture: Architecture, system: System, run: Run) -> tuple[Marginal, ...]:
    """Of every component, at today's clocks."""
    found = []
    for component in COMPONENTS:
        low, high = scale(architecture, system, run, component, (1.0 - STEP, 1.0 + STEP))
        names = ("iteration_time_s", "energy_j", "total_j")
        changes = (_elasticity(getattr(low, name), getattr(high, name)) for name in names)
        found.append(Marginal(component, *changes))
    return tuple(found)


def scale(
    architecture: Architecture,
    system: System,
    run: Run,
    component: Component,
    factors: Sequence[float],
) -> tuple[Scaled, ...]:
    """The run at several clocks of one component; factors are above 0."""
    held_mhz = formula.estimate(architecture, system, run).clock_mhz
    free = _unlimited(system)
    found = []
    for factor in factors:
        changed, clock_mhz = _changed(free, component, factor, held_mhz)
        one = formula.estimate(architecture, changed, replace(run, clock_mhz=clock_mhz))
        found.append(Scaled(factor, one.iteration_time_s, one.energy_j, one.host_j))
    return tuple(found)


def voltage(factor: float) -> float:
    """Of HBM and links, relative to today's. Constant below it: they run near their knee."""
    return 1.0 + VOLTAGE_SHARE * max(0.0, factor - 1.0)


def _unlimited(system: System) -> System:
    """The same without a power limit."""
    return replace(
        explicit(system),
        power_cap_w=NO_LIMIT_W,
        knee_mhz=system.knee_clock_mhz,
        clock_peak_mhz=system.peak_clock_mhz,
    )


def _changed(
    system: System, component: Component, factor: float, clock_mhz: float
) -> tuple[System, float]:
    """The system and the SM clock with one component faster or slower."""
    if component == "sm":
        return system, clock_mhz * factor
    rate, bit = f"{component}_gb_s", f"{component}_pj_per_bit"
    changed: dict[str, Any] = {
        rate: getattr(system, rate) * factor,
        bit: getattr(system, bit) * voltage(factor) ** 2,
    }
    return replace(system, **changed), clock_mhz


def _elasticity(low: float, high: float) -> float:
    """d ln y / d ln x by the central difference."""
    return float((np.log(high) - np.log(low)) / (np.log1p(STEP) - np.log1p(-STEP)))
