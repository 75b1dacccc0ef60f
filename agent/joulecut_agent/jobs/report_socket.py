"""What jobs on this node say of themselves: datagrams in, and an end noticed at once.

A job's word is a stranger's: malformed ones are counted and dropped, and none of it sets a
clock. The kernel names the sender, so that the agent sees it exit, whatever it did not say.
"""

import contextlib
import errno
import os
import select
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from joulecut_agent.counters import Tally
from joulecut_agent.jobs.binding import Binding, Refusal, Sender
from joulecut_agent.jobs.live_jobs import HOLDERS_MAX, LiveJobs
from joulecut_agent.jobs.owner import Owners
from joulecut_agent.jobs.processes import Belonging
from joulecut_agent.jobs.report_queue import Feed
from joulecut_agent.log import say
from joulecut_agent.scheduling import be_prompt
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import IterationReport
from joulecut_wire.metrics import REPORTS, REPORTS_REFUSED
from joulecut_wire.reports import DATAGRAM_BYTES_MAX, Mark, decode

REPORTERS_MAX = 256  # processes watched for their end: 16 for each GPU of the largest node
PAIRS_MAX = 64  # (job, GPU) pairs one process may speak for
TURN_MAX = 64  # datagrams in one turn, so that a flood leaves time for everything else
TRUST_S = 0.5  # of who was judged: a turn of the registry, whose word is no newer than that
FAILED_WAIT_S = 1.0  # before what failed for no reason we know of is tried again
LOG_EVERY_S = 10.0  # a broken job repeats itself each iteration
LEAVE_WAIT_S = 2.0  # for a word under way to a keeper that does not answer
SILENCE_S = 60.0  # after which a job whose process we cannot see is taken to be gone
UNKNOWN_GPU, MARK, CROWDED = "unknown_gpu", "mark", "crowded"
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: struct ucred


@dataclass(slots=True)
class _Reporter:
    pidfd: int
    uid: int
    belongs: Belonging | None
    pairs: set[tuple[str, str]] = field(default_factory=set)
    # For which pairs it was judged, until when that holds, and whose the GPU was.
    trusted: dict[tuple[str, str], tuple[float, Owners]] = field(default_factory=dict)


class Jobs:
    """One datagram socket. `ended(job, uuid)` is called when a job's last process has gone.

    `start` listens in a thread of its own, so that a mark waits for nothing else that the agent
    does; where nobody called it, `turn` takes what has come.
    """

    def __init__(
        self, path: Path, uuids: Callable[[], Collection[str]], feed: Feed, tally: Tally,
        ended: Callable[[str, str], None], *, binding: Binding | None = None,
        marked: Callable[[Mark], str] = lambda _: "marks of single operations are not used here",
    ) -> None:  # fmt: skip
        """`uuids` tells the GPUs of this node; one may be found late. Without a binding anybody
        may speak for any of them. `marked` takes a mark, or says why not. Raises OSError where
        the socket cannot be made.
        """
        self._path = path
        self._uuids = uuids
        self._feed = feed
        self._tally = tally
        self._ended = ended
        self._binding = binding
        self._marked = marked
        self._reporters: dict[int, _Reporter] = {}
        self.live = LiveJobs()
        self._silent = 0
        self._said_s = -inf
        path.parent.mkdir(parents=True, exist_ok=True)
        if _somebody_listens(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))
        path.chmod(0o666)  # any job may speak; what it says affects its own GPUs alone
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._selector = selectors.EpollSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._leaving = threading.Event()
        self._bell = os.eventfd(0)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._listen, name="jobs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def turn(self, wait_s: float | None = 0.0) -> None:
        """Takes what has come in, or comes within `wait_s`; None waits until something does."""
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._socket:
                for _ in range(TURN_MAX):
                    if not self._receive():
                        break
            elif key.data is not None:
                self._exited(key.data)

    def close(self) -> None:
        self._leaving.set()
        os.eventfd_write(self._bell, 1)
        if self._thread.is_alive():
            self._thread.join(timeout=LEAVE_WAIT_S)
        if self._thread.is_alive():
            self._path.unlink(missing_ok=True)
            return  # it waits for a keeper; the rest ends with the process
        self._selector.close()
        os.close(self._bell)
        self._socket.close()
        for reporter in self._reporters.values():
            os.close(reporter.pidfd)
        self._path.unlink(missing_ok=True)

    def _listen(self) -> None:
        be_prompt()
        while not self._leaving.is_set():
            try:
                self.turn(None)
            except Exception as error:  # who is deaf to jobs is of use all the same
                say("agent", f"listening to jobs failed: {type(error).__name__}: {error}")
                self._leaving.wait(FAILED_WAIT_S)

    def _receive(self) -> bool:
        space = socket.CMSG_SPACE(_CREDENTIALS.size)
        try:
            raw, ancillary, _, _ = self._socket.recvmsg(DATAGRAM_BYTES_MAX + 1, space)
        except OSError:
            return False
        sender = Sender(0, -1)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                sender = Sender(*_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[:2])
        try:
            report = decode(raw)
        except BadInput as error:
            self._turn_down("dropped", sender.pid, str(error))
            return True
        if report.uuid not in self._uuids():
            self._refuse(sender, Refusal(UNKNOWN_GPU, f"no GPU {report.uuid} on this node"))
        else:
            self._judge(report, sender)
        return True

    def _judge(self, report: IterationReport | Mark, sender: Sender) -> None:
        """Takes a report or a mark from who may speak for its GPU."""
        known, now_s = self._reporters.get(sender.pid), time.monotonic()
        if isinstance(report, Mark) and known and self._trusts(known, report, sender, now_s):
            self._take(report, sender)
            return
        pidfd, belongs = -1, known.belongs if known else None
        if known is None and sender.pid > 0:
            with contextlib.suppress(OSError):  # gone already
                pidfd = os.pidfd_open(sender.pid)
        try:
            if self._binding is not None:
                if known is None and pidfd >= 0:
                    belongs = self._belonging(sender, pidfd)
                speakers = {
                    one.uid
                    for one in self._reporters.values()
                    if any(uuid == report.uuid for _, uuid in one.pairs)
                }
                refusal = self._binding.refusal(report.uuid, sender, belongs, speakers)
                if refusal is not None:
                    self._refuse(sender, refusal)
                    return
            if self.live.is_crowded(report.job, report.uuid):
                what = f"GPU {report.uuid} has {HOLDERS_MAX} jobs already"
                self._refuse(sender, Refusal(CROWDED, what))
                return
            if pidfd >= 0 and len(self._reporters) < REPORTERS_MAX:
                self._reporters[sender.pid] = _Reporter(pidfd, sender.uid, belongs)
                self._selector.register(pidfd, selectors.EVENT_READ, sender.pid)
                pidfd = -1
        finally:
            if pidfd >= 0:
                os.close(pidfd)
        if isinstance(report, IterationReport):
            self._accept(report, sender.pid)
            return
        self._take(report, sender)
        pair, reporter = (report.job, report.uuid), self._reporters.get(sender.pid)
        if reporter is not None and pair in reporter.pairs:
            reporter.trusted[pair] = (now_s + TRUST_S, self._bound(report.uuid))

    def _trusts(self, known: _Reporter, mark: Mark, sender: Sender, now_s: float) -> bool:
        """A mark cannot wait until the kernel's files are read; its process lives, and it counts
        at once where the GPU is given to somebody else.
        """
        until_s, owners = known.trusted.get((mark.job, mark.uuid), (0.0, ()))
        return now_s < until_s and known.uid == sender.uid and owners == self._bound(mark.uuid)

    def _bound(self, uuid: str) -> Owners:
        return self._binding.bound(uuid) if self._binding else ()

    def _take(self, mark: Mark, sender: Sender) -> None:
        if refused := self._marked(mark):
            self._refuse(sender, Refusal(MARK, refused))
        else:
            self._tally.count(REPORTS.name, "accepted")
            self._follow(sender.pid, (mark.job, mark.uuid))

    def _belonging(self, sender: Sender, pidfd: int) -> Belonging | None:
        """None where the process ended meanwhile: its number may be somebody else's by now."""
        assert self._binding is not None
        belongs = self._binding.belonging(sender)
        ended, _, _ = select.select([pidfd], [], [], 0)
        return None if ended else belongs

    def _accept(self, report: IterationReport, pid: int) -> None:
        self._tally.count(REPORTS.name, "accepted")
        seen = self._follow(pid, (report.job, report.uuid))
        patience_s = max(SILENCE_S, 5 * report.duration_s)
        until_s = inf if seen else time.monotonic() + patience_s
        self.live.reported(report.job, report.uuid, until_s, report.duration_s)
        self._feed.publish(report)

    def _follow(self, pid: int, pair: tuple[str, str]) -> bool:
        """Whether the end of this process will be noticed. Another container's has pid 0."""
        reporter = self._reporters.get(pid)
        if reporter is None:
            return False
        if len(reporter.pairs) < PAIRS_MAX:
            reporter.pairs.add(pair)
        return pair in reporter.pairs

    def _exited(self, pid: int) -> None:
        reporter = self._reporters.pop(pid)
        self._selector.unregister(reporter.pidfd)
        with contextlib.suppress(OSError):
            os.close(reporter.pidfd)
        others = {pair for other in self._reporters.values() for pair in other.pairs}
        for job, uuid in sorted(reporter.pairs - others):
            self.live.ended(job, uuid)
            self._ended(job, uuid)

    def _refuse(self, sender: Sender, refusal: Refusal) -> None:
        self._tally.count(REPORTS_REFUSED.name, refusal.code)
        self._turn_down("refused", sender.pid, refusal.text)

    def _turn_down(self, result: str, pid: int, reason: str) -> None:
        self._tally.count(REPORTS.name, result)
        now_s = time.monotonic()
        if now_s - self._said_s < LOG_EVERY_S:
            self._silent += 1
            return
        more = f" ({self._silent} more since the last such line)" if self._silent else ""
        say("agent", f"job report of process {pid} {result}: {reason}{more}")
        self._said_s, self._silent = now_s, 0


def _somebody_listens(path: Path) -> bool:
    """Whether the socket is a living agent's, and not what a dead one left behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        return True
