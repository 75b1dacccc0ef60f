"""Release windows: the agent drops every device handle for a while, to let a driver be replaced.

Any open handle keeps a GPU from being reset and a driver from being unloaded. The keeper decides
about the window; the reading half follows, wherever the window was opened.
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

MOVED_S = 1.0  # an end that moves by less is the same window


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
        self._filed = False  # in `file`: if that is removed, the window was ended on the node
        if left_s := file.left_s():
            self._filed = True
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
            left_s, self._filed = self.left_s, self._file.write(duration_s, self._sampler.gpus)
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
        """Follows the keeper, where a window may have been opened or ended."""
        with self._lock:
            now_s = time.monotonic()
            status = self._keeper.status
            left_s = self._left_at_keeper_s(now_s)
            if left_s > 0.0:
                if now_s >= self._until_s:
                    self._begin(left_s)
                    self._sampler.pause()
                elif abs(now_s + left_s - self._until_s) > MOVED_S:
                    self._filed = self._file.write(left_s, self._sampler.gpus)
                self._until_s, self._connection = now_s + left_s, self._keeper.connections
            elif status is not None and now_s < self._until_s and self._keeper_wanted:
                if self._keeper.connections == self._connection or self._ended_on_node():
                    self._end()
                else:  # another keeper, which does not know the window
                    self._send(Release(self._until_s - now_s))
            elif self._until_s > -math.inf and (now_s >= self._until_s or self._ended_on_node()):
                self._end()

    def _left_at_keeper_s(self, now_s: float) -> float:
        """Time left of the keeper's window; 0 without one."""
        status = self._keeper.status
        if status is not None:
            left_s = status.taken_at_s + status.released_s - now_s if status.released_s else 0.0
            return max(0.0, left_s)
        if self._keeper_wanted and self._until_s == -math.inf:
            return self._file.left_s()  # of a keeper that ended before it could answer
        return 0.0

    def _begin(self, duration_s: float) -> None:
        if not self.left_s:
            log("agent", f"released for {duration_s:g} s: no device is read or set")
        self._until_s = time.monotonic() + duration_s
        self._connection = self._keeper.connections
        self._filed = self._file.write(duration_s, self._sampler.gpus)

    def _ended_on_node(self) -> bool:
        return self._filed and not self._file.left_s()

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
