"""Readings of each GPU, step by step: one form for live agents and for a Prometheus.

None means unknown, never zero. Pure.
"""

from dataclasses import dataclass, replace
from typing import Any

NO_OWNER = ""  # no job is known to hold the GPU
SHARED = "(shared)"  # several do at once: time slices, MIG
UNSEEN = "(unseen)"  # reassigned between samples

# One name a reason, as the agents' series have them (NVML's clock event reasons).
POWER_CAP = "sw_power_cap"
SETTING = "applications_clocks"
HW_SLOWDOWN = "hw_slowdown"
THERMAL_REASONS = frozenset({"sw_thermal", "hw_thermal"})
POWER_BRAKE = "hw_power_brake"


POWER_W_MAX = 5_000.0  # no board draws more
COUNTER_J_MAX = POWER_W_MAX * 30 * 365.25 * 86_400.0  # since the driver was loaded
_RATIOS = ("busy_ratio", "engine_ratio", "sm_ratio", "tensor_ratio", "dram_ratio", "memory_ratio")
# What each reading can be; DCGM writes 1.4e14 and 9.2e18 for "no value".
POSSIBLE: dict[str, tuple[float, float]] = {
    "energy_j": (0.0, COUNTER_J_MAX),
    "power_w": (0.0, POWER_W_MAX),
    "power_limit_w": (0.0, POWER_W_MAX),
    "clock_mhz": (0.0, 10_000.0),
    **dict.fromkeys(_RATIOS, (0.0, 1.05)),  # a mean of rounded samples
}
AT_WORK = 0.5  # of the time, by any sign of work
AT_REST = 0.05


@dataclass(frozen=True, slots=True)
class GpuName:
    """Labels of a GPU. `place` is node and index, empty where unknown; `top_mhz` is the highest
    clock that its driver lists, 0 where unknown.
    """

    uuid: str
    place: str = ""
    model: str = ""
    top_mhz: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU in one step. `energy_j` is its counter at the end of the step; power, clock and
    the ratios are means over the step. `busy_ratio` and `memory_ratio` are NVML's utilisations:
    for how much of the time a kernel runs, and memory is read or written. `sm_ratio`,
    `engine_ratio`, `tensor_ratio` and `dram_ratio` are DCGM's activities of graphics engine, SMs,
    tensor pipes and memory.
    `reasons` is None where clock event reasons are not exported. `on_purpose`: this product holds
    its clock.
    """

    uuid: str
    owner: str = NO_OWNER
    energy_j: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    busy_ratio: float | None = None
    sm_ratio: float | None = None
    reasons: frozenset[str] | None = None
    power_limit_w: float | None = None
    on_purpose: bool = False
    engine_ratio: float | None = None
    memory_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None

    @property
    def work_ratio(self) -> float | None:
        """How much of the card is busy."""
        return self.tensor_ratio or self.sm_ratio

    @property
    def contradiction(self) -> str:
        """Two signs of work of which one says none and another much; "" where they agree."""
        known = {name: one for name in _RATIOS[:3] if (one := getattr(self, name)) is not None}
        if not known or min(known.values()) > AT_REST or max(known.values()) < AT_WORK:
            return ""
        low, high = (pick(known, key=lambda name: known[name]) for pick in (min, max))
        if low == "sm_ratio":  # a kernel that waits for others keeps the engine, and no SM
            return ""
        return f"{low.removesuffix('_ratio')} says at rest, {high.removesuffix('_ratio')} at work"


def believed(reading: GpuReading) -> tuple[GpuReading, tuple[str, ...]]:
    """A reading without the figures that cannot be, with the strongest sign of work as its
    `busy_ratio`, and the names of those figures.
    """
    impossible = tuple(
        name
        for name, (low, high) in POSSIBLE.items()
        if (value := getattr(reading, name)) is not None and not low <= value <= high
    )
    if impossible:
        nothing: dict[str, Any] = dict.fromkeys(impossible)
        reading = replace(reading, **nothing)
    signs = [one for name in _RATIOS[:3] if (one := getattr(reading, name)) is not None]
    return replace(reading, busy_ratio=min(1.0, max(signs)) if signs else None), impossible


@dataclass(frozen=True, slots=True)
class Frame:
    """All GPUs at one moment; `span_s` is how long a step is meant to be."""

    at_s: float
    span_s: float
    readings: tuple[GpuReading, ...]
