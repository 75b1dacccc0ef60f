"""What may be asked of a GPU, whoever asks: the site's bounds win over every plan.

Pure. A judge answers with the reason of its refusal, or "" where it has none. Out of range
is refused and never clamped, or a plan would believe in a clock that nobody set. Dwell and
rates bind lowering alone: the way back up must never have to wait.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from joulecut_agent.keeper.lease import Knobs

WINDOW_S = 60.0  # what "per minute" means below


@dataclass(frozen=True, slots=True)
class Bounds:
    """The site's bounds. 0 MHz or 0 W means the device's own bound."""

    ttl_s_max: float = 60.0  # the longest a GPU may stay capped after its controller died
    clock_min_mhz: int = 0
    clock_max_mhz: int = 0
    min_dwell_s: float = 1.0  # ten times a slow clock change, so that each can be seen to settle
    writes_per_minute: int = 30  # a GPU; 20 a second is known to stall NCCL (nccl #1551)
    changed_share_per_minute: float = 1.0  # of the node's GPUs; a careful site asks for less
    power_min_w: float = 0.0
    power_max_w: float = 0.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One GPU of a command; knobs are (min, max, power) as in `state.Lock`, a zero is not asked."""

    wanted: Knobs
    before: Knobs  # what it is set to now, or may do without a setting
    supported_mhz: tuple[int, ...]
    power_mw: tuple[int, int] = (0, 0)  # the range that the device takes
    program_mhz: tuple[int, ...] = ()  # what it may be lowered to besides

    @property
    def lowers(self) -> bool:
        low, high, power_mw = self.wanted
        slower = min((high, *self.program_mhz)) < self.before[1] or low < self.before[0]
        return (high > 0 and slower) or 0 < power_mw < self.before[2]


@dataclass(frozen=True, slots=True)
class Writes:
    """What was written to one GPU: the last time, and each lowering of the last minute."""

    changed_s: float = -math.inf
    lowered_s: tuple[float, ...] = ()


def refuse_ttl(bounds: Bounds, ttl_s: float) -> str:
    if 0.0 < ttl_s <= bounds.ttl_s_max:  # NaN is refused too
        return ""
    return f"ttl {ttl_s:g} s; allowed: above 0 and up to {bounds.ttl_s_max:g} s"


def judge(
    bounds: Bounds, group: Mapping[str, Asked], writes: Mapping[str, Writes], gpus: int,
    now_s: float,
) -> dict[str, str]:  # fmt: skip
    """Why each GPU of a command is refused. The node has `gpus`, `writes` is their past."""
    lowered = {u for u, w in writes.items() if any(now_s - s < WINDOW_S for s in w.lowered_s[-1:])}
    lowered |= {uuid for uuid, asked in group.items() if asked.lowers}
    share = bounds.changed_share_per_minute
    crowd = f"{len(lowered)} of {gpus} GPUs lowered within a minute; allowed share: {share:g}"
    crowd = crowd if len(lowered) > share * gpus else ""
    reasons = {}
    for uuid, asked in group.items():
        reasons[uuid] = _refuse_range(bounds, asked) or _refuse_power(bounds, asked)
        if asked.lowers and not reasons[uuid]:
            reasons[uuid] = _refuse_pace(bounds, writes.get(uuid, Writes()), now_s) or crowd
    return reasons


def record(past: Writes, lowers: bool, now_s: float) -> Writes:
    return Writes(now_s, (*_recent(past, now_s), now_s) if lowers else _recent(past, now_s))


def _recent(past: Writes, now_s: float) -> tuple[float, ...]:
    return tuple(moment_s for moment_s in past.lowered_s if now_s - moment_s < WINDOW_S)


def _refuse_range(bounds: Bounds, asked: Asked) -> str:
    low, high, power_mw = asked.wanted
    if not high:
        return "" if power_mw and not low else "neither clocks nor a power limit are asked"
    for clock_mhz in (high, *asked.program_mhz, low or high):
        if clock_mhz not in asked.supported_mhz:
            return f"{clock_mhz} MHz is not a supported clock"
        if clock_mhz < bounds.clock_min_mhz:
            return f"{clock_mhz} MHz is below the site's {bounds.clock_min_mhz} MHz"
        if 0 < bounds.clock_max_mhz < clock_mhz:
            return f"{clock_mhz} MHz is above the site's {bounds.clock_max_mhz} MHz"
        if not low <= clock_mhz <= high:
            return f"{low} MHz to {high} MHz is no range for {clock_mhz} MHz"
    return ""


def _refuse_power(bounds: Bounds, asked: Asked) -> str:
    low_w = max(asked.power_mw[0] / 1000.0, bounds.power_min_w)
    high_w = min(asked.power_mw[1] / 1000.0, bounds.power_max_w or math.inf)
    power_w = asked.wanted[2] / 1000.0
    if not power_w or low_w <= power_w <= high_w:
        return ""
    return f"power limit {power_w:g} W; allowed: {low_w:g} to {high_w:g} W"


def _refuse_pace(bounds: Bounds, past: Writes, now_s: float) -> str:
    if now_s - past.changed_s < bounds.min_dwell_s:
        return f"changed {now_s - past.changed_s:.2f} s ago; dwell: {bounds.min_dwell_s:g} s"
    if len(_recent(past, now_s)) >= bounds.writes_per_minute:
        return f"lowered {bounds.writes_per_minute} times within a minute"
    return ""
