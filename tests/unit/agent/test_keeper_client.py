"""What the agent says of a keeper that does not speak its version."""

import contextlib
import socket

import msgspec

from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.protocol import REPLY_BYTES, Reply, encode_reply
from joulecut_wire.messages import GpuDescription


def test_a_keeper_of_another_version_is_named_until_one_of_this_answers() -> None:
    """A new agent beside an old keeper: its answer is all that shows it."""
    client = KeeperClient("no keeper")
    old = msgspec.msgpack.encode({"version": "joulecut-keeper-7", "reply": {}})
    raw = (len(old).to_bytes(2, "little") + old).ljust(REPLY_BYTES, b"\0")
    assert "speaks joulecut-keeper-7" in _refreshed(client, raw)
    (about,) = client.described([GpuDescription("GPU-a", 0, "a40", (600,))])
    assert (about.controllable, about.reason) == (False, client.mismatch)
    assert _refreshed(client, encode_reply(Reply(2, 4, Bounds(), ()))) == ""


def _refreshed(client: KeeperClient, answer: bytes) -> str:
    """What the client says of its keeper's version after this answer."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, contextlib.suppress(KeeperGone):
        theirs.send(answer)
        client.attach(mine)
        client.refresh()
    client.detach()
    return client.mismatch
