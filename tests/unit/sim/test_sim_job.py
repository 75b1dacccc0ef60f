"""The simulated job as the process it is: what it draws, what it tells, and whom it waits for."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from joulecut_sim.card import StateFile, now_s
from joulecut_sim.jobfile import read
from joulecut_sim.results import Record
from joulecut_sim.results import read as read_results
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import IterationReport
from joulecut_wire.reports import Mark, decode

WAIT_S = 120.0  # far more than anything here takes on an idle machine


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a unix socket's name must fit 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="jc") as name:
        yield Path(name)


def _write(folder: Path, **more: Any) -> Path:
    """A job of four stages on two nodes, fast enough for a test."""
    for node in ("a", "b"):
        StateFile.open(folder / f"{node}.state", cards=2, node=node).close()
    gpus = [
        {"state": f"{node}.state", "index": index, "socket": f"{node}.sock"}
        for node in ("a", "b")
        for index in (0, 1)
    ]
    data = {
        "job": "tiny",
        "pipeline": {"microbatches": 4},
        "time_scale": 0.1,
        "gpus": gpus,
        "control": "control.json",
        "results": "results.jsonl",
        **more,
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def _run(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "joulecut_sim.job", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@contextlib.contextmanager
def _running(path: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "joulecut_sim.job", "--config", str(path)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout:
        try:
            assert "joulecut-sim-job ready" in process.stdout.readline()
            yield process
        finally:
            process.kill()


def _until(folder: Path, count: int) -> tuple[Record, ...]:
    limit_s = time.monotonic() + WAIT_S
    while time.monotonic() < limit_s:
        seen = read_results(folder / "results.jsonl")
        if len(seen) >= count:
            return seen
        time.sleep(0.02)
    raise AssertionError(f"fewer than {count} iterations within {WAIT_S} s")


def test_counters_and_truth_agree_to_the_joule(folder: Path) -> None:
    done = _run(_write(folder, iterations=12))
    assert (done.returncode, done.stderr) == (0, "")
    records = read_results(folder / "results.jsonl")
    assert [record.iteration for record in records] == list(range(12))
    first, last = records[0], records[-1]
    told_j = sum(record.energy_j for record in records[:-1])
    assert sum(last.counters_j) - sum(first.counters_j) == pytest.approx(told_j, rel=1e-6)
    told_s = sum(record.duration_s for record in records[:-1])
    assert last.begin_s - first.begin_s == pytest.approx(told_s, abs=1e-6)


def test_reports_reach_the_agents_socket_and_read_well(folder: Path) -> None:
    path = _write(folder, iterations=3)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(folder / "b.sock"))  # node a has no agent: that must not matter
        agent.settimeout(WAIT_S)
        with _running(path):
            told = [decode(agent.recv(8192)) for _ in range(6)]
    reports = [report for report in told if isinstance(report, IterationReport)]
    assert [report.stage for report in reports] == [2, 3] * 3
    assert [report.iteration for report in reports] == [0, 0, 1, 1, 2, 2]
    assert {report.uuid for report in reports} == {"GPU-sim-b-0", "GPU-sim-b-1"}
    for report in reports:
        assert report.job == "tiny"
        assert [(op.kind, op.count) for op in report.operations] == [
            ("forward", 4),
            ("backward", 4),
        ]
        assert 0.0 < sum(op.busy_s for op in report.operations) < report.duration_s
        assert report.peer_iteration_time_s is None


def test_operations_are_marked_in_their_order_where_the_file_says_so(folder: Path) -> None:
    # Slowly: a socket keeps ten marks, and a machine may let its reader stand still for a while.
    path = _write(folder, iterations=2, time_scale=1.0, reports={"marks": True})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(folder / "b.sock"))
        agent.settimeout(WAIT_S)
        with _running(path):
            told = [decode(agent.recv(8192)) for _ in range(2 * (2 * 8 + 2))]
    last = [one for one in told if isinstance(one, Mark) and one.uuid == "GPU-sim-b-1"]
    turns = [(kind, microbatch) for microbatch in range(4) for kind in ("forward", "backward")]
    assert [(one.kind, one.microbatch) for one in last] == turns * 2
    assert [one.iteration for one in last] == [0] * 8 + [1] * 8
    assert sum(isinstance(one, IterationReport) for one in told) == 4


def test_clocks_slow_the_job_down_and_back(folder: Path) -> None:
    with _running(_write(folder)):
        fast = _until(folder, 3)[-1]
        with StateFile.open(folder / "b.state") as state:
            state.set_lock(1, 210, 855)  # the heavy last stage
            at = len(_until(folder, 3))
            slow = _until(folder, at + 4)[-1]
            assert slow.clocks_mhz == (1410, 1410, 1410, 855)
            assert slow.duration_s > 1.1 * fast.duration_s
            state.set_lock(1, 0, 0)
            at = len(_until(folder, 3))
            again = _until(folder, at + 4)[-1]
    assert again.duration_s == pytest.approx(fast.duration_s, rel=0.05)


def test_lost_and_late_reports_leave_the_job_as_it_is(folder: Path) -> None:
    path = _write(folder, iterations=20, reports={"jitter_s": 0.005, "lost": 0.5})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(folder / "a.sock"))
        agent.setblocking(False)
        assert _run(path).returncode == 0
        told = 0
        with contextlib.suppress(BlockingIOError):
            while agent.recv(8192):
                told += 1
    assert 5 < told < 35
    assert len(read_results(folder / "results.jsonl")) == 20


def test_a_straggling_sibling_is_waited_for_and_told(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(folder / "a.sock"))
        agent.settimeout(WAIT_S)
        path = _write(folder)
        own_s = 0.0
        with _running(path):
            own_s = _until(folder, 2)[-1].duration_s
            control = folder / "control.new"
            control.write_text(json.dumps({"peer_iteration_time_s": 2.0 * own_s}))
            os.replace(control, folder / "control.json")
            while True:
                report = decode(agent.recv(8192))
                assert isinstance(report, IterationReport)
                if report.peer_iteration_time_s is not None:
                    break
            assert report.peer_iteration_time_s == pytest.approx(2.0 * own_s)
            assert report.duration_s == pytest.approx(2.0 * own_s)
            (folder / "control.json").write_text("broken {")
            at = len(read_results(folder / "results.jsonl"))
            assert _until(folder, at + 4)[-1].peer_s == 0.0


def test_a_stopped_job_leaves_its_gpus_idle(folder: Path) -> None:
    with _running(_write(folder)) as process:
        _until(folder, 2)
        with StateFile.open(folder / "a.state") as state:
            assert state.card(0).memory_used_bytes > 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
            assert state.card(0).memory_used_bytes == 0
            end_s = max(work.end_s for work in state.card(0).works)
            late_j = state.energy_j(0, end_s + 10.0) - state.energy_j(0, end_s)
            assert late_j == pytest.approx(10.0 * state.sku.idle_power_w)


def test_a_lost_gpu_ends_the_job_with_a_sentence(folder: Path) -> None:
    path = _write(folder)
    with StateFile.open(folder / "b.state") as state:
        state.put(1, lost=True)
    done = _run(path)
    assert done.returncode == 1
    assert done.stderr == "joulecut_sim.job: tiny died: GPU GPU-sim-b-1 was lost\n"
    done = _run(_write(folder, gpus=[{"state": "a.state", "index": 9}]))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no GPU 9" in done.stderr


def test_a_machine_that_slept_does_not_make_the_job_hurry(folder: Path) -> None:
    """After a long stop the lost time is lost; iterations still follow one another."""
    with _running(_write(folder)) as process:
        _until(folder, 3)
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        process.send_signal(signal.SIGCONT)
        woken_s = now_s()
        at = len(read_results(folder / "results.jsonl"))
        records = _until(folder, at + 6)
    late = [record for record in records if record.begin_s > woken_s - 0.5]
    assert len(late) >= 4
    assert all(
        after.begin_s - before.begin_s >= before.duration_s - 1e-6
        for before, after in itertools.pairwise(records)
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": "red"}, "colour: unknown key"),
        ({"pipeline": {"microbatches": 0}}, "pipeline.microbatches"),
        (
            {"gpus": [{"state": "a.state", "index": 0}, {"state": "a.state", "index": 0}]},
            "named twice",
        ),
        ({"noise": {"colour": 1.0}}, "noise.colour"),
        ({"reports": {"lost": 2.0}}, "reports.lost"),
    ],
)
def test_a_broken_job_file_is_one_line(folder: Path, change: dict[str, Any], words: str) -> None:
    path = _write(folder, **change)
    with pytest.raises(BadInput, match=re.escape(words)):
        read(path)
