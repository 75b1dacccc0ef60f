"""Physics of time and power over a GPU's clock.

Five measured clocks determine the few numbers of this form; a free curve through the same five
is off by several times as much. f is the clock in MHz, in GHz for power and voltage
(Schoonhoven et al., PMBS'22; Wang & Chu):

    f_eff = min(f, f_cap)                              f_cap: where the power cap binds
    t     = t_fmax * ((1 - k) + k * f_max / f_eff)     k: share of the time that follows f
    P     = P0 + c * f_eff * V(f_eff)^2                V = 1 + s * max(0, f_eff - f_knee)

V belongs to the GPU, so all curves fitted together share `f_knee` and `s`: on the public A100 and
A40 sweeps that halves the power error from five clocks. The power's f_cap lies above the time's
(`power_lead`): a card at its limit slows its hungriest kernels first, so average power still rises
where time no longer falls. A `Prior` counts as one more measurement of each number; with one, two
clocks of new work are enough.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MHZ_PER_GHZ = 1000.0
# Sd of the lead, a logarithm; up to 6 % were seen (A40 backwards: time is flat from 1470 MHz,
# power from 1560), on A100s 2-3 %.
LEAD_SD = 0.018


@dataclass(frozen=True, slots=True)
class Sweep:
    """Measurements of one kind of work: arrays of shape (n,), n >= 1, finite and above 0."""

    clocks_mhz: Floats
    time_s: Floats
    power_w: Floats

    def __post_init__(self) -> None:
        arrays = (self.clocks_mhz, self.time_s, self.power_w)
        if len({a.shape for a in arrays}) != 1 or arrays[0].ndim != 1 or not arrays[0].size:
            raise ValueError("clocks, times and powers must be arrays of one length")
        if not all(np.isfinite(a).all() and (a > 0.0).all() for a in arrays):
            raise ValueError("clocks, times and powers must be finite and above 0")


@dataclass(frozen=True, slots=True)
class Prior:
    """Prior mean of each number of a card; `_sd` is its standard deviation in the same unit.

    `None` means the prior of any card. `cap_w` is the power limit that holds the card.
    """

    knee_mhz: float | None = None
    knee_sd_mhz: float = 50.0
    slope_per_ghz: float | None = None
    slope_sd: float = 0.15
    static_w: float | None = None
    static_sd_w: float = 10.0
    cap_w: float = float("inf")
    cap_sd: float = 0.02  # relative
    cap_mhz: float | None = None  # at which other work of the card meets the cap
    cap_sd_mhz: float = 50.0
    cap_load_w_per_ghz: float | None = None  # c of that work; a hungrier one meets it lower
    clocked: float | None = None
    clocked_sd: float = 0.2
    lead: float = 0.0  # of the power's cap over the time's, a logarithm
    lead_sd: float = LEAD_SD


@dataclass(frozen=True, slots=True)
class Physics:
    """One fitted curve. `clock_cap_mhz` is infinite without a cap."""

    clock_max_mhz: float
    time_fmax_s: float  # at `clock_max_mhz`, without the cap
    clock_share: float  # k
    power_static_w: float  # P0
    power_w_per_ghz: float  # c
    voltage_slope_per_ghz: float  # s
    clock_knee_mhz: float
    clock_cap_mhz: float = float("inf")
    power_lead: float = 0.0  # how much further power follows the clock; a logarithm

    @property
    def power_cap_mhz(self) -> float:
        """Clock above which power is constant."""
        return self.clock_cap_mhz * float(np.exp(self.power_lead))

    def time_s(self, clocks_mhz: Floats) -> Floats:
        """Seconds at each clock; same shape as `clocks_mhz`, which is above 0."""
        stretch = self.clock_max_mhz / np.minimum(clocks_mhz, self.clock_cap_mhz)
        return self.time_fmax_s * ((1.0 - self.clock_share) + self.clock_share * stretch)

    def power_w(self, clocks_mhz: Floats) -> Floats:
        """Watts at each clock; same shape as `clocks_mhz`, which is above 0."""
        effective_mhz = np.minimum(clocks_mhz, self.power_cap_mhz)
        shape = switching(effective_mhz, self.clock_knee_mhz, self.voltage_slope_per_ghz)
        return self.power_static_w + self.power_w_per_ghz * shape


NO_PRIOR = Prior()


def switching(
    clocks_mhz: Floats, knee_mhz: Floats | float, slope_per_ghz: Floats | float
) -> Floats:
    """f * V(f)^2 in GHz; dynamic power is proportional to it."""
    over_ghz = np.maximum(0.0, clocks_mhz - knee_mhz) / MHZ_PER_GHZ
    return np.asarray(clocks_mhz / MHZ_PER_GHZ * (1.0 + slope_per_ghz * over_ghz) ** 2)
