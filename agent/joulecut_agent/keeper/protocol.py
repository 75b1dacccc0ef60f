"""Messages between agent and keeper: one fixed-size packet each way, checked by type.

A packet of a SOCK_SEQPACKET socket has REQUEST_BYTES, its answer REPLY_BYTES: two bytes of length,
that much MessagePack with named fields, and zeros. One message holds a whole node, so that one
command is one message; a reply also holds the state of each GPU that it names.

Agent and keeper must have the same version: VERSION changes with any field.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec.structs import replace

from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.lease import CAUSES, Lease
from joulecut_agent.keeper.requests import GPUS_MAX, U16, U32, U64, Request, Uuid

VERSION: Final = "joulecut-keeper-10"
REASON_BYTES_MAX = 160
REQUEST_BYTES = 8192  # 16 GPUs with 96 bytes of name, 32 clocks and limits each, and a job's name
REPLY_BYTES = 24_576  # 16 GPUs with a lease, a job, a reason and counts each
WRITTEN_MAX = 40  # clocks of a schedule, and some more
_Cause = Annotated[str, msgspec.Meta(pattern=rf"^({'|'.join(CAUSES)})\Z")]
_Version = Literal["joulecut-keeper-10"]  # as VERSION; a type takes no name


class ProtocolError(ValueError):
    """Bytes that are not a message of this protocol, or a value that does not fit into one."""


class OtherVersion(ProtocolError):
    """The other end has another version of the protocol."""


class Slot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU of a reply.

    `accepted` and `reason` answer a command, or say whether the GPU can be controlled.
    `lease.expires_s` is the time left. `kept_power_mw` is a power limit that outlives its lease,
    for `kept_left_s` from now; infinite under a lease.
    `written_mhz` are the newest clocks that keepers of this boot have set, lease or not.
    """

    uuid: Uuid
    accepted: bool
    reason: str = ""
    lease: Lease | None = None
    restores: Annotated[Mapping[_Cause, U32], msgspec.Meta(max_length=len(CAUSES))] = msgspec.field(
        default_factory=dict
    )  # by cause, since this keeper started
    kept_power_mw: U32 = 0
    kept_left_s: float = 0.0
    written_mhz: Annotated[tuple[U16, ...], msgspec.Meta(max_length=WRITTEN_MAX)] = ()


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keeper's answer to one request."""

    serial: U32
    epoch_seen: U64
    bounds: Bounds
    slots: Annotated[tuple[Slot, ...], msgspec.Meta(max_length=GPUS_MAX)]
    stopped: str = ""  # why no GPU of this node takes commands now
    released_s: float = 0.0  # time left of a release window


class _RequestPacket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: _Version
    serial: U32
    request: Request


class _ReplyPacket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: _Version
    reply: Reply


class _AnyPacket(msgspec.Struct, frozen=True):
    """Enough of a packet to name the version of the other end."""

    version: str


_REQUEST = msgspec.msgpack.Decoder(_RequestPacket)
_REPLY = msgspec.msgpack.Decoder(_ReplyPacket)
_ANY = msgspec.msgpack.Decoder(_AnyPacket)


def encode_request(serial: int, request: Request) -> bytes:
    """Raises ProtocolError if it does not fit."""
    return _encode(_REQUEST, _RequestPacket(VERSION, serial, request), REQUEST_BYTES)


def decode_request(raw: bytes) -> tuple[int, Request]:
    """Serial number and request. Raises ProtocolError, and nothing else."""
    packet: _RequestPacket = _decode(_REQUEST, raw, REQUEST_BYTES)
    return packet.serial, packet.request


def encode_reply(reply: Reply) -> bytes:
    slots = tuple(replace(slot, reason=_cut(slot.reason)) for slot in reply.slots)
    whole = replace(reply, slots=slots, stopped=_cut(reply.stopped))
    return _encode(_REPLY, _ReplyPacket(VERSION, whole), REPLY_BYTES)


def decode_reply(raw: bytes) -> Reply:
    """Raises ProtocolError, and nothing else."""
    packet: _ReplyPacket = _decode(_REPLY, raw, REPLY_BYTES)
    return packet.reply


def _encode(decoder: msgspec.msgpack.Decoder[Any], packet: Any, size: int) -> bytes:
    """A packet that the other end can decode: `decoder` has checked it."""
    try:
        body = msgspec.msgpack.encode(packet)
        decoder.decode(body)
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"does not fit: {error}") from None
    if len(body) + 2 > size:
        raise ProtocolError(f"{len(body)} bytes; at most {size - 2}")
    return (len(body).to_bytes(2, "little") + body).ljust(size, b"\0")


def _decode(decoder: msgspec.msgpack.Decoder[Any], raw: bytes, size: int) -> Any:
    body = raw[2 : 2 + int.from_bytes(raw[:2], "little")]
    try:
        if len(raw) == size:
            return decoder.decode(body)
        what = f"{len(raw)} bytes are not a message of {size} bytes"
    except (ValueError, OverflowError) as error:
        what = f"not a message: {error}"
    if other := _other_version(body):
        raise OtherVersion(other)
    raise ProtocolError(what)


def _other_version(body: bytes) -> str:
    """One line if the other end has another version, or ""."""
    try:
        other = _ANY.decode(body).version
    except (ValueError, OverflowError):
        return ""
    if other == VERSION:
        return ""
    return f"the other end speaks {_cut(other)}, this one {VERSION}: restart agent and keeper"


def _cut(reason: str) -> str:
    return reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
