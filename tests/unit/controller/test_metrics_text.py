"""Metrics as text: of the current board, the controller's own figures of the moment."""

from dataclasses import replace

import boards
import large
from prometheus_client import CollectorRegistry, generate_latest

from joulecut_controller.board import Board
from joulecut_controller.metrics.collector import BoardCollector
from joulecut_controller.reconcile.loop_metrics import LoopMetrics


class Scraped(BoardCollector):
    """A collector over a board that may be exchanged."""

    def __init__(self, board: Board) -> None:
        self.shown, self.meters, self.leading = board, LoopMetrics(), True
        super().__init__(lambda: self.shown, self.meters, epoch=7, leads=lambda: self.leading)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)


def test_figures_of_the_controller_itself_are_of_the_moment() -> None:
    scraped = Scraped(boards.board())
    assert b"joulecut_controller_leader 1.0\n" in scraped.text()
    scraped.leading = False
    scraped.meters.passes.add(0.3)
    text = scraped.text()
    assert b"joulecut_controller_leader 0.0\n" in text
    assert b"joulecut_reconcile_seconds_count 1.0\n" in text


def test_a_job_that_left_leaves_nothing_behind() -> None:
    board = large.board(20, jobs=10)
    scraped = Scraped(board)
    assert b'job="job003"' in scraped.text()
    left = tuple(job for job in board.jobs if job.view.policy.name != "job003")
    scraped.shown = replace(board, jobs=left)
    assert b'job="job003"' not in scraped.text()
