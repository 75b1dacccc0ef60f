"""Marks of single operations: what the client sends, whom the agent hears, what it passes on."""

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_desk import Desk
from running_agent import PATIENCE_S, eventually

from joulecut import Reporter
from joulecut_agent.jobs.owner import KUBERNETES, Owner
from joulecut_wire.reports import Mark, decode

names = st.text(min_size=1, max_size=40)
counts = st.integers(0, 2**53)
OWN_UID, OTHER_UID = "12345678-1234-1234-1234-1234567890ab", "99999999-1234-1234-1234-1234567890ab"


def owner(uid: str) -> Owner:
    return Owner(KUBERNETES, "gpt3", "train", "gpt3-0", uid)


def group(uid: str) -> str:
    return f"/kubepods/pod{uid}/0123"


@pytest.fixture
def desk() -> Iterator[Desk]:
    with tempfile.TemporaryDirectory(prefix="jc") as home:
        made = Desk(Path(home))
        made.owners = {"GPU-a": (owner(OWN_UID),)}
        made.place(group(OWN_UID))
        yield made
        made.jobs.close()


@given(names, names, st.sampled_from(["begin", "end"]), names, counts, counts)
def test_what_the_client_sends_is_what_the_wire_reads(
    job: str, uuid: str, mark: str, kind: str, microbatch: int, iteration: int
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="jc") as home,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener,
    ):
        listener.bind(f"{home}/s")
        listener.settimeout(PATIENCE_S)
        reporter = Reporter(job, uuid, 2, f"{home}/s")
        since_ns = time.monotonic_ns()
        assert reporter.mark(mark, kind, microbatch, iteration)
        reporter.close()
        found = decode(listener.recv(9999))
    assert isinstance(found, Mark)
    assert since_ns <= found.t_ns <= time.monotonic_ns()
    assert found == Mark(1, job, uuid, mark, kind, 2, microbatch, iteration, found.t_ns)


def test_nonsense_is_not_sent_and_never_raises(desk: Desk) -> None:
    reporter = Reporter("demo", "GPU-a", 0, str(desk.path))
    assert not reporter.mark("begin", "x" * 10_000, 0, 0)
    assert not reporter.mark("begin", "f", object(), 0)
    reporter.close()
    assert not Reporter("demo", "GPU-a", 0, str(desk.path.parent / "nobody")).mark("end", "f", 0, 0)


def test_a_mark_is_passed_on_whole(desk: Desk) -> None:
    assert desk.mark() == ""
    (mark,) = desk.heard
    assert (mark.job, mark.uuid, mark.mark, mark.kind) == ("demo", "GPU-a", "begin", "forward")
    assert (mark.stage, mark.microbatch, mark.iteration) == (3, 5, 7)
    assert desk.counts() == {"accepted": 1}


def test_only_the_owner_of_a_gpu_is_heard(desk: Desk) -> None:
    desk.place(group(OTHER_UID))
    assert desk.mark() == "not_owner"
    assert desk.mark("GPU-z") == "unknown_gpu"
    assert not desk.heard


def test_where_no_program_waits_the_mark_is_refused_and_said(
    desk: Desk, capfd: pytest.CaptureFixture[str]
) -> None:
    desk.answer = "no clock schedule of job demo on GPU GPU-a"
    assert desk.mark() == "mark"
    assert "no clock schedule of job demo" in capfd.readouterr().err
    assert "accepted" not in desk.counts()


def test_the_end_of_a_process_that_only_sends_marks_is_seen(desk: Desk) -> None:
    ready, go = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ready.recv(1)
        Reporter("demo", "GPU-a", 0, str(desk.path)).mark("begin", "forward", 0, 1)
        ready.send(b"x")
        ready.recv(1)
        os._exit(0)
    desk.place(group(OWN_UID), pid)
    go.send(b"x")
    go.recv(1)
    desk.jobs.turn()
    assert (len(desk.heard), desk.ended) == (1, [])
    go.send(b"x")
    os.waitpid(pid, 0)

    def ended() -> bool:
        desk.jobs.turn()
        return bool(desk.ended)

    eventually("the end", ended)
    assert desk.ended == [("demo", "GPU-a")]
    ready.close()
    go.close()
