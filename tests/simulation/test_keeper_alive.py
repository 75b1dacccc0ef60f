"""What a kubelet asks of a keeper of its own: whether somebody stopped it, and nothing else."""

import os
import signal
import subprocess
from pathlib import Path

from running_agent import LOWER, RunningAgent, accepted, eventually

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "docker" / "keeper-alive.sh"


def _asked(state_dir: Path) -> tuple[int, str]:
    asked = [str(SCRIPT), str(state_dir)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_keeper_that_is_stopped_fails_the_probe_and_the_next_one_gives_back(
    node: RunningAgent,
) -> None:
    node.config["keeper"] = "state/keeper.sock"
    keeper = node.start_keeper()
    node.start()
    assert accepted(node.apply(LOWER, ttl_s=1.0))
    assert _asked(node.state_dir) == (0, "")
    keeper.send_signal(signal.SIGSTOP)
    told = f"the keeper, process {keeper.pid}, is stopped\n"
    eventually("the probe fails", lambda: _asked(node.state_dir) == (1, told))
    keeper.send_signal(signal.SIGCONT)
    eventually("it is well again", lambda: _asked(node.state_dir) == (0, ""))
    eventually("a lease that ran out meanwhile", lambda: not node.locked())
    eventually("taken anew", lambda: accepted(node.apply(LOWER, generation=2)))
    keeper.send_signal(signal.SIGSTOP)
    eventually("the probe fails again", lambda: _asked(node.state_dir)[0] == 1)
    keeper.kill()  # as the kubelet does
    keeper.wait()
    assert _asked(node.state_dir) == (0, ""), "there is none; that is not the probe's to say"
    assert node.locked() == LOWER
    node.start_keeper()
    eventually("given back", lambda: not node.locked())
    assert _asked(node.state_dir) == (0, "")


def test_where_no_keeper_has_been_nothing_is_wrong(tmp_path: Path) -> None:
    assert _asked(tmp_path) == (0, "")


def test_a_stranger_that_is_stopped_is_not_the_keeper(node: RunningAgent) -> None:
    node.config["keeper"] = "state/keeper.sock"
    node.start_keeper()
    node.start()
    os.kill(node.process.pid, signal.SIGSTOP)  # it holds a lock of its own, beside the keeper's
    try:
        assert _asked(node.state_dir) == (0, "")
    finally:
        os.kill(node.process.pid, signal.SIGCONT)
