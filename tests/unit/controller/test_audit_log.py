"""The trail: what must be written first, what may follow, and how much waits at most."""

import pytest

from joulecut_controller.ports import Event
from joulecut_controller.reconcile.audit_log import SHOWN, WAITING_MAX, AuditLog
from joulecut_wire.errors import Unavailable


class Paper:
    """The part of a store that keeps events, `room` more; it counts tries."""

    def __init__(self) -> None:
        self.room = 0
        self.tries = 0
        self.texts: list[str] = []

    def record(self, *events: Event) -> None:
        self.tries += 1
        if self.room < len(events):
            raise Unavailable("store: the disk is full")
        self.room -= len(events)
        self.texts += [event.text for event in events]

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


def test_posted_lines_wait_in_order_and_cost_one_transaction(audit: AuditLog, paper: Paper) -> None:
    for i in range(5):
        audit.post("clear", "gpt", f"{i}")
    assert paper.tries == 0, "a transaction of another controller holds up no event loop"
    assert [event.text for event in audit.newest] == ["4", "3", "2", "1", "0"]
    paper.room = 2
    audit.catch_up()
    assert (paper.texts, paper.tries) == ([], 1), "a store that hangs costs one timeout"
    assert "the disk is full" in audit.trouble
    paper.room = 99
    audit.note("plan", "gpt", "5")
    assert paper.texts == ["0", "1", "2", "3", "4", "5"], "in the order in which they came"
    audit.post("clear", "gpt", "6")
    audit.catch_up()
    assert paper.texts[-1] == "6"
    assert audit.trouble == ""


def test_what_waits_is_bounded_and_the_newest_stay(audit: AuditLog, paper: Paper) -> None:
    for i in range(WAITING_MAX + 7):
        audit.post("clear", "gpt", f"{i}")
    assert len(audit.newest) == SHOWN
    paper.room = WAITING_MAX
    audit.catch_up()
    assert (paper.texts[0], len(paper.texts)) == ("7", WAITING_MAX)
