"""Drift: a GPU that does not show what was set, and its cause.

Pure. No driver reports locked clocks, so the observed clock is the only evidence. One reading
proves nothing: a cause is reported after several in a row. The causes in CONFIRMED concern another
writer, which is never fought. The keeper confirms them by readings of its own; then the lease ends,
and the agent backs off.
"""

from dataclasses import dataclass, replace

from joulecut_agent.keeper import evidence
from joulecut_agent.keeper.evidence import (
    BELOW_SLACK_RATIO,
    BUSY_RATIO,
    CLOCK_SLACK_MHZ,
    IDLE,
    SETTLE_S,
)
from joulecut_wire.messages import GpuSnapshot, Lease

EXTERNAL, RESET = "external_writer", "reset"
NOT_REACHED, LIMIT = "not_reached", "out_of_band_limit"
RELOAD, PERSISTENCE = "driver_reload", "persistence_lost"
CONFIRMED = frozenset((EXTERNAL, RESET))  # by the keeper, at each reading that suggests them
CLEARED = frozenset((RELOAD, PERSISTENCE, NOT_REACHED))  # the restore is idempotent
CAUSES = (EXTERNAL, RESET, NOT_REACHED, LIMIT, RELOAD, PERSISTENCE)

TICKS = 3  # readings in a row: a clock change, or one late reading, spans two
SUSPECT_S = 0.3  # and for this long, at any reading rate
LIMIT_SLACK_W = 1.0  # limits are whole watts on some boards
BACKOFF_S, BACKOFF_S_MAX = 60.0, 3600.0  # a minute for an operator to finish; an hour costs little
FORGET_S = 4 * 3600.0  # half a shift without a failure resets the backoff

PROFILE = "power_profile"  # a workload power profile of the device

REASONS = {  # event reasons of the device for a lower clock, most severe first
    "hw_power_brake": "power_brake",
    "hw_thermal": "thermal",
    "sw_thermal": "thermal",
    "hw_slowdown": "hw_slowdown",
    "sw_power_cap": "power_cap",
    "sync_boost": "sync_boost",
    "applications_clocks": "applications_clocks",
    "display": "display",
}


@dataclass(frozen=True, slots=True)
class Order:
    """What is set on a GPU, since when. `default_mhz`: the clock it reaches without a lease.

    `clock_max_mhz` 0: no clocks are set by us.
    """

    default_mhz: int
    clock_max_mhz: int = 0
    power_limit_w: float | None = None
    since_s: float = 0.0
    fresh: bool = False  # this agent's keeper has never written to it
    schedule_mhz: int = 0  # the lowest clock of its clock schedule; 0 without one
    written_mhz: tuple[int, ...] = ()  # by keepers of this boot, for this lease or before it

    @property
    def lowest_mhz(self) -> int:
        return self.schedule_mhz or self.clock_max_mhz


@dataclass(frozen=True, slots=True)
class Memory:
    """Earlier readings of a GPU; the cause `suspect` was seen `ticks` times in a row."""

    order: Order | None = None
    energy_j: float | None = None
    persistence: bool | None = None
    reached: bool = False  # the clock that was set was seen in force
    suspect: str = ""
    ticks: int = 0
    suspect_s: float = 0.0  # since when
    site_mhz: int = 0  # a lock of the site, found before our first write; 0: none
    site_ticks: int = 0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures of late because of an external writer; commands are refused until `until_s`."""

    failures: int = 0
    last_s: float = float("-inf")
    reset_s: float = float("-inf")
    until_s: float = float("-inf")


def order_of(
    lease: Lease | None, default_mhz: int, *, since_s: float, fresh: bool,
    written_mhz: tuple[int, ...] = (),
) -> Order:  # fmt: skip
    if lease is None:
        return Order(default_mhz, fresh=fresh)
    return Order(
        default_mhz, lease.clock_max_mhz, lease.power_limit_w, since_s,
        schedule_mhz=lease.clock_lowest_mhz, written_mhz=written_mhz,
    )  # fmt: skip


def check(memory: Memory, gpu: GpuSnapshot, order: Order, now_s: float) -> tuple[Memory, str]:
    """One reading: the new memory, and the cause of drift or ""."""
    lost = _lost_settings(memory, gpu)
    if memory.order != order:
        kept = (memory.energy_j, memory.persistence)
        memory = Memory(order, *kept, site_mhz=memory.site_mhz, site_ticks=memory.site_ticks)
    seen = _seen(memory, gpu)
    ours = bool(order.clock_max_mhz or order.power_limit_w)
    if lost:
        return replace(seen, suspect="", ticks=0), lost if ours else ""
    if not ours:
        return _site(seen, gpu, order), ""
    if now_s - order.since_s < SETTLE_S:
        return seen, ""
    if not seen.reached and _in_force(gpu, order):
        seen = replace(seen, reached=True)
    suspect = _suspect(seen, gpu, order)
    if suspect != seen.suspect:
        seen = replace(seen, suspect=suspect, ticks=0, suspect_s=now_s)
    if seen.ticks < TICKS:
        seen = replace(seen, ticks=seen.ticks + 1)
    sure = seen.ticks >= TICKS and now_s - seen.suspect_s >= SUSPECT_S
    # The keeper reads clocks several times, and a limit once. After a reload, a limit may be read
    # a reading before the counter that tells of it.
    asks = suspect in CONFIRMED and not _other_limit(gpu, order)
    return seen, suspect if sure or asks else ""


def _seen(m: Memory, gpu: GpuSnapshot) -> Memory:
    """Made at each tick; written out it costs a fifth of `replace`."""
    rest = (m.reached, m.suspect, m.ticks, m.suspect_s, m.site_mhz, m.site_ticks)
    # A reading without a counter, as after a reload, keeps the last one.
    energy_j = m.energy_j if gpu.energy_j is None else gpu.energy_j
    return Memory(m.order, energy_j, gpu.persistence, *rest)


def slow_reason(gpu: GpuSnapshot, order: Order, site_mhz: int = 0) -> str:
    """Why a busy GPU runs below the clock that is set, not by us; "" if it does not."""
    allowed_mhz = min(order.lowest_mhz or order.default_mhz, order.default_mhz)
    if not _busy(gpu) or gpu.clock_sm_mhz is None:
        return ""
    # A power brake or heat counts at any clock: it also cuts what no clock shows.
    below = gpu.clock_sm_mhz < allowed_mhz * (1.0 - BELOW_SLACK_RATIO)
    for reason, word in REASONS.items():
        if reason in gpu.event_reasons and (below or word in {"power_brake", "thermal"}):
            return "" if word == "power_cap" and _our_limit(gpu, order) else word
    if gpu.power_profiles and below:
        return PROFILE
    return "site_lock" if site_mhz and below and not order.clock_max_mhz else ""


def extended(backoff: Backoff, cause: str, now_s: float) -> Backoff:
    """After an external write: a doubling delay. One reset may be the end of a Slurm step."""
    if cause not in CONFIRMED and cause != NOT_REACHED:
        return backoff
    if cause == RESET and now_s - backoff.reset_s > FORGET_S:
        return replace(backoff, reset_s=now_s)
    failures = backoff.failures + 1 if now_s - backoff.last_s <= FORGET_S else 1
    delay_s = min(BACKOFF_S * 2.0 ** min(failures - 1, 16), BACKOFF_S_MAX)
    reset_s = now_s if cause == RESET else backoff.reset_s
    return Backoff(failures, now_s, reset_s, now_s + delay_s)


def _lost_settings(memory: Memory, gpu: GpuSnapshot) -> str:
    """Cause if the driver has lost every setting since the last reading, or ""."""
    if memory.energy_j is not None and gpu.energy_j is not None and gpu.energy_j < memory.energy_j:
        return RELOAD
    return PERSISTENCE if memory.persistence and gpu.persistence is False else ""


def _suspect(seen: Memory, gpu: GpuSnapshot, order: Order) -> str:
    if _other_limit(gpu, order):
        return EXTERNAL
    clock_mhz, ours_mhz = gpu.clock_sm_mhz, order.clock_max_mhz
    if clock_mhz is not None and ours_mhz:
        if _other_clock(gpu, order):
            if _was_written(clock_mhz, order):
                return NOT_REACHED
            free = clock_mhz >= order.default_mhz - CLOCK_SLACK_MHZ or _explained(gpu)
            return RESET if free else EXTERNAL
        below = clock_mhz < order.lowest_mhz * (1.0 - BELOW_SLACK_RATIO)
        if _busy(gpu) and below and not _explained(gpu):
            theirs = seen.reached and not _was_written(clock_mhz, order)
            return EXTERNAL if theirs else NOT_REACHED
    limit_w, ours_w = gpu.power_limit_enforced_w, order.power_limit_w
    low = limit_w is not None and ours_w is not None and limit_w < ours_w - LIMIT_SLACK_W
    return LIMIT if low and not gpu.power_profiles else ""


def _site(seen: Memory, gpu: GpuSnapshot, order: Order) -> Memory:
    """Looks for a lock of the site: one that was set before our first write."""
    if not (order.fresh or seen.site_mhz) or not _busy(gpu) or gpu.clock_sm_mhz is None:
        return seen
    highest_mhz = order.default_mhz * (1.0 - BELOW_SLACK_RATIO)
    # A GPU that reaches its default is under no lock, written to or not.
    if gpu.clock_sm_mhz >= highest_mhz or (order.fresh and _explained(gpu)):
        return replace(seen, site_mhz=0, site_ticks=0) if seen.site_ticks else seen
    if not order.fresh:
        return seen
    ticks = min(seen.site_ticks + 1, TICKS)
    return replace(seen, site_ticks=ticks, site_mhz=gpu.clock_sm_mhz if ticks >= TICKS else 0)


def _busy(gpu: GpuSnapshot) -> bool:
    return (gpu.utilization_gpu_ratio or 0.0) >= BUSY_RATIO and IDLE not in gpu.event_reasons


def _explained(gpu: GpuSnapshot) -> bool:
    """Whether the device gives a reason for its lower clock: arbitration, not drift.

    A workload power profile changes clocks and limit without an event reason.
    """
    return bool(gpu.power_profiles) or any(reason in REASONS for reason in gpu.event_reasons)


def _in_force(gpu: GpuSnapshot, order: Order) -> bool:
    clock_mhz = gpu.clock_sm_mhz
    low_mhz, high_mhz = order.lowest_mhz - CLOCK_SLACK_MHZ, order.clock_max_mhz + CLOCK_SLACK_MHZ
    return _busy(gpu) and clock_mhz is not None and low_mhz <= clock_mhz <= high_mhz


def _other_clock(gpu: GpuSnapshot, order: Order) -> bool:
    clock_mhz, ours_mhz = gpu.clock_sm_mhz, order.clock_max_mhz
    return bool(ours_mhz) and clock_mhz is not None and clock_mhz > ours_mhz + CLOCK_SLACK_MHZ


def _other_limit(gpu: GpuSnapshot, order: Order) -> bool:
    limit_w, ours_w = gpu.power_limit_enforced_w, order.power_limit_w
    return limit_w is not None and ours_w is not None and limit_w > ours_w + LIMIT_SLACK_W


def _was_written(clock_mhz: int, order: Order) -> bool:
    """Whether a clock is one of ours, such as that of an earlier lease: the driver may be late."""
    return evidence.is_written(clock_mhz, order.written_mhz, order.default_mhz)


def _our_limit(gpu: GpuSnapshot, order: Order) -> bool:
    """Whether the power cap in force is ours."""
    limit_w, ours_w = gpu.power_limit_enforced_w, order.power_limit_w
    return limit_w is not None and ours_w is not None and limit_w >= ours_w - LIMIT_SLACK_W
