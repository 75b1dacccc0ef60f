"""A driver that says "done" and has not: our own clock that shows after its lease is taken back."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from driven_agent import fake_driver, started
from keeper_requests import apply_of
from running_agent import PATIENCE_S, RunningAgent, eventually

from fixture import FakeNvml
from joulecut_agent.keeper import protocol as wire
from joulecut_agent.keeper.requests import Yield
from joulecut_wire.v1 import agent_pb2 as pb


@pytest.fixture
def driver() -> Iterator[FakeNvml]:
    with fake_driver(2, load={0: 0.5, 1: 0.5}) as fake:
        yield fake


node = started


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


def _apply(driver: FakeNvml, node: RunningAgent, clock_mhz: int, generation: int) -> None:
    setting = pb.Setting(uuid=driver.uuids[0], clock_max_mhz=clock_mhz)
    request = pb.ApplyRequest(
        epoch=1, job="demo", generation=generation, ttl_s=60.0, settings=[setting]
    )
    (result,) = node.stub.Apply(request, timeout=PATIENCE_S).results
    assert result.accepted, result.reason


def test_an_earlier_clock_of_ours_is_no_other_writer_and_the_late_one_is_reset(
    driver: FakeNvml, node: RunningAgent
) -> None:
    """The second lock is acknowledged, and carried out 6 s later: the first shows until then."""
    _apply(driver, node, 1305, 1)
    eventually("the first shows", lambda: node.gpu().clock_sm_mhz == 1305)
    driver.set_error("nvmlDeviceSetGpuLockedClocks", 0, gpu=0, late_s=6.0, count=1)
    _apply(driver, node, 1005, 2)
    eventually("judged", lambda: node.gpu().drift)
    assert node.gpu().drift == "not_reached", "nobody else has set it"
    eventually("given back", lambda: driver.locks()[0] is None)
    eventually("it is late", lambda: driver.locks()[0] == (210, 1005))
    eventually("and reset", lambda: driver.locks()[0] is None)


def test_a_yield_that_no_reading_bears_out_ends_no_lease(
    driver: FakeNvml, node: RunningAgent
) -> None:
    """Whoever may write to the keeper's socket: a lock ends with a write, and in time."""
    uuid = driver.uuids[0]
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as line:
        line.connect(str(node.state_dir / "keeper.sock"))
        told = (apply_of(1, "any", 1, 3.0, {uuid: (0, 345)}), *[Yield(uuid)] * 5)
        for serial, request in enumerate(told, 1):
            line.send(wire.encode_request(serial, request))
            slot = wire.decode_reply(line.recv(wire.REPLY_BYTES + 1)).slots[0]
            assert slot.accepted is (serial == 1)
    eventually("reset in time", lambda: driver.locks()[0] is None, patience_s=30.0)
