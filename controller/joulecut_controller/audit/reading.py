"""What an audit sees of each GPU, step by step, wherever it came from.

Live agents and an old Prometheus tell the same things in other words; behind this value nobody
knows which it was. Pure. None is not known, never zero.
"""

from dataclasses import dataclass

NOBODY = ""  # no job is known to hold the GPU
SHARED = "(shared)"  # several do at once: time slices, MIG
UNSEEN = "(unseen)"  # it changed hands while nobody looked

# One name a reason, as the agents' series have them (NVML's clock event reasons).
POWER_CAP = "sw_power_cap"
SETTING = "applications_clocks"
HW_SLOWDOWN = "hw_slowdown"
THERMAL_REASONS = frozenset({"sw_thermal", "hw_thermal"})
POWER_BRAKE = "hw_power_brake"


@dataclass(frozen=True, slots=True)
class Name:
    """What a person calls a GPU. `place` is node and index, empty where nobody says; `top_mhz`
    is the highest clock that its driver lists, 0 where unknown.
    """

    uuid: str
    place: str = ""
    model: str = ""
    top_mhz: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU in one step. `energy_j` is its counter at the end of the step; power, clock and
    the two ratios are means over the step. `work_ratio` is how much of the card is busy (SM or
    tensor activity), `busy_ratio` for how much of the time anything runs. `reasons` is None
    where clock event reasons are not told at all. `on_purpose`: this product holds its clock.
    """

    uuid: str
    owner: str = NOBODY
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
    readings: tuple[Reading, ...]
