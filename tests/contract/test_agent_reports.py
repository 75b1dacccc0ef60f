"""The job datagram: what the client sends, the wire decodes and the agent takes."""

import math
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_desk import Desk
from running_agent import PATIENCE_S, eventually

from joulecut import Reporter
from joulecut_agent.counters import Counters
from joulecut_agent.jobs.live_jobs import HOLDERS_MAX
from joulecut_agent.jobs.report_queue import ReportQueue
from joulecut_agent.jobs.report_socket import ReportSocket
from joulecut_wire.messages import IterationReport, OperationReport
from joulecut_wire.metrics import REPORTS
from joulecut_wire.reports import DATAGRAM_BYTES_MAX, Mark, decode

names = st.text(min_size=1, max_size=40)
seconds = st.floats(1e-6, 80_000.0)
kinds_of_operation = st.dictionaries(names, st.tuples(st.integers(0, 10**6), seconds), max_size=4)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="jc") as home:
        yield Path(home)


@pytest.fixture
def listener(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(folder / "jobs.sock"))
        sock.settimeout(PATIENCE_S)
        yield sock


@pytest.fixture
def desk(folder: Path) -> Iterator[Desk]:
    desk = Desk(folder)
    yield desk
    desk.jobs.close()


def test_it_listens_by_itself_whatever_fails(folder: Path) -> None:
    """A word that nobody can make use of costs itself, and not those after it."""
    path, heard, counters = folder / "jobs.sock", list[str](), Counters()

    def marked(mark: Mark) -> str:
        heard.append(mark.kind)
        if len(heard) == 1:
            raise RuntimeError(mark.kind)
        return ""

    jobs = ReportSocket(
        path, lambda: ["GPU-a"], ReportQueue(), counters, lambda *_: None, on_mark=marked
    )
    jobs.start()
    reporter = Reporter("demo", "GPU-a", 0, str(path))
    for kind in ("first", "second"):
        assert reporter.mark("begin", kind, 0, 1)
    eventually("both", lambda: heard == ["first", "second"])
    eventually("counted", lambda: counters.counts(REPORTS.name) == [(("accepted",), 1)])
    reporter.close()
    jobs.close()
    assert not path.exists()
    assert "jobs" not in {thread.name for thread in threading.enumerate()}


@given(
    job=names, uuid=names, stage=st.integers(0, 65_535), number=st.integers(0, 2**53),
    duration_s=seconds, kinds=kinds_of_operation,
    peer_s=st.one_of(st.none(), seconds),
)  # fmt: skip
def test_what_the_client_sends_is_what_the_wire_reads(
    job: str, uuid: str, stage: int, number: int, duration_s: float,
    kinds: dict[str, tuple[int, float]], peer_s: float | None,
) -> None:  # fmt: skip
    kinds = {  # what never ran kept nothing busy, and nothing is busy for longer than it took
        kind: (count, min(busy_s, duration_s) if count else 0.0)
        for kind, (count, busy_s) in kinds.items()
    }
    with tempfile.TemporaryDirectory(prefix="jc") as home:
        path = f"{home}/s"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(path)
            reporter = Reporter(job, uuid, stage, path)
            assert reporter.iteration(number, duration_s, kinds, peer_iteration_time_s=peer_s)
            reporter.close()
            raw = sock.recv(2 * DATAGRAM_BYTES_MAX)
    operations = tuple(OperationReport(kind, *numbers) for kind, numbers in kinds.items())
    assert decode(raw) == IterationReport(job, uuid, stage, number, duration_s, operations, peer_s)


def test_times_of_single_operations_are_sent_as_sums(folder: Path, listener: socket.socket) -> None:
    timed = [("forward", 0.00012344), ("backward", 0.0002)] * 4
    reporter = Reporter("demo", "GPU-a", 0, str(folder / "jobs.sock"))
    assert reporter.iteration(1, 1.0, timed=timed)
    reporter.close()
    report = decode(listener.recv(2 * DATAGRAM_BYTES_MAX))
    assert isinstance(report, IterationReport)
    forward, backward = report.operations
    assert (forward.kind, forward.count) == ("forward", 4)
    assert backward.busy_s == pytest.approx(0.0008)


@pytest.mark.parametrize(
    "arguments",
    [
        (1, math.nan, {}),
        (1, math.inf, {}),
        ("x" * 10_000, 1.0, {}),
        (1, object(), {}),
        (1, 1.0, {"forward": 3}),
        (1, 1.0, [("forward", 1, 1.0)]),
    ],
)
def test_nonsense_is_not_sent_and_never_raises(
    folder: Path, listener: socket.socket, arguments: tuple[Any, ...]
) -> None:
    assert not Reporter("demo", "GPU-a", 0, str(folder / "jobs.sock")).iteration(*arguments)


def test_without_an_agent_training_goes_on(folder: Path) -> None:
    assert not Reporter("demo", "GPU-a", 0, str(folder / "nobody.sock")).iteration(1, 1.0, {})
    assert not Reporter("demo", "GPU-a", 0, "x" * 300).iteration(1, 1.0, {})


@pytest.mark.parametrize(("retry_s", "found"), [(1.0, True), (3600.0, False)])
def test_an_agent_that_was_missing_is_looked_for_once_in_a_while(
    folder: Path, monkeypatch: pytest.MonkeyPatch, retry_s: float, found: bool
) -> None:
    monkeypatch.setattr("joulecut.reporter.RETRY_S", retry_s)
    path = folder / "jobs.sock"
    reporter = Reporter("demo", "GPU-a", 0, str(path))
    assert not reporter.iteration(1, 1.0, {})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as late:
        late.bind(str(path))
        if found:
            eventually("a report", lambda: reporter.iteration(2, 1.0, {}))
        else:
            assert not reporter.iteration(2, 1.0, {})
    reporter.close()


def test_an_agent_that_sleeps_does_not_block_and_one_that_restarts_is_found(folder: Path) -> None:
    path = folder / "jobs.sock"
    reporter = Reporter("demo", "GPU-a", 0, str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asleep:
        asleep.bind(str(path))
        sent = [reporter.iteration(number, 1.0, {}) for number in range(5000)]
        assert sent[0]
        assert not sent[-1]
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as fresh:
        fresh.bind(str(path))
        assert any(reporter.iteration(1, 1.0, {}) for _ in range(2))
    reporter.close()


def test_the_environment_names_the_socket(
    folder: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOULECUT_SOCKET", str(folder / "jobs.sock"))
    reporter = Reporter("demo", "GPU-a", 0)
    assert reporter.iteration(7, 0.5)
    reporter.close()
    assert isinstance(decode(listener.recv(9999)), IterationReport)


MARK = (
    b'{"v":1,"job":"demo","uuid":"GPU-a","mark":"begin","kind":"forward","stage":0,'
    b'"microbatch":0,"iteration":1,"t_ns":5}'
)


ITERATION = (
    b'{"v":1,"job":"demo","uuid":"GPU-a","stage":0,"iteration":1,"duration_s":0.5,'
    b'"ops":[{"kind":"forward","count":4,"busy_s":0.1}]}'
)


@pytest.mark.parametrize(
    ("good", "once", "twice", "named"),
    [
        (ITERATION, b'"job":"demo"', b'"job":"demo","job":"other"', "'job'"),
        (ITERATION, b'"job":"demo"', b'"job":"demo","job":"demo"', "'job'"),
        (ITERATION, b'"stage":0', b'"stage":0,"st\\u0061ge":1', "'stage'"),
        (ITERATION, b'"count":4', b'"count":4,"count":5', "'count'"),
        (ITERATION, b'0.1}', b'0.1},{"kind":"forward","count":1,"busy_s":0.1}', "'forward'"),
        (MARK, b'"mark":"begin"', b'"mark":"begin","mark":"end"', "'mark'"),
    ],
)  # fmt: skip
def test_what_is_said_twice_is_no_report(
    folder: Path,
    desk: Desk,
    capfd: pytest.CaptureFixture[str],
    good: bytes,
    once: bytes,
    twice: bytes,
    named: str,
) -> None:
    """The last of two would win, and nobody would hear of the other."""
    decode(good)
    assert good.count(once) == 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.connect(str(folder / "jobs.sock"))
        stranger.send(good.replace(once, twice))
        desk.jobs.turn()
    assert desk.counts() == {"dropped": 1}
    assert desk.watcher.drain()[0] == ()
    (line,) = capfd.readouterr().err.splitlines()
    assert named in line


def test_a_job_may_be_called_mark(folder: Path, desk: Desk) -> None:
    reporter = Reporter("mark", "GPU-a", 0, str(folder / "jobs.sock"))
    assert reporter.iteration(1, 0.5, {"mark": (1, 0.1)})
    reporter.close()
    desk.jobs.turn()
    assert desk.counts() == {"accepted": 1}


def test_a_process_of_many_names_is_bounded(folder: Path, desk: Desk) -> None:
    """A job is a series, and a change of jobs costs a reading of the device."""
    for n in range(HOLDERS_MAX + 5):
        reporter = Reporter(f"job{n}", "GPU-a", 0, str(folder / "jobs.sock"))
        reporter.iteration(1, 0.5)
        reporter.close()
        desk.jobs.turn()
    assert len(desk.jobs.live.holding()["GPU-a"]) == HOLDERS_MAX
    assert desk.counts() == {"accepted": HOLDERS_MAX, "refused": 5}


def test_a_second_agent_does_not_take_the_socket_away(folder: Path, desk: Desk) -> None:
    with pytest.raises(OSError, match="in use"):
        Desk(folder)
    reporter = Reporter("demo", "GPU-a", 0, str(folder / "jobs.sock"))
    assert reporter.iteration(1, 0.5)
    reporter.close()
    desk.jobs.turn()
    assert desk.counts() == {"accepted": 1}


def test_a_socket_left_by_a_dead_agent_is_replaced(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(folder / "jobs.sock"))
    Desk(folder).jobs.close()


def test_any_user_may_report(folder: Path, desk: Desk) -> None:
    assert (folder / "jobs.sock").stat().st_mode & 0o777 == 0o666


def test_the_end_of_the_last_process_ends_the_job(folder: Path, desk: Desk) -> None:
    children = [
        _reporting_child(folder / "jobs.sock", uuid) for uuid in ("GPU-a", "GPU-a", "GPU-b")
    ]

    def heard(reports: int, ends: int) -> bool:
        desk.jobs.turn()
        return sum(desk.counts().values()) >= reports and len(desk.ended) >= ends

    eventually("all reports", lambda: heard(3, 0))
    for end, (pid, pipe) in enumerate(children):
        assert len(desk.ended) == max(0, end - 1)
        os.write(pipe, b"go")
        os.close(pipe)
        os.waitpid(pid, 0)
        eventually("the end", lambda end=end: heard(3, end))
        desk.jobs.turn()
    assert desk.ended == [("demo", "GPU-a"), ("demo", "GPU-b")]
    assert not any(desk.jobs.live.holding().values())


def _reporting_child(path: Path, uuid: str) -> tuple[int, int]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        Reporter("demo", uuid, 0, str(path)).iteration(1, 0.5, {})
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    return pid, write
