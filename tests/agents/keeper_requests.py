"""Requests to a keeper, written short."""

from collections.abc import Mapping

from joulecut_agent.keeper.requests import Apply, ClockLimits, GpuSetting


def apply_of(
    epoch: int, job: str, generation: int, ttl_s: float, clocks: Mapping[str, tuple[int, int]],
    power_mw: Mapping[str, int] | None = None,
    schedules: Mapping[str, tuple[int, ...]] | None = None, *, keep: bool = False,
    above: bool = False,
) -> Apply:  # fmt: skip
    """`clocks` are (min, max) by GPU; the others are left out where there is nothing to set."""
    power_mw, schedules = power_mw or {}, schedules or {}
    settings = {
        uuid: GpuSetting(
            ClockLimits(*mhz, power_mw.get(uuid, 0)),
            schedules.get(uuid, ()),
            keep_power_limit=keep,
            above_kept_limit=above,
        )
        for uuid, mhz in clocks.items()
    }
    return Apply(epoch, job, generation, ttl_s, settings)
