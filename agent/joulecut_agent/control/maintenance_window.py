"""Release windows: the agent drops every device handle for a while, to let a driver be replaced.

Any open handle keeps a GPU from being reset and a driver from being unloaded. The keeper restores
its GPUs and drops its handles first; the reading half follows.
"""

import math
import threading
import time

from joulecut_agent.control.release_file import ReleaseFile
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.keeper import RELEASE_S_MAX
from joulecut_agent.keeper.requests import Release, Resume
from joulecut_agent.log import log
from joulecut_agent.monitor.sampler import Sampler


class MaintenanceWindow:
    """Thread-safe."""

    def __init__(
        self, sampler: Sampler, keeper: KeeperClient, file: ReleaseFile, *, keeper_wanted: bool
    ) -> None:
        """Continues the window of `file`, if any; the device is not open yet."""
        self._sampler = sampler
        self._keeper = keeper
        self._file = file
        self._keeper_wanted = keeper_wanted
        self._lock = threading.Lock()
        self._until_s = -math.inf
        self._connection = 0  # the connection whose keeper knows the window
        if left_s := file.left_s():
            log("agent", f"started inside a release window: {left_s:.0f} s of it are left")
            self._until_s = time.monotonic() + left_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._until_s - time.monotonic())

    def open(self, duration_s: float) -> str:
        """Opens or changes a window; reason of a failure, or ""."""
        if not 0.0 < duration_s <= RELEASE_S_MAX:  # NaN is refused too
            return f"duration {duration_s:g} s; allowed: above 0 and up to {RELEASE_S_MAX:g} s"
        with self._lock:
            # First: a keeper that restarts meanwhile must know.
            left_s = self.left_s
            self._file.write(duration_s, self._sampler.gpus)
            if reason := self._send(Release(duration_s)):
                self._file.revert(left_s, self._sampler.gpus)
                return reason
            self._begin(duration_s)
            if self._sampler.pause():
                return ""
            self._send(Resume())
            self._end()
            return "a driver call under way does not return: nothing was released"

    def close(self) -> str:
        """Ends the window; reason of a failure, or ""."""
        with self._lock:
            reason = self._send(Resume())
            if reason and self._keeper.connected:
                return reason
            self._end()  # a keeper that is gone holds no handle, and the next knows no window
            return ""

    def follow(self) -> None:
        """Ends the window at its time. A keeper that has restarted gets the rest of it."""
        with self._lock:
            if self._until_s == -math.inf:
                return
            if not self.left_s:
                self._end()
            elif self._keeper.status is not None and self._keeper.connections != self._connection:
                self._send(Release(self.left_s))

    def _begin(self, duration_s: float) -> None:
        if not self.left_s:
            log("agent", f"released for {duration_s:g} s: no device is read or set")
        self._until_s = time.monotonic() + duration_s
        self._connection = self._keeper.connections
        self._file.write(duration_s, self._sampler.gpus)

    def _end(self) -> None:
        if self._until_s > -math.inf:
            log("agent", "the release window is over")
        self._until_s = -math.inf
        self._file.forget()
        self._sampler.resume()

    def _send(self, request: Release | Resume) -> str:
        """Reason of a refusal, or ""."""
        if not self._keeper_wanted or (self.left_s and not self._keeper.connected):
            return ""  # a keeper that ended inside the window is not started again
        try:
            reply = self._keeper.ask(request)
            self._keeper.refresh()
            self._connection = self._keeper.connections
        except KeeperGone as error:
            ended = self.left_s and not self._keeper.connected
            return "" if ended else str(error)
        return "" if reply.slots[0].accepted else reply.slots[0].reason
