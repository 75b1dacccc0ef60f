"""Intake of job reports on this node: its datagram socket, and what logs of jobs say.

Reports are untrusted input: a malformed one is counted and dropped, and none sets a clock. The
kernel names the sending process, whose exit the agent then sees: a job's end is noticed at once.
One thread checks everything, so that a mark waits for nothing else.
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
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from joulecut_agent.counters import Counters
from joulecut_agent.jobs.binding import NOT_OWNER, UNVERIFIED, Binding, Refusal, Sender
from joulecut_agent.jobs.live_jobs import HOLDERS_MAX, LiveJobs
from joulecut_agent.jobs.owner import Owners
from joulecut_agent.jobs.processes import Belonging
from joulecut_agent.jobs.rate_source import REPORT, Fault, Submission
from joulecut_agent.jobs.report_advice import advice
from joulecut_agent.jobs.report_queue import ReportQueue
from joulecut_agent.log import log
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import IterationReport
from joulecut_wire.metrics import REPORTS, REPORTS_REFUSED
from joulecut_wire.reports import DATAGRAM_BYTES_MAX, Mark, decode

REPORTERS_MAX = 256  # processes watched for their exit: 16 for each GPU of the largest node
PAIRS_MAX = 64  # (job, GPU) pairs of one process
BATCH_MAX = 64  # datagrams in one turn, so that a flood leaves time for the rest
TRUST_S = 0.5  # a check holds as long as a turn of the registry
FAILED_WAIT_S = 1.0  # after an unexpected error
INBOX_MAX = 1024  # of logs: four times what 256 ranks report at once
LOG_EVERY_S = 10.0  # a broken job repeats itself each iteration
LEAVE_WAIT_S = 2.0  # for a request under way to a keeper that does not answer
SILENCE_S = 60.0  # after which a job with an invisible process has ended
UNKNOWN_GPU, MARK, CROWDED = "unknown_gpu", "mark", "crowded"
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: struct ucred


@dataclass(slots=True)
class _Reporter:
    pidfd: int
    uid: int
    belongs: Belonging | None
    pairs: set[tuple[str, str]] = field(default_factory=set)
    proven: set[str] = field(default_factory=set)  # GPUs that more than its own word binds it to
    # Pairs that passed the check: until when it holds, and the GPU's owners then.
    trusted: dict[tuple[str, str], tuple[float, Owners]] = field(default_factory=dict)


@dataclass(eq=False)
class ReportSocket:
    """Receives reports and marks in its own thread, and takes what logs say.

    Without `start`, `turn` receives them. `ended(job, uuid)` is called when a job's last process
    has exited. `uuids` returns the GPUs of this node; one may be found late. Without a binding any
    process may report for any GPU. `on_mark` takes a mark; it returns a refusal or "". `on_report`
    takes a report at the moment it arrives, `on_fault` one that is not accepted, or that is likely
    a mistake. Raises OSError.
    """

    path: Path
    uuids: Callable[[], Collection[str]]
    report_queue: ReportQueue
    counters: Counters
    ended: Callable[[str, str], None]
    binding: Binding | None = None
    on_mark: Callable[[Mark], str] = lambda _: "operation marks are not used here"
    on_report: Callable[[IterationReport], None] = lambda _: None
    on_fault: Callable[[Fault], None] = lambda _: None

    def __post_init__(self) -> None:
        self._inbox: deque[Submission | Fault] = deque()
        self._reporters: dict[int, _Reporter] = {}
        # Until when the silence of an invisible process is no end, by its GPU and user id.
        self._invisible: dict[tuple[str, int], float] = {}
        self.live = LiveJobs()
        self._unlogged = 0
        self._logged_s = -inf
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if _is_in_use(self.path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(self.path))
        self.path.chmod(0o666)  # any job may report; a report affects its own GPUs alone
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._selector = selectors.EpollSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._leaving = threading.Event()
        self._wakeup = os.eventfd(0)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._listen, name="jobs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def turn(self, wait_s: float | None = 0.0) -> None:
        """Handles datagrams and exits that come within `wait_s`; None waits for one."""
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._socket:
                for _ in range(BATCH_MAX):
                    if not self._receive():
                        break
            elif key.fileobj == self._wakeup:
                self._take_submitted()
            elif key.data is not None:
                self._exited(key.data)

    def submit(self, one: Submission | Fault) -> bool:
        """Takes what another source found, from any thread; False if it was shed."""
        if self._leaving.is_set():
            return False
        if len(self._inbox) >= INBOX_MAX:
            self.counters.count(REPORTS.name, "shed")
            return False
        self._inbox.append(one)
        os.eventfd_write(self._wakeup, 1)
        return True

    def _take_submitted(self) -> None:
        if self._leaving.is_set():
            return
        os.eventfd_read(self._wakeup)
        for _ in range(BATCH_MAX):
            if not self._inbox:
                return
            one = self._inbox.popleft()
            if isinstance(one, Fault):
                self._drop("dropped", one)
            else:
                age_s = max(0.0, time.monotonic() - one.ended_s)
                self._handle(replace(one.report, age_s=age_s), one.sender, permitted=True)
        os.eventfd_write(self._wakeup, 1)  # datagrams first, then the rest

    def close(self) -> None:
        self._leaving.set()
        os.eventfd_write(self._wakeup, 1)
        if self._thread.is_alive():
            self._thread.join(timeout=LEAVE_WAIT_S)
        if self._thread.is_alive():
            self.path.unlink(missing_ok=True)
            return  # the thread waits for a keeper; the rest ends with the process
        self._selector.close()
        os.close(self._wakeup)
        self._socket.close()
        for reporter in self._reporters.values():
            os.close(reporter.pidfd)
        self.path.unlink(missing_ok=True)

    def _listen(self) -> None:
        while not self._leaving.is_set():
            try:
                self.turn(None)
            except Exception as error:  # the agent is of use without reports
                what = f"receiving job reports failed: {type(error).__name__}: {error}"
                log("agent", what, "error")
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
            self._drop("dropped", Fault(sender, REPORT, str(error)))
            return True
        self._handle(report, sender)
        return True

    def _handle(
        self, report: IterationReport | Mark, sender: Sender, *, permitted: bool = False
    ) -> None:
        uuid, uuids = report.uuid, self.uuids()
        if uuid not in uuids:
            hint = f"; allowed: GPU-{uuid}" if f"GPU-{uuid}" in uuids else ""
            text = f"no GPU {uuid} on this node{hint}"
            self._refuse(report, sender, Refusal(UNKNOWN_GPU, text))
        elif permitted and isinstance(report, IterationReport):
            self._accept_report(report, sender)
        else:
            self._check(report, sender)

    def _check(self, report: IterationReport | Mark, sender: Sender) -> None:
        """Accepts a report or mark if its sender may report for the GPU."""
        known, now_s = self._reporters.get(sender.pid), time.monotonic()
        if isinstance(report, Mark) and known and self._trusts(known, report, sender, now_s):
            self._accept_mark(report, sender)
            return
        pidfd, belongs = -1, known.belongs if known else None
        if known is None and sender.pid > 0:
            with contextlib.suppress(OSError):  # gone already
                pidfd = os.pidfd_open(sender.pid)
        try:
            if self.binding is not None and known is None and pidfd >= 0:
                belongs = self._belonging(sender, pidfd)
            if refusal := self._refusal(report, sender, belongs, now_s):
                self._refuse(report, sender, refusal)
                return
            if pidfd >= 0 and len(self._reporters) < REPORTERS_MAX:
                self._reporters[sender.pid] = _Reporter(pidfd, sender.uid, belongs)
                self._selector.register(pidfd, selectors.EVENT_READ, sender.pid)
                pidfd = -1
        finally:
            if pidfd >= 0:
                os.close(pidfd)
        reporter = self._reporters.get(sender.pid)
        if reporter is not None:
            self._note_proof(reporter, report.uuid, sender)
        if isinstance(report, IterationReport):
            self._accept_report(report, sender)
            return
        self._accept_mark(report, sender)
        pair = (report.job, report.uuid)
        if reporter is not None and pair in reporter.pairs:
            reporter.trusted[pair] = (now_s + TRUST_S, self._bound(report.uuid))

    def _refusal(
        self, report: IterationReport | Mark, sender: Sender, belongs: Belonging | None,
        now_s: float,
    ) -> Refusal | None:  # fmt: skip
        refusal = None
        if self.binding is not None:
            speakers = self._speakers(report.uuid, now_s)
            refusal = self.binding.refusal(report.uuid, sender, belongs, speakers)
            if speakers and (refusal or speakers != {sender.uid}):
                self._drop_contradicted(report.uuid)
        if refusal is None and self.live.is_crowded(report.job, report.uuid):
            return Refusal(CROWDED, f"GPU {report.uuid} has {HOLDERS_MAX} jobs already")
        return refusal

    def _note_proof(self, reporter: _Reporter, uuid: str, sender: Sender) -> None:
        """After a check that refused nothing."""
        if self.binding is None or uuid in reporter.proven:
            return
        if self.binding.proves(uuid, sender, reporter.belongs):
            reporter.proven.add(uuid)

    def _speakers(self, uuid: str, now_s: float) -> set[int]:
        """User ids of the live processes that report for a GPU."""
        tracked = self._reporters.values()
        visible = {one.uid for one in tracked if any(uuid == its for _, its in one.pairs)}
        silent = self._invisible.items()
        return visible | {uid for (its, uid), until in silent if its == uuid and now_s < until}

    def _drop_contradicted(self, uuid: str) -> None:
        """Ends claims on a GPU that nothing but the claim bound to it, and no lease."""
        for pid, reporter in self._reporters.items():
            pairs = {pair for pair in reporter.pairs if pair[1] == uuid}
            if pairs and not self._may_end_lease(pid, reporter, uuid):
                reporter.pairs -= pairs
                for job, _ in pairs - self._pairs():
                    self.live.ended(job, uuid)

    def _may_end_lease(self, pid: int, reporter: _Reporter, uuid: str) -> bool:
        """Whether the claim of a process was proven, or is at least not contradicted now."""
        if self.binding is None or uuid in reporter.proven:
            return True
        sender = Sender(pid, reporter.uid)
        return self.binding.refusal(uuid, sender, reporter.belongs, {reporter.uid}) is None

    def _pairs(self) -> set[tuple[str, str]]:
        return {pair for reporter in self._reporters.values() for pair in reporter.pairs}

    def _trusts(self, known: _Reporter, mark: Mark, sender: Sender, now_s: float) -> bool:
        """Whether a mark is accepted without a check, which reads files of the kernel.

        Its process is alive, and the GPU has the same owners as at the last check.
        """
        until_s, owners = known.trusted.get((mark.job, mark.uuid), (0.0, ()))
        return now_s < until_s and known.uid == sender.uid and owners == self._bound(mark.uuid)

    def _bound(self, uuid: str) -> Owners:
        return self.binding.bound(uuid) if self.binding else ()

    def _accept_mark(self, mark: Mark, sender: Sender) -> None:
        if refused := self.on_mark(mark):
            self._refuse(mark, sender, Refusal(MARK, refused))
        else:
            self.counters.count(REPORTS.name, "accepted")
            self._follow(sender.pid, (mark.job, mark.uuid))

    def _belonging(self, sender: Sender, pidfd: int) -> Belonging | None:
        """None if the process has ended: its pid may be another process's by now."""
        assert self.binding is not None
        belongs = self.binding.belonging(sender)
        ended, _, _ = select.select([pidfd], [], [], 0)
        return None if ended else belongs

    def _accept_report(self, report: IterationReport, sender: Sender) -> None:
        self.counters.count(REPORTS.name, "accepted")
        self.on_report(report)
        until_s, now_s = inf, time.monotonic()
        if text := advice(report):
            source = report.source or REPORT
            self.on_fault(Fault(sender, source, text, report.uuid, accepted=True))
        if not self._follow(sender.pid, (report.job, report.uuid)):
            until_s = now_s + max(SILENCE_S, 5 * report.duration_s)
            live = {key: until for key, until in self._invisible.items() if now_s < until}
            self._invisible = {**live, (report.uuid, sender.uid): until_s}
        self.live.reported(report.job, report.uuid, until_s, report.duration_s)
        self.report_queue.publish(report)

    def _follow(self, pid: int, pair: tuple[str, str]) -> bool:
        """Whether the exit of this process will be noticed. In another container its pid is 0."""
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
        for job, uuid in sorted(reporter.pairs - self._pairs()):
            self.live.ended(job, uuid)
            if self._may_end_lease(pid, reporter, uuid):
                self.ended(job, uuid)

    def _refuse(self, report: IterationReport | Mark, sender: Sender, refusal: Refusal) -> None:
        self.counters.count(REPORTS_REFUSED.name, refusal.code)
        source = (report.source or REPORT) if isinstance(report, IterationReport) else MARK
        foreign = refusal.code in {NOT_OWNER, UNVERIFIED} and not self._speakers(
            report.uuid, time.monotonic()
        )
        self._drop("refused", Fault(sender, source, refusal.text, report.uuid, foreign=foreign))

    def _drop(self, result: str, fault: Fault) -> None:
        self.counters.count(REPORTS.name, result)
        self.on_fault(fault)
        now_s = time.monotonic()
        if now_s - self._logged_s < LOG_EVERY_S:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more since the last such line)" if self._unlogged else ""
        pid, source = fault.sender.pid, "" if fault.source == REPORT else f" ({fault.source})"
        log("agent", f"job report of process {pid}{source} {result}: {fault.text}{more}", "warning")
        self._logged_s, self._unlogged = now_s, 0


def _is_in_use(path: Path) -> bool:
    """Whether the socket is a running agent's, and not left behind by a dead one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        return True
