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


def _lock(driver: FakeNvml, node: RunningAgent, clock_mhz: int, ttl_s: float = 60.0) -> None:
    setting = pb.Setting(uuid=driver.uuids[0], clock_max_mhz=clock_mhz)
    request = pb.ApplyRequest(epoch=1, job="demo", generation=1, ttl_s=ttl_s, settings=[setting])
    (result,) = node.stub.Apply(request, timeout=PATIENCE_S).results
    assert result.accepted, result.reason
    eventually("the order is seen", lambda: node.watch().gpus[0].lease)


def _resets(driver: FakeNvml) -> int:
    return sum(write.function == "nvmlDeviceResetGpuLockedClocks" for write in driver.writes())


def test_our_clock_that_shows_after_its_lease_is_taken_back_once(
    driver: FakeNvml, node: RunningAgent
) -> None:
    _lock(driver, node, 1005, ttl_s=1.5)
    eventually("the lease ends", lambda: driver.locks()[0] is None)
    eventually("and is seen to", lambda: node.watch().gpus[0].lease is None)
    resets = _resets(driver)
    driver.foreign_lock(0, 210, 1005)  # what was asked takes effect now
    eventually("taken back", lambda: driver.locks()[0] is None)
    assert _resets(driver) == resets + 1
    eventually("and said", lambda: "our lock at 1005 MHz showed, and was taken back" in node.log)
    driver.foreign_lock(0, 210, 1005)  # the second time it is somebody else's
    sequence = node.watch().sequence
    eventually("ten pictures more", lambda: node.watch().sequence > sequence + 10)
    assert driver.locks()[0] == (210, 1005)
    assert _resets(driver) == resets + 1


def test_a_lock_that_never_showed_and_comes_after_its_lease_is_taken_back(
    driver: FakeNvml, node: RunningAgent
) -> None:
    """A driver that says "done" and is late: the lease is given up before anything shows."""
    setting = pb.Setting(uuid=driver.uuids[0], clock_max_mhz=1005)
    request = pb.ApplyRequest(epoch=1, job="demo", generation=1, ttl_s=60.0, settings=[setting])
    assert node.stub.Apply(request, timeout=PATIENCE_S).results[0].accepted
    driver.foreign_reset(0)  # before it could show
    eventually("given up", lambda: "cause=reset" in node.log)
    eventually("and is seen to", lambda: node.watch().gpus[0].lease is None)
    resets = _resets(driver)
    driver.foreign_lock(0, 210, 1005)  # what was asked takes effect now
    eventually("taken back", lambda: driver.locks()[0] is None)
    assert _resets(driver) == resets + 1


def test_another_clock_after_a_lease_is_somebody_elses(
    driver: FakeNvml, node: RunningAgent
) -> None:
    _lock(driver, node, 1005, ttl_s=1.5)
    eventually("the lease ends", lambda: driver.locks()[0] is None)
    eventually("and is seen to", lambda: node.watch().gpus[0].lease is None)
    driver.foreign_lock(0, 210, 1200)
    sequence = node.watch().sequence
    eventually("ten pictures more", lambda: node.watch().sequence > sequence + 10)
    assert driver.locks()[0] == (210, 1200)


def test_the_default_clock_is_no_lock_that_was_left(driver: FakeNvml, node: RunningAgent) -> None:
    """Beside the highest clock nothing tells a lock from none: nothing is written for it."""
    _lock(driver, node, 1395, ttl_s=1.5)
    eventually("the lease ends", lambda: driver.locks()[0] is None)
    eventually("and is seen to", lambda: node.watch().gpus[0].lease is None)
    resets = _resets(driver)
    sequence = node.watch().sequence
    eventually("ten pictures more", lambda: node.watch().sequence > sequence + 10)
    assert _resets(driver) == resets
