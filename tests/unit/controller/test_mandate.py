"""The policy in force: taken whole or not at all, and every answer in the trail once."""

import asyncio
from dataclasses import replace

import pytest
from worlds import HeldSource, World

from joulecut_controller.policy.policy import Policy
from joulecut_controller.ports import Event
from joulecut_controller.reconcile.audit import Audit
from joulecut_controller.reconcile.policy_watcher import Mandate
from joulecut_wire.errors import Unavailable


class Trail:
    """The part of a store that keeps events; `full` makes it refuse them."""

    def __init__(self) -> None:
        self.full = False
        self.texts: list[str] = []

    def record(self, event: Event) -> None:
        if self.full:
            raise Unavailable("store: the disk is full")
        self.texts.append(event.text)

    def events(self, *, job: str = "", limit: int = 100) -> tuple[Event, ...]:
        return ()


@pytest.fixture
def trail() -> Trail:
    return Trail()


@pytest.fixture
def source() -> HeldSource:
    return HeldSource(World(stages=2, microbatches=4).policy())


@pytest.fixture
def audit(trail: Trail) -> Audit:
    return Audit(trail, lambda: 1.8e9)  # type: ignore[arg-type]


@pytest.fixture
def mandate(source: HeldSource, audit: Audit) -> Mandate:
    return Mandate(source, source.policy, audit)


def refreshed(mandate: Mandate) -> bool:
    return asyncio.run(mandate.refresh())


def newer(source: HeldSource, digest: str) -> Policy:
    return replace(source.policy, digest=digest)


def test_nothing_new_is_no_news(mandate: Mandate, trail: Trail, source: HeldSource) -> None:
    assert not refreshed(mandate)
    mandate.ask()
    assert refreshed(mandate), "asked for, so read again"
    assert not refreshed(mandate), "once"
    assert trail.texts == []
    assert mandate.policy is source.policy


def test_a_newer_policy_is_in_force_and_said(
    mandate: Mandate, trail: Trail, source: HeldSource
) -> None:
    source.put(newer(source, "2"))
    assert refreshed(mandate)
    assert mandate.policy.digest == "2"
    assert trail.texts == ["in force: 2"]


def test_a_broken_one_is_refused_once_and_the_one_before_stays(
    mandate: Mandate, trail: Trail, source: HeldSource
) -> None:
    before = mandate.policy
    for _ in range(2):
        source.damage("mode is 'enfroce'")
        assert not refreshed(mandate)
    assert mandate.policy is before
    assert "enfroce" in mandate.error
    assert len(trail.texts) == 1
    source.broken = ""
    source.put(newer(source, "3"))
    assert refreshed(mandate)
    assert mandate.error == ""


def test_a_newer_one_is_in_force_whatever_the_store_says_and_its_line_follows(
    mandate: Mandate, audit: Audit, trail: Trail, source: HeldSource
) -> None:
    source.put(newer(source, "2"))
    trail.full = True
    assert refreshed(mandate)
    assert mandate.policy.digest == "2"
    assert not refreshed(mandate)
    assert audit.trouble == "store: the disk is full"
    assert audit.newest[0].text == "in force: 2", "the page need not wait for a disk"
    trail.full = False
    audit.catch_up()
    assert (trail.texts, audit.trouble) == (["in force: 2"], "")
    audit.catch_up()
    assert len(trail.texts) == 1


def test_a_broken_one_stops_nothing_and_is_written_down_later(
    mandate: Mandate, audit: Audit, trail: Trail, source: HeldSource
) -> None:
    source.damage("mode is 'enfroce'")
    trail.full = True
    for _ in range(2):
        assert not refreshed(mandate)
        assert "enfroce" in mandate.error
    trail.full = False
    audit.catch_up()
    for _ in range(2):
        assert not refreshed(mandate)
    assert len(trail.texts) == 1
