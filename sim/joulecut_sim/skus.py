"""What a simulated card is made of: its clock table, power physics and sensors.

A number without a measurement behind it says "assumed". Power follows the form fitted to
public sweeps (Kernel Tuner's, PMBS'22): P = P0 + load * c * f * V(f)^2 with
V = 1 + s * max(0, f - f_knee), f in GHz, V relative to its floor.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from joulecut_wire.errors import BadInput


@dataclass(frozen=True, slots=True)
class Sku:
    """One kind of card. Clocks in MHz, powers in watts, `volt_slope` per GHz."""

    name: str
    model: str
    clocks_mhz: tuple[int, ...]  # ascending
    clock_memory_mhz: int
    power_limit_w: float
    power_limit_min_w: float
    power_limit_max_w: float
    idle_power_w: float
    blocking_power_w: float
    static_power_w: float
    load_w_per_ghz: float
    knee_mhz: float
    volt_slope: float
    ambient_celsius: float = 30.0  # assumed: air at the card, warm aisle
    heating_celsius_per_w: float = 0.09  # assumed: 30 + 0.09 * 480 W = 73 C, a usual full load
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


def _table(low: int, high: int) -> tuple[int, ...]:
    return tuple(range(low, high + 1, 15))  # drivers list A100 and A40 clocks in 15 MHz steps


# knee, slope and P0 of both cards: least squares over the GPT-3 175B stage sweeps of the
# Perseus artefact (`joulecut_sim.fit` redoes it); blocking power: the same artefact.
A100_SXM = Sku(
    name="a100-sxm",
    model="NVIDIA A100-SXM4-80GB",
    clocks_mhz=_table(210, 1410),
    clock_memory_mhz=1593,  # NVIDIA's data sheet, 80 GB part
    power_limit_w=500.0,  # the sweeps reach 476-481 W, so theirs was the 500 W variant
    power_limit_min_w=100.0,  # assumed
    power_limit_max_w=500.0,
    idle_power_w=55.0,  # assumed: no public capture of an idle A100 SXM is at hand
    blocking_power_w=83.64,
    static_power_w=41.7,
    load_w_per_ghz=190.0,  # assumed: a little below the GPT-3 stages' 217-229
    knee_mhz=1115.5,
    volt_slope=0.731,
)

A40 = Sku(
    name="a40",
    model="NVIDIA A40",
    clocks_mhz=_table(210, 1740),
    clock_memory_mhz=7251,  # NVIDIA's data sheet: 14.5 Gb/s GDDR6
    power_limit_w=300.0,  # data sheet; binds above about 1440 MHz on the GPT-3 stages
    power_limit_min_w=100.0,  # assumed
    power_limit_max_w=300.0,
    idle_power_w=35.0,  # assumed, below P0 because an idle card drops its memory clock
    blocking_power_w=70.38,
    static_power_w=98.1,
    load_w_per_ghz=95.0,  # the GPT-3 stages' 91-96
    knee_mhz=1132.6,
    volt_slope=0.654,
)

# The cards below have no measured pipeline stages behind them: they serve agents and the
# decoder-layer study. Voltage: same die as the A100 for the A30; Hopper's knee and slope are
# fits to FP64 DGEMM logs of an H100 94 GB and an H200 (few clocks each); others assumed.
V100_PCIE = Sku(
    name="v100-pcie",
    model="Tesla V100-PCIE-16GB",
    # A driver's list has 167 clocks, 7.5 MHz apart and shown as 7 or 8.
    clocks_mhz=tuple(135 + (15 * step) // 2 for step in range(167)),
    clock_memory_mhz=877,  # the only one in that list
    power_limit_w=250.0,  # data sheet
    power_limit_min_w=100.0,  # assumed
    power_limit_max_w=250.0,
    idle_power_w=25.0,  # assumed
    blocking_power_w=50.0,  # assumed: a fifth of the limit
    static_power_w=38.0,  # assumed
    load_w_per_ghz=110.0,  # assumed: reaches the limit near the highest clock
    knee_mhz=1000.0,  # assumed: three quarters of the highest clock, as on the A100
    volt_slope=0.8,  # assumed
    heating_celsius_per_w=0.14,  # assumed: full load at about 65 to 75 C
)

A30 = Sku(
    name="a30",
    model="NVIDIA A30",
    clocks_mhz=_table(210, 1440),
    clock_memory_mhz=1215,  # data sheet
    power_limit_w=165.0,  # data sheet
    power_limit_min_w=100.0,  # assumed
    power_limit_max_w=165.0,
    idle_power_w=28.0,  # assumed
    blocking_power_w=42.0,  # assumed: a quarter of the limit
    static_power_w=30.0,  # assumed
    load_w_per_ghz=85.0,  # assumed: a dense kernel meets the limit near 1.2 GHz
    knee_mhz=1100.0,  # the A100's die: 1073 to 1116 in three sets of measurements
    volt_slope=0.9,  # between the A100's 0.73 (stages) and 1.12 (fp32 FMA)
    heating_celsius_per_w=0.21,  # assumed: full load at about 65 to 75 C
)

H100_SXM = Sku(
    name="h100-sxm",
    model="NVIDIA H100 80GB HBM3",
    clocks_mhz=_table(345, 1980),
    clock_memory_mhz=2619,
    power_limit_w=700.0,  # data sheet
    power_limit_min_w=200.0,
    power_limit_max_w=700.0,
    idle_power_w=72.0,  # captures show 70 to 78 W
    blocking_power_w=140.0,  # assumed: a fifth of the limit
    static_power_w=58.0,  # fit to DGEMM of the 94 GB part
    load_w_per_ghz=240.0,  # 228 there, a little more for the larger limit
    knee_mhz=1000.0,
    volt_slope=0.54,
    heating_celsius_per_w=0.06,  # assumed: full load at about 65 to 75 C
)

H200 = Sku(
    name="h200",
    model="NVIDIA H200",
    clocks_mhz=_table(345, 1980),
    clock_memory_mhz=3201,
    power_limit_w=700.0,  # data sheet
    power_limit_min_w=200.0,
    power_limit_max_w=700.0,
    idle_power_w=75.0,  # captures show 70 to 78 W
    blocking_power_w=140.0,  # assumed
    static_power_w=56.0,  # fit to DGEMM under a 600 W limit
    load_w_per_ghz=270.0,
    knee_mhz=1000.0,
    volt_slope=0.41,
    heating_celsius_per_w=0.06,  # assumed: full load at about 65 to 75 C
)

B200 = Sku(
    name="b200",
    model="NVIDIA B200",
    clocks_mhz=_table(120, 1965),  # assumed: no capture of its list is at hand
    clock_memory_mhz=3996,  # as captures of a B300 show
    power_limit_w=1000.0,  # data sheet
    power_limit_min_w=200.0,  # assumed
    power_limit_max_w=1000.0,
    idle_power_w=140.0,  # assumed: two dies
    blocking_power_w=220.0,  # assumed
    static_power_w=110.0,  # assumed: twice Hopper's
    load_w_per_ghz=410.0,  # assumed
    knee_mhz=1000.0,  # assumed: as on Hopper
    volt_slope=0.45,  # assumed: as on Hopper
    heating_celsius_per_w=0.04,  # assumed: full load at about 65 to 75 C
)

# Cards that pipeline jobs can be simulated on, since their stages were measured ...
SKUS: dict[str, Sku] = {sku.name: sku for sku in (A100_SXM, A40)}
# ... and all that an agent or the decoder-layer study can be given.
CARDS: dict[str, Sku] = {
    sku.name: sku for sku in (A100_SXM, A40, V100_PCIE, A30, H100_SXM, H200, B200)
}


def find(name: str, where: str, among: Mapping[str, Sku] = SKUS) -> Sku:
    """The card of that name. Raises BadInput, which names the choice."""
    try:
        return among[name]
    except KeyError:
        raise BadInput(where, f"no card is called {name!r}", ", ".join(among)) from None
