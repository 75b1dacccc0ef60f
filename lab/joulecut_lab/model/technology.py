"""Energy of single operations and bits, and what of a GPU's power they explain.

Arithmetic costs a small part of it. The rest moves data: registers, caches, HBM and wires, and
clocks them. Figures marked `recalled` were not read again at their source.
"""

from dataclasses import dataclass

import numpy as np

from joulecut_lab.model.catalogue import SYSTEMS
from joulecut_lab.model.cost import cost_of, rates
from joulecut_lab.model.power import power_of
from joulecut_lab.model.run import Run
from joulecut_lab.model.runs import Runs
from joulecut_lab.model.system import System
from joulecut_lab.model.work import Products, Work

HOROWITZ = "Horowitz, ISSCC 2014"
JOUPPI = "Jouppi et al., ISCA 2021, table 2 (recalled)"


@dataclass(frozen=True, slots=True)
class Energy:
    """pJ of one operation, or of moving 64 bits for memories, at a process in nm."""

    what: str
    nm: int
    pj: float
    source: str

    @property
    def pj_per_bit(self) -> float | None:
        """Of a memory."""
        return self.pj / 64.0 if self.what.endswith("64 bits") else None


OPERATIONS: tuple[Energy, ...] = (
    Energy("int8 add", 45, 0.03, HOROWITZ),
    Energy("int32 add", 45, 0.1, HOROWITZ),
    Energy("fp16 add", 45, 0.4, HOROWITZ),
    Energy("fp32 add", 45, 0.9, HOROWITZ),
    Energy("int8 multiply", 45, 0.2, HOROWITZ),
    Energy("int32 multiply", 45, 3.1, HOROWITZ),
    Energy("fp16 multiply", 45, 1.1, HOROWITZ),
    Energy("fp32 multiply", 45, 3.7, HOROWITZ),
    Energy("SRAM 8 KB, 64 bits", 45, 10.0, HOROWITZ),
    Energy("SRAM 32 KB, 64 bits", 45, 20.0, HOROWITZ),
    Energy("SRAM 1 MB, 64 bits", 45, 100.0, HOROWITZ),
    Energy("DRAM, 64 bits", 45, 1300.0, HOROWITZ),
    Energy("int8 add", 7, 0.007, JOUPPI),
    Energy("int32 add", 7, 0.03, JOUPPI),
    Energy("bf16 add", 7, 0.11, JOUPPI),
    Energy("fp16 add", 7, 0.16, JOUPPI),
    Energy("fp32 add", 7, 0.38, JOUPPI),
    Energy("int8 multiply", 7, 0.07, JOUPPI),
    Energy("int32 multiply", 7, 1.48, JOUPPI),
    Energy("bf16 multiply", 7, 0.21, JOUPPI),
    Energy("fp16 multiply", 7, 0.34, JOUPPI),
    Energy("fp32 multiply", 7, 1.31, JOUPPI),
    Energy("SRAM 8 KB, 64 bits", 7, 7.5, JOUPPI),
    Energy("SRAM 32 KB, 64 bits", 7, 8.5, JOUPPI),
    Energy("SRAM 1 MB, 64 bits", 7, 14.0, JOUPPI),
    Energy("DRAM, 64 bits", 7, 1300.0, JOUPPI + ", DDR4"),
    Energy("HBM2, 64 bits", 7, 450.0, JOUPPI + ", upper end of 250-450"),
)


@dataclass(frozen=True, slots=True)
class Link:
    """pJ of one bit over a link."""

    what: str
    pj_per_bit: float
    source: str


LINKS: tuple[Link, ...] = (
    Link("HBM2", 350.0 / 64.0, JOUPPI + ", middle of 250-450 pJ per 64 bits"),
    Link("NVLink", 1.3, "NVIDIA, NVLink-C2C and NVLink 4 (1.3 pJ/bit)"),
    Link("800 Gb/s transceiver", 20.6, "16.5 W of a data sheet over 800 Gb/s"),
    Link("scale-up, as the model takes it", 2.0, "default of a system: link and switch"),
    Link("scale-out, as the model takes it", 25.0, "default of a system: NIC, optics and switch"),
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """Energy of one instruction's arithmetic, and what fetch, decode and operands add to it."""

    name: str
    what: str
    arithmetic_pj: float
    overhead: float  # of the arithmetic


# Of a 45 nm process. The talk gives 1.5 pJ of arithmetic and 30 pJ of overhead for HFMA.
INSTRUCTIONS: tuple[Instruction, ...] = (
    Instruction("HFMA", "one multiply-add of 16 bits", 1.5, 20.0),
    Instruction("HDP4A", "dot product of four", 6.0, 5.0),
    Instruction("HMMA", "matrix product of 16 bits", 110.0, 0.22),
    Instruction("IMMA", "matrix product of 8-bit integers", 160.0, 0.16),
)


# Years of the data sheets.
_GENERATIONS = {"v100-sxm-32gb": 2017, "a100-sxm-80gb": 2020, "h100-sxm": 2022, "b200": 2024}


ROADMAP_SOURCE = (
    "KAIST Teralab, HBM roadmap 1.7, June 2025 (generations by their HBM; watts of Rubin and of "
    "HBM6 recalled); B300 and GB300: NVIDIA's data sheets"
)
# Power of packages that is not measured: announced by their maker, or a roadmap's claim.
ROADMAP: tuple[tuple[str, int, float, str], ...] = (
    ("B300", 2025, 1400.0, "announced"),
    ("Rubin, HBM4", 2026, 2200.0, "roadmap"),
    ("Feynman, HBM5", 2029, 4400.0, "roadmap"),
    ("after Feynman, HBM6", 2032, 5920.0, "roadmap"),
    ("next generation, HBM7", 2035, 15_360.0, "roadmap"),
)
OUTLOOK = 2030  # the year that the growth of a package's power is carried on to
WIDTHS = (512, 1024, 2048, 4096, 8192, 16384)
TOKENS = 2048
PICO = 1e-12


@dataclass(frozen=True, slots=True)
class Generation:
    """Power limit of a package, peak per watt of it, and the gain over the card before."""

    system: str
    year: int
    limit_w: float
    tflops_per_w: float
    gain: float | None


def generations() -> tuple[Generation, ...]:
    found: list[Generation] = []
    for name, year in _GENERATIONS.items():
        system = SYSTEMS[name]
        rate = system.bf16_tflops / system.power_cap_w
        gain = rate / found[-1].tflops_per_w if found else None
        found.append(Generation(name, year, system.power_cap_w, rate, gain))
    return tuple(found)


def package_w(year: float) -> float:
    """Power per package by least squares of its logarithm; extrapolated after the last card."""
    limits_w = [SYSTEMS[name].power_cap_w for name in _GENERATIONS]
    slope, start = np.polyfit(list(_GENERATIONS.values()), np.log(limits_w), 1)
    return float(np.exp(start + slope * year))


def effective_pj(system: System, width: int, tokens: int = TOKENS) -> float:
    """pJ per FLOP of a product of `tokens` x width by width x 4 width: idle power, memory traffic
    and half-filled processors included. Small layers pay most.
    """
    runs = Runs.of([Run(gpus=1, sequence=tokens)])
    sizes = (np.array([float(n)]) for n in (tokens, width, 4 * width, 1))
    m, k, n, count = sizes
    work = Work(products=[Products(m, k, n, count)], kernels=1.0)
    cost = cost_of(system, rates(system, runs), work, runs).bound_by_host()
    power, clock = power_of(system), np.array([system.clock_max_mhz])
    return float(cost.energy_j(power, clock)[0] / cost.flops[0] / PICO)
