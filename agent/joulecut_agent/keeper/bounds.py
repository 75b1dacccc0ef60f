"""The site's bounds on clock commands; they win over every plan.

Pure. A function that refuses returns the reason, or "". A value out of range is refused and never
clamped: the controller would otherwise believe in a clock that was not set. Dwell time and rates
bound lowering only; a raise never waits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from joulecut_agent.keeper.requests import ClockLimits

WINDOW_S = 60.0  # the minute of the rates below


@dataclass(frozen=True, slots=True)
class Bounds:
    """The site's bounds. 0 MHz or 0 W means the device's own bound."""

    ttl_s_max: float = 60.0  # the longest a GPU may stay capped after its controller died
    clock_min_mhz: int = 0
    clock_max_mhz: int = 0
    min_dwell_s: float = 1.0  # ten times a slow clock change, so that each can be seen to settle
    writes_per_minute: int = 30  # a GPU; 20 a second is known to stall NCCL (nccl #1551)
    changed_share_per_minute: float = 1.0  # of the node's GPUs; a careful site sets less
    power_min_w: float = 0.0
    power_max_w: float = 0.0
    keep_power_s: float = 0.0  # how long a power limit may outlive its lease; 0: no limit may


@dataclass(frozen=True, slots=True)
class PowerLimits:
    """Power limits of a GPU in milliwatts; zeros if none can be set or read."""

    lowest_mw: int = 0
    highest_mw: int = 0
    now_mw: int = 0  # the limit that is set


@dataclass(frozen=True, slots=True)
class Change:
    """A requested change of one GPU; a limit of zero is not requested."""

    wanted: ClockLimits
    before: ClockLimits  # in force now, or the device's range without a lease
    supported_mhz: tuple[int, ...]
    power: PowerLimits = PowerLimits()
    schedule_mhz: tuple[int, ...] = ()  # further clocks that steps may set

    @property
    def lowers(self) -> bool:
        """Whether it may slow the GPU: bounds on pace concern such changes only."""
        wanted, before = self.wanted, self.before
        if 0 < wanted.power_mw < before.power_mw:
            return True
        lowest_mhz = min((wanted.max_mhz, *self.schedule_mhz))
        slower = lowest_mhz < before.max_mhz or wanted.min_mhz < before.min_mhz
        return wanted.max_mhz > 0 and slower


@dataclass(frozen=True, slots=True)
class WriteHistory:
    """Writes to one GPU: time of the last, and of each lowering within the last minute."""

    changed_s: float = -math.inf
    lowered_s: tuple[float, ...] = ()


def refuse_ttl(bounds: Bounds, ttl_s: float) -> str:
    if 0.0 < ttl_s <= bounds.ttl_s_max:  # NaN is refused too
        return ""
    return f"ttl {ttl_s:g} s; allowed: above 0 and up to {bounds.ttl_s_max:g} s"


def refuse_keep(bounds: Bounds, keep_power_limit: bool) -> str:
    if bounds.keep_power_s or not keep_power_limit:
        return ""
    return "keep_power_limit without a power budget of this node: power.keep_hours is not set"


def judge(
    bounds: Bounds, group: Mapping[str, Change], writes: Mapping[str, WriteHistory], gpus: int,
    now_s: float,
) -> dict[str, str]:  # fmt: skip
    """Reason of refusal of each GPU of a command, or "". The node has `gpus` GPUs."""
    lowered = {uuid for uuid, past in writes.items() if _recent(past, now_s)}
    lowered |= {uuid for uuid, change in group.items() if change.lowers}
    share = bounds.changed_share_per_minute
    crowd = f"{len(lowered)} of {gpus} GPUs lowered within a minute; allowed share: {share:g}"
    crowd = crowd if len(lowered) > share * gpus else ""
    reasons = {}
    for uuid, change in group.items():
        reasons[uuid] = _refuse_range(bounds, change) or _refuse_power(bounds, change)
        if change.lowers and not reasons[uuid]:
            reasons[uuid] = _refuse_rate(bounds, writes.get(uuid, WriteHistory()), now_s) or crowd
    return reasons


def record(past: WriteHistory, lowers: bool, now_s: float) -> WriteHistory:
    """The history after a write at `now_s`."""
    recent = _recent(past, now_s)
    return WriteHistory(now_s, (*recent, now_s) if lowers else recent)


def _recent(past: WriteHistory, now_s: float) -> tuple[float, ...]:
    return tuple(moment_s for moment_s in past.lowered_s if now_s - moment_s < WINDOW_S)


def _refuse_range(bounds: Bounds, change: Change) -> str:
    wanted = change.wanted
    if not wanted.max_mhz:
        power_alone = wanted.power_mw > 0 and not wanted.min_mhz
        return "" if power_alone else "neither clocks nor a power limit are requested"
    lowest_mhz = wanted.min_mhz or wanted.max_mhz
    for clock_mhz in (wanted.max_mhz, *change.schedule_mhz, lowest_mhz):
        if clock_mhz not in change.supported_mhz:
            return f"{clock_mhz} MHz is not a supported clock"
        if clock_mhz < bounds.clock_min_mhz:
            return f"{clock_mhz} MHz is below the site's {bounds.clock_min_mhz} MHz"
        if 0 < bounds.clock_max_mhz < clock_mhz:
            return f"{clock_mhz} MHz is above the site's {bounds.clock_max_mhz} MHz"
        if not wanted.min_mhz <= clock_mhz <= wanted.max_mhz:
            return f"{clock_mhz} MHz is outside {wanted.min_mhz} to {wanted.max_mhz} MHz"
    return ""


def _refuse_power(bounds: Bounds, change: Change) -> str:
    low_w = max(change.power.lowest_mw / 1000.0, bounds.power_min_w)
    high_w = min(change.power.highest_mw / 1000.0, bounds.power_max_w or math.inf)
    power_w = change.wanted.power_mw / 1000.0
    if not power_w or low_w <= power_w <= high_w:
        return ""
    return f"power limit {power_w:g} W; allowed: {low_w:g} to {high_w:g} W"


def _refuse_rate(bounds: Bounds, past: WriteHistory, now_s: float) -> str:
    if now_s - past.changed_s < bounds.min_dwell_s:
        return f"changed {now_s - past.changed_s:.2f} s ago; dwell: {bounds.min_dwell_s:g} s"
    if len(_recent(past, now_s)) >= bounds.writes_per_minute:
        return f"lowered {bounds.writes_per_minute} times within a minute"
    return ""
