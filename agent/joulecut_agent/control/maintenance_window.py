"""Release windows: for a while the agent holds no handle, so that a driver can be replaced.

Any open client keeps a GPU from being reset and a driver from being unloaded. The keeper
decides and ends the window; this makes the reading half follow, whoever opened it.
"""

import math
import threading
import time
from typing import Protocol

from joulecut_agent.control.release_file import ReleaseFile
from joulecut_agent.keeper import lease as leases
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.keeper import RELEASE_S_MAX
from joulecut_agent.keeper.lease import Command
from joulecut_agent.log import say
from joulecut_wire.messages import GpuDescription

MOVED_S = 1.0  # a window whose end moves by less has not been changed by anybody


class Reading(Protocol):
    """What reads the device, and can let go of it."""

    gpus: tuple[GpuDescription, ...]

    def pause(self) -> bool: ...

    def resume(self) -> None: ...


class Window:
    """Safe to use from every thread."""

    def __init__(
        self, sampler: Reading, keeper: KeeperClient, file: ReleaseFile, *, keeper_wanted: bool
    ) -> None:
        """Goes on with the window of `file`, where there is one; the device is not open yet."""
        self._sampler = sampler
        self._keeper = keeper
        self._file = file
        self._keeper_wanted = keeper_wanted
        self._lock = threading.Lock()
        self._until_s = -math.inf
        self._line = 0  # which connection to a keeper knows of the window
        self._kept = False  # a file that is gone then means that somebody on the node resumed
        if left_s := file.left_s():
            self._kept = True
            say("agent", f"started inside a release window: {left_s:.0f} s of it are left")
            self._until_s = time.monotonic() + left_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._until_s - time.monotonic())

    def open(self, duration_s: float) -> str:
        """Opens or changes a window; why not, or ""."""
        if not 0.0 < duration_s <= RELEASE_S_MAX:  # NaN is refused too
            return f"duration {duration_s:g} s; allowed: above 0 and up to {RELEASE_S_MAX:g} s"
        with self._lock:
            # First: a keeper that starts anew just then is to know.
            left_s, self._kept = self.left_s, self._file.keep(duration_s, self._sampler.gpus)
            if reason := self._tell(Command(leases.RELEASE, ttl_s=duration_s)):
                self._file.put_back(left_s, self._sampler.gpus)
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
            if reason and self._keeper.connected:
                return reason
            self._end()  # a keeper that is gone holds no handle, and the next knows no window
            return ""

    def follow(self) -> None:
        """Does what the keeper says; a window that a person opened at the keeper, too."""
        with self._lock:
            now_s = time.monotonic()
            status = self._keeper.status
            told_s = max(0.0, status.taken_at_s + status.released_s - now_s) if status else 0.0
            if status is not None and not status.released_s:
                told_s = 0.0
            if status is None and self._keeper_wanted and self._until_s == -math.inf:
                told_s = self._file.left_s()  # of a keeper that ended before it could tell
            if told_s > 0.0:
                if now_s >= self._until_s:
                    self._begin(told_s)
                    self._sampler.pause()
                elif abs(now_s + told_s - self._until_s) > MOVED_S:
                    self._kept = self._file.keep(told_s, self._sampler.gpus)
                self._until_s, self._line = now_s + told_s, self._keeper.lines
            elif status is not None and now_s < self._until_s and self._keeper_wanted:
                if self._keeper.lines == self._line or self._resumed():
                    self._end()  # somebody resumed
                else:  # another keeper, which does not know
                    self._tell(Command(leases.RELEASE, ttl_s=self._until_s - now_s))
            elif self._until_s > -math.inf and (now_s >= self._until_s or self._resumed()):
                self._end()

    def _begin(self, duration_s: float) -> None:
        if not self.left_s:
            say("agent", f"released for {duration_s:g} s: no device is read or set")
        self._until_s = time.monotonic() + duration_s
        self._line = self._keeper.lines
        self._kept = self._file.keep(duration_s, self._sampler.gpus)

    def _resumed(self) -> bool:
        return self._kept and not self._file.left_s()

    def _end(self) -> None:
        if self._until_s > -math.inf:
            say("agent", "the release window is over")
        self._until_s = -math.inf
        self._file.forget()
        self._sampler.resume()

    def _tell(self, command: Command) -> str:
        if not self._keeper_wanted or (self.left_s and not self._keeper.connected):
            return ""  # inside of a window a keeper that ended is not started again
        try:
            reply = self._keeper.ask(command)
            self._keeper.refresh()
            self._line = self._keeper.lines
        except KeeperGone as error:
            ended = self.left_s and not self._keeper.connected  # and nobody had noticed yet
            return "" if ended else str(error)
        return "" if reply.slots[0].accepted else reply.slots[0].reason
