"""Detects clock locks that other writers set on GPUs without a lease.

Drivers do not report locks, and a baseline that mixes locked and default clocks is invalid.
Evidence is the agent's report and the observed clock. The default clock of a GPU is the one
observed at work without a lease, since a site may lock its own (`site_default`) below the card's
highest. It follows slow changes, as of a room; a lock takes more at once. Pure and bounded.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from joulecut_controller.view import GpuView
from joulecut_wire.messages import GpuSnapshot, profile_of

READINGS = 3  # in a row: a changing clock spans two
SLACK_RATIO = 0.05  # boost loses some steps to temperature without a reason; as in the agent
BUSY_RATIO = 0.5  # below it a GPU may idle at any clock; as in the agent
IDLE = "idle"
# The driver's reasons for a lower clock without a lock.
EXPLAINING = frozenset(
    ("hw_power_brake", "hw_thermal", "sw_thermal", "hw_slowdown", "sw_power_cap", "sync_boost")
)
CAPPED_RATIO = 0.95  # of the limit: boards hold their mean a little below it
SITE_LOCK = "site_lock"  # as agents call a lock that stood before their first write


@dataclass(slots=True)
class _Gpu:
    """One GPU's newest readings at work without a lease, and the clocks inferred from them."""

    highest_mhz: int
    newest_mhz: deque[int] = field(default_factory=lambda: deque(maxlen=READINGS))
    unexplained: int = 0  # of the newest, in a row
    default_mhz: int = 0  # 0: not known yet
    held_mhz: int = 0  # the clock of another writer's lock; 0: none
    odd: bool = False  # the newest reading is not the clock inferred before
    taken_s: float = -math.inf

    def take(self, shown: GpuSnapshot) -> None:
        mhz = shown.clock_sm_mhz
        if mhz is None or not _at_work(shown):
            return
        explained = _explained(shown)
        self.newest_mhz.append(mhz)
        self.unexplained = 0 if explained else self.unexplained + 1
        sure = len(self.newest_mhz) == READINGS
        if _reported(shown) and not self._free(mhz):
            self.held_mhz = mhz
            self.newest_mhz.clear()
        elif self.held_mhz and explained and _above(mhz, self.held_mhz):
            self.held_mhz = 0
        elif sure and _above(self.default_mhz, max(self.newest_mhz)):
            self.held_mhz = mhz if self.unexplained >= READINGS else self.held_mhz
        elif self._is_steady() and not _above(self.default_mhz, min(self.newest_mhz)):
            self.held_mhz = 0
            # A hot room takes clocks slowly, without a reason; a lock takes them at once.
            least_mhz = 0 if self.unexplained >= READINGS else self.default_mhz
            self.default_mhz = max(least_mhz, min(self.newest_mhz))
        self.odd = not explained and self._is_odd(mhz)

    def _is_steady(self) -> bool:
        """While a clock rises, its lowest reading is no default clock."""
        newest = self.newest_mhz
        return len(newest) == READINGS and not _above(max(newest), min(newest))

    def _free(self, mhz: int) -> bool:
        return not _above(self.default_mhz or self.highest_mhz, mhz)

    def _is_odd(self, mhz: int) -> bool:
        known_mhz = self.held_mhz or self.default_mhz
        return known_mhz > 0 and (_above(known_mhz, mhz) or _above(mhz, known_mhz))


class ExternalClockLocks:
    """The GPUs of one job, from pass to pass."""

    def __init__(self) -> None:
        self._gpus: dict[str, _Gpu] = {}
        self.rose = False  # at the last update: the inferred default clock was a lock

    @property
    def doubt(self) -> bool:
        """Whether clocks other than default may run without a lease of ours."""
        return any(gpu.held_mhz or gpu.odd for gpu in self._gpus.values())

    @property
    def moving(self) -> bool:
        """Whether the newest reading of some GPU differs from its inferred clock."""
        return any(gpu.odd for gpu in self._gpus.values())

    @property
    def held_mhz(self) -> Mapping[str, int]:
        """GPUs under another writer's lock, with its clock."""
        return {uuid: gpu.held_mhz for uuid, gpu in self._gpus.items() if gpu.held_mhz}

    def update(self, gpus: Mapping[str, GpuView], ours: Mapping[str, int], now_s: float) -> bool:
        """One pass; `ours` maps GPUs to the clock of their lease. True where another writer's lock
        appeared or went, so that earlier iterations do not measure the present clocks.
        """
        before = self.held_mhz.keys()
        self.rose = False
        for uuid in ours:
            gpu = gpus.get(uuid)
            if gpu is not None and gpu.snapshot is not None:
                self._look_at(uuid, gpu, gpu.snapshot, now_s - gpu.age_s, ours[uuid])
        return self.rose or self.held_mhz.keys() != before

    def _look_at(
        self, uuid: str, gpu: GpuView, shown: GpuSnapshot, taken_s: float, ours_mhz: int
    ) -> None:
        known = self._gpus.get(uuid)
        if known is None:
            known = self._gpus[uuid] = _Gpu(max(gpu.description.clocks_mhz, default=0))
        leased = ours_mhz or (shown.lease is not None and shown.lease.clock_max_mhz)
        if leased or (gpu.power_limited and gpu.limit_of_others_w is None):
            if known.taken_s > -math.inf:  # readings before our clock or power limit are outdated
                self._gpus[uuid] = _Gpu(known.highest_mhz, default_mhz=known.default_mhz)
        elif taken_s > known.taken_s:
            was_mhz = known.default_mhz
            known.taken_s = taken_s
            known.take(shown)
            self.rose |= was_mhz > 0 and _above(known.default_mhz, was_mhz)

    def text(self, gpus: Mapping[str, GpuView]) -> str:
        """Why nothing is measured at default clocks now; empty where it is."""
        held = self.held_mhz
        if not held:
            return ""
        uuid, mhz = next(iter(held.items()))
        place = gpus[uuid].place if uuid in gpus else uuid
        more = f" (and {len(held) - 1} more)" if len(held) > 1 else ""
        return f"GPU {place}{more} is locked at {mhz} MHz by another writer"


def _above(one_mhz: int, other_mhz: int) -> bool:
    """By more than boost loses to temperature."""
    return other_mhz < one_mhz * (1.0 - SLACK_RATIO)


def _at_work(shown: GpuSnapshot) -> bool:
    busy = shown.utilization_gpu_ratio
    return IDLE not in shown.event_reasons and (busy is None or busy >= BUSY_RATIO)


def _explained(shown: GpuSnapshot) -> bool:
    """Whether something other than a lock may slow it. The driver's power-cap reason flickers, so
    power near the limit counts as well.
    """
    drawn_w, limit_w = shown.power_average_w, shown.power_limit_enforced_w
    capped = drawn_w is not None and limit_w is not None and drawn_w >= CAPPED_RATIO * limit_w
    other = shown.slow_reason not in {"", SITE_LOCK} or profile_of(shown) != ""
    return capped or other or not EXPLAINING.isdisjoint(shown.event_reasons)


def _reported(shown: GpuSnapshot) -> bool:
    """Whether its agent reports another writer."""
    return shown.slow_reason == SITE_LOCK or shown.backoff_s > 0.0
