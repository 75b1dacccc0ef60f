"""What a simulated card is made of: its clock table, power physics and sensors.

Clocks and limits are facts of `joulecut_engine.datasheets`. A number of physics without a
measurement behind it says "assumed". Power follows the form fitted to public sweeps (Kernel
Tuner's, PMBS'22): P = P0 + load * c * f * V(f)^2 with V = 1 + s * max(0, f - f_knee), f in GHz,
V relative to its floor.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from joulecut_engine.datasheets import SHEETS, DataSheet
from joulecut_wire.errors import BadInput


@dataclass(frozen=True, slots=True)
class Sku:
    """One kind of card. Clocks in MHz, powers in watts, `volt_slope` per GHz."""

    sheet: DataSheet
    name: str
    model: str
    clocks_mhz: tuple[int, ...]  # ascending
    clock_memory_mhz: int
    power_limit_min_w: float
    power_limit_w: float
    idle_power_w: float
    blocking_power_w: float
    static_power_w: float
    load_w_per_ghz: float
    knee_mhz: float
    volt_slope: float
    heating_celsius_per_w: float
    power_limit_max_w: float
    ambient_celsius: float = 30.0  # assumed: air at the card, warm aisle
    heating_s: float = 20.0  # assumed: time constant of a heat sink in an air stream

    @property
    def clock_min_mhz(self) -> int:
        return self.clocks_mhz[0]

    @property
    def clock_max_mhz(self) -> int:
        return self.clocks_mhz[-1]

    def voltage(self, clock_mhz: float) -> float:
        """Core voltage relative to its floor."""
        return 1.0 + self.volt_slope * max(0.0, (clock_mhz - self.knee_mhz) / 1000.0)

    def load_power_w(self, clock_mhz: float, load_ratio: float) -> float:
        """Watts at a clock under `load_ratio` (1: a dense training kernel), before any cap."""
        swing = self.load_w_per_ghz * clock_mhz / 1000.0 * self.voltage(clock_mhz) ** 2
        return max(self.idle_power_w, self.static_power_w + load_ratio * swing)

    def cap_clock_mhz(self, load_ratio: float, limit_w: float) -> int:
        """The highest supported clock whose power stays within the limit."""
        for clock in reversed(self.clocks_mhz):
            if self.load_power_w(clock, load_ratio) <= limit_w:
                return clock
        return self.clock_min_mhz


# Full load of air-cooled cards settles at about 65 to 75 C (assumed): 30 C of air and this rise.
_RISE_CELSIUS = 42.0


def _sku(name: str, *, power_limit_w: float = 0.0, **physics: float) -> Sku:
    """The card of that data sheet; `power_limit_w` of a variant with another limit."""
    sheet = SHEETS[name]
    limit_w = power_limit_w or sheet.limit_w
    return Sku(
        sheet, sheet.name, sheet.model, sheet.clocks_mhz, sheet.memory_mhz, sheet.limits_w[0],
        limit_w, power_limit_max_w=max(limit_w, sheet.limits_w[2]),
        heating_celsius_per_w=_RISE_CELSIUS / limit_w, **physics,
    )  # fmt: skip


# knee, slope and P0 of both cards: least squares over the GPT-3 175B stage sweeps of the
# Perseus artefact (`benchmarks/simulator/fit.py` redoes it); blocking power: the same artefact.
A100_SXM = _sku(
    "a100-sxm",
    power_limit_w=500.0,  # the sweeps reach 476-481 W, so theirs was the 500 W variant
    idle_power_w=55.0,  # assumed: no public capture of an idle A100 SXM is at hand
    blocking_power_w=83.64,
    static_power_w=41.7,
    load_w_per_ghz=190.0,  # assumed: a little below the GPT-3 stages' 217-229
    knee_mhz=1115.5,
    volt_slope=0.731,
)

A40 = _sku(
    "a40",  # its limit binds above about 1440 MHz on the GPT-3 stages
    idle_power_w=35.0,  # assumed, below P0 because an idle card drops its memory clock
    blocking_power_w=70.38,
    static_power_w=98.1,
    load_w_per_ghz=95.0,  # the GPT-3 stages' 91-96
    knee_mhz=1132.6,
    volt_slope=0.654,
)

# The cards below have no measured pipeline stages behind them: they are shaped by public data, and
# their stages are the A100's, carried over (`gpt3`). Voltage: same die as the A100 for the A30;
# Hopper's knee and slope are fits to FP64 DGEMM logs of an H100 94 GB and an H200 (few clocks each;
# arXiv 2607.00819, 2026); others assumed. Blocking power: assumed, a fifth of the limit as on A100
# and A40, unless said.
V100_PCIE = _sku(
    "v100-pcie",
    idle_power_w=25.0,  # assumed
    blocking_power_w=50.0,
    static_power_w=38.0,  # assumed
    load_w_per_ghz=110.0,  # assumed: reaches the limit near the highest clock
    knee_mhz=1000.0,  # assumed: three quarters of the highest clock, as on the A100
    volt_slope=0.8,  # assumed
)

A30 = _sku(
    "a30",
    idle_power_w=28.0,  # assumed
    blocking_power_w=42.0,  # assumed: a quarter of the limit
    static_power_w=30.0,  # assumed
    load_w_per_ghz=85.0,  # assumed: a dense kernel meets the limit near 1.2 GHz
    knee_mhz=1100.0,  # the A100's die: 1073 to 1116 in three sets of measurements
    volt_slope=0.9,  # between the A100's 0.73 (stages) and 1.12 (fp32 FMA)
)

H100_SXM = _sku(
    "h100-sxm",  # a dense kernel is held at about 1,560 MHz
    idle_power_w=72.0,  # captures show 70 to 78 W (nvidia-smi -q, 2026)
    blocking_power_w=140.0,
    static_power_w=58.0,  # fit to DGEMM of the 94 GB part
    load_w_per_ghz=240.0,  # 228 there, a little more for the larger limit
    knee_mhz=1000.0,
    volt_slope=0.54,
)

H200 = _sku(
    "h200",  # held at about 1,560 MHz: public, it cannot hold 1,830 MHz (TileOPs issue 1587, 2026)
    idle_power_w=75.0,  # captures show 70 to 78 W (nvidia-smi -q, 2026)
    blocking_power_w=140.0,
    static_power_w=56.0,  # fit to DGEMM under a 600 W limit
    load_w_per_ghz=270.0,
    knee_mhz=1000.0,
    volt_slope=0.41,
)

B200 = _sku(
    "b200",
    idle_power_w=140.0,  # assumed: two dies
    blocking_power_w=220.0,
    static_power_w=110.0,  # assumed: twice Hopper's
    load_w_per_ghz=410.0,  # assumed
    knee_mhz=1000.0,  # assumed: as on Hopper
    volt_slope=0.45,  # assumed: as on Hopper
)

# Public runs of a B300 (gpu-power-lab, 2026): all five of training were held at the limit, at mean
# clocks of 1,422 to 1,724 MHz; limits of 450, 550 and 700 W gave 926, 1,152 and 1,457 MHz, in
# proportion, so the voltage leaves its floor late. A dense kernel is held at about 1,540 MHz here.
B300 = _sku(
    "b300",
    idle_power_w=150.0,  # assumed: 184 W were seen at 2,032 MHz without work
    blocking_power_w=240.0,
    static_power_w=110.0,  # assumed: as B200
    load_w_per_ghz=480.0,  # of the runs of training
    knee_mhz=1200.0,
    volt_slope=0.45,  # assumed: as on Hopper
)

GB200 = _sku(
    "gb200",  # B200's die, with more processors and a larger limit
    idle_power_w=145.0,  # assumed
    blocking_power_w=260.0,
    static_power_w=110.0,  # assumed: as B200
    load_w_per_ghz=420.0,  # assumed: B200's, with 152 instead of 148 processors
    knee_mhz=1000.0,  # assumed: as on Hopper
    volt_slope=0.45,  # assumed: as on Hopper
)

# Large products in bf16 reach 708 of 1,307 TFLOP/s, with software at 94 % of what the clock gives
# (AMD, "Measuring Max-Achievable FLOPs, part 2", 2025): held at about 1,210 MHz, as here.
MI300X = _sku(
    "mi300x",
    idle_power_w=140.0,  # assumed: a usual reading of rocm-smi
    blocking_power_w=170.0,
    static_power_w=110.0,  # assumed
    load_w_per_ghz=440.0,
    knee_mhz=1000.0,  # assumed: as on Hopper
    volt_slope=0.45,  # assumed: as on Hopper
)

CARDS: dict[str, Sku] = {
    sku.name: sku
    for sku in (
        A100_SXM, A40, V100_PCIE, A30, H100_SXM, H200, B200, B300, GB200, MI300X,
    )
}  # fmt: skip


def find(name: str, where: str, among: Mapping[str, Sku] = CARDS) -> Sku:
    """The card of that name. Raises BadInput, which names the choice."""
    try:
        return among[name]
    except KeyError:
        raise BadInput(where, f"no card is called {name!r}", ", ".join(among)) from None
