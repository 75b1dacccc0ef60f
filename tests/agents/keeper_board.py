"""A keeper over a device that fails on demand, and how one is asked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from held_clock import HeldClock
from keeper_requests import apply_of

from joulecut_agent.keeper import protocol as wire
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.journal import Journal
from joulecut_agent.keeper.keeper import Keeper
from joulecut_agent.keeper.protocol import Reply
from joulecut_agent.keeper.requests import ClockLimits, Status
from joulecut_agent.keeper.settings import Settings
from joulecut_agent.ports.failure import DeviceError

CLOCKS = (210, 600, 900, 1200, 1410)
UUIDS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
FREE = Bounds(min_dwell_s=0.0, writes_per_minute=600, keep_power_s=3600.0)
BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass
class Board:
    """A `DeviceWriter` that remembers its calls, and fails where a test says so."""

    locked: dict[str, tuple[int, int]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    fail: Callable[[str, str], DeviceError | None] = lambda call, uuid: None
    denied: str = ""
    mig: frozenset[str] = frozenset()
    before_write: Callable[[str], None] = lambda uuid: None
    before_read: Callable[[str], None] = lambda uuid: None
    before_limits: Callable[[str], None] = lambda uuid: None
    limits_mw: dict[str, int] = field(default_factory=lambda: dict.fromkeys(UUIDS, 400_000))
    closed: int = 0
    shown_mhz: dict[str, int] = field(default_factory=dict)  # others are at what is locked
    busy: bool = True
    lies: dict[str, int] = field(default_factory=dict)  # calls that are answered, and not done
    cap_mhz: int = 0  # what the power limit leaves

    def permission(self) -> str:
        return self.denied

    def uuids(self) -> tuple[str, ...]:
        return UUIDS

    def clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        self.before_read(uuid)
        return CLOCKS if uuid in UUIDS else ()

    def uncontrollable(self, uuid: str) -> str:
        return "MIG is on" if uuid in self.mig else "" if uuid in UUIDS else f"no GPU {uuid}"

    def lock(self, uuid: str, clock_min_mhz: int, clock_max_mhz: int) -> None:
        self.before_write(uuid)
        self.calls.append(f"lock {uuid} {clock_min_mhz}-{clock_max_mhz}")
        if error := self.fail("lock", uuid):
            raise error
        self.locked[uuid] = (clock_min_mhz, clock_max_mhz)

    def reset(self, uuid: str) -> None:
        self.calls.append(f"reset {uuid}")
        if error := self.fail("reset", uuid):
            raise error
        if not self._lies("reset"):
            self.locked.pop(uuid, None)

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        self.before_limits(uuid)
        return 100_000, 400_000, self.limits_mw[uuid]

    def reading(self, uuid: str) -> tuple[int, float, tuple[str, ...]]:
        self.before_read(uuid)
        shown_mhz = self.shown_mhz.get(uuid) or self.locked.get(uuid, (0, CLOCKS[-1]))[1]
        if 0 < self.cap_mhz <= shown_mhz:
            return self.cap_mhz, float(self.busy), ("sw_power_cap",)
        return shown_mhz, float(self.busy), ()

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        self.before_write(uuid)
        self.calls.append(f"limit {uuid} {limit_mw // 1000}")
        if error := self.fail("limit", uuid):
            raise error
        if not self._lies("limit"):
            self.limits_mw[uuid] = limit_mw

    def _lies(self, call: str) -> bool:
        left = self.lies.get(call, 0)
        self.lies[call] = max(0, left - 1)
        return left > 0

    def close(self) -> None:
        self.closed += 1


def open_keeper(folder: Path, board: Board, **settings: Any) -> Keeper:
    bounds = settings.pop("bounds", FREE)
    keeper = Keeper(Settings(str(folder), bounds, **settings), board)
    question = Status(tuple(UUIDS))
    keeper.handle(0, question)
    return keeper


def apply(
    keeper: Keeper, clocks: dict[str, tuple[int, int]], generation: int = 1, ttl_s: float = 30.0
) -> Reply:
    return keeper.handle(1, apply_of(1, "blue", generation, ttl_s, clocks))


def verdicts(reply: Reply) -> set[bool]:
    return {slot.accepted for slot in reply.slots}


def on_disk(folder: Path, now_s: float = inf) -> dict[str, ClockLimits]:
    """The GPUs that a keeper restores if it starts at `now_s`; by default when no write is late."""
    return Journal(folder / "journal", BOOT.read_text().strip(), now_s=now_s).held


def set_both(
    keeper: Keeper, uuid: str, generation: int, mhz: tuple[int, int], power_w: int
) -> wire.Slot:
    command = apply_of(1, "blue", generation, 30.0, {uuid: mhz}, {uuid: power_w * 1000})
    return keeper.handle(1, command).slots[0]


def opened(folder: Path, **settings: Any) -> tuple[Board, Keeper]:
    board = Board()
    return board, open_keeper(folder, board, **settings)


def held(folder: Path) -> tuple[Board, Keeper]:
    """One whose GPU-a has a lease at 900 MHz at most."""
    board, keeper = opened(folder)
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)})) == {True}
    return board, keeper


def turn(keeper: Keeper, clock: HeldClock, seconds: int) -> None:
    """The keeper's loop, once a second."""
    for _ in range(seconds):
        clock.pass_s(1.0)
        keeper.tick()
