"""The epoch of a real node, which an operator resets."""

import subprocess

from running_agent import COMMAND, PATIENCE_S, RunningAgent, eventually

STEP = 2**20  # of one command, as the keeper allows it


def reset(node: RunningAgent) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "reset-epoch", "--config", str(node.home / "agent.yaml")],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=node.env,
    )  # fmt: skip


def seen(node: RunningAgent) -> int:
    return int(node.describe().epoch_seen)


def test_an_operator_resets_the_epoch() -> None:
    with RunningAgent(cards=1, journal_dir="memory") as node:  # apart from the epoch's
        node.start()
        assert node.apply({0: 1005}, epoch=STEP, generation=9)[0].accepted
        assert not node.apply({0: 1005}, epoch=2)[0].accepted
        done = reset(node)
        assert (done.returncode, done.stderr) == (0, "")
        assert node.locked() == {}, "no lease outlives its epoch"
        eventually("the agent follows", lambda: seen(node) == 0)
        assert node.apply({0: 1200}, epoch=2)[0].accepted
        node.kill_keeper()
        node.regains_control()
        assert (seen(node), node.locked()) == (2, {})
        assert "reset-epoch" in (node.state_dir / "audit.jsonl").read_text()
        node.kill()
        eventually("the keeper's end", lambda: not (node.state_dir / "keeper.sock").exists())

        done = reset(node)  # without a keeper: in its files
        assert (done.returncode, done.stderr) == (0, "")
        node.start()
        assert seen(node) == 0
