"""Metrics as text: of the current board, the controller's own figures of the moment."""

import re
from dataclasses import replace

import boards
import large
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from joulecut_controller.board import Board, standby_board
from joulecut_controller.metrics.collector import BoardCollector, MetricsEndpoint
from joulecut_controller.ports import FleetState
from joulecut_controller.reconcile.loop_metrics import LoopMetrics
from joulecut_controller.view import NodeView


class Scraped(BoardCollector):
    """A collector over a board that may be exchanged."""

    def __init__(self, board: Board) -> None:
        self.shown, self.meters, self.leading = board, LoopMetrics(), True
        super().__init__(
            lambda: self.shown, self.meters, epoch=lambda: 7, leads=lambda: self.leading
        )
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)


def test_a_leader_and_a_standby_show_their_process_in_both_formats() -> None:
    endpoint = MetricsEndpoint()
    for number in (1, 2):  # a new collector takes the place of the one before
        endpoint.stand_by(replace(boards.board(), pass_number=number, leads=False))
        text, other = endpoint.text(False).decode(), endpoint.text(True).decode()
        assert text.count("\nprocess_resident_memory_bytes ") == 1
        families = {family.name for family in text_string_to_metric_families(other)}
        assert {"process_cpu_seconds", "joulecut_build", "joulecut_controller_leader"} <= families


def test_a_boards_series_are_openmetrics() -> None:
    scraped = Scraped(large.board(20, jobs=10))
    text = openmetrics.generate_latest(scraped._registry).decode()
    assert "joulecut_job_power_watts" in {
        family.name for family in text_string_to_metric_families(text)
    }


def _standby() -> Board:
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


def test_metrics_of_a_standby_add_up_with_a_leader_s() -> None:
    registry = CollectorRegistry()
    registry.register(BoardCollector(_standby))
    text = generate_latest(registry).decode()
    assert "joulecut_controller_leader 0.0" in text
    assert 'joulecut_reconcile_agents{state="connected"} 1.0' in text
    assert 'joulecut_reconcile_agents{state="lost"} 1.0' in text
    assert 'role="controller"' in text
    named = set(re.findall(r"^(joulecut_\w+)", text, re.MULTILINE))
    assert "joulecut_controller_epoch" not in named, "a standby has no term"
