"""What `joulecut status`, `joulecut explain` and /api/v1/board show, as text to be read."""

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import boards
import large
import pytest
from golden_text import same_as_golden
from job_states import changed

from joulecut_cli import explain, status
from joulecut_controller.board import Board, Learnt, standby_board
from joulecut_controller.plan.plan import Plan
from joulecut_controller.ports import FleetState
from joulecut_controller.web.board_json import EVENT_WITH_DETAIL, board_json

KEPT = Path(__file__).parent / "status"
URL = "http://127.0.0.1:9440"
SOON = boards.NOON_UNIX_S + 2.0


def unprofiled() -> Board:
    """A job that only tells its rate, and whose policy names no profile."""
    whole = boards.board("recommend", microbatches=12)
    [job] = whole.jobs
    policy = replace(job.view.policy, profile=None, pipeline=None)
    nothing = Plan(
        job=policy.name,
        generation=3,
        parent=0,
        mode="recommend",
        granularity="gpu",
        actions=(),
        reason="no profile, hence no evidence about other clocks: no change",
        made_at_unix_s=boards.NOON_UNIX_S - 300.0,
    )
    bare = replace(
        job,
        view=changed(job.view, policy=policy, loads=()),
        sentence="no profile, hence no evidence about other clocks: no change",
        decision=nothing,
        frontier=(),
        predict_error_time_ratio=None,
        predict_error_power_ratio=None,
        learnt=Learnt(),
    )
    return replace(whole, jobs=(bare,), events=boards.EVENTS[-2:])


def standby() -> Board:
    """A controller that another one has kept from leading: it sees the agents, and no more."""
    whole = boards.board("recommend")
    return standby_board(
        FleetState(whole.view.nodes, tuple(whole.view.gpus.values())),
        "standby: joulecut-controller ctl-1:9440 leads",
        leader="ctl-1:9440",
        number=31,
        interval_s=5.0,
        now_s=whole.view.now_s,
        unix_s=boards.NOON_UNIX_S,
    )


CASES: dict[str, Callable[[], Board]] = {
    "enforcing": boards.board,
    "recommending": lambda: boards.board("recommend"),
    "measuring": boards.measuring,
    "straggling": boards.straggling,
    "unprofiled": unprofiled,
    "empty": boards.empty,
    "standby": standby,
}


@pytest.mark.parametrize("case", CASES)
def test_status(case: str) -> None:
    board = board_json(CASES[case]())
    same_as_golden(KEPT / f"status-{case}.txt", status.page(board, URL, SOON))


@pytest.mark.parametrize("case", [case for case in CASES if case not in {"empty", "standby"}])
def test_explain(case: str) -> None:
    board = CASES[case]()
    [job] = board_json(board)["jobs"]
    events = [EVENT_WITH_DETAIL.json(e) for e in board.events if e.job == job["name"]]
    same_as_golden(KEPT / f"explain-{case}.txt", explain.page(job, events, URL, SOON))


def test_status_of_a_controller_whose_passes_stopped() -> None:
    text = status.page(board_json(boards.board()), URL, boards.NOON_UNIX_S + 600.0)
    assert "! No pass has ended for 10 min: the data below is stale." in text


def test_a_standby_on_the_leader_s_machine_is_asked_by_its_loopback_address() -> None:
    shown = replace(standby(), leader=f"{socket.gethostname()}:9441")
    text = status.page(board_json(shown), "http://127.0.0.1:9440", SOON)
    assert "--controller http://127.0.0.1:9441" in text
    text = status.page(board_json(replace(shown, leader="")), URL, SOON)
    assert "No leader is known: try the other controllers" in text


def test_board_json() -> None:
    """The API's whole shape, with few frontier points so that it can be read."""
    whole = boards.board(microbatches=12)
    [job] = whole.jobs
    shown = board_json(replace(whole, jobs=(replace(job, frontier=job.frontier[::25]),)))
    shown["gpus"] = shown["gpus"][:1]
    shown["jobs"][0]["gpus"] = shown["jobs"][0]["gpus"][:1]
    shown["jobs"][0]["decision"]["actions"] = shown["jobs"][0]["decision"]["actions"][:1]
    shown["jobs"][0]["applied"] = "the same object as decision"
    same_as_golden(KEPT / "board.json", json.dumps(_rounded(shown), indent=2))


def _rounded(value: object) -> object:
    """Floats to nine digits: the last bits differ between machines."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_of_many_jobs_the_worst_are_shown_and_the_others_counted() -> None:
    shown = json.loads(json.dumps(board_json(large.board(nodes=100))))
    slow, needed = shown["jobs"][70], shown["jobs"][40]
    slow["measured"]["slowdown_ratio"] = 0.5
    shown["cluster"]["needs"] = [
        {"severity": "fault", "job": needed["name"], "node": "", "text": "is lost"}
    ]
    lines = status.page(shown, URL, SOON).splitlines()
    rows = [line.split()[0] for line in lines if line.startswith("job") and " " in line]
    assert rows[:2] == [needed["name"], slow["name"]]
    assert len(rows) == status.JOBS_SHOWN_MAX
    assert any("and 80 more (80 " in line and "--all" in line for line in lines)
    every = status.page(shown, URL, SOON, every_job=True).splitlines()
    assert sum(line.startswith("job") for line in every) == 100
