"""Waits for the leader lock, keeps checking it, and knows at any moment whether this one leads.

Commands ask `proven`: true only within `lead_s` of a check that succeeded. It becomes false by
the passing of time alone, so a process that was frozen or a loop that was blocked commands
nothing when it comes back.
"""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from joulecut_controller.election.leader_lock import LeaderLock, Timing
from joulecut_wire.errors import Unavailable

T = TypeVar("T")


def boot_s() -> float:
    """Seconds that also pass while the machine sleeps: the database does not sleep with it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leadership:
    """One controller's claim to the leader lock. `waiting` is a sentence while it has none."""

    def __init__(
        self, lock: LeaderLock, timing: Timing, now_s: Callable[[], float] = boot_s
    ) -> None:
        self._lock, self._timing, self._now_s = lock, timing, now_s
        self._until_s = -math.inf
        # Of its own: a check must not queue behind plans that are being solved.
        self._thread = ThreadPoolExecutor(1, "leadership")
        self.waiting = "standby: about to ask for the leader lock"
        self.leader = ""  # host and port of the holder at the last try

    @property
    def proven(self) -> bool:
        return self._now_s() < self._until_s

    async def try_once(self) -> bool:
        """Acquires the lock where it is free; else `waiting` says why not. Never raises."""
        asked_s, self.leader = self._now_s(), ""
        try:
            acquired = await self._ask(self._lock.acquire)
        except Unavailable as error:
            self.waiting = f"standby: {error}"
            return False
        if not acquired:
            self.waiting = f"standby: {self._lock.holder or 'another controller'} leads"
            self.leader = self._lock.holder.rpartition(" ")[2]
            return False
        self._until_s = asked_s + self._timing.lead_s
        return True

    @property
    def number(self) -> int:
        """Of this controller among those that share the jobs; 0 where one process has all."""
        return self._lock.number

    async def join(self) -> bool:
        """Begins to hold without the leader lock, as one of those that share the jobs."""
        asked_s = self._now_s()
        try:
            joined = await self._ask(self._lock.join)
        except Unavailable as error:
            self.waiting = f"standby: {error}"
            return False
        self._until_s = asked_s + self._timing.lead_s if joined else -math.inf
        return joined

    async def hold(self) -> str:
        """Checks until the lock is lost; returns why. `proven` is False then."""
        why = ""
        while not why:
            await asyncio.sleep(self._timing.check_s)
            why = await self._check()
        self._until_s = -math.inf
        return why

    async def release(self) -> None:
        """Frees the lock for others, at once."""
        self._until_s = -math.inf
        await self._ask(self._lock.release)

    async def _ask(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _check(self) -> str:
        """Empty where this controller still leads, or may hope to."""
        asked_s = self._now_s()
        try:
            held = await self._ask(self._lock.check)
        except Unavailable as error:
            if self._lock.lost or not self.proven:
                return f"leadership cannot be proven: {error}"
            return ""  # too slow this once; the next check may still come in time
        if not held:
            return "leadership was lost: the leader lock is no longer held"
        self._until_s = asked_s + self._timing.lead_s
        return ""
