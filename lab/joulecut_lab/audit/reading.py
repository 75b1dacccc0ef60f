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
    the ratios are means over the step. `busy_ratio` and `memory_ratio` are NVML's utilisations:
    for how much of the time a kernel runs, and memory is read or written. `sm_ratio`,
    `tensor_ratio` and `dram_ratio` are DCGM's activities of SMs, tensor pipes and memory.
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
    memory_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None

    @property
    def work_ratio(self) -> float | None:
        """How much of the card is busy."""
        return self.tensor_ratio or self.sm_ratio


@dataclass(frozen=True, slots=True)
class Frame:
    """All GPUs at one moment; `span_s` is how long a step is meant to be."""

    at_s: float
    span_s: float
    readings: tuple[GpuReading, ...]
