"""What the agent believes of its leases between two words of the keeper."""

import contextlib
import socket

import msgspec
import pytest
from held_clock import HeldClock
from msgspec.structs import replace

from joulecut_agent.keeper import client as module
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.client import KeeperClient, KeeperGone, Status
from joulecut_agent.keeper.lease import Lease
from joulecut_agent.keeper.protocol import REPLY_BYTES, Reply, Slot, encode_reply
from joulecut_agent.keeper.requests import ClockLimits
from joulecut_wire.messages import GpuDescription

A, B = "GPU-a", "GPU-b"
AGE_S = 0.7


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HeldClock:
    made = HeldClock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def client(clock: HeldClock) -> KeeperClient:
    """Two GPUs as they were told AGE_S ago; B cannot be controlled."""
    client = KeeperClient("no keeper")
    client.epoch_seen = 3
    slots = {
        A: Slot(A, True),
        B: Slot(B, False, "MIG is on", Lease("other", 3, 1, ClockLimits(0, 900), 30.0)),
    }
    client.status = Status(clock.monotonic() - AGE_S, 3, 60.0, 1.0, 0, 0, slots)
    return client


def _reply(*slots: Slot, epoch: int = 4) -> Reply:
    return Reply(1, epoch, Bounds(), slots)


def test_an_accepted_order_shows_at_once_and_runs_out_in_its_own_time(
    client: KeeperClient, clock: HeldClock
) -> None:
    client.learn(_reply(Slot(A, True, "", Lease("demo", 4, 7, ClockLimits(0, 600), 20.0))))
    status, now_s = client.status, clock.monotonic()
    assert status is not None
    lease, other = status.lease(A, now_s), status.lease(B, now_s)
    assert lease is not None
    assert (lease.job, lease.generation, lease.clock_max_mhz) == ("demo", 7, 600)
    assert lease.expires_in_s == pytest.approx(20.0)
    assert other is not None
    assert other.expires_in_s == pytest.approx(30.0 - AGE_S)
    assert (status.epoch_seen, client.epoch_seen) == (4, 4)


def test_a_refusal_is_of_the_order_and_not_of_the_gpu(client: KeeperClient) -> None:
    client.learn(_reply(Slot(A, False, "changed 0.1 s ago"), Slot(B, True)))
    assert client.status is not None
    slots = client.status.slots
    assert {uuid: (s.accepted, s.reason) for uuid, s in slots.items()} == {
        A: (True, ""),
        B: (False, "MIG is on"),
    }
    assert not slots[B].lease, "and the lease that is gone is gone"


def test_an_answer_that_names_no_gpu_of_ours_changes_nothing_here(client: KeeperClient) -> None:
    before = client.status
    client.learn(_reply(Slot("", True)))  # it would ask, but nobody is there
    assert client.status is before


def test_a_keeper_of_another_version_is_named_until_one_of_this_answers() -> None:
    """A new agent beside an old keeper: its answer is all that shows it."""
    client = KeeperClient("no keeper")
    old = msgspec.msgpack.encode({"version": "joulecut-keeper-7", "reply": {}})
    raw = (len(old).to_bytes(2, "little") + old).ljust(REPLY_BYTES, b"\0")
    assert "speaks joulecut-keeper-7" in _refreshed(client, raw)
    (about,) = client.described([GpuDescription(A, 0, "a40", (600,))])
    assert (about.controllable, about.reason) == (False, client.mismatch)
    assert _refreshed(client, encode_reply(replace(_reply(), serial=2))) == ""


def _refreshed(client: KeeperClient, answer: bytes) -> str:
    """What the client says of its keeper's version after this answer."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, contextlib.suppress(KeeperGone):
        theirs.send(answer)
        client.attach(mine)
        client.refresh()
    client.detach()
    return client.mismatch
