"""GPUs that are slower than the others of their job in the same steps, with the cause that their
driver names. Pure; memory per GPU does not grow with time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from joulecut_lab.audit.finding import Cause, SlowGpu
from joulecut_lab.audit.reading import (
    HW_SLOWDOWN,
    POWER_BRAKE,
    POWER_CAP,
    SETTING,
    THERMAL_REASONS,
    GpuName,
    GpuReading,
)

BUSY_RATIO = 0.5  # "at work" in a step
# Two steps of a clock table (15 MHz of 1410) and the averaging over a step stay below.
SLOW_RATIO = 0.03
MEMBERS_MIN = 3  # of two that differ, neither is known to be the usual one
SLOW_SHARE_MIN = 0.1  # of its busy time: a minute of warming up does not count
STEPS_MIN = 3.0
REASON_SHARE_MIN = 0.25  # of the slow time, to be its cause

# Gravest first; the hardware's general bit comes with the particular ones, so it is last of them.
CAUSES: tuple[tuple[frozenset[str], Cause], ...] = (
    (frozenset({POWER_BRAKE}), "power brake"),
    (THERMAL_REASONS, "thermal"),
    (frozenset({HW_SLOWDOWN}), "hardware slowdown"),
    (frozenset({POWER_CAP}), "power cap"),
    (frozenset({SETTING}), "clock lock"),
)


def working(reading: GpuReading) -> bool:
    return reading.busy_ratio is not None and reading.busy_ratio >= BUSY_RATIO


def slower(readings: Sequence[GpuReading]) -> list[tuple[GpuReading, float]]:
    """The slow GPUs of one job in one step, each with the clock of the others in MHz. None where
    too few are at work, their clocks are unknown, or set on purpose.
    """
    members = [(one, one.clock_mhz) for one in readings if working(one) and one.clock_mhz]
    if len(members) < MEMBERS_MIN or any(one.on_purpose for one, _ in members):
        return []
    clocks_mhz = sorted(mhz for _, mhz in members)
    usual_mhz = clocks_mhz[math.ceil(0.75 * (len(clocks_mhz) - 1))]
    return [(one, usual_mhz) for one, mhz in members if mhz < usual_mhz * (1.0 - SLOW_RATIO)]


@dataclass(slots=True)
class GpuClocks:
    """Seconds of one GPU at work; those in which it was slow, with MHz seconds of its own and of
    the others, and seconds of each reason.
    """

    job: str = ""
    busy_s: float = 0.0
    slow_s: float = 0.0
    own: float = 0.0
    others: float = 0.0
    has_reasons: bool = False  # whether event reasons are exported
    reasons_s: dict[Cause, float] = field(default_factory=dict)

    def work(self, reading: GpuReading, seconds: float) -> None:
        """A step at work with a known clock."""
        self.busy_s += seconds
        self.has_reasons = self.has_reasons or reading.reasons is not None
        self.job = reading.owner or self.job

    def lag(self, reading: GpuReading, usual_mhz: float, seconds: float) -> None:
        """A step in which it was slower than the others of its job."""
        self.slow_s += seconds
        self.own += (reading.clock_mhz or 0.0) * seconds
        self.others += usual_mhz * seconds
        for words, cause in CAUSES:
            if reading.reasons and words & reading.reasons:
                self.reasons_s[cause] = self.reasons_s.get(cause, 0.0) + seconds

    @property
    def cause(self) -> tuple[Cause, str]:
        """And what it rests on."""
        for _, cause in CAUSES:
            share = self.reasons_s.get(cause, 0.0) / self.slow_s
            if share >= REASON_SHARE_MIN:
                return cause, f"reported by its driver in {100.0 * share:.0f} % of the slow time"
        if self.has_reasons:
            return "unknown", "no event reason"
        return "unknown", "no series has clock event reasons"


def slow_gpus(
    clocks: Mapping[str, GpuClocks], names: Mapping[str, GpuName], step_s: float
) -> tuple[SlowGpu, ...]:
    """Slow ones, the worst loss of time first."""
    found = []
    for uuid, one in clocks.items():
        if one.slow_s < max(SLOW_SHARE_MIN * one.busy_s, STEPS_MIN * step_s):
            continue
        name, share = names.get(uuid, GpuName(uuid)), min(1.0, one.slow_s / one.busy_s)
        cause, text = one.cause
        found.append(SlowGpu(name.uuid, name.place, name.model, one.job, cause, share,
                             one.own / one.slow_s, one.others / one.slow_s, text))  # fmt: skip
    return tuple(
        sorted(found, key=lambda o: (-o.share * (1.0 - o.clock_mhz / o.usual_clock_mhz), o.uuid))
    )
