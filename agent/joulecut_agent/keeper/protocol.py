"""Messages between agent and keeper: one fixed-size packet each way, checked by type.

A packet of a SOCK_SEQPACKET socket has REQUEST_BYTES, its answer REPLY_BYTES: two bytes of length,
that much MessagePack, and zeros. One message holds a whole node, so that one command is one
message; a reply also holds the state of each GPU that it names.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.lease import CAUSES, GPUS_MAX, U32, U64, Command, Lease, Uuid

REASON_BYTES_MAX = 160
REQUEST_BYTES = 8192  # 16 GPUs, each named three times in 96 bytes with 110 more, and a job's name
REPLY_BYTES = 16_384  # 16 GPUs with a job, a reason and 150 bytes of numbers for each
MAGIC = "jck4"
_COUNTS = msgspec.Meta(min_length=len(CAUSES), max_length=len(CAUSES))


class ProtocolError(ValueError):
    """Bytes that are not a message of this protocol, or a value that does not fit into one."""


class Slot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One GPU of a reply.

    `accepted` and `reason` answer a command, or say whether the GPU can be controlled.
    `lease.expires_s` is the time left.
    """

    uuid: Uuid
    accepted: bool
    reason: str = ""
    lease: Lease | None = None
    restores: Annotated[tuple[U32, ...], _COUNTS] = (0,) * len(CAUSES)  # since this keeper started


class Reply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The keeper's answer to one request."""

    serial: U32
    epoch_seen: U64
    bounds: Bounds
    slots: Annotated[tuple[Slot, ...], msgspec.Meta(max_length=GPUS_MAX)]
    stopped: str = ""  # why no GPU of this node takes commands now
    released_s: float = 0.0  # time left of a release window


REQUEST = msgspec.msgpack.Decoder(tuple[Literal[MAGIC], U32, Command])  # type: ignore[valid-type]
REPLY = msgspec.msgpack.Decoder(tuple[Literal[MAGIC], Reply])  # type: ignore[valid-type]


def encode_request(serial: int, command: Command) -> bytes:
    """Raises ProtocolError if it does not fit."""
    return _encode(REQUEST, (MAGIC, serial, command), REQUEST_BYTES)


def decode_request(raw: bytes) -> tuple[int, Command]:
    """Serial number and command. Raises ProtocolError, and nothing else."""
    _, serial, command = _decode(REQUEST, raw, REQUEST_BYTES)
    return serial, command


def encode_reply(reply: Reply) -> bytes:
    slots = tuple(replace(slot, reason=_cut(slot.reason)) for slot in reply.slots)
    whole = replace(reply, slots=slots, stopped=_cut(reply.stopped))
    return _encode(REPLY, (MAGIC, whole), REPLY_BYTES)


def decode_reply(raw: bytes) -> Reply:
    """Raises ProtocolError, and nothing else."""
    reply: Reply = _decode(REPLY, raw, REPLY_BYTES)[1]
    return reply


def _encode(decoder: msgspec.msgpack.Decoder[Any], message: Any, size: int) -> bytes:
    """A packet that the other end can decode: `decoder` has checked it."""
    try:
        body = msgspec.msgpack.encode(message)
        decoder.decode(body)
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"does not fit: {error}") from None
    if len(body) + 2 > size:
        raise ProtocolError(f"{len(body)} bytes; at most {size - 2}")
    return (len(body).to_bytes(2, "little") + body).ljust(size, b"\0")


def _decode(decoder: msgspec.msgpack.Decoder[Any], raw: bytes, size: int) -> Any:
    try:
        if len(raw) == size:
            return decoder.decode(raw[2 : 2 + int.from_bytes(raw[:2], "little")])
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"not a message: {error}") from None
    raise ProtocolError(f"{len(raw)} bytes are not a message of {size} bytes")


def _cut(reason: str) -> str:
    return reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
