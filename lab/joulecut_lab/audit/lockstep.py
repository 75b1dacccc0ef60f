"""Compares the GPUs of one job within a step: slow GPUs, and the energy the others waste.

GPUs in lock-step wait for the slowest one in each iteration. The power that the others draw above
the slowest saves no time: at its clock they would finish just in time. That is variability bloat; a
comparison within one step measures it without a model. It is valid only for GPUs that do the same
work, which is checked first. Pure.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from joulecut_lab.audit.reading import GpuReading

BUSY_RATIO = 0.5  # "at work" in a step
# Two steps of a clock table (15 MHz of 1410) and the averaging over a step stay below.
SLOW_RATIO = 0.03
SAME_CLOCK_RATIO = 0.01
# GPUs of one model differ by some per cent in power at one clock (SC22 variability study: 8 %
# apart in speed on average); beyond, they do not do the same work.
ALIKE_RATIO = 0.15
MEMBERS_MIN = 3  # of two that differ, neither is known to be the usual one


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of one job in one step. `slow` pairs each slow GPU with the clock of the others.

    `alike` says whether the GPUs that are not slow do the same work; `bloat_w` is what is drawn
    above the slowest by all the others, 0 where none is slow.
    """

    members: int
    slow: tuple[tuple[GpuReading, float], ...]
    alike: bool
    bloat_w: float


def working(reading: GpuReading) -> bool:
    return reading.busy_ratio is not None and reading.busy_ratio >= BUSY_RATIO


def compare(readings: Sequence[GpuReading]) -> Comparison | None:
    """None where too few GPUs are at work, their clocks are unknown, or set on purpose."""
    members = [one for one in readings if working(one) and one.clock_mhz]
    if len(members) < MEMBERS_MIN or any(one.on_purpose for one in members):
        return None
    clocks_mhz = sorted(one.clock_mhz or 0.0 for one in members)
    usual_mhz = clocks_mhz[math.ceil(0.75 * (len(clocks_mhz) - 1))]
    limit_mhz = usual_mhz * (1.0 - SLOW_RATIO)
    slow = [one for one in members if (one.clock_mhz or 0.0) < limit_mhz]
    rest = [one for one in members if (one.clock_mhz or 0.0) >= limit_mhz]
    lowest_mhz = clocks_mhz[0] * (1.0 + SAME_CLOCK_RATIO)
    slowest = [one for one in slow if (one.clock_mhz or 0.0) <= lowest_mhz]
    return Comparison(
        members=len(members),
        slow=tuple((one, usual_mhz) for one in slow),
        alike=_alike(rest),
        bloat_w=_above(members, slowest) if slowest else 0.0,
    )


def _alike(readings: Sequence[GpuReading]) -> bool:
    """Compares SM or tensor activity where known, else power."""
    works = [one.work_ratio for one in readings if one.work_ratio is not None]
    powers = [one.power_w for one in readings if one.power_w is not None]
    compared = works if len(works) == len(readings) else powers
    if len(compared) < max(2, len(readings)):
        return False
    return max(compared) - min(compared) <= ALIKE_RATIO * statistics.fmean(compared)


def _above(members: Sequence[GpuReading], slowest: Sequence[GpuReading]) -> float:
    powers = [one.power_w for one in slowest if one.power_w is not None]
    if not powers:
        return 0.0
    lean_w = statistics.fmean(powers)
    return sum(max(0.0, one.power_w - lean_w) for one in members if one.power_w is not None)
