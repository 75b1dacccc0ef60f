"""A pretended node for a keeper: GPUs, disk and clock that fail, hang and jump on demand.

    from faulty_node import Card, Clock, Driver, Disk, Killed

Time passes only where the test says so. Each card knows who set it last, which no real one
does: that is what makes the check independent of what the keeper believes.
"""

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from joulecut_agent.ports.failure import DeviceError, Gone, NotPermitted, Transient

CLOCKS_MHZ = (210, 600, 900, 1200, 1410)
FREE = (0, 0)
FACTORY_MW = 400_000
LIMITS_MW = (100_000, 400_000)
CALL_WAIT_S = 2.0  # what a call that hangs costs, as with the real hand
OURS, THEIRS = "ours", "theirs"


class Killed(BaseException):
    """The keeper's process ends here; no handler of its own runs."""


@dataclass
class Clock:
    now_s: float = 1000.0
    wall_s: float = 0.0  # what somebody did to the time of day

    def sleep(self, wait_s: float) -> None:
        self.now_s += wait_s


@dataclass
class Card:
    """`clocks_by` and `limit_by` tell who set it last, "" for nobody."""

    clocks_mhz: tuple[int, int] = FREE
    limit_mw: int = FACTORY_MW
    clocks_by: str = ""
    limit_by: str = ""
    site_mw: int = FACTORY_MW  # the last limit that was not the keeper's
    since_s: float = 0.0  # when the keeper first set it, of what stands now
    trouble_s: float = float("-inf")  # when it was last seen unable
    muddled: bool = False  # changed behind the keeper's back since it last gave it back
    lost: bool = False
    mig: bool = False
    hanging: Callable[[], None] | None = None  # a call that is inside of the driver for this GPU

    def forget(self) -> None:
        """As a driver that is loaded anew does."""
        self.clocks_mhz, self.limit_mw, self.site_mw = FREE, FACTORY_MW, FACTORY_MW
        self.clocks_by = self.limit_by = ""
        self.muddled = True
        self.hanging = None

    @property
    def ours(self) -> bool:
        return OURS in {self.clocks_by, self.limit_by}


@dataclass
class Life:
    """When a process is killed: at its n-th next touch of the world, before or after it."""

    touches_left: int = -1
    after: bool = False

    def touch(self, act: Callable[[], None]) -> None:
        self.touches_left -= 1
        if self.touches_left == 0 and not self.after:
            raise Killed
        act()
        if self.touches_left == 0:
            raise Killed


@dataclass
class Driver:
    """A `DeviceWriter` over cards. Calls fail with `error_ratio`, half of them after the write."""

    clock: Clock
    life: Life
    rng: random.Random
    cards: dict[str, Card]
    asked_mw: frozenset[int]  # what commands ask for; every other limit is a safe one
    site_mhz: tuple[int, int] = FREE  # what a restore may lock besides
    error_ratio: float = 0.0
    hang_next: bool = False
    hung_s: float = float("-inf")  # when a call last held the keeper up
    denied: str = ""  # "all", or the one knob that may not be set
    unloaded: bool = False
    written: set[str] = field(default_factory=set)  # since the test last emptied it
    lowered: set[str] = field(default_factory=set)  # of them by more than a restore
    before_write: Callable[[str], None] = lambda uuid: None

    def permission(self) -> str:
        return "no right at all" if self.denied == "all" else ""

    def uuids(self) -> tuple[str, ...]:
        return tuple(self.cards)

    def clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        return CLOCKS_MHZ if uuid in self.cards and not self._why_not(uuid) else ()

    def uncontrollable(self, uuid: str) -> str:
        if uuid not in self.cards:
            return f"no GPU {uuid}"
        return "MIG is on" if self.cards[uuid].mig else self._why_not(uuid)

    def lock(self, uuid: str, clock_min_mhz: int, clock_max_mhz: int) -> None:
        wanted = (clock_min_mhz, clock_max_mhz)
        if wanted != self.site_mhz:
            self.before_write(uuid)
            self.lowered.add(uuid)
        self._write(uuid, "clocks", lambda: self._clocks(uuid, wanted))

    def reset(self, uuid: str) -> None:
        self._write(uuid, "clocks", lambda: self._clocks(uuid, FREE))

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        if why := self._why_not(uuid):
            raise Gone("gpu_is_lost", why)
        return (*LIMITS_MW, self.cards[uuid].limit_mw)

    def reading(self, uuid: str) -> tuple[int, float, tuple[str, ...]]:
        """A card that is always busy, at the clock that it is locked at."""
        if why := self._why_not(uuid):
            raise Gone("gpu_is_lost", why)
        return self.cards[uuid].clocks_mhz[1] or CLOCKS_MHZ[-1], 1.0, ()

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        if limit_mw in self.asked_mw:
            self.before_write(uuid)
            self.lowered.add(uuid)
        self._write(uuid, "power", lambda: self._limit(uuid, limit_mw))

    def close(self) -> None:
        """Nothing to close."""

    def able(self, uuid: str) -> bool:
        return not self._why_not(uuid) and not self.denied

    def _why_not(self, uuid: str) -> str:
        card = self.cards[uuid]
        if self.unloaded or card.lost or card.hanging:
            return "the driver is not loaded" if self.unloaded else f"{uuid} does not answer"
        return ""

    def _write(self, uuid: str, knob: str, act: Callable[[], None]) -> None:
        if uuid not in self.cards:
            raise Gone("not_found", f"no GPU {uuid}")
        self.written.add(uuid)
        card = self.cards[uuid]
        try:
            if why := self._why_not(uuid):
                raise Gone("gpu_is_lost", why)
            if self.denied in {"all", knob}:
                raise NotPermitted("no_permission", "no right to set that")
            if self.hang_next:
                self.hang_next, card.hanging = False, act
                self.clock.sleep(CALL_WAIT_S)
                self.hung_s = self.clock.now_s
                raise Transient("driver_unresponsive", f"{uuid} does not answer")
            if self.rng.random() < self.error_ratio:
                if self.rng.random() < 0.5:
                    self.life.touch(act)
                raise Transient("unknown", f"{uuid}: busy")
        except DeviceError:
            card.trouble_s = self.clock.now_s
            raise
        self.life.touch(act)

    def _clocks(self, uuid: str, wanted: tuple[int, int]) -> None:
        card = self.cards[uuid]
        ours = wanted not in {FREE, self.site_mhz}
        card.since_s = card.since_s if card.ours else self.clock.now_s
        card.clocks_mhz, card.clocks_by = wanted, OURS if ours else ""

    def _limit(self, uuid: str, limit_mw: int) -> None:
        card = self.cards[uuid]
        card.since_s = card.since_s if card.ours else self.clock.now_s
        card.limit_mw, card.limit_by = limit_mw, OURS if limit_mw in self.asked_mw else ""


@dataclass
class Disk:
    """Stands in for the system calls by which a journal is written; the files are real.

    What was not synced is lost by a power cut; `path` itself is where it lies in memory, and
    `lasting` does not. `full` refuses as a full disk does.
    """

    path: Path
    life: Life
    rng: random.Random
    lasting: Path | None = None
    full: bool = False
    synced: dict[int, int] = field(default_factory=dict)  # bytes of each file, by its inode
    real_write: Callable[[int, bytes], int] = os.write
    real_rename: Callable[..., None] = os.rename

    def write(self, fd: int, raw: bytes) -> int:
        if fd <= 2:
            return len(raw)  # log lines
        if self.full:
            took = self.real_write(fd, raw[: self.rng.randrange(len(raw))])
            if self.rng.random() < 0.5:
                return took  # the kernel tells so at first
            raise OSError(errno.ENOSPC, "No space left on device")
        torn = self.rng.randrange(len(raw))  # where a kill in its middle would cut it
        if self.life.touches_left == 1 and self.life.after:
            self.real_write(fd, raw[:torn])
            raise Killed
        self.life.touch(lambda: None)
        return self.real_write(fd, raw)

    def fsync(self, fd: int) -> None:
        self.life.touch(lambda: None)
        state = os.fstat(fd)
        self.synced[state.st_ino] = state.st_size

    def rename(self, source: str, target: str) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.life.touch(lambda: self.real_rename(source, target))

    def power_cut(self) -> None:
        path = self.lasting or self.path
        if path.exists():
            state = path.stat()
            os.truncate(path, min(state.st_size, self.synced.get(state.st_ino, 0)))
        if self.lasting:
            self.path.unlink(missing_ok=True)

    def names(self, uuid: str, boot_id: str) -> bool:
        """Whether the newest word on a GPU that a power cut would leave is that it is set."""
        if not self.path.exists():
            return False
        raw = self.path.read_bytes()[: self.synced.get(self.path.stat().st_ino, 0)]
        said = [line.split(b" ") for line in raw.splitlines()]
        ours = [
            s[1]
            for s in said
            if s[1:2] not in ([b"limit"], [b"clocks"])
            and s[2:4] == [boot_id.encode(), uuid.encode()]
        ]
        return ours[-1:] == [b"set"]
