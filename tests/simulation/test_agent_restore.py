"""GPUs given back by command, by the next start, and until it is done."""

import os
import signal
import socket

from driven_agent import agent_on, fake_driver
from running_agent import LOWER, PATIENCE_S, RunningAgent, accepted, eventually


def test_a_start_that_fails_has_restored_before(node: RunningAgent) -> None:
    node.start()
    assert accepted(node.apply(LOWER))
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
    left = {path.name for path in node.home.rglob("*.sock")}
    assert left <= {"grpc.sock"}, "of the killed agent; the next one that can listen replaces it"


class TestRestore:
    def test_with_a_keeper_it_clears(self, node: RunningAgent) -> None:
        nothing = node.restore()  # where nothing ever ran
        assert (nothing.returncode, nothing.stdout) == (0, "nothing to restore\n")
        assert node.writes() == 0
        node.start()
        assert accepted(node.apply(LOWER))
        done = node.restore()
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"{uuid} restored" for uuid in node.gpus.uuids]
        assert not node.locked()
        again = node.restore()
        assert (again.returncode, again.stdout) == (0, "nothing to restore\n")

    def test_without_one_it_reads_the_journal(self, node: RunningAgent) -> None:
        node.start()
        assert accepted(node.apply({0: 1005, 2: 810}))
        os.kill(node.keeper_pid, signal.SIGSTOP)
        node.kill()
        node.kill_keeper()
        assert node.locked() == {0: 1005, 2: 810}
        done = node.restore()
        assert done.returncode == 0, done.stderr
        uuids = [node.gpus.uuid(0), node.gpus.uuid(2)]
        assert done.stdout.splitlines() == [f"{uuid} restored" for uuid in uuids]
        assert not node.locked()
        again = node.restore()  # a write that hung in the killed keeper may come late
        assert (again.returncode, again.stdout) == (0, done.stdout)
        assert not node.locked()

    def test_without_one_a_reset_that_did_nothing_is_found_out(self) -> None:
        """The last keeper was answered "success", and has gone for good."""
        with fake_driver(2, load={0: 0.5, 1: 0.5}) as driver, agent_on(driver) as node:
            node.start()
            assert accepted(node.order(driver.uuids[0], clock_mhz=1005))
            driver.set_error("nvmlDeviceResetGpuLockedClocks", 0, gpu=0, lies=True)
            assert node.kill(signal.SIGTERM) == 1, "it has read our clock"
            assert driver.locks()[0] == (210, 1005)
            driver.clear_errors()
            done = node.restore()
            assert (done.returncode, done.stdout) == (0, f"{driver.uuids[0]} restored\n")
            assert driver.locks() == (None, None)

    def test_what_another_configuration_names_is_no_success(self) -> None:
        """Keeper and agent as separate units, as installed, and the keeper killed."""
        with RunningAgent(journal_dir="memory") as node:
            node.config["simulated"]["state"] = str(node.state_dir / "gpus.state")
            keeper = node.start_keeper()
            keepers_file, journal_dir = dict(node.config), node.config.pop("journal_dir")
            node.config |= {"keeper": "state/keeper.sock", "state_dir": "agent"}
            node.start()
            assert accepted(node.apply(LOWER))
            keeper.kill()
            keeper.wait()
            done = node.restore()
            assert (done.returncode, done.stdout) == (1, "")
            assert "repeat with --config of the keeper" in done.stderr
            node.config |= {"state_dir": "state"}  # the socket's folder, and another journal
            done = node.restore()
            assert (done.returncode, done.stdout) == (1, "")
            assert f"repeat with journal_dir: {node.home / journal_dir}" in done.stderr
            assert node.locked() == LOWER
            node.config = keepers_file
            done = node.restore()
            assert (done.returncode, done.stdout.count("restored")) == (0, 4)
            assert not node.locked()

    def test_what_it_cannot_do_it_says(self, node: RunningAgent) -> None:
        node.start()
        assert accepted(node.apply({1: 1005}))
        os.kill(node.keeper_pid, signal.SIGSTOP)
        node.kill()
        node.kill_keeper()
        node.gpus.put(1, lost=True)
        done = node.restore()
        assert done.returncode == 1
        assert done.stdout.startswith(f"{node.gpus.uuid(1)} NOT restored")
        assert "Traceback" not in done.stderr
        node.gpus.put(1, lost=False)
        assert node.restore().returncode == 0
        assert not node.locked()


def test_a_restore_that_fails_is_tried_until_it_is_done(node: RunningAgent) -> None:
    node.start()
    assert accepted(node.apply(LOWER))
    node.gpus.put(2, lost=True)
    assert accepted(node.renew(ttl_s=0.2))
    eventually("the others at default", lambda: node.locked() == {2: 810})
    eventually("said", lambda: "will retry" in node.log)
    refused = node.apply({2: 810}, generation=2)
    assert "pending" in refused[0].reason or "lost" in refused[0].reason
    node.gpus.put(2, lost=False)
    eventually("all at default", lambda: not node.locked())
    assert accepted(node.apply({2: 810}, generation=3))
