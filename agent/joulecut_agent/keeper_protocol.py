"""What agent and keeper tell each other: one fixed-size message each way, no parser to fool.

Each is one packet of a SOCK_SEQPACKET socket: REQUEST_BYTES down, REPLY_BYTES back. Numbers
are little endian, texts UTF-8 padded with zeros. A message holds a whole node, so that one
command is one message; a reply also tells the state of each GPU that it names.
"""

import struct
from dataclasses import dataclass

from joulecut_agent.state import CAUSES, STATUS, Command

GPUS_MAX = 16  # the most that one machine is built with (DGX-2)
JOB_BYTES_MAX = 253  # a DNS name's length
UUID_BYTES_MAX = 96  # NVML's own buffer
_MAGIC = b"jck1"
_REQUEST = struct.Struct("<4sBBBxIQQd256s")
_SETTING = struct.Struct("<96sHH")
_REPLY = struct.Struct("<4sBxxxIQddHH4x")
_SLOT = struct.Struct("<96s??HH2x160s256sQQd8I")
REQUEST_BYTES = _REQUEST.size + GPUS_MAX * _SETTING.size  # 1,892
REPLY_BYTES = _REPLY.size + GPUS_MAX * _SLOT.size  # 9,260


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
    restores: tuple[int, ...] = (0,) * len(CAUSES)  # by cause, since this keeper started


@dataclass(frozen=True, slots=True)
class Reply:
    serial: int
    epoch_seen: int
    ttl_s_max: float
    min_dwell_s: float
    clocks_mhz: tuple[int, int]  # the site's bounds
    slots: tuple[Slot, ...]


def encode_request(serial: int, command: Command) -> bytes:
    """Raises ProtocolError on what does not fit."""
    gpus, job = command.clocks_mhz, _text(command.job, JOB_BYTES_MAX)
    head = (command.op, len(gpus), CAUSES.index(command.cause), serial)
    try:
        raw = _REQUEST.pack(_MAGIC, *head, command.epoch, command.generation, command.ttl_s, job)
        raw += b"".join(_SETTING.pack(_text(u, UUID_BYTES_MAX), *mhz) for u, mhz in gpus.items())
    except struct.error as error:
        raise ProtocolError(f"out of range: {error}") from None
    if len(raw) > REQUEST_BYTES:
        raise ProtocolError(f"{len(gpus)} GPUs; at most {GPUS_MAX} in one command")
    return raw.ljust(REQUEST_BYTES, b"\0")


def decode_request(raw: bytes) -> tuple[int, Command]:
    """The serial number and the command. Raises ProtocolError, and nothing else."""
    _check(raw, REQUEST_BYTES)
    _, op, count, cause, serial, epoch, generation, ttl_s, job = _REQUEST.unpack_from(raw)
    if not 1 <= op <= STATUS or count > GPUS_MAX or cause >= len(CAUSES):
        raise ProtocolError(f"operation {op}, {count} GPUs, cause {cause}")
    gpus = {}
    for n in range(count):
        uuid, low, high = _SETTING.unpack_from(raw, _REQUEST.size + n * _SETTING.size)
        gpus[_word(uuid)] = (low, high)
    if len(gpus) != count:
        raise ProtocolError("a GPU is named twice")
    return serial, Command(op, epoch, _word(job), generation, ttl_s, gpus, CAUSES[cause])


def encode_reply(reply: Reply) -> bytes:
    head = (reply.serial, reply.epoch_seen, reply.ttl_s_max, reply.min_dwell_s)
    raw = _REPLY.pack(_MAGIC, len(reply.slots), *head, *reply.clocks_mhz)
    for slot in reply.slots:
        reason = slot.reason.encode(errors="replace")[:160].decode(errors="ignore").encode()
        names = (_text(slot.uuid, UUID_BYTES_MAX), slot.accepted, bool(slot.job), *slot.clocks_mhz)
        lease = (_text(slot.job, JOB_BYTES_MAX), slot.epoch, slot.generation, slot.expires_in_s)
        raw += _SLOT.pack(*names, reason, *lease, *slot.restores, 0)
    return raw.ljust(REPLY_BYTES, b"\0")


def decode_reply(raw: bytes) -> Reply:
    """Raises ProtocolError, and nothing else."""
    _check(raw, REPLY_BYTES)
    _, count, serial, epoch_seen, ttl_s_max, dwell_s, low, high = _REPLY.unpack_from(raw)
    slots = []
    for n in range(min(count, GPUS_MAX)):
        part = _SLOT.unpack_from(raw, _REPLY.size + n * _SLOT.size)
        uuid, accepted, _, slot_low, slot_high, reason, job, epoch, generation, ends_s = part[:10]
        words, counts = (_word(reason), _word(job)), part[10 : 10 + len(CAUSES)]
        mhz = (slot_low, slot_high)
        slots.append(Slot(_word(uuid), accepted, *words, epoch, generation, mhz, ends_s, counts))
    return Reply(serial, epoch_seen, ttl_s_max, dwell_s, (low, high), tuple(slots))


def _check(raw: bytes, size: int) -> None:
    if len(raw) != size or not raw.startswith(_MAGIC):
        raise ProtocolError(f"{len(raw)} bytes that are no message of {size}")


def _text(text: str, bytes_max: int) -> bytes:
    raw = text.encode(errors="surrogatepass")
    if len(raw) > bytes_max or b"\0" in raw:
        raise ProtocolError(f"{text[:40]!r} is longer than {bytes_max} bytes, or holds a zero")
    return raw


def _word(raw: bytes) -> str:
    try:
        return raw.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise ProtocolError("a text is not UTF-8") from None
