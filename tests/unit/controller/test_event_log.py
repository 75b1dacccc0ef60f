"""The controller's log: a line for each event of each job, once while it stays."""

import json
from collections.abc import Iterator

import pytest

from joulecut_controller.board import LogLine
from joulecut_controller.log import EventLog
from joulecut_wire import log_line


@pytest.fixture(autouse=True)
def as_json() -> Iterator[None]:
    log_line.use(log_line.JSON)
    yield
    log_line.use(log_line.TEXT)


def test_an_event_is_a_line_with_its_job_once_while_it_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = LogLine("", "the disk is full", "warning")
    broken = LogLine("b", "cannot be reconciled", "error")
    planned = [LogLine("a", f"plan {number} applied", "info") for number in range(3)]
    log = EventLog()
    for plan in planned:
        log.write((plan, full, broken))
    log.write(())
    log.write((full,))
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(one.get("job", ""), one["level"], one["message"]) for one in told] == [
        ("a", "info", "a: plan 0 applied"),
        ("", "warning", "the disk is full"),
        ("b", "error", "b: cannot be reconciled"),
        ("a", "info", "a: plan 1 applied"),
        ("a", "info", "a: plan 2 applied"),
        ("", "warning", "the disk is full"),
    ]
