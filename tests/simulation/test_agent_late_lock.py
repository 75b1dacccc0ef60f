"""A driver that says "done" and has not: our own clock that shows after its lease is taken back."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from driven_agent import agent_on, fake_driver
from keeper_requests import apply_of
from running_agent import RunningAgent, accepted, eventually

from fixture import FakeNvml
from joulecut_agent.keeper import protocol as wire
from joulecut_agent.keeper.requests import Yield

AGAIN, NEVER_SHOWED, CLEARED, OTHERS, EXTERNAL, DEFAULT, EARLIER, YIELDED = range(
    8
)  # GPUs, by test


@pytest.fixture(scope="module")
def driver() -> Iterator[FakeNvml]:
    with fake_driver(8, load=dict.fromkeys(range(8), 0.5)) as fake:
        yield fake


@pytest.fixture(scope="module")
def node(driver: FakeNvml) -> Iterator[RunningAgent]:
    """Each test has a GPU of its own on it."""
    with agent_on(driver) as agent:
        yield agent.start()


def _readings(node: RunningAgent, count: int) -> None:
    sequence = node.watch().sequence
    eventually(f"{count} readings more", lambda: node.watch().sequence > sequence + count)


def _held_for_a_while(driver: FakeNvml, node: RunningAgent, gpu: int, clock_mhz: int) -> None:
    """An order whose lease was seen while it lasted, and has run out."""
    assert accepted(node.order(driver.uuids[gpu], clock_mhz=clock_mhz))
    eventually("the order is seen", lambda: node.gpu(gpu).lease)
    # Nothing shows when the agent has judged a reading; another cause that it reports does.
    for brake in (True, False):
        driver.set_power_brake(gpu, brake)
        eventually("judged", lambda brake=brake: bool(node.gpu(gpu).slow_reason) is brake)
    assert accepted(node.renew(ttl_s=0.2))
    eventually("the lease ends", lambda: driver.locks()[gpu] is None)
    eventually("and is seen to", lambda: node.gpu(gpu).lease is None)


def _resets(driver: FakeNvml, gpu: int) -> int:
    reset = "nvmlDeviceResetGpuLockedClocks"
    return sum((write.function, write.gpu) == (reset, gpu) for write in driver.writes())


def test_our_clock_that_shows_after_its_lease_is_reset_each_time(
    driver: FakeNvml, node: RunningAgent
) -> None:
    _held_for_a_while(driver, node, AGAIN, 1005)
    resets = _resets(driver, AGAIN)
    driver.foreign_lock(AGAIN, 210, 1005)  # what was asked takes effect now
    eventually("taken back", lambda: driver.locks()[AGAIN] is None)
    assert _resets(driver, AGAIN) == resets + 1
    eventually("and said", lambda: "cause=lock_shows: done" in node.log)
    driver.foreign_lock(AGAIN, 210, 1005)  # it was not seen free for long enough
    eventually("taken back again", lambda: driver.locks()[AGAIN] is None)


def test_a_lock_that_never_showed_and_comes_after_its_lease_is_reset(
    driver: FakeNvml, node: RunningAgent
) -> None:
    """A driver that says "done" and is late: the lease is given up before anything shows."""
    gpu = NEVER_SHOWED
    assert accepted(node.order(driver.uuids[gpu], clock_mhz=1005))
    driver.foreign_reset(gpu)  # before it could show
    eventually("given up", lambda: "cause=reset" in node.log)
    eventually("and is seen to", lambda: node.gpu(gpu).lease is None)
    resets = _resets(driver, gpu)
    driver.foreign_lock(gpu, 210, 1005)  # what was asked takes effect now
    eventually("taken back", lambda: driver.locks()[gpu] is None)
    assert _resets(driver, gpu) == resets + 1


def test_a_plain_clear_resets_a_lock_without_a_lease_that_may_be_ours(
    driver: FakeNvml, node: RunningAgent
) -> None:
    _held_for_a_while(driver, node, CLEARED, 1005)
    for gpu in (CLEARED, OTHERS):
        driver.foreign_lock(gpu, 210, 1200)  # no clock that the readings could tell as ours
    node.clear(job="")
    eventually("reset", lambda: driver.locks()[CLEARED] is None)
    assert driver.locks()[OTHERS] == (210, 1200), "it was never ours"


def test_another_clock_after_a_lease_is_external_and_the_default_clock_no_lock(
    driver: FakeNvml, node: RunningAgent
) -> None:
    """Beside the highest clock nothing tells a lock from none: nothing is written for it."""
    _held_for_a_while(driver, node, DEFAULT, 1395)
    _held_for_a_while(driver, node, EXTERNAL, 1005)
    resets = _resets(driver, DEFAULT)
    driver.foreign_lock(EXTERNAL, 210, 1200)
    _readings(node, 10)
    assert driver.locks()[EXTERNAL] == (210, 1200)
    assert _resets(driver, DEFAULT) == resets


def test_an_earlier_clock_of_ours_is_no_other_writer_and_the_late_one_is_reset(
    driver: FakeNvml, node: RunningAgent
) -> None:
    """The second lock is acknowledged, and carried out 6 s later: the first shows until then."""
    uuid = driver.uuids[EARLIER]
    assert accepted(node.order(uuid, clock_mhz=1305))
    eventually("the first shows", lambda: node.gpu(EARLIER).clock_sm_mhz == 1305)
    driver.set_error("nvmlDeviceSetGpuLockedClocks", 0, gpu=EARLIER, late_s=6.0, count=1)
    assert accepted(node.order(uuid, clock_mhz=1005, generation=2))
    eventually("judged", lambda: node.gpu(EARLIER).drift)
    assert node.gpu(EARLIER).drift == "not_reached", "nobody else has set it"
    eventually("given back", lambda: driver.locks()[EARLIER] is None)
    eventually("it is late", lambda: driver.locks()[EARLIER] == (210, 1005))
    eventually("and reset", lambda: driver.locks()[EARLIER] is None)


def test_a_yield_that_no_reading_bears_out_ends_no_lease(
    driver: FakeNvml, node: RunningAgent
) -> None:
    """Whoever may write to the keeper's socket: a lock ends with a write, and in time."""
    uuid = driver.uuids[YIELDED]
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as line:
        line.connect(str(node.state_dir / "keeper.sock"))
        told = (apply_of(1, "any", 1, 3.0, {uuid: (0, 345)}), *[Yield(uuid)] * 5)
        for serial, request in enumerate(told, 1):
            line.send(wire.encode_request(serial, request))
            slot = wire.decode_reply(line.recv(wire.REPLY_BYTES + 1)).slots[0]
            assert slot.accepted is (serial == 1)
    eventually("reset in time", lambda: driver.locks()[YIELDED] is None, patience_s=30.0)
