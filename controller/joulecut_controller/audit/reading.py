"""Readings of each GPU, step by step: one form for live agents and for a Prometheus.

None means unknown, never zero. Pure.
"""

from dataclasses import dataclass

NO_OWNER = ""  # no job is known to hold the GPU
SHARED = "(shared)"  # several do at once: time slices, MIG
UNSEEN = "(unseen)"  # reassigned between samples

# One name a reason, as the agents' series have them (NVML's clock event reasons).
POWER_CAP = "sw_power_cap"
SETTING = "applications_clocks"
HW_SLOWDOWN = "hw_slowdown"
THERMAL_REASONS = frozenset({"sw_thermal", "hw_thermal"})
POWER_BRAKE = "hw_power_brake"


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
    the two ratios are means over the step. `work_ratio` is how much of the card is busy (SM or
    tensor activity), `busy_ratio` for how much of the time anything runs. `reasons` is None
    where clock event reasons are not exported. `on_purpose`: this product holds its clock.
    """

    uuid: str
    owner: str = NO_OWNER
    energy_j: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    busy_ratio: float | None = None
    work_ratio: float | None = None
    reasons: frozenset[str] | None = None
    power_limit_w: float | None = None
    on_purpose: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """All GPUs at one moment; `span_s` is how long a step is meant to be."""

    at_s: float
    span_s: float
    readings: tuple[GpuReading, ...]
