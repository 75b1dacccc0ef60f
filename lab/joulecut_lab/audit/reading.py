"""Readings of each GPU, step by step. None means unknown, never zero. Pure."""

from dataclasses import dataclass, field, replace
from typing import Any

NO_OWNER = ""  # no job is known to hold the GPU
SHARED = "(shared)"  # several do at once: time slices, MIG
UNSEEN = "(unseen)"  # reassigned between samples

POWER_W_MAX = 5_000.0  # no board draws more
COUNTER_J_MAX = POWER_W_MAX * 30 * 365.25 * 86_400.0  # since the driver was loaded
_SIGNS = ("busy_ratio", "engine_ratio", "sm_ratio", "tensor_ratio", "dram_ratio")  # of work
# What each reading can be; DCGM writes 1.4e14 and 9.2e18 for "no value".
POSSIBLE: dict[str, tuple[float, float]] = {
    "energy_j": (0.0, COUNTER_J_MAX),
    "power_w": (1.0, POWER_W_MAX),  # 0 stands for no value: no board draws nothing
    "power_limit_w": (0.0, POWER_W_MAX),
    "clock_mhz": (0.0, 10_000.0),
    **dict.fromkeys((*_SIGNS, "memory_ratio"), (0.0, 1.05)),  # a mean of rounded samples
}
OVER_LIMIT = 2.0  # a mean over a step; peaks of a millisecond are below it
# Of the time, by any sign of work, and of the power limit: boards at rest take 10 to 25 % of it.
AT_WORK, AT_REST = 0.5, 0.05


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU in one step. `energy_j` is its counter at the end of the step; power, clock and
    the ratios are means over the step. `busy_ratio` and `memory_ratio` are NVML's utilisations:
    for how much of the time a kernel runs, and memory is read or written. `sm_ratio`,
    `engine_ratio`, `tensor_ratio` and `dram_ratio` are DCGM's activities of graphics engine, SMs,
    tensor pipes and memory.
    `on_purpose`: this product holds its clock.
    """

    uuid: str
    owner: str = NO_OWNER
    energy_j: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    busy_ratio: float | None = None
    sm_ratio: float | None = None
    power_limit_w: float | None = None
    on_purpose: bool = False
    engine_ratio: float | None = None
    memory_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None

    @property
    def contradiction(self) -> str:
        """Two signs of work of which one says none and another much; "" where they agree."""
        known = {name: one for name in _SIGNS if (one := getattr(self, name)) is not None}
        if self.power_w is not None and self.power_limit_w:
            known["power"] = self.power_w / self.power_limit_w
        # A kernel that waits for others keeps the engine busy, and no SM.
        whole = known.keys() & {"busy_ratio", "engine_ratio", "power"}
        if not whole or max(known.values()) < AT_WORK:
            return ""
        low, high = min(whole, key=known.__getitem__), max(known, key=known.__getitem__)
        if known[low] > AT_REST:
            return ""
        return f"{low.removesuffix('_ratio')} says at rest, {high.removesuffix('_ratio')} at work"


def believed(reading: GpuReading) -> tuple[GpuReading, tuple[str, ...], str]:
    """A reading without the figures that cannot be, with the strongest sign of work as its
    `busy_ratio`; the names of those figures; and how the others contradict each other.
    """
    limit_w = reading.power_limit_w or POWER_W_MAX
    highest = {"power_w": OVER_LIMIT * limit_w if 0.0 < limit_w < POWER_W_MAX else POWER_W_MAX}
    impossible = tuple(
        name
        for name, (low, high) in POSSIBLE.items()
        if (value := getattr(reading, name)) is not None
        and not low <= value <= highest.get(name, high)
    )
    if impossible:
        nothing: dict[str, Any] = dict.fromkeys(impossible)
        reading = replace(reading, **nothing)
    signs = [one for name in _SIGNS if (one := getattr(reading, name)) is not None]
    busy = min(1.0, max(signs)) if signs else None
    return replace(reading, busy_ratio=busy), impossible, reading.contradiction


@dataclass(slots=True)
class Means:
    """Weighted means of figures, by name; an unknown value counts nothing."""

    _sums: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, name: str, value: float | None, weight: float = 1.0) -> None:
        if value is not None:
            total, whole = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = total + value * weight, whole + weight

    def mean(self, name: str) -> float | None:
        """None where no value is known."""
        total, whole = self._sums.get(name, (0.0, 0.0))
        return total / whole if whole else None


@dataclass(frozen=True, slots=True)
class Frame:
    """All GPUs at one moment; `span_s` is how long a step is meant to be."""

    at_s: float
    span_s: float
    readings: tuple[GpuReading, ...]
