"""`joulecut audit --agents` watches a real agent over simulated GPUs, and changes nothing."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import pytest
from running_agent import PATIENCE_S, RunningAgent, eventually

JOULECUT = str(Path(sys.executable).with_name("joulecut"))
SLOW, CARDS = 2, 5
LATE_S = 2.0  # of 8 that are watched
TRIES = 5


class Job:
    """Reports iterations of the first four GPUs until it is stopped."""

    def __init__(self, node: RunningAgent) -> None:
        self._path = str(node.home / "jobs.sock")
        self._uuids = [node.gpus.uuid(index) for index in range(CARDS - 1)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        iteration = 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outlet:
            while not self._over.wait(0.2):
                for stage, uuid in enumerate(self._uuids):
                    report = {"v": 1, "job": "demo", "uuid": uuid, "stage": stage}
                    report |= {"iteration": iteration, "duration_s": 0.2}
                    outlet.sendto(json.dumps(report).encode(), self._path)
                iteration += 1

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture(scope="module")
def node() -> Iterator[RunningAgent]:
    with RunningAgent(cards=CARDS, reports={"bind": "any"}) as agent:
        for index in range(CARDS - 1):
            agent.gpus.set_load(index, 1.0)
        agent.gpus.set_lock(SLOW, 210, 1005)  # somebody's, before the agent came
        agent.start()
        job = Job(agent)
        try:
            eventually("an owner by report", lambda: agent.watch().allocations)
            yield agent
        finally:
            job.stop()


def audit(node: RunningAgent, *more: str) -> subprocess.CompletedProcess[str]:
    return commands.run("audit", "--agents", node.ready["grpc"], "--for", "8s", *more)


def test_a_short_watch(node: RunningAgent) -> None:
    """Where this machine stood still, an agent looked late, and the sums are those of another time:
    then it is watched again.
    """
    assert any(_sums_are_right(node) for _ in range(TRIES))


def _sums_are_right(node: RunningAgent) -> bool:
    """What is no sum is right each time."""
    writes, begun_s = node.writes(), time.monotonic()
    before_j = [node.gpus.energy_j(index) for index in range(CARDS)]
    done = audit(node, "--json")
    whole_s = time.monotonic() - begun_s  # with the start of the command: loads are steady
    after_j = [node.gpus.energy_j(index) for index in range(CARDS)]
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    [job] = found["jobs"]
    assert job["name"] == "demo"
    assert job["gpus"] == CARDS - 1
    [slow] = found["slow_gpus"]
    assert slow["uuid"] == node.gpus.uuid(SLOW)
    assert slow["cause"] == "clock lock"
    assert job["variability"]["basis"] == "measured"
    assert node.writes() == writes
    watts = [(b - a) / whole_s for a, b in zip(before_j, after_j, strict=True)]
    spent_s = found["ended_unix_s"] - found["begun_unix_s"]
    # The counter moves every 100 ms, the agent looks every 200 ms, and where the machine is
    # busy an agent looks late: for all GPUs alike, so that they are compared more narrowly.
    used_j, idle_j = job["energy_kwh"] * 3.6e6, found["no_job"]["idle_kwh"] * 3.6e6
    seen_s = used_j / sum(watts[:-1])
    burnt_w = sum(watts[index] - watts[SLOW] for index in range(CARDS - 1))
    return (
        spent_s - LATE_S < seen_s < spent_s * 1.1
        and idle_j == pytest.approx(watts[-1] * seen_s, rel=0.05)
        and job["variability"]["kwh"] * 3.6e6 == pytest.approx(burnt_w * seen_s, rel=0.2)
    )


def test_an_interrupt_ends_it_early_with_what_was_seen(node: RunningAgent) -> None:
    addresses = f"{node.ready['grpc']},127.0.0.1:1"
    ours, theirs = pty.openpty()  # at a terminal it says how far it has come
    with (
        open(ours, "rb", buffering=0) as terminal,
        subprocess.Popen(
            [JOULECUT, "audit", "--agents", addresses, "--for", "24h"],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        ) as process,
    ):
        os.close(theirs)
        shown = b""
        while not re.search(rb"\b[3-9] of 86400\b", shown):  # the silent one is waited for first
            shown += terminal.read(4096)
        process.send_signal(signal.SIGINT)
        out = process.stdout.read()
        assert process.wait(timeout=PATIENCE_S) == 0, shown
    assert "demo" in out
    assert "no answer from 127.0.0.1:1" in out
