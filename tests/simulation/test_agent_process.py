"""What becomes of the GPUs when something dies: real processes, real signals."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from running_agent import LOWER, RunningAgent, accepted, alive, eventually


@pytest.fixture
def node(live: RunningAgent) -> RunningAgent:
    return live


def test_silence_gives_the_gpus_back_when_the_lease_ends_and_not_before(
    node: RunningAgent,
) -> None:
    began_s = time.monotonic()
    assert accepted(node.apply(LOWER, ttl_s=2.0))
    eventually("the first one back", lambda: node.locked() != LOWER)
    assert time.monotonic() - began_s >= 2.0, "held until then"
    eventually("all at default", lambda: not node.locked())
    eventually("counted", lambda: 'cause="lease_expired"' in node.metrics())


def test_a_killed_agent_is_noticed_at_once(node: RunningAgent) -> None:
    """The lease would last a minute; the keeper sees its agent go."""
    assert accepted(node.apply(LOWER, ttl_s=60.0))
    node.kill()
    eventually("all at default", lambda: not node.locked())
    eventually("the keeper gone", lambda: not alive(node.keeper_pid))
    assert "agent_gone" in node.log


def test_a_killed_keeper_is_replaced_and_the_next_one_restores(node: RunningAgent) -> None:
    assert accepted(node.apply(LOWER, ttl_s=60.0))
    node.kill_keeper()
    eventually("all at default", lambda: not node.locked())
    node.regains_control()
    eventually("counted", lambda: "keeper_start" in node.metrics())
    assert accepted(node.apply(LOWER, generation=2))
    assert node.locked() == LOWER


def test_both_killed_then_started_again_restores_before_it_is_ready(node: RunningAgent) -> None:
    assert accepted(node.apply(LOWER, ttl_s=60.0))
    os.kill(node.keeper_pid, signal.SIGSTOP)  # so that it cannot see its agent go
    node.kill()
    node.kill_keeper()
    assert node.locked() == LOWER, "nobody is left to restore: this is what the start is for"
    node.start()
    assert not node.locked()
    assert accepted(node.apply(LOWER))


def test_only_gpus_of_the_journal_are_touched() -> None:
    with RunningAgent() as node:
        node.gpus.set_lock(3, 210, 600)  # another writer's
        before = node.gpus.card(3).writes
        node.start()
        assert accepted(node.apply({0: 1005, 1: 1005}))
        os.kill(node.keeper_pid, signal.SIGSTOP)
        node.kill()
        node.kill_keeper()
        node.start()
        assert node.kill(signal.SIGTERM) == 0
        assert node.locked() == {3: 600}
        assert node.gpus.card(3).writes == before


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_go_it_restores_first(node: RunningAgent, how: signal.Signals) -> None:
    assert accepted(node.apply(LOWER))
    assert node.kill(how) == 0
    assert not node.locked()
    assert not alive(node.keeper_pid)


def test_asked_to_go_while_its_next_keeper_is_starting(node: RunningAgent) -> None:
    """A signal would kill that keeper in the middle of its imports, with GPUs capped."""
    assert accepted(node.apply(LOWER))
    node.kill_keeper()
    time.sleep(0.2)
    assert node.kill(signal.SIGTERM) == 0
    assert not node.locked()


def test_asked_to_go_while_no_keeper_can_start(node: RunningAgent) -> None:
    """Its last try restores; what it must not do is leave in silence with GPUs capped."""
    assert accepted(node.apply(LOWER))
    os.kill(node.keeper_pid, signal.SIGSTOP)  # hangs: it cannot restore, and holds the lock
    assert node.kill(signal.SIGTERM) == 0
    assert not node.locked()


REPORT_AND_SLEEP = """
import sys, time
from joulecut import Reporter
for uuid in sys.argv[2:]:
    assert Reporter("demo", uuid, 0, sys.argv[1]).iteration(1, 0.5, {"forward": (4, 0.2)})
print("sent", flush=True)
time.sleep(600)
"""


def _job(node: RunningAgent, *uuids: str) -> "subprocess.Popen[str]":
    job = subprocess.Popen(
        [sys.executable, "-c", REPORT_AND_SLEEP, node.ready["socket"], *uuids],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout.readline() == "sent\n"
    job.stdout.close()
    return job


def test_the_end_of_a_job_gives_its_gpus_back(node: RunningAgent) -> None:
    first, second = _job(node, *node.gpus.uuids[:2]), _job(node, node.gpus.uuid(1))
    try:
        counted = 'job_reports_total{result="accepted"} 3.0'
        eventually("the reports counted", lambda: counted in node.metrics())
        assert 'workload="demo"' in node.metrics()
        assert accepted(node.apply(LOWER))
        first.kill()
        first.wait()
        kept = {1: 1200, 2: 810, 3: 1005}  # 1 is still reported for, 2 and 3 never were
        eventually("the first job's own GPU back", lambda: node.locked() == kept)
        second.kill()
        second.wait()
        eventually("the second one's back", lambda: node.locked() == {2: 810, 3: 1005})
        eventually("said", lambda: node.log.count("cause=job_ended: done") == 2)
    finally:
        for job in (first, second):
            job.kill()
            job.wait()


def test_the_log_of_agent_and_keeper_is_json_with_levels() -> None:
    with RunningAgent(cards=1, unheard_of=1) as node:
        node.flags = ("--log-format", "json")
        node.start()
        assert accepted(node.apply({0: 1005}))
        assert not accepted(node.apply({0: 7}, generation=2))
        assert node.kill(15) == 0
        told = [json.loads(line) for line in node.log.splitlines()]
    levels = {(one["component"], one["level"]) for one in told}
    assert {("agent", "info"), ("agent", "warning"), ("keeper", "info")} <= levels
    assert all({"time", "level", "component", "message"} <= set(one) for one in told)
    commands = [one for one in told if one["message"].startswith("apply ")]
    assert [one["level"] for one in commands] == ["info", "warning"]
    assert all(f"job={one['job']} " in one["message"] for one in commands)
