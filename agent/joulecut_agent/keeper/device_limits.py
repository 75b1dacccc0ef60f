"""What is written to a GPU: a clock lock, a reset, a power limit.

The only module of the keeper that calls a method of the writer which changes a GPU. It knows the
site's default clocks and safe power limit, and never raises a power limit that another writer has
lowered. Callers have checked bounds and have journaled what they set.
"""

import contextlib
from typing import TYPE_CHECKING

from joulecut_agent.keeper.bounds import PowerLimits
from joulecut_agent.keeper.journal import Journal
from joulecut_agent.keeper.lease import PowerAfter
from joulecut_agent.keeper.requests import GPUS_MAX, ClockLimits
from joulecut_agent.keeper.settings import Settings
from joulecut_agent.ports.failure import DeviceError, NotPermitted, Unanswered

if TYPE_CHECKING:
    from joulecut_agent.ports.writer import DeviceWriter

LIMIT_SLACK_MW = 1000  # limits are whole watts on some boards


class DeviceLimits:
    """The GPUs of this node through the writer. Setters raise DeviceError."""

    def __init__(self, settings: Settings, writer: "DeviceWriter", journal: Journal) -> None:
        self._settings = settings
        self._writer = writer
        self._journal = journal
        self._clocks_mhz: dict[str, tuple[int, ...]] = {}
        self._late_mw: dict[str, set[int]] = {}  # power limits that may still take effect

    # -- reading -------------------------------------------------------------------------

    @property
    def known(self) -> int:
        """The number of GPUs that were asked for."""
        return len(self._clocks_mhz)

    def supported_mhz(self, uuid: str) -> tuple[int, ...]:
        """Clocks of a GPU of this node: of the first GPUS_MAX that are asked for."""
        room = len(self._clocks_mhz) < GPUS_MAX
        if room and uuid not in self._clocks_mhz and (mhz := self._writer.clocks_mhz(uuid)):
            self._clocks_mhz[uuid] = mhz
        return self.known_mhz(uuid)

    def known_mhz(self, uuid: str) -> tuple[int, ...]:
        """Clocks of a GPU that was asked for before; the device is not called."""
        return self._clocks_mhz.get(uuid, ())

    def power_limits(self, uuid: str) -> PowerLimits:
        with contextlib.suppress(DeviceError):
            return PowerLimits(*self._writer.power_limits_mw(uuid))
        return PowerLimits()

    def highest_mw(self, uuid: str) -> int:
        """The limit found before our first write: none of ours is above it; 0 if none was found."""
        return self._journal.recorded_mw.get(uuid, 0)

    def is_lowered_by_other(self, uuid: str, now_mw: int, wanted_mw: int) -> bool:
        """Whether the limit that is set is below the wanted one and not from this keeper."""
        below = 0 < now_mw < wanted_mw - LIMIT_SLACK_MW
        return below and not self._is_ours(uuid, now_mw)

    def is_found_lower(self, uuid: str, now_mw: int) -> bool:
        """Whether another writer has set a limit below the one found before our first write."""
        return self.is_lowered_by_other(uuid, now_mw, self.highest_mw(uuid))

    def may_come_late(self, uuid: str) -> bool:
        """Whether a power limit was written that did not take effect, and still may."""
        return uuid in self._late_mw

    def forget_late(self, uuid: str) -> None:
        """No write of ours can take effect any more."""
        self._late_mw.pop(uuid, None)

    def is_written(self, uuid: str, now_mw: int) -> bool:
        """Whether a keeper of this boot has written this limit."""
        written_mw = self._journal.written_mw.get(uuid, ())
        return self._is_late(uuid, now_mw) or any(is_same_limit(now_mw, mw) for mw in written_mw)

    def _is_late(self, uuid: str, now_mw: int) -> bool:
        return any(is_same_limit(now_mw, mw) for mw in self._late_mw.get(uuid, ()))

    def _is_ours(self, uuid: str, now_mw: int) -> bool:
        """Whether a keeper of this boot has set this limit, or found it."""
        safe, found_mw = self._settings.power_safe, self._journal.recorded_mw.get(uuid, 0)
        ours_mw = [found_mw]
        if found_mw and not isinstance(safe, str):
            ours_mw.append(safe)  # set when an earlier lease expired
        is_known = any(is_same_limit(now_mw, mw) for mw in ours_mw)
        return is_known or self.is_written(uuid, now_mw)

    # -- setting -------------------------------------------------------------------------

    def set_clocks(self, uuid: str, limits: ClockLimits) -> None:
        """Locks the clocks between the limits; max 0 resets them."""
        if not limits.max_mhz:
            self.reset_clocks(uuid)
        else:
            self._lock(uuid, limits.min_mhz, limits.max_mhz)

    def reset_clocks(self, uuid: str) -> None:
        """Sets the site's default clocks if the GPU has them, else the driver's."""
        site = self._settings.site_default
        if site and set(site) <= {0, *self.supported_mhz(uuid)}:
            self._lock(uuid, *site)
        else:
            self._writer.reset(uuid)

    def set_power(self, uuid: str, limit_mw: int) -> None:
        """Sets a power limit above 0, and reads it back."""
        try:
            self._writer.limit_power(uuid, limit_mw)
            set_mw = self.power_limits(uuid).now_mw
            if not is_same_limit(set_mw, limit_mw):
                what = f"power limit {set_mw / 1000:g} W, not {limit_mw / 1000:g} W"
                raise Unanswered("not_taken", f"{uuid}: {what}")
        except Unanswered:
            self._late_mw.setdefault(uuid, set()).add(limit_mw)
            raise
        except NotPermitted:  # a driver may have done what it denies
            self._writer.limit_power(uuid, self._journal.recorded_mw.get(uuid, 0) or limit_mw)
            raise

    def undo_power(
        self, uuid: str, power: PowerAfter, kept_mw: int = 0, *, only_late: bool = False
    ) -> str:
        """Sets the power limit of a GPU without a lease; returns what became of it.

        With `only_late` it changes a limit of ours that came late, and no other: not one that
        cannot be read, since another writer may have lowered it.

        "found": the limit from before our first write is in force. "left": another writer has set
        a lower one, which stays. "": anything else.
        """
        now_mw = self.power_limits(uuid).now_mw
        if power is PowerAfter.KEPT:
            if not is_same_limit(now_mw, kept_mw) and self._is_ours(uuid, now_mw):
                self.set_power(uuid, kept_mw)  # the last command failed between two limits
            return ""
        safe, found_mw = self._settings.power_safe, self._journal.recorded_mw.get(uuid, 0)
        if 0 < found_mw < now_mw - LIMIT_SLACK_MW and not self._is_ours(uuid, now_mw):
            self._journal.found_other(uuid, found_mw := now_mw)  # the driver was reloaded
        to_found = power is PowerAfter.FOUND or safe == "recorded"
        wanted_mw = found_mw if to_found else (0 if isinstance(safe, str) else safe)
        if found_mw:
            wanted_mw = min(wanted_mw, found_mw)
        stays = self.is_lowered_by_other(uuid, now_mw, wanted_mw)
        if self.is_found_lower(uuid, now_mw):
            self._journal.found_other(uuid, now_mw)
        if stays:
            return "left"
        is_theirs = only_late and not self._is_late(uuid, now_mw)
        if wanted_mw and not is_theirs:
            self.set_power(uuid, wanted_mw)
        return "found" if to_found else ""

    def _lock(self, uuid: str, min_mhz: int, max_mhz: int) -> None:
        try:
            self._writer.lock(uuid, min_mhz, max_mhz)
        except NotPermitted:  # a driver may have done what it denies
            self._writer.reset(uuid)
            raise


def is_same_limit(one_mw: int, other_mw: int) -> bool:
    return abs(one_mw - other_mw) <= LIMIT_SLACK_MW
