"""Power of a GPU by what it does.

Energy per FLOP follows the square of the voltage, which rises above the knee (Schoonhoven et al.,
PMBS'22). A GPU that waits, for a link, its host, its memory or another stage, keeps its units
clocked: that power follows f * V^2. Idle power, bytes and bits cost the same at every clock.
"""

from dataclasses import dataclass, replace

import numpy as np

from joulecut_engine.estimate.physics import switching
from joulecut_lab.model.runs import Floats
from joulecut_lab.model.system import System

# Blocking power over the power limit: 83.64 of 400 W (A100 SXM), 70.38 of 300 W (A40); Perseus
# artifact, SOSP'24.
WAITING_SHARE = 0.22
# pJ per FLOP at the knee over power limit / peak of 16 bits: an A100 SXM stage of GPT-3 draws 475 W
# at 1,410 MHz and 0.6 of its peak (Perseus artifact) and gives 1.1; an H100 SXM held at 700 W and
# 1.45 GHz by large products gives 0.9.
COMPUTE_SHARE = 1.0
MHZ_PER_GHZ = 1000.0
PICO = 1e-12


@dataclass(frozen=True, slots=True)
class Power:
    """The power numbers of a system with its defaults filled in."""

    idle_w: float
    waiting_w: float
    flop_j: float  # 16 bits, at the knee
    hbm_bit_j: float
    up_bit_j: float
    out_bit_j: float
    knee_mhz: float
    slope_per_ghz: float
    clock_max_mhz: float

    def voltage_square(self, clock_mhz: Floats) -> Floats:
        """V^2 over that at the knee."""
        over = np.maximum(0.0, clock_mhz - self.knee_mhz) / MHZ_PER_GHZ
        return np.asarray((1.0 + self.slope_per_ghz * over) ** 2)

    def waiting_over_idle_w(self, clock_mhz: Floats) -> Floats:
        top = switching(np.array(self.clock_max_mhz), self.knee_mhz, self.slope_per_ghz)
        here = switching(clock_mhz, self.knee_mhz, self.slope_per_ghz)
        return (self.waiting_w - self.idle_w) * here / top


def power_of(system: System) -> Power:
    share = COMPUTE_SHARE * system.power_cap_w / system.bf16_tflops
    return Power(
        idle_w=system.idle_w,
        waiting_w=max(system.idle_w, system.waiting_w or WAITING_SHARE * system.power_cap_w),
        flop_j=(system.compute_pj_per_flop or share) * PICO,
        hbm_bit_j=system.hbm_pj_per_bit * PICO,
        up_bit_j=system.scale_up_pj_per_bit * PICO,
        out_bit_j=system.scale_out_pj_per_bit * PICO,
        knee_mhz=system.knee_clock_mhz,
        slope_per_ghz=system.voltage_slope_per_ghz,
        clock_max_mhz=system.clock_max_mhz,
    )


def explicit(system: System) -> System:
    """The same, with the numbers written out that defaults derive from the power limit: a lower
    limit changes neither the energy of a FLOP nor what a GPU draws while it waits.
    """
    power = power_of(system)
    pico = power.flop_j / PICO
    return replace(system, waiting_w=power.waiting_w, compute_pj_per_flop=pico)


def blocking_power_w(system: System, clock_mhz: float = 0.0) -> float:
    """What one GPU draws while it waits for others."""
    power = power_of(system)
    clock = np.array(clock_mhz or system.clock_max_mhz)
    return float(power.idle_w + power.waiting_over_idle_w(clock))


def memory_slowdown(system: System, clock_mhz: Floats) -> Floats:
    """Time of memory-bound kernels over that at the highest clock."""
    share = system.memory_clock_share
    return np.asarray(1.0 - share + share * system.clock_max_mhz / clock_mhz)
