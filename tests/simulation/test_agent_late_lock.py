"""A driver that says "done" and has not: our own clock that shows after its lease is taken back."""

from collections.abc import Iterator

import pytest
from driven_agent import agent_on, fake_driver
from running_agent import PATIENCE_S, RunningAgent, eventually

from fixture import FakeNvml
from joulecut_wire.v1 import agent_pb2 as pb


@pytest.fixture
def driver() -> Iterator[FakeNvml]:
    with fake_driver(2, load={0: 0.5, 1: 0.5}) as fake:
        yield fake


@pytest.fixture
def node(driver: FakeNvml) -> Iterator[RunningAgent]:
    with agent_on(driver) as agent:
        yield agent.start()


def _pictures(node: RunningAgent, count: int) -> None:
    sequence = node.watch().sequence
    eventually(f"{count} pictures more", lambda: node.watch().sequence > sequence + count)


def _held_for_a_while(driver: FakeNvml, node: RunningAgent, clock_mhz: int) -> None:
    """An order whose lease was seen while it lasted, and has run out."""
    setting = pb.Setting(uuid=driver.uuids[0], clock_max_mhz=clock_mhz)
    request = pb.ApplyRequest(epoch=1, job="demo", generation=1, ttl_s=60.0, settings=[setting])
    (result,) = node.stub.Apply(request, timeout=PATIENCE_S).results
    assert result.accepted, result.reason
    eventually("the order is seen", lambda: node.gpu().lease)
    # And judged, as nobody says of it: whatever else is said of a picture is said by who judges.
    for brake in (True, False):
        driver.set_power_brake(0, brake)
        eventually("judged", lambda brake=brake: bool(node.gpu().slow_reason) is brake)
    assert all(renewed.accepted for renewed in node.renew(ttl_s=0.2))
    eventually("the lease ends", lambda: driver.locks()[0] is None)
    eventually("and is seen to", lambda: node.gpu().lease is None)


def _resets(driver: FakeNvml) -> int:
    return sum(write.function == "nvmlDeviceResetGpuLockedClocks" for write in driver.writes())


def test_our_clock_that_shows_after_its_lease_is_reset_each_time(
    driver: FakeNvml, node: RunningAgent
) -> None:
    _held_for_a_while(driver, node, 1005)
    resets = _resets(driver)
    driver.foreign_lock(0, 210, 1005)  # what was asked takes effect now
    eventually("taken back", lambda: driver.locks()[0] is None)
    assert _resets(driver) == resets + 1
    eventually("and said", lambda: "cause=lock_shows: done" in node.log)
    driver.foreign_lock(0, 210, 1005)  # it was not seen free for long enough
    eventually("taken back again", lambda: driver.locks()[0] is None)


def test_a_lock_that_never_showed_and_comes_after_its_lease_is_reset(
    driver: FakeNvml, node: RunningAgent
) -> None:
    """A driver that says "done" and is late: the lease is given up before anything shows."""
    setting = pb.Setting(uuid=driver.uuids[0], clock_max_mhz=1005)
    request = pb.ApplyRequest(epoch=1, job="demo", generation=1, ttl_s=60.0, settings=[setting])
    assert node.stub.Apply(request, timeout=PATIENCE_S).results[0].accepted
    driver.foreign_reset(0)  # before it could show
    eventually("given up", lambda: "cause=reset" in node.log)
    eventually("and is seen to", lambda: node.gpu().lease is None)
    resets = _resets(driver)
    driver.foreign_lock(0, 210, 1005)  # what was asked takes effect now
    eventually("taken back", lambda: driver.locks()[0] is None)
    assert _resets(driver) == resets + 1


def test_a_plain_clear_resets_a_lock_without_a_lease_that_may_be_ours(
    driver: FakeNvml, node: RunningAgent
) -> None:
    _held_for_a_while(driver, node, 1005)
    for gpu in (0, 1):
        driver.foreign_lock(gpu, 210, 1200)  # no clock that the readings could tell as ours
    assert all(result.accepted for result in node.clear(job=""))
    assert driver.locks() == (None, (210, 1200)), "the second was never ours"


def test_another_clock_after_a_lease_is_external(driver: FakeNvml, node: RunningAgent) -> None:
    _held_for_a_while(driver, node, 1005)
    driver.foreign_lock(0, 210, 1200)
    _pictures(node, 10)
    assert driver.locks()[0] == (210, 1200)


def test_the_default_clock_is_no_lock_that_was_left(driver: FakeNvml, node: RunningAgent) -> None:
    """Beside the highest clock nothing tells a lock from none: nothing is written for it."""
    _held_for_a_while(driver, node, 1395)
    resets = _resets(driver)
    _pictures(node, 10)
    assert _resets(driver) == resets
