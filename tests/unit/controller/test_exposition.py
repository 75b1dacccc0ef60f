"""Metrics as text: the same bytes as ever, of each board and of each plan once."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import boards
import large
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.metrics.collector import BoardCollector, Family
from joulecut_controller.metrics.exposition import Exposition
from joulecut_controller.reconcile.meters import Meters

THREADS = 8


class Scraped(BoardCollector):
    """A collector over a board that may be exchanged; counts who asks for the jobs."""

    def __init__(self, board: Board | None) -> None:
        self.shown, self.meters, self.leading, self.asked = board, Meters(), True, 0
        super().__init__(lambda: self.shown, self.meters, epoch=7, leads=lambda: self.leading)
        self.exposition = Exposition(self)

    def of_jobs(self, jobs: tuple[JobBoard, ...], *, clocks: bool = True) -> Iterator[Family]:
        self.asked += 1
        return super().of_jobs(jobs, clocks=clocks)

    def text(self) -> bytes:
        return self.exposition.text()

    def plain(self) -> bytes:
        """As the client library alone writes it."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)


BOARDS = {
    "none": None,
    "empty": boards.empty(),
    "measuring": boards.measuring(),
    "recommending": boards.board("recommend"),
    "enforcing": boards.board("enforce"),
    "straggling": boards.straggling(),
    "many": large.board(20, jobs=10),
}


@pytest.mark.parametrize("name", BOARDS)
def test_the_bytes_are_those_of_the_client_library(name: str) -> None:
    scraped = Scraped(BOARDS[name])
    scraped.meters.passes.add(0.3)
    assert scraped.text() == scraped.plain()
    assert scraped.text() == scraped.plain(), "a second time"


def test_one_text_after_another_is_of_its_own_board() -> None:
    scraped = Scraped(None)
    for board in (*BOARDS.values(), *reversed(BOARDS.values())):
        scraped.shown = board
        assert scraped.text() == scraped.plain()


def test_a_board_is_written_once_however_many_scrape() -> None:
    scraped = Scraped(large.board(20, jobs=10))
    texts: list[bytes] = []
    scrapes = [
        threading.Thread(target=lambda: texts.append(scraped.text())) for _ in range(THREADS)
    ]
    for scrape in scrapes:
        scrape.start()
    for scrape in scrapes:
        scrape.join()
    assert scraped.asked == 1
    assert len(texts) == THREADS
    assert len(set(texts)) == 1


def test_of_the_clocks_only_a_new_plan_is_written_again() -> None:
    board = large.board(20, jobs=10)
    scraped = Scraped(board)
    scraped.text()
    assert scraped.exposition.plans_written == 10
    scraped.shown = replace(board, jobs=tuple(replace(job, trips=1) for job in board.jobs))
    scraped.text()
    assert scraped.exposition.plans_written == 10, "new boards, the same plans"
    changed, *others = board.jobs
    assert changed.decision is not None
    actions = tuple(replace(action, clock_mhz=915) for action in changed.decision.actions)
    planned = replace(changed, decision=replace(changed.decision, actions=actions))
    scraped.shown = replace(board, jobs=(planned, *others))
    assert scraped.text() == scraped.plain()
    assert scraped.exposition.plans_written == 11


def test_figures_of_the_controller_itself_are_of_the_moment() -> None:
    scraped = Scraped(boards.board())
    assert b"joulecut_controller_leader 1.0\n" in scraped.text()
    scraped.leading = False
    scraped.meters.passes.add(0.3)
    text = scraped.text()
    assert b"joulecut_controller_leader 0.0\n" in text
    assert b"joulecut_reconcile_seconds_count 1.0\n" in text
    assert scraped.asked == 1
    assert text == scraped.plain()


def test_a_job_that_left_leaves_nothing_behind() -> None:
    board = large.board(20, jobs=10)
    scraped = Scraped(board)
    assert b'job="job003"' in scraped.text()
    scraped.shown = replace(board, jobs=tuple(job for job in board.jobs if _name(job) != "job003"))
    assert b'job="job003"' not in scraped.text()
    scraped.shown = board
    scraped.text()
    assert scraped.exposition.plans_written == 11, "not kept for one that comes back"


def _name(job: JobBoard) -> str:
    return job.view.policy.name
