"""Release windows: for a while the agent holds no handle, so that a driver can be replaced.

Any open client keeps a GPU from being reset and a driver from being unloaded. The keeper
decides and ends the window; this makes the reading half follow, whoever opened it.
"""

import math
import threading
import time
from typing import Protocol

from joulecut_agent import state as leases
from joulecut_agent.keeper import RELEASE_S_MAX
from joulecut_agent.keeper_client import KeeperClient, KeeperGone
from joulecut_agent.log import say
from joulecut_agent.state import Command


class Reading(Protocol):
    """What reads the device, and can let go of it."""

    def pause(self) -> bool: ...

    def resume(self) -> None: ...


class Window:
    """Safe to use from every thread."""

    def __init__(self, sampler: Reading, keeper: KeeperClient, *, keeper_wanted: bool) -> None:
        self._sampler = sampler
        self._keeper = keeper
        self._keeper_wanted = keeper_wanted
        self._lock = threading.Lock()
        self._until_s = -math.inf
        self._line = 0  # which connection to a keeper knows of the window

    @property
    def left_s(self) -> float:
        return max(0.0, self._until_s - time.monotonic())

    def open(self, duration_s: float) -> str:
        """Opens or changes a window; why not, or ""."""
        if not 0.0 < duration_s <= RELEASE_S_MAX:  # NaN is refused too
            return f"duration {duration_s:g} s; allowed: above 0 and up to {RELEASE_S_MAX:g} s"
        with self._lock:
            if reason := self._tell(Command(leases.RELEASE, ttl_s=duration_s)):
                return reason
            self._begin(duration_s)
            if self._sampler.pause():
                return ""
            self._tell(Command(leases.RESUME))
            self._end()
            return "the driver does not answer a reading under way: nothing was released"

    def close(self) -> str:
        """Ends the window; why not, or ""."""
        with self._lock:
            reason = self._tell(Command(leases.RESUME))
            if not reason:
                self._end()
            return reason

    def follow(self) -> None:
        """Does what the keeper says; a window that a person opened at the keeper, too."""
        with self._lock:
            now_s = time.monotonic()
            status = self._keeper.status
            told_s = max(0.0, status.taken_at_s + status.released_s - now_s) if status else 0.0
            if status is not None and not status.released_s:
                told_s = 0.0
            if told_s > 0.0:
                if now_s >= self._until_s:
                    self._begin(told_s)
                    self._sampler.pause()
                self._until_s, self._line = now_s + told_s, self._keeper.lines
            elif status is not None and now_s < self._until_s and self._keeper_wanted:
                if self._keeper.lines == self._line:
                    self._end()  # somebody resumed
                else:  # another keeper, which does not know
                    self._tell(Command(leases.RELEASE, ttl_s=self._until_s - now_s))
            elif self._until_s > -math.inf and now_s >= self._until_s:
                self._end()

    def _begin(self, duration_s: float) -> None:
        if not self.left_s:
            say("agent", f"released for {duration_s:g} s: no device is read or set")
        self._until_s = time.monotonic() + duration_s
        self._line = self._keeper.lines

    def _end(self) -> None:
        if self._until_s > -math.inf:
            say("agent", "the release window is over")
        self._until_s = -math.inf
        self._sampler.resume()

    def _tell(self, command: Command) -> str:
        if not self._keeper_wanted:
            return ""
        try:
            reply = self._keeper.ask(command)
            self._keeper.refresh()
            self._line = self._keeper.lines
        except KeeperGone as error:
            return str(error)
        return "" if reply.slots[0].accepted else reply.slots[0].reason
