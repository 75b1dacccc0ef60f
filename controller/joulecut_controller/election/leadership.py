"""Waits for the seat, keeps proving that it is held, and says at any moment whether it is.

`proven` is what commands ask: true only within `lead_s` of a question that was answered well.
It needs nobody's attention to become false, so a process that was frozen or a loop that was
blocked commands nothing when it comes back.
"""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from joulecut_controller.election.leader_lock import Seat
from joulecut_controller.election.timing import Timing
from joulecut_wire.errors import Unavailable

T = TypeVar("T")


def boot_s() -> float:
    """Seconds that also pass while the machine sleeps: the database does not sleep with it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leadership:
    """One controller's claim to one seat. `waiting` is a sentence while it has none."""

    def __init__(self, seat: Seat, timing: Timing, now_s: Callable[[], float] = boot_s) -> None:
        self._seat, self._timing, self._now_s = seat, timing, now_s
        self._until_s = -math.inf
        # Of its own: a proof must not queue behind plans that are being solved.
        self._thread = ThreadPoolExecutor(1, "leadership")
        self.waiting = "standby: about to ask whether anybody leads"
        self.leader = ""  # host and port of whoever kept the seat from us at the last try

    @property
    def proven(self) -> bool:
        return self._now_s() < self._until_s

    async def try_once(self) -> bool:
        """Takes the seat where it is free; else `waiting` says why not. Never raises."""
        asked_s, self.leader = self._now_s(), ""
        try:
            taken = await self._ask(self._seat.take)
        except Unavailable as error:
            self.waiting = f"standby: {error}"
            return False
        if not taken:
            self.waiting = f"standby: {self._seat.holder or 'another controller'} leads"
            self.leader = self._seat.holder.rpartition(" ")[2]
            return False
        self._until_s = asked_s + self._timing.lead_s
        return True

    async def hold(self) -> str:
        """Proves until that is no longer possible; answers why. Nothing is proven then."""
        why = ""
        while not why:
            await asyncio.sleep(self._timing.check_s)
            why = await self._prove_again()
        self._until_s = -math.inf
        return why

    async def leave(self) -> None:
        """Frees the seat for others, at once."""
        self._until_s = -math.inf
        await self._ask(self._seat.leave)

    async def _ask(self, what: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, what)

    async def _prove_again(self) -> str:
        """Empty where this still leads, or may hope to."""
        asked_s = self._now_s()
        try:
            ours = await self._ask(self._seat.prove)
        except Unavailable as error:
            if self._seat.gone or not self.proven:
                return f"leadership cannot be proven: {error}"
            return ""  # too slow this once; the next proof may still come in time
        if not ours:
            return "leadership was lost: the seat is no longer ours"
        self._until_s = asked_s + self._timing.lead_s
        return ""
