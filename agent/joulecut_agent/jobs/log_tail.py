"""Iterations from lines of a job's log, for a job that can be given nothing else.

The agent's configuration maps a log to a job: that mapping is what permits the reports, and the
GPUs are those of that job on this node. Lines written before the agent began to read are left out.
"""

import contextlib
import glob
import os
import re
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from joulecut_agent.jobs.binding import Sender
from joulecut_agent.jobs.log_line import LineReader, LogSource, Pace
from joulecut_agent.jobs.rate_source import LOG, NO_SENDER, ONE_STAGE, Fault, Inbox, Submission
from joulecut_agent.log import Warnings
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import IterationReport

POLL_S = 0.5
FILES_MAX = 64  # of one pattern of paths
READ_BYTES_MAX = 1 << 18  # of one file in one turn; more is left out
LINE_BYTES_MAX = 4096
LINE_END = re.compile(rb"[\r\n]+")  # a bar begins with a carriage return
SILENT_S = 300.0  # a job without one iteration read for so long says so, and again after as long
SILENT_GAPS = 10.0  # usual gaps between two iterations that were read
LINE_SHOWN = 100


@dataclass(slots=True)
class _File:
    offset: int
    reader: LineReader
    pace: Pace = field(default_factory=Pace)
    rest: bytes = b""


@dataclass(slots=True)
class _Silence:
    """What a source has read last, since its job has GPUs here."""

    since_s: float
    gap_s: float = 0.0
    newest: str = ""
    begun: bool = False

    def read(self, now_s: float) -> None:
        if self.begun:
            self.gap_s = max(self.gap_s, now_s - self.since_s)
        self.begun, self.since_s = True, now_s

    def over(self, now_s: float) -> bool:
        return now_s - self.since_s >= max(SILENT_S, SILENT_GAPS * self.gap_s)


@dataclass(eq=False)
class LogTail:
    """Reads in its own thread between `start` and `close`; without `start`, `turn` reads."""

    sources: Collection[LogSource]
    inbox: Inbox
    gpus_of: Callable[[str], Collection[str]]  # the GPUs of a job on this node
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._files: OrderedDict[tuple[int, int], _File] = OrderedDict()  # by device and inode
        self._silent: dict[LogSource, _Silence] = {}
        self._begun = False
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._leaving.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0 * POLL_S)

    def turn(self) -> None:
        """Takes the lines that were added since the last turn."""
        now_s = self.clock()
        for source in self.sources:
            paths = sorted(glob.glob(source.path))[:FILES_MAX]
            for path in paths:
                with contextlib.suppress(OSError):
                    self._read(source, path, now_s)
            self._notice(source, bool(paths), now_s)
        self._begun = True

    def _notice(self, source: LogSource, exists: bool, now_s: float) -> None:
        """Says that a running job's log gives no iteration, and which line it has read last."""
        if not self.gpus_of(source.job):
            self._silent.pop(source, None)
            return
        silent = self._silent.setdefault(source, _Silence(now_s))
        if silent.over(now_s):
            newest = f"newest line {silent.newest[:LINE_SHOWN]!r}" if silent.newest else "no line"
            what = f"no iteration read for {now_s - silent.since_s:.0f} s: "
            what += newest if exists else "no such file"
            silent.since_s, silent.gap_s, silent.begun = now_s, 0.0, False
            self._say(source, NO_SENDER, what, "lines that fit the pattern")

    def _say(self, source: LogSource, sender: Sender, what: str, allowed: str) -> None:
        uuid = next(iter(self.gpus_of(source.job)), "")
        text = f"{source.path}: {what}; allowed: {allowed}"
        self.inbox.submit(Fault(sender, LOG, text, uuid))

    def _run(self) -> None:
        warnings = Warnings()
        while not self._leaving.is_set():
            warnings.attempt(self.turn, "reading logs of jobs failed")
            self._leaving.wait(POLL_S)

    def _read(self, source: LogSource, path: str, now_s: float) -> None:
        """Raises OSError."""
        # A job may put anything at that path: a pipe must not block.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                return
            known = self._files.get((about.st_dev, about.st_ino))
            if known is None:
                # A log that appears later is read from its first line.
                known = _File(about.st_size if not self._begun else 0, LineReader(source))
                self._files[about.st_dev, about.st_ino] = known
                if len(self._files) > FILES_MAX * max(1, len(self.sources)):
                    self._files.popitem(last=False)
            if about.st_size < known.offset:  # it was truncated, to be written again
                known.offset, known.rest, known.reader = 0, b"", LineReader(source)
            if about.st_size - known.offset > READ_BYTES_MAX:
                known.offset, known.rest = about.st_size - READ_BYTES_MAX, b""
            file.seek(known.offset)
            added = file.read(READ_BYTES_MAX)
        known.offset += len(added)
        *lines, known.rest = LINE_END.split(known.rest + added)
        known.rest = known.rest[-LINE_BYTES_MAX:]
        for line in lines:
            text = line[:LINE_BYTES_MAX].decode(errors="replace")
            self._take(source, known, text, about.st_uid, now_s)

    def _take(self, source: LogSource, known: _File, line: str, uid: int, now_s: float) -> None:
        sender, silent = Sender(0, uid), self._silent.get(source)
        if silent and line.strip():
            silent.newest = line.strip()
        try:
            found = known.reader.read(line)
            if found is None or not known.pace.proves(found, now_s):
                return
        except BadInput as error:
            self._say(source, sender, error.what, error.allowed)
            return
        if silent:
            silent.read(now_s)
        for uuid in self.gpus_of(source.job):
            report = IterationReport(
                source.job, uuid, 0, found.number, found.duration_s, source=LOG, shape=ONE_STAGE
            )
            self.inbox.submit(Submission(report, sender, now_s))
