"""What was learnt is kept: packed, once, and no estimator's oddity ends a pass."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.learning import KEEP_S, NAME, Learning, unpacked
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_wire.errors import Unavailable


class Odd(OnlineEstimator):
    """An estimator whose state is whatever a test says."""

    def __init__(self) -> None:
        super().__init__({})
        self.summaries: dict[str, Any] = {}

    def state(self) -> dict[str, Any]:
        return self.summaries


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DatabaseStore]:
    opened = open_store(f"sqlite:///{tmp_path}/controller.db")
    yield opened
    opened.close()


@pytest.fixture
def odd() -> Odd:
    return Odd()


@pytest.fixture
def learning(odd: Odd, store: DatabaseStore) -> Learning:
    made = Learning(odd, store, AuditLog(store, lambda: 1.8e9))
    made.begin()
    return made


def noted(store: DatabaseStore) -> list[str]:
    return [event.text for event in store.events() if event.kind == "learn"]


def keep(learning: Learning) -> None:
    asyncio.run(learning.keep())


def test_what_was_learnt_is_kept(learning: Learning, odd: Odd, store: DatabaseStore) -> None:
    odd.summaries = {"seconds": [0.5, 0.25]}
    keep(learning)
    assert unpacked(store.learnt(NAME)) == odd.summaries
    assert noted(store) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_no_text_can_hold_costs_a_line_and_no_pass(
    learning: Learning, odd: Odd, store: DatabaseStore, value: float
) -> None:
    odd.summaries = {"seconds": 0.5}
    keep(learning)
    odd.summaries = {"seconds": value}
    for _ in range(3):
        keep(learning)
    assert unpacked(store.learnt(NAME)) == {"seconds": 0.5}
    [line] = noted(store)
    assert line.startswith("what was learnt is not kept: ")
    odd.summaries = {"seconds": 0.25}
    keep(learning)
    assert unpacked(store.learnt(NAME)) == {"seconds": 0.25}


class Narrow(DatabaseStore):
    """A store that keeps only short texts, so that a test need not make a long one."""

    tries = 0

    def keep_learnt(self, name: str, content: str) -> None:
        self.tries += 1
        if len(content) > 100:
            raise ValueError(f"{name}: {len(content)} characters, 100 are kept at most")
        super().keep_learnt(name, content)


class Away(DatabaseStore):
    """A store that cannot be reached."""

    def keep_learnt(self, name: str, content: str) -> None:
        raise Unavailable("the store is away")


def test_a_state_that_the_store_did_not_take_is_written_later(
    learning: Learning, odd: Odd, store: DatabaseStore
) -> None:
    odd.summaries = {"seconds": 0.5}
    store.__class__ = Away

    with pytest.raises(Unavailable):
        asyncio.run(learning.step(0.0))
    store.__class__ = DatabaseStore
    asyncio.run(learning.step(KEEP_S))
    assert unpacked(store.learnt(NAME)) == odd.summaries


def test_more_than_a_store_keeps_is_said_and_tried_once(
    learning: Learning, odd: Odd, store: DatabaseStore
) -> None:
    store.__class__ = Narrow
    odd.summaries = {"digits": json.dumps([i * 0.6180339887498949 % 1.0 for i in range(100)])}
    for _ in range(3):
        keep(learning)
    [line] = noted(store)
    assert line.endswith("100 are kept at most")
    assert isinstance(store, Narrow)
    assert store.tries == 1


def test_nothing_is_kept_before_what_is_there_was_read(odd: Odd, store: DatabaseStore) -> None:
    odd.summaries = {"seconds": 0.5}
    keep(Learning(odd, store, AuditLog(store, lambda: 1.8e9)))
    assert store.learnt(NAME) == ""
