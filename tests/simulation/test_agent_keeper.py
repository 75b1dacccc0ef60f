"""An agent and its keeper: found, waited for, silent, replaced, and there only once."""

import contextlib
import os
import resource
import signal
import socket
import time

from running_agent import LOWER, PATIENCE_S, RunningAgent, accepted, alive, eventually

FOUND_S = 15.0  # 5 s on an idle machine


def test_a_keeper_of_its_own_outlives_the_agent_and_its_leases_run_out(
    node: RunningAgent,
) -> None:
    node.config["keeper"] = "state/keeper.sock"
    keeper = node.start_keeper()
    node.start()
    assert node.ready["keeper_pid"] == "-"
    assert accepted(node.apply(LOWER))
    node.kill()
    assert node.locked() == LOWER, "an agent's crash alone changes nothing"
    node.start()
    assert accepted(node.renew(ttl_s=1.0))
    node.kill()
    eventually("all at default", lambda: not node.locked())
    assert keeper.poll() is None
    node.start()
    assert accepted(node.apply(LOWER, generation=2))


def test_one_keeper_at_a_time_stands_behind_its_path_and_may_come_and_go(
    node: RunningAgent,
) -> None:
    node.config["keeper"] = "state/keeper.sock"
    node.start()  # there is none yet: measuring goes on without
    assert {g.reason for g in node.describe().gpus} == {"the keeper does not answer"}
    assert "joulecut_keeper_up 0.0" in node.metrics()
    assert not any(r.accepted for r in node.apply(LOWER))
    keeper = node.start_keeper()
    node.regains_control()
    assert accepted(node.apply(LOWER, epoch=7))
    second = node._spawn("keeper")
    node.keepers.append(second)
    assert second.wait(timeout=PATIENCE_S) == 1
    assert "another keeper" in node.log
    assert node.locked() == LOWER
    keeper.terminate()
    assert keeper.wait(timeout=PATIENCE_S) == 0
    assert not node.locked()
    eventually("control lost", lambda: not any(g.controllable for g in node.describe().gpus))
    assert node.describe().epoch_seen == 7, "also while no keeper answers"


def test_with_no_keeper_everything_else_works() -> None:
    with RunningAgent(keeper="none") as node:
        node.start()
        assert node.ready["keeper_pid"] == "-"
        assert {(g.controllable, g.reason) for g in node.describe().gpus} == {(False, "no keeper")}
        assert not any(result.accepted for result in node.apply(LOWER))
        assert "joulecut_keeper_up" not in node.metrics()
        assert node.gpu(3)
        assert node.kill(signal.SIGTERM) == 0
        assert node.writes() == 0


def test_a_keeper_that_stays_stopped_is_replaced_and_the_next_one_restores(
    live: RunningAgent,
) -> None:
    assert accepted(live.apply(LOWER, ttl_s=3.0))
    stopped = live.keeper_pid
    os.kill(stopped, signal.SIGSTOP)
    eventually("given back", lambda: not live.locked(), FOUND_S)
    assert not alive(stopped)
    assert f"keeper {stopped} has not answered for " in live.log
    live.regains_control()
    assert accepted(live.apply(LOWER, generation=2))


def test_where_no_keeper_can_be_started_the_agent_goes_on_and_tries_again(
    live: RunningAgent,
) -> None:
    assert accepted(live.apply(LOWER))
    pid = live.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))  # no descriptor is left
    live.kill_keeper()
    eventually("said", lambda: "no keeper can be started: Too many open files" in live.log)
    assert live.process.poll() is None
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    eventually("given back", lambda: not live.locked())
    live.regains_control()
    assert accepted(live.apply(LOWER, generation=2))
    eventually("measured", lambda: "joulecut_collect_success 1.0" in live.metrics())
    assert "Traceback" not in live.log


def test_without_a_descriptor_the_agent_waits_for_a_keeper_of_its_own(node: RunningAgent) -> None:
    node.config["keeper"] = "state/keeper.sock"
    keeper = node.start_keeper()
    node.start()
    pid = node.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    keeper.kill()
    keeper.wait()
    eventually("said", lambda: "measuring goes on without control" in node.log)
    time.sleep(3.0)  # some tries
    assert node.process.poll() is None, node.log
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    node.start_keeper()
    node.regains_control()
    assert "Traceback" not in node.log


def test_a_stopped_keeper_of_its_own_delays_no_answer(node: RunningAgent) -> None:
    node.config["keeper"] = "state/keeper.sock"
    keeper = node.start_keeper()
    node.start()
    keeper.send_signal(signal.SIGSTOP)
    try:
        eventually("said", lambda: f"keeper {keeper.pid} is stopped" in node.log)
        begun_s = time.monotonic()
        for generation in range(10):
            assert not any(r.accepted for r in node.apply(LOWER, generation=generation))
        assert time.monotonic() - begun_s < 5.0
        eventually("measured", lambda: "joulecut_collect_success 1.0" in node.metrics())
    finally:
        keeper.send_signal(signal.SIGCONT)
    node.regains_control()


def test_strangers_at_the_keepers_socket_change_nothing(live: RunningAgent) -> None:
    assert accepted(live.apply(LOWER))
    strangers = []
    for number in range(20):
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        strangers.append(stranger)
        with contextlib.suppress(OSError):  # more than eight are sent away
            stranger.settimeout(PATIENCE_S)
            stranger.connect(str(live.state_dir / "keeper.sock"))
            stranger.send(bytes([number]) * (1 + 400 * number))
    for stranger in strangers:
        stranger.close()
    assert accepted(live.renew())
    assert live.locked() == LOWER
    eventually("there is room again", lambda: live.restore().returncode == 0)


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
        assert accepted(node.apply(LOWER, ttl_s=1.0))
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
        assert (done.returncode, done.stdout.count("restored")) == (0, 2)
        assert node.gpus.asked_mhz(1)[1] == 0
