"""What agent and keeper tell each other: one fixed-size message each way, checked by its types.

Each is one packet of a SOCK_SEQPACKET socket: REQUEST_BYTES down, REPLY_BYTES back. A packet
is two bytes of length, that much MessagePack, and zeros. A message holds a whole node, so
that one command is one message; a reply also tells the state of each GPU that it names.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.lease import CAUSES, GPUS_MAX, U32, U64, Command, Lease, Uuid

REASON_BYTES_MAX = 160
REQUEST_BYTES = 8192  # 16 GPUs, each named three times in 96 bytes with 110 more, and a job's name
REPLY_BYTES = 16_384  # 16 GPUs with a job, a reason and 150 bytes of numbers for each
MAGIC = "jck3"
_COUNTS = msgspec.Meta(min_length=len(CAUSES), max_length=len(CAUSES))


class ProtocolError(ValueError):
    """The bytes are no message of this protocol, or a value does not fit into one."""


class Slot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One GPU: the answer or what bars control, and its lease, which ends so long after now."""

    uuid: Uuid
    accepted: bool
    reason: str = ""
    lease: Lease | None = None
    restores: Annotated[tuple[U32, ...], _COUNTS] = (0,) * len(CAUSES)  # since this keeper started


class Reply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    serial: U32
    epoch_seen: U64
    bounds: Bounds  # the site's
    slots: Annotated[tuple[Slot, ...], msgspec.Meta(max_length=GPUS_MAX)]
    stopped: str = ""  # why no GPU of this node takes commands now
    released_s: float = 0.0  # what is left of a release window


REQUEST = msgspec.msgpack.Decoder(tuple[Literal[MAGIC], U32, Command])  # type: ignore[valid-type]
REPLY = msgspec.msgpack.Decoder(tuple[Literal[MAGIC], Reply])  # type: ignore[valid-type]


def decode_request(raw: bytes) -> tuple[int, Command]:
    """The serial number and the command. Raises ProtocolError, and nothing else."""
    _, serial, command = unpacked(REQUEST, raw, REQUEST_BYTES)
    return serial, command


def encode_reply(reply: Reply) -> bytes:
    slots = tuple(replace(slot, reason=_cut(slot.reason)) for slot in reply.slots)
    whole = replace(reply, slots=slots, stopped=_cut(reply.stopped))
    return packed(REPLY, (MAGIC, whole), REPLY_BYTES)


def packed(decoder: msgspec.msgpack.Decoder[Any], message: Any, size: int) -> bytes:
    """A packet, whose other end will decode it. Raises ProtocolError on what does not fit."""
    try:
        body = msgspec.msgpack.encode(message)
        decoder.decode(body)
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"does not fit: {error}") from None
    if len(body) + 2 > size:
        raise ProtocolError(f"{len(body)} bytes; at most {size - 2}")
    return (len(body).to_bytes(2, "little") + body).ljust(size, b"\0")


def unpacked(decoder: msgspec.msgpack.Decoder[Any], raw: bytes, size: int) -> Any:
    """Raises ProtocolError, and nothing else."""
    try:
        if len(raw) == size:
            return decoder.decode(raw[2 : 2 + int.from_bytes(raw[:2], "little")])
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"no message: {error}") from None
    raise ProtocolError(f"{len(raw)} bytes that are no message of {size}")


def _cut(reason: str) -> str:
    return reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
