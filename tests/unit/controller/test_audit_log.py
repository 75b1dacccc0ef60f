"""The trail: what must be written first, what may follow, and how much waits at most."""

import pytest

from joulecut_controller.ports import Event
from joulecut_controller.reconcile.audit_log import SHOWN, WAITING_MAX, AuditLog
from joulecut_wire.errors import Unavailable


class Paper:
    """The part of a store that keeps events; it takes `room` more and counts who tries."""

    def __init__(self) -> None:
        self.room = 0
        self.tries = 0
        self.texts: list[str] = []

    def record(self, event: Event) -> None:
        self.tries += 1
        if not self.room:
            raise Unavailable("store: the disk is full")
        self.room -= 1
        self.texts.append(event.text)

    def events(self, *, job: str = "", limit: int = 100) -> tuple[Event, ...]:
        return ()


@pytest.fixture
def paper() -> Paper:
    return Paper()


@pytest.fixture
def audit(paper: Paper) -> AuditLog:
    return AuditLog(paper, lambda: 1.8e9)


def test_what_must_be_written_first_is_not_shown_before_it_is(audit: AuditLog) -> None:
    with pytest.raises(Unavailable):
        audit.note("apply", "gpt", "applied")
    assert audit.newest == ()
    assert audit.trouble == ""


def test_posted_lines_wait_in_order_and_cost_one_try_per_pass(
    audit: AuditLog, paper: Paper
) -> None:
    for i in range(5):
        audit.post("clear", "gpt", f"{i}")
    assert paper.tries == 1, "a store that hangs costs one timeout, and not one a line"
    assert [event.text for event in audit.newest] == ["4", "3", "2", "1", "0"]
    paper.room = 2
    audit.catch_up()
    assert paper.texts == ["0", "1"]
    assert "the disk is full" in audit.trouble
    paper.room = 99
    audit.post("clear", "gpt", "5")
    assert paper.texts == ["0", "1"], "behind others it waits"
    audit.catch_up()
    assert paper.texts == ["0", "1", "2", "3", "4", "5"]
    assert audit.trouble == ""
    audit.post("clear", "gpt", "6")
    assert paper.texts[-1] == "6"


def test_what_waits_is_bounded_and_the_newest_stay(audit: AuditLog, paper: Paper) -> None:
    for i in range(WAITING_MAX + 7):
        audit.post("clear", "gpt", f"{i}")
    assert len(audit.newest) == SHOWN
    paper.room = 10 * WAITING_MAX
    audit.catch_up()
    assert (paper.texts[0], len(paper.texts)) == ("7", WAITING_MAX)
