"""What agent and keeper tell each other: one fixed-size message each way, checked by its types.

Each is one packet of a SOCK_SEQPACKET socket: REQUEST_BYTES down, REPLY_BYTES back. A packet
is two bytes of length, that much MessagePack, and zeros. A message holds a whole node, so
that one command is one message; a reply also tells the state of each GPU that it names.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec

from joulecut_agent.state import CAUSES, YIELD, Command

GPUS_MAX = 16  # the most that one machine is built with (DGX-2)
JOB_BYTES_MAX = 253  # a DNS name's length
UUID_BYTES_MAX = 96  # NVML's own buffer
REASON_BYTES_MAX = 160
REQUEST_BYTES = 4096  # 16 GPUs with a UUID of 96 bytes and 13 more each, and a job's name
REPLY_BYTES = 16_384  # the same with a job, a reason and 100 bytes of numbers for each
MAGIC = "jck2"
_U16 = Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
_U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_U64 = Annotated[int, msgspec.Meta(ge=0)]  # MessagePack itself ends at 2**64 - 1
_OP = Annotated[int, msgspec.Meta(ge=1, le=YIELD)]
_JOB = Annotated[str, msgspec.Meta(max_length=JOB_BYTES_MAX)]
_UUID = Annotated[str, msgspec.Meta(max_length=UUID_BYTES_MAX)]
_MHZ = tuple[_U16, _U16]
_GPUS = msgspec.Meta(max_length=GPUS_MAX)
_CLOCKS = Annotated[dict[_UUID, _MHZ], _GPUS]
_POWERS = Annotated[dict[_UUID, _U32], _GPUS]
_CAUSE = Literal[CAUSES]  # type: ignore[valid-type]
_COUNTS = Annotated[tuple[_U32, ...], msgspec.Meta(min_length=len(CAUSES), max_length=len(CAUSES))]
_COMMAND = tuple[_OP, _U64, _JOB, _U64, float, _CLOCKS, _CAUSE, _POWERS]
_SLOT = tuple[_UUID, bool, str, _JOB, _U64, _U64, _MHZ, float, _U32, _COUNTS]
_SLOTS = Annotated[list[_SLOT], _GPUS]
_REPLY = tuple[_U32, _U64, float, float, _MHZ, _SLOTS, str, float]
_requests = msgspec.msgpack.Decoder(tuple[Literal[MAGIC], _U32, _COMMAND])  # type: ignore[valid-type]
_replies = msgspec.msgpack.Decoder(tuple[Literal[MAGIC], _REPLY])  # type: ignore[valid-type]


class ProtocolError(ValueError):
    """The bytes are no message of this protocol, or a value does not fit into one."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU: the answer or what bars control, and its lease (`job` is "" without one)."""

    uuid: str
    accepted: bool
    reason: str = ""
    job: str = ""
    epoch: int = 0
    generation: int = 0
    clocks_mhz: tuple[int, int] = (0, 0)
    expires_in_s: float = 0.0
    power_mw: int = 0  # the limit we set; 0 where we set none
    restores: tuple[int, ...] = (0,) * len(CAUSES)  # by cause, since this keeper started


@dataclass(frozen=True, slots=True)
class Reply:
    serial: int
    epoch_seen: int
    ttl_s_max: float
    min_dwell_s: float
    clocks_mhz: tuple[int, int]  # the site's bounds
    slots: tuple[Slot, ...]
    stopped: str = ""  # why no GPU of this node takes commands now
    released_s: float = 0.0  # what is left of a release window


def encode_request(serial: int, command: Command) -> bytes:
    """Raises ProtocolError on what does not fit."""
    return _packed(_requests, (MAGIC, serial, _values(command)), REQUEST_BYTES)


def decode_request(raw: bytes) -> tuple[int, Command]:
    """The serial number and the command. Raises ProtocolError, and nothing else."""
    _, serial, values = _unpacked(_requests, raw, REQUEST_BYTES)
    return serial, Command(*values)


def encode_reply(reply: Reply) -> bytes:
    slots = [_values(replace(slot, reason=_cut(slot.reason))) for slot in reply.slots]
    values = _values(replace(reply, stopped=_cut(reply.stopped)))
    return _packed(_replies, (MAGIC, [*values[:5], slots, *values[6:]]), REPLY_BYTES)


def decode_reply(raw: bytes) -> Reply:
    """Raises ProtocolError, and nothing else."""
    _, (*numbers, slots, why, left_s) = _unpacked(_replies, raw, REPLY_BYTES)
    return Reply(*[*numbers, tuple(Slot(*slot) for slot in slots), why, left_s])


def _values(message: Command | Slot | Reply) -> list[Any]:
    return [getattr(message, name) for name in message.__slots__]


def _packed(decoder: msgspec.msgpack.Decoder[Any], message: Any, size: int) -> bytes:
    try:
        body = msgspec.msgpack.encode(message)
        decoder.decode(body)
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"does not fit: {error}") from None
    if len(body) + 2 > size:
        raise ProtocolError(f"{len(body)} bytes; at most {size - 2}")
    return (len(body).to_bytes(2, "little") + body).ljust(size, b"\0")


def _unpacked(decoder: msgspec.msgpack.Decoder[Any], raw: bytes, size: int) -> Any:
    try:
        if len(raw) == size:
            return decoder.decode(raw[2 : 2 + int.from_bytes(raw[:2], "little")])
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"no message: {error}") from None
    raise ProtocolError(f"{len(raw)} bytes that are no message of {size}")


def _cut(reason: str) -> str:
    return reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
