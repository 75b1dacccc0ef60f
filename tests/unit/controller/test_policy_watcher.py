"""The policy in force: taken whole or not at all, and every answer in the trail once."""

import asyncio
from dataclasses import replace

import pytest
from worlds import HeldSource, World

from joulecut_controller.policy.policy import Policy
from joulecut_controller.ports import Event
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.policy_watcher import PolicyWatcher
from joulecut_wire.errors import Unavailable


class Trail:
    """The part of a store that keeps events; `full` makes it refuse them."""

    def __init__(self) -> None:
        self.full = False
        self.texts: list[str] = []

    def record(self, *events: Event) -> None:
        if self.full:
            raise Unavailable("store: the disk is full")
        self.texts += [event.text for event in events]

    def events(self, *, job: str = "", limit: int = 100) -> tuple[Event, ...]:
        return ()


@pytest.fixture
def trail() -> Trail:
    return Trail()


@pytest.fixture
def source() -> HeldSource:
    return HeldSource(World(stages=2, microbatches=4).policy())


@pytest.fixture
def audit(trail: Trail) -> AuditLog:
    return AuditLog(trail, lambda: 1.8e9)


@pytest.fixture
def policy_watcher(source: HeldSource, audit: AuditLog) -> PolicyWatcher:
    return PolicyWatcher(source, source.policy, audit)


def refreshed(policy_watcher: PolicyWatcher) -> bool:
    return asyncio.run(policy_watcher.refresh())


def newer(source: HeldSource, digest: str) -> Policy:
    return replace(source.policy, digest=digest)


def test_nothing_new_is_no_news(
    policy_watcher: PolicyWatcher, trail: Trail, source: HeldSource
) -> None:
    assert not refreshed(policy_watcher)
    policy_watcher.ask()
    assert refreshed(policy_watcher), "asked for, so read again"
    assert not refreshed(policy_watcher), "once"
    assert trail.texts == []
    assert policy_watcher.policy is source.policy


def test_a_newer_one_is_in_force_whatever_the_store_says_and_its_line_follows(
    policy_watcher: PolicyWatcher, audit: AuditLog, trail: Trail, source: HeldSource
) -> None:
    source.put(newer(source, "2"))
    trail.full = True
    assert refreshed(policy_watcher)
    assert policy_watcher.policy.digest == "2"
    assert not refreshed(policy_watcher)
    audit.catch_up()
    assert audit.trouble == "store: the disk is full"
    assert audit.newest[0].text == "in force: 2", "the page need not wait for a disk"
    trail.full = False
    audit.catch_up()
    assert (trail.texts, audit.trouble) == (["in force: 2"], "")
    audit.catch_up()
    assert len(trail.texts) == 1


def test_a_broken_one_stops_nothing_and_is_written_down_later(
    policy_watcher: PolicyWatcher, audit: AuditLog, trail: Trail, source: HeldSource
) -> None:
    source.damage("mode is 'enfroce'")
    trail.full = True
    for _ in range(2):
        assert not refreshed(policy_watcher)
        assert "enfroce" in policy_watcher.error
        audit.catch_up()
    trail.full = False
    audit.catch_up()
    for _ in range(2):
        assert not refreshed(policy_watcher)
    assert len(trail.texts) == 1
