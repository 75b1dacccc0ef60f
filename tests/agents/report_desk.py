"""The agent's receiving end for jobs, without an agent around it: real datagrams of real processes,
places in a made-up `/proc`.
"""

import os
from pathlib import Path

from joulecut import Reporter
from joulecut_agent.counters import Counters
from joulecut_agent.jobs.binding import Binding
from joulecut_agent.jobs.owner import Owners
from joulecut_agent.jobs.processes import Processes
from joulecut_agent.jobs.report_queue import ReportQueue, Subscription
from joulecut_agent.jobs.report_socket import ReportSocket
from joulecut_wire.metrics import REPORTS, REPORTS_REFUSED
from joulecut_wire.reports import Mark


class Desk:
    """Of GPU-a and GPU-b. `heard` are the marks that it passed on, and `answer` is what became of
    each; `ended` are jobs whose last process has gone.
    """

    def __init__(self, home: Path) -> None:
        self.path, self.proc = home / "jobs.sock", home / "proc"
        self.owners: dict[str, Owners] = {}
        self.users: dict[str, tuple[int, ...]] = {}
        self.leased: set[str] = set()
        self.doubts = 0
        self.heard: list[Mark] = []
        self.answer = ""
        self.ended: list[tuple[str, str]] = []
        self.counters, queue = Counters(), ReportQueue()
        self.watcher: Subscription = queue.subscribe()
        self.binding = Binding(
            Processes(self.proc),
            lambda uuid: self.owners.get(uuid, ()),
            lambda uuid: self.users.get(uuid, ()),
            self._doubt,
            lambda uuid: uuid in self.leased,
        )
        self.jobs = ReportSocket(
            self.path, lambda: ["GPU-a", "GPU-b"], queue, self.counters,
            lambda *pair: self.ended.append(pair), binding=self.binding, on_mark=self._marked,
        )  # fmt: skip

    def _doubt(self) -> None:
        self.doubts += 1

    def _marked(self, mark: Mark) -> str:
        self.heard.append(mark)
        return self.answer

    def counts(self) -> dict[str, int]:
        return {labels[0]: count for labels, count in self.counters.counts(REPORTS.name)}

    def refusals(self) -> dict[str, int]:
        return {labels[0]: count for labels, count in self.counters.counts(REPORTS_REFUSED.name)}

    def place(self, cgroup: str, pid: int = 0) -> None:
        """Where a process runs, or this one."""
        folder = self.proc / str(pid or os.getpid())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(f"0::{cgroup}\n")

    def refused(self, before: dict[str, int]) -> str:
        """The reason that came to be counted since."""
        return next((k for k, count in self.refusals().items() if count != before.get(k, 0)), "")

    def speak(self, uuid: str = "GPU-a", job: str = "demo") -> str:
        """The reason for which a report of this very process was refused, or ""."""
        before, reporter = self.refusals(), Reporter(job, uuid, 0, str(self.path))
        assert reporter.iteration(1, 0.5, {})
        reporter.close()
        self.jobs.turn()
        return self.refused(before)

    def mark(self, uuid: str = "GPU-a") -> str:
        """As `speak`, of a mark."""
        before, reporter = self.refusals(), Reporter("demo", uuid, 3, str(self.path))
        assert reporter.mark("begin", "forward", 5, 7)
        reporter.close()
        self.jobs.turn()
        return self.refused(before)
