"""What becomes of the GPUs when something dies: real processes, real signals."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from running_agent import PATIENCE_S, RunningAgent, alive, eventually

from joulecut_agent.keeper_process import STOPPED_S

LOWER = {0: 1005, 1: 1200, 2: 810, 3: 1005}


@pytest.fixture
def node() -> Iterator[RunningAgent]:
    with RunningAgent() as running:
        yield running


def _accepted(results: tuple[object, ...]) -> bool:
    assert results
    return all(getattr(result, "accepted", False) for result in results)


def test_silence_gives_the_gpus_back_when_the_lease_ends_and_not_before(
    node: RunningAgent,
) -> None:
    node.start()
    began_s = time.monotonic()
    assert _accepted(node.apply(LOWER, ttl_s=2.0))
    seen_s = time.monotonic()
    assert node.locked() == LOWER
    while node.locked() == LOWER:
        seen_s = time.monotonic()
        time.sleep(0.01)
        assert seen_s - began_s < 30.0
    assert time.monotonic() - began_s >= 2.0
    eventually("all at default", lambda: not node.locked())
    assert 'cause="lease_expired"' in eventually(
        "counted", lambda: m if "lease_expired" in (m := node.metrics()) else ""
    )


def test_a_heartbeat_keeps_the_lease(node: RunningAgent) -> None:
    node.start()
    assert _accepted(node.apply(LOWER, ttl_s=1.5))
    until_s = time.monotonic() + 3.0
    while time.monotonic() < until_s:
        assert _accepted(node.renew(ttl_s=1.5))
        assert node.locked() == LOWER
        time.sleep(0.2)


def test_a_killed_agent_is_noticed_at_once(node: RunningAgent) -> None:
    """The lease would last a minute; the keeper sees its agent go."""
    node.start()
    assert _accepted(node.apply(LOWER, ttl_s=60.0))
    node.kill()
    eventually("all at default", lambda: not node.locked(), patience_s=20.0)
    eventually("the keeper gone", lambda: not alive(node.keeper_pid))
    assert "agent_gone" in node.log


def test_a_killed_keeper_is_replaced_and_the_next_one_restores(node: RunningAgent) -> None:
    node.start()
    assert _accepted(node.apply(LOWER, ttl_s=60.0))
    node.kill_keeper()
    eventually("all at default", lambda: not node.locked(), patience_s=20.0)
    again = eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
    assert again
    assert "keeper_start" in eventually(
        "counted", lambda: m if "keeper_start" in (m := node.metrics()) else ""
    )
    assert _accepted(node.apply(LOWER, generation=2))
    assert node.locked() == LOWER


def test_both_killed_then_started_again_restores_before_it_is_ready(node: RunningAgent) -> None:
    node.start()
    assert _accepted(node.apply(LOWER, ttl_s=60.0))
    os.kill(node.keeper_pid, signal.SIGSTOP)  # so that it cannot see its agent go
    node.kill()
    node.kill_keeper()
    eventually("the keeper gone", lambda: not alive(node.keeper_pid))
    assert node.locked() == LOWER, "nobody is left to restore: this is what the start is for"
    node.start()
    assert not node.locked()
    assert _accepted(node.apply(LOWER, epoch=1))


def test_only_gpus_of_the_journal_are_touched(node: RunningAgent) -> None:
    node.gpus.set_lock(3, 210, 600)  # somebody else's
    node.start()
    before = node.gpus.card(3).writes
    assert _accepted(node.apply({0: 1005, 1: 1005}))
    os.kill(node.keeper_pid, signal.SIGSTOP)
    node.kill()
    node.kill_keeper()
    node.start()
    assert node.kill(signal.SIGTERM) == 0
    assert node.locked() == {3: 600}
    assert node.gpus.card(3).writes == before


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_asked_to_go_it_gives_back_first(node: RunningAgent, how: signal.Signals) -> None:
    node.start()
    assert _accepted(node.apply(LOWER))
    assert node.kill(how) == 0
    assert not node.locked()
    assert not alive(node.keeper_pid)


def test_a_terminated_keeper_restores_and_is_replaced(node: RunningAgent) -> None:
    node.start()
    assert _accepted(node.apply(LOWER))
    os.kill(node.keeper_pid, signal.SIGTERM)
    eventually("all at default", lambda: not node.locked())
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))


def test_an_older_epoch_is_refused_after_a_restart(node: RunningAgent) -> None:
    node.start()
    assert _accepted(node.apply(LOWER, epoch=7))
    assert node.describe().epoch_seen == 7
    node.kill_keeper()
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
    assert node.describe().epoch_seen == 7
    assert not any(r.accepted for r in node.apply(LOWER, epoch=6, generation=99))
    assert not any(r.accepted for r in node.renew(epoch=6))
    assert not any(r.accepted for r in node.clear(epoch=6))
    assert not node.locked()
    assert node.kill(signal.SIGTERM) == 0
    node.start()
    refused = node.apply(LOWER, epoch=6, generation=99)
    assert {r.accepted for r in refused} == {False}
    assert "6 is older than 7" in refused[0].reason


def test_an_older_generation_is_refused_after_a_restart(node: RunningAgent) -> None:
    node.start()
    assert _accepted(node.apply(LOWER, epoch=2, generation=5))
    node.kill_keeper()
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
    assert "4 is older than 5" in node.apply(LOWER, epoch=2, generation=4)[0].reason
    assert node.kill(signal.SIGTERM) == 0
    node.start()
    assert "4 is older than 5" in node.apply(LOWER, epoch=2, generation=4)[0].reason
    assert not node.locked()
    assert _accepted(node.apply(LOWER, epoch=2, generation=5))


def test_a_start_that_fails_has_restored_before(node: RunningAgent) -> None:
    node.start()
    assert _accepted(node.apply(LOWER))
    os.kill(node.keeper_pid, signal.SIGSTOP)
    node.kill()
    node.kill_keeper()
    assert node.locked() == LOWER
    with socket.create_server(("127.0.0.1", 0)) as taken:
        node.config["listen"]["grpc"] = f"127.0.0.1:{taken.getsockname()[1]}"
        second = node._spawn("run")
        node.keepers.append(second)
        assert second.wait(timeout=PATIENCE_S) == 1
    assert not node.locked()
    assert not list(node.home.rglob("*.sock"))


@pytest.mark.parametrize("wait_s", [0.0, 0.1, 0.2, 0.4])
def test_asked_to_go_while_its_next_keeper_is_starting(node: RunningAgent, wait_s: float) -> None:
    """A signal would kill that keeper in the middle of its imports, with GPUs capped."""
    node.start()
    assert _accepted(node.apply(LOWER))
    node.kill_keeper()
    time.sleep(wait_s)
    assert node.kill(signal.SIGTERM) == 0
    assert not node.locked()


def test_asked_to_go_while_no_keeper_can_start(node: RunningAgent) -> None:
    """Its last try restores; what it must not do is leave in silence with GPUs capped."""
    node.start()
    assert _accepted(node.apply(LOWER))
    os.kill(node.keeper_pid, signal.SIGSTOP)  # hangs: it cannot restore, and holds the lock
    assert node.kill(signal.SIGTERM) == 0
    assert not node.locked()
    assert "is killed" in node.log


def test_what_epoch_was_seen_is_known_while_no_keeper_answers(node: RunningAgent) -> None:
    node.config["keeper"] = "state/keeper.sock"
    keeper = node.start_keeper()
    node.start()
    assert _accepted(node.apply({0: 1005}, epoch=7))
    keeper.kill()
    keeper.wait()
    eventually("seen", lambda: not any(g.controllable for g in node.describe().gpus))
    assert node.describe().epoch_seen == 7


def test_a_keeper_of_its_own_outlives_the_agent_and_its_leases_run_out(
    node: RunningAgent,
) -> None:
    node.config["keeper"] = "state/keeper.sock"
    keeper = node.start_keeper()
    node.start()
    assert node.ready["keeper_pid"] == "-"
    assert _accepted(node.apply(LOWER, ttl_s=3.0))
    began_s = time.monotonic()
    node.kill()
    assert node.locked() == LOWER, "an agent's crash alone changes nothing"
    eventually("all at default", lambda: not node.locked())
    assert time.monotonic() - began_s < 20.0
    assert keeper.poll() is None
    node.start()
    assert _accepted(node.apply(LOWER, generation=2))


def test_the_keeper_comes_back_behind_its_path(node: RunningAgent) -> None:
    node.config["keeper"] = "state/keeper.sock"
    node.start()  # there is none yet: measuring goes on without
    assert {g.reason for g in node.describe().gpus} == {"the keeper does not answer"}
    assert "joulecut_keeper_up 0.0" in node.metrics()
    assert not any(r.accepted for r in node.apply(LOWER))
    keeper = node.start_keeper()
    eventually("control", lambda: all(g.controllable for g in node.describe().gpus))
    assert _accepted(node.apply(LOWER))
    keeper.terminate()
    assert keeper.wait(timeout=20) == 0
    assert not node.locked()
    eventually("control lost", lambda: not any(g.controllable for g in node.describe().gpus))


def test_there_is_one_keeper(node: RunningAgent) -> None:
    node.start()
    second = node._spawn("keeper")
    node.keepers.append(second)
    assert second.wait(timeout=30) == 1
    assert "another keeper" in node.log
    assert _accepted(node.apply(LOWER))


def test_a_restarting_agent_waits_for_its_predecessors_keeper(node: RunningAgent) -> None:
    node.start()
    assert _accepted(node.apply(LOWER))
    old = node.keeper_pid
    node.kill()
    node.start()
    assert node.keeper_pid != old
    assert not node.locked()
    assert _accepted(node.apply(LOWER, generation=2))


class TestRestore:
    def test_with_a_keeper_it_clears(self, node: RunningAgent) -> None:
        node.start()
        assert _accepted(node.apply(LOWER))
        done = node.restore()
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"{uuid} restored" for uuid in node.gpus.uuids]
        assert not node.locked()
        again = node.restore()
        assert (again.returncode, again.stdout) == (0, "nothing to restore\n")

    def test_without_one_it_reads_the_journal(self, node: RunningAgent) -> None:
        node.start()
        assert _accepted(node.apply({0: 1005, 2: 810}))
        os.kill(node.keeper_pid, signal.SIGSTOP)
        node.kill()
        node.kill_keeper()
        assert node.locked() == {0: 1005, 2: 810}
        done = node.restore()
        assert done.returncode == 0, done.stderr
        uuids = [node.gpus.uuid(0), node.gpus.uuid(2)]
        assert done.stdout.splitlines() == [f"{uuid} restored" for uuid in uuids]
        assert not node.locked()
        writes = node.writes()
        again = node.restore()
        assert (again.returncode, again.stdout) == (0, "nothing to restore\n")
        assert node.writes() == writes

    def test_where_nothing_ever_ran(self, node: RunningAgent) -> None:
        done = node.restore()
        assert (done.returncode, done.stdout) == (0, "nothing to restore\n")
        assert node.writes() == 0

    def test_what_it_cannot_do_it_says(self, node: RunningAgent) -> None:
        node.start()
        assert _accepted(node.apply({1: 1005}))
        os.kill(node.keeper_pid, signal.SIGSTOP)
        node.kill()
        node.kill_keeper()
        node.gpus.set_lost(1)
        done = node.restore()
        assert done.returncode == 1
        assert done.stdout.startswith(f"{node.gpus.uuid(1)} NOT restored")
        assert "Traceback" not in done.stderr
        node.gpus.set_lost(1, False)
        assert node.restore().returncode == 0
        assert not node.locked()


def test_a_restore_that_fails_is_tried_until_it_is_done(node: RunningAgent) -> None:
    node.start()
    assert _accepted(node.apply(LOWER, ttl_s=1.0))
    node.gpus.set_lost(2)
    eventually("the others at default", lambda: node.locked() == {2: 810})
    eventually("said", lambda: "trying again" in node.log)
    refused = node.apply({2: 810}, generation=2)
    assert "owed" in refused[0].reason or "lost" in refused[0].reason
    node.gpus.set_lost(2, False)
    eventually("all at default", lambda: not node.locked())
    assert _accepted(node.apply({2: 810}, generation=3))


def test_one_failed_write_reverts_the_group(node: RunningAgent) -> None:
    node.start()
    assert _accepted(node.apply({0: 1200, 1: 1200}))
    node.gpus.set_lost(3)
    refused = node.apply({0: 1005, 1: 1005, 2: 1005, 3: 1005}, generation=2)
    assert not any(result.accepted for result in refused)
    assert "fell off the bus" in refused[0].reason
    held = {index: mhz for index, mhz in node.locked().items() if index != 3}
    assert held == {0: 1200, 1: 1200}
    assert _accepted(node.renew(generation=1)), "the older leases are still in force"


def test_a_lost_gpu_costs_its_own_numbers_only(node: RunningAgent) -> None:
    node.start()
    node.gpus.set_lost(1)
    gone, there = node.gpus.uuid(1), node.gpus.uuid(0)
    text = eventually(
        "absence", lambda: m if "joulecut_collect_success 0.0" in (m := node.metrics()) else ""
    )
    assert f'uuid="{gone}"' not in text
    assert f'joulecut_gpu_energy_joules_total{{uuid="{there}"}}' in text
    assert 'joulecut_nvml_errors_total{code="gpu_is_lost"}' in text
    assert gone not in {gpu.uuid for gpu in node.watch().gpus}
    assert node.process is not None
    assert node.process.poll() is None


def test_without_permission_it_measures_and_says_so_once() -> None:
    with RunningAgent(simulated={"permission": "none"}) as node:
        node.start()
        assert {gpu.controllable for gpu in node.describe().gpus} == {False}
        reason = "the simulated driver gives no right to set clocks"
        assert {gpu.reason for gpu in node.describe().gpus} == {reason}
        refused = node.apply(LOWER)
        assert {(result.accepted, result.reason) for result in refused} == {(False, reason)}
        assert node.writes() == 0
        assert (
            f'controllable="false",index="0",model="NVIDIA A100-SXM4-80GB",reason="{reason}"'
            in (node.metrics())
        )
        assert node.watch().gpus[0].energy_j is not None
        assert node.log.count("cannot set clocks") == 1
        assert node.restore().stdout == "nothing to restore\n"


def test_with_no_keeper_everything_else_works() -> None:
    with RunningAgent(keeper="none") as node:
        node.start()
        assert node.ready["keeper_pid"] == "-"
        assert {(g.controllable, g.reason) for g in node.describe().gpus} == {(False, "no keeper")}
        assert not any(result.accepted for result in node.apply(LOWER))
        assert "joulecut_keeper_up" not in node.metrics()
        assert len(node.watch().gpus) == 4
        assert node.kill(signal.SIGTERM) == 0
        assert node.writes() == 0


def test_restore_goes_to_the_sites_own_lock() -> None:
    with RunningAgent(site_default={"clock_min_mhz": 210, "clock_max_mhz": 1290}) as node:
        node.start()
        assert _accepted(node.apply({0: 1005}))
        assert _accepted(node.clear())
        assert node.locked() == {0: 1290}
        assert node.kill(signal.SIGTERM) == 0
        assert node.locked() == {0: 1290}


def test_bounds_of_the_site_hold() -> None:
    bounds = {
        "clock_min_mhz": 810,
        "clock_max_mhz": 1305,
        "min_dwell_s": 30,
        "changed_share_per_minute": 0.5,
    }
    with RunningAgent(bounds=bounds, lease={"ttl_s_max": 20}) as node:
        node.start()
        about = node.describe()
        assert (about.ttl_max_s, about.gpus[0].min_dwell_s) == (20.0, 30.0)
        assert (about.gpus[0].clock_min_mhz, about.gpus[0].clock_max_mhz) == (810, 1305)
        for clocks, ttl_s, why in (
            ({0: 795}, 10.0, "below the site's 810"),
            ({0: 1410}, 10.0, "above the site's 1305"),
            ({0: 1005}, 20.5, "up to 20 s"),
            ({0: 1005, 1: 1005, 2: 1005}, 10.0, "3 of 4 GPUs"),
        ):
            refused = node.apply(clocks, ttl_s=ttl_s)
            assert not any(result.accepted for result in refused)
            assert why in refused[0].reason
        assert node.writes() == 0
        assert _accepted(node.apply({0: 1200, 1: 1200}, ttl_s=10.0))
        assert "dwell" in node.apply({0: 1005}, generation=2, ttl_s=10.0)[0].reason
        assert _accepted(node.apply({0: 1305}, generation=3, ttl_s=10.0)), "up never waits"
        assert _accepted(node.clear())
        assert not node.locked()


def test_a_keeper_that_hangs_costs_control_only(node: RunningAgent) -> None:
    node.start()
    os.kill(node.keeper_pid, signal.SIGSTOP)
    eventually("seen", lambda: "joulecut_keeper_up 0.0" in node.metrics())
    assert "joulecut_collect_success 1.0" in node.metrics()
    assert len(node.watch().gpus) == 4
    assert not any(result.accepted for result in node.apply(LOWER))
    with contextlib.suppress(ProcessLookupError):  # on a busy machine it was replaced by now
        os.kill(node.keeper_pid, signal.SIGCONT)
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
    assert _accepted(node.apply(LOWER, generation=2))


def test_a_keeper_that_stays_stopped_is_replaced_and_the_next_one_restores(
    node: RunningAgent,
) -> None:
    node.start()
    assert _accepted(node.apply(LOWER, ttl_s=3.0))
    stopped = node.keeper_pid
    os.kill(stopped, signal.SIGSTOP)
    eventually("given back", lambda: not node.locked(), STOPPED_S + 2 * PATIENCE_S)
    assert not alive(stopped)
    assert f"keeper {stopped} is silent for " in node.log
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
    assert _accepted(node.apply(LOWER, generation=2))


def test_where_no_keeper_can_be_started_the_agent_goes_on_and_tries_again(
    node: RunningAgent,
) -> None:
    node.start()
    assert _accepted(node.apply(LOWER))
    assert node.process is not None
    pid = node.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))  # no descriptor is left
    node.kill_keeper()
    eventually("said", lambda: "no keeper can be started: Too many open files" in node.log)
    assert node.process.poll() is None
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    eventually("given back", lambda: not node.locked())
    eventually("control again", lambda: all(g.controllable for g in node.describe().gpus))
    assert _accepted(node.apply(LOWER, generation=2))
    assert "joulecut_collect_success 1.0" in node.metrics()
    assert "Traceback" not in node.log


def test_strangers_at_the_keepers_socket_change_nothing(node: RunningAgent) -> None:
    node.start()
    assert _accepted(node.apply(LOWER))
    strangers = []
    for number in range(20):
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        strangers.append(stranger)
        with contextlib.suppress(OSError):  # more than eight are sent away
            stranger.settimeout(5.0)
            stranger.connect(str(node.state_dir / "keeper.sock"))
            stranger.send(bytes([number]) * (1 + 400 * number))
    for stranger in strangers:
        stranger.close()
    assert _accepted(node.renew())
    assert node.locked() == LOWER
    assert node.restore().returncode == 0, "and there is room again"


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
    assert job.stdout is not None
    assert job.stdout.readline() == "sent\n"
    job.stdout.close()
    return job


def test_the_end_of_a_job_gives_its_gpus_back(node: RunningAgent) -> None:
    node.start()
    first, second = _job(node, *node.gpus.uuids[:2]), _job(node, node.gpus.uuid(1))
    try:
        text = eventually(
            "the reports counted",
            lambda: (
                m if 'job_reports_total{result="accepted"} 3.0' in (m := node.metrics()) else ""
            ),
        )
        assert 'job="demo"' in text
        assert _accepted(node.apply(LOWER))
        first.kill()
        first.wait()
        kept = {1: 1200, 2: 810, 3: 1005}  # 1 is still reported for, 2 and 3 never were
        eventually("the first job's own GPU back", lambda: node.locked() == kept)
        second.kill()
        second.wait()
        eventually("the second one's back", lambda: node.locked() == {2: 810, 3: 1005})
        assert node.log.count("cause=job_ended: done") == 2
    finally:
        for job in (first, second):
            job.kill()
            job.wait()


def test_a_full_pipe_for_its_log_does_not_stop_a_keeper() -> None:
    """Nobody reads the log: 64 KiB later a careless writer would block, with GPUs capped."""
    with RunningAgent() as node:
        read, write = os.pipe()
        os.set_blocking(write, False)
        try:
            while True:
                os.write(write, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(write, True)
        node._log.close()
        node._log = os.fdopen(write, "w")
        node.start()
        assert _accepted(node.apply(LOWER, ttl_s=1.0))
        eventually("all at default", lambda: not node.locked())
        assert node.kill(signal.SIGTERM) == 0
        os.close(read)


def test_a_journal_in_memory_covers_a_kill_and_an_upgrade_to_it() -> None:
    with RunningAgent(keeper="state/keeper.sock") as node:
        keeper = node.start_keeper()
        node.start()
        assert node.apply({0: 1005})[0].accepted
        keeper.kill()
        keeper.wait()
        (node.state_dir / "keeper.sock").unlink()
        assert node.gpus.asked_mhz(0)[1] == 1005
        node.config["journal_dir"] = "memory"
        keeper = node.start_keeper()
        assert node.gpus.asked_mhz(0)[1] == 0, "what the old journal names is given back"
        eventually("an order", lambda: node.apply({1: 1005})[0].accepted)
        keeper.kill()
        keeper.wait()
        assert b" set " in (node.home / "memory" / "journal").read_bytes()
        done = node.restore()
        assert (done.returncode, done.stdout.count("restored")) == (0, 1)
        assert node.gpus.asked_mhz(1)[1] == 0
