"""What a controller shows that does not lead."""

import re

from prometheus_client import CollectorRegistry, generate_latest

from joulecut_controller.board import Board, standby_board
from joulecut_controller.metrics.collector import BoardCollector
from joulecut_controller.ports import FleetState
from joulecut_controller.view import NodeView


def board() -> Board:
    nodes = (
        NodeView("n1:1", "n1", True, 4, 60.0, "1"),
        NodeView("n2:1", "", False, 0, 0.0, "", error="not reached yet"),
    )
    return standby_board(
        FleetState(nodes, ()),
        "standby: joulecut-controller ctl-1:9440 leads",
        leader="ctl-1:9440",
        number=3,
        interval_s=5.0,
        now_s=10.0,
        unix_s=1.8e9,
    )


def test_its_metrics_add_up_with_a_leader_s() -> None:
    registry = CollectorRegistry()
    registry.register(BoardCollector(board))
    text = generate_latest(registry).decode()
    assert "joulecut_controller_leader 0.0" in text
    assert 'joulecut_reconcile_agents{state="connected"} 1.0' in text
    assert 'joulecut_reconcile_agents{state="lost"} 1.0' in text
    assert 'role="controller"' in text
    named = set(re.findall(r"^(joulecut_\w+)", text, re.MULTILINE))
    assert "joulecut_controller_epoch" not in named, "a standby has no term"
