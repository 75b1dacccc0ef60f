"""The audit trail of a short day."""

import re
from pathlib import Path

import grpc
import pytest
from golden_text import same_as_golden
from running_agent import PATIENCE_S, RunningAgent

from joulecut_wire.v1 import agent_pb2 as pb

KEPT = Path(__file__).parent / "audit"


def _day(node: RunningAgent) -> None:
    """Commands good and bad, heartbeats, and a person on the node."""
    uuids = node.gpus.uuids
    settings = [
        pb.Setting(uuid=uuids[0], clock_min_mhz=900, clock_max_mhz=1005),
        pb.Setting(uuid=uuids[1], clock_max_mhz=1200),
    ]
    order = pb.ApplyRequest(
        epoch=3, job="gpt3-175b", generation=7, ttl_s=30.0, settings=settings,
        reason="plan 7: 0.4 % slower, 12 % less energy",
    )  # fmt: skip
    node.stub.Apply(order, timeout=PATIENCE_S)
    for _ in range(3):
        node.renew(epoch=3, job="gpt3-175b", generation=7, ttl_s=30.0)
        node.renew(epoch=3, job="gpt3-175b", generation=6, ttl_s=30.0)
    order.epoch = 2
    node.stub.Apply(order, timeout=PATIENCE_S)
    with pytest.raises(grpc.RpcError):
        node.stub.Apply(pb.ApplyRequest(job="a\nb"), timeout=PATIENCE_S)
    clear = pb.ClearRequest(epoch=3, job="gpt3-175b", uuids=[uuids[0]], reason="on call: “slow?”")
    node.stub.Clear(clear, timeout=PATIENCE_S)
    assert node.restore().returncode == 0


def test_the_trail_of_a_short_day() -> None:
    with RunningAgent(cards=2) as node:
        node.start()
        _day(node)
        text = (node.state_dir / "audit.jsonl").read_text()
    same_as_golden(KEPT / "day.jsonl", _timeless(text))


def _timeless(text: str) -> str:
    text = re.sub(r'"t":[0-9.]+', '"t":1', text)
    return re.sub(r"local uid \d+(, login \d+)?", "local uid 1000", text)
