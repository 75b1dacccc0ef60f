"""Every rate source: order, counts and durations; what is wrong is refused, overload is shed.

Real sockets and real senders; only the owners of the GPUs are made up.
"""

import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from running_agent import eventually

from joulecut import Reporter
from joulecut_agent.counters import Counters
from joulecut_agent.jobs.binding import Binding
from joulecut_agent.jobs.log_line import PRESETS, LogSource
from joulecut_agent.jobs.log_tail import LogTail
from joulecut_agent.jobs.owner import SLURM, Owner, Owners
from joulecut_agent.jobs.processes import Processes
from joulecut_agent.jobs.rate_source import Fault
from joulecut_agent.jobs.report_queue import ReportQueue
from joulecut_agent.jobs.report_socket import ReportSocket
from joulecut_wire.messages import IterationReport
from joulecut_wire.metrics import REPORTS, REPORTS_REFUSED

UUIDS = {0: "GPU-a", 1: "GPU-b"}
PROC = Path("/proc")


class Node:
    """The receiving end of one node: GPU-a is used by this process, GPU-b by a Slurm job."""

    def __init__(self, home: Path) -> None:
        self.counters, self.faults = Counters(), list[Fault]()
        self.owners: dict[str, Owners] = {"GPU-b": (Owner(SLURM, "4711"),)}
        self.users = {"GPU-a": (os.getpid(),)}
        processes, users = Processes(PROC), lambda uuid: self.users.get(uuid, ())
        binding = Binding(
            processes,
            lambda uuid: self.owners.get(uuid, ()),
            users,
            lambda: None,
            lambda _: False,
        )
        queue = ReportQueue()
        self.watcher = queue.subscribe()
        self.socket = ReportSocket(
            home / "jobs.sock", UUIDS.values, queue, self.counters, lambda *_: None,
            binding=binding, on_fault=self.faults.append,
        )  # fmt: skip
        self.log = home / "train.log"
        pattern = re.compile(PRESETS["megatron"])
        source = LogSource("demo", str(home / "*.log"), pattern)
        self.log_s = time.monotonic()  # when lines come
        self.logs = LogTail([source], self.socket, lambda _: ["GPU-a"], lambda: self.log_s)
        self.logs.turn()  # nothing is there yet
        self.reports: list[IterationReport] = []

    def turn(self) -> list[IterationReport]:
        for _ in range(100):
            self.socket.turn()
        self.reports += self.watcher.drain()[0]
        return self.reports

    def counted(self, result: str) -> int:
        return dict(self.counters.counts(REPORTS.name)).get((result,), 0)

    def refused(self) -> dict[str, int]:
        return {k[0]: n for k, n in self.counters.counts(REPORTS_REFUSED.name)}


class Rig(Protocol):
    """One source: sends iterations of 0.5 s for a GPU, and input that it cannot read.

    `stage` is what it says of its stage.
    """

    name: str
    stage: int

    def send(self, node: Node, numbers: range, uuid: str = "GPU-a") -> None: ...

    def garbage(self, node: Node) -> None: ...

    def flood(self, node: Node) -> None: ...


class Datagrams:
    name, stage = "report", 2

    def send(self, node: Node, numbers: range, uuid: str = "GPU-a") -> None:
        reporter = Reporter("demo", uuid, 2, str(node.socket.path))
        for number in numbers:
            assert reporter.iteration(number, 0.5, {})
        reporter.close()

    def garbage(self, node: Node) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b'{"v": 1, "job": "demo", "stage": "two"}', str(node.socket.path))

    def flood(self, node: Node) -> None:
        reporter = Reporter("demo", "GPU-a", 2, str(node.socket.path))
        sent = [reporter.iteration(number, 0.5, {}) for number in range(5000)]
        reporter.close()
        node.counters.count(REPORTS.name, "shed", by=sent.count(False))  # by the kernel


class LogLines:
    """Of a Megatron run whose pace is known by earlier lines. The agent's configuration names the
    job, not the sender.
    """

    name, stage = "log", 0

    def send(self, node: Node, numbers: range, uuid: str = "GPU-a") -> None:
        for passed_s, number in ((0.0, 1000), (31.0, 1062), *((0.5, n) for n in numbers)):
            node.log_s += passed_s
            with node.log.open("a") as file:
                file.write(
                    f" [2026-08-22] iteration {number:8}/ 100 | consumed samples: 12 | "
                    "elapsed time per iteration (ms): 500.0 | throughput per GPU: 400\n"
                )
            node.logs.turn()

    def garbage(self, node: Node) -> None:
        with node.log.open("a") as file:
            file.write("iteration 1/ 2 | elapsed time per iteration (ms): 1.2.3 | half a li\n")
        node.logs.turn()

    def flood(self, node: Node) -> None:
        self.send(node, range(1, 1200))


RIGS = {
    "datagrams": Datagrams(),
    "log": LogLines(),
}


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="jc") as home:
        node = Node(Path(home))
        yield node
        node.socket.close()


@pytest.mark.parametrize("rig", RIGS.values(), ids=RIGS)
def test_iterations_arrive_in_order_with_their_durations(node: Node, rig: Rig) -> None:
    rig.send(node, range(7, 17))
    eventually("ten reports", lambda: len(node.turn()) >= 10)
    begin = node.reports[0].iteration
    assert [one.iteration for one in node.reports] == list(range(begin, begin + len(node.reports)))
    assert (begin, len(node.reports)) == (7, 10)
    assert all(one.duration_s == pytest.approx(0.5, rel=0.01) for one in node.reports)
    assert {(r.job, r.uuid, r.stage) for r in node.reports} == {("demo", "GPU-a", rig.stage)}
    assert {report.source or "report" for report in node.reports} == {rig.name}
    assert node.counted("accepted") == len(node.reports)
    assert not node.faults


def test_another_owners_gpu_is_refused_with_a_line(node: Node) -> None:
    """A log names no GPU: the configuration does."""
    rig = RIGS["datagrams"]
    rig.send(node, range(1, 3), "GPU-b")
    eventually("two refusals", lambda: (node.turn(), node.counted("refused") == 2)[1])
    assert node.refused() == {"not_owner": 2}
    assert not node.reports
    assert [(fault.uuid, fault.source) for fault in node.faults] == [("GPU-b", rig.name)] * 2
    assert "belongs to job 4711" in node.faults[0].text
    assert all(fault.foreign for fault in node.faults), "job 4711 reports nothing itself"


@pytest.mark.parametrize("rig", RIGS.values(), ids=RIGS)
def test_what_it_cannot_read_costs_itself_alone(
    node: Node, rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        rig.garbage(node)
    eventually("dropped", lambda: (node.turn(), node.counted("dropped") == 3)[1])
    rig.send(node, range(1, 2))
    eventually("one report", lambda: len(node.turn()) == 1)
    assert len([line for line in capfd.readouterr().err.splitlines() if "dropped" in line]) == 1


@pytest.mark.parametrize("rig", RIGS.values(), ids=RIGS)
def test_overload_is_shed_and_counted_and_ends(node: Node, rig: Rig) -> None:
    rig.flood(node)
    assert node.counted("shed") > 0
    node.turn()
    rig_again = RIGS["datagrams"]
    rig_again.send(node, range(9001, 9002))
    eventually("heard again", lambda: node.turn()[-1:][0].iteration == 9001)
