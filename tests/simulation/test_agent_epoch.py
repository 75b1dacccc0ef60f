"""The epoch of a real node: a storm of commands does not exhaust it, and an operator resets it."""

import subprocess

import grpc
import pytest
from running_agent import COMMAND, PATIENCE_S, RunningAgent, eventually

from joulecut_wire.v1 import agent_pb2 as pb

STEP = 2**20  # of one command, as the keeper allows it


def reset(node: RunningAgent) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "reset-epoch", "--config", str(node.home / "agent.yaml")],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=node.env,
    )  # fmt: skip


def seen(node: RunningAgent) -> int:
    return int(node.describe().epoch_seen)


def test_a_storm_of_clears_shuts_no_controller_out() -> None:
    with RunningAgent(cards=1) as node:
        node.start()
        for _ in range(64):
            node.stub.Clear(pb.ClearRequest(epoch=seen(node) + STEP), timeout=PATIENCE_S)
        assert seen(node) == STEP
        assert node.apply({0: 1005}, epoch=STEP + 1)[0].accepted, "of a new controller"
        assert node.locked() == {0: 1005}


@pytest.mark.parametrize("journal_dir", ["state", "memory"])
def test_an_operator_resets_the_epoch(journal_dir: str) -> None:
    with RunningAgent(cards=1, journal_dir=journal_dir) as node:
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


def test_who_may_not_raise_an_epoch_may_not_reset_it_either() -> None:
    with RunningAgent(cards=1) as node:
        node.start()
        assert node.apply({0: 1005}, epoch=5)[0].accepted
        with grpc.insecure_channel(node.ready["grpc"]) as channel:
            call = channel.unary_unary("/joulecut_wire.v1.AgentService/ResetEpoch")
            with pytest.raises(grpc.RpcError):
                call(b"", timeout=PATIENCE_S)
        assert (seen(node), node.locked()) == (5, {0: 1005})
