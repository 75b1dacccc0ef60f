"""The protobuf encoding of Chakra execution traces, schema `et_def.proto`.

A trace is a sequence of messages, each after its length as a varint: one GlobalMetadata, then
Nodes. Four message types and one union need no generated code, so that `joulecut[engine]` stays
without protobuf. Unknown fields are skipped, as protobuf does. Malformed bytes raise ValueError.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

# NodeType of the schema.
COMP, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
# CollectiveCommType of the schema, in its order.
COLLECTIVES = (
    "all-reduce",
    "reduce",
    "all-gather",
    "gather",
    "scatter",
    "broadcast",
    "all-to-all",
    "reduce-scatter",
    "reduce-scatter-block",
    "barrier",
)

Value = float | int | bool | str | bytes

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MASK64 = (1 << 64) - 1
# Field numbers of AttributeProto's union; lists are the even ones and are not read.
_DOUBLE, _FLOAT, _INT32, _INT64, _UINT32, _UINT64 = 3, 5, 7, 9, 11, 13
_SINT32, _SINT64, _FIXED32_VAL, _FIXED64_VAL, _SFIXED32, _SFIXED64 = 15, 17, 19, 21, 23, 25
_BOOL, _STRING, _BLOB = 27, 29, 31
_PACKED = {_FLOAT: "<f", _FIXED32_VAL: "<I", _SFIXED32: "<i"}
_PACKED |= {_DOUBLE: "<d", _FIXED64_VAL: "<Q", _SFIXED64: "<q"}


@dataclass(slots=True)
class Node:
    """One operation. `attributes` hold what the schema leaves open; times in microseconds."""

    number: int = 0
    name: str = ""
    kind: int = COMP
    control: list[int] = field(default_factory=list)  # numbers of nodes to wait for
    data: list[int] = field(default_factory=list)
    start_us: int = 0
    duration_us: int = 0
    shapes: str = ""  # of the inputs
    attributes: dict[str, Value] = field(default_factory=dict)


def decode(raw: bytes) -> Iterator[Node]:
    """The nodes of a trace, in file order. Raises ValueError."""
    at, first = 0, True
    while at < len(raw):
        size, at = _varint(raw, at)
        if at + size > len(raw):
            raise ValueError("the last message is cut off")
        message = raw[at : at + size]
        at += size
        if first:  # GlobalMetadata
            first = False
            continue
        yield _node(message)


def encode(nodes: list[Node], version: str) -> bytes:
    """A whole trace."""
    messages = [_text(1, version), *map(_encoded, nodes)]
    return b"".join(_number(len(message)) + message for message in messages)


def _node(message: bytes) -> Node:
    node = Node(kind=0)  # as protobuf reads a field that is not there
    for number, wire, value in _fields(message):
        if number == 1:
            node.number = _integer(value)
        elif number == 2:
            node.name = _string(value)
        elif number == 3:
            node.kind = _integer(value)
        elif number in {4, 5}:
            wanted = node.control if number == 4 else node.data
            wanted += _packed(value) if wire == _BYTES else [_integer(value)]
        elif number == 6:
            node.start_us = _integer(value)
        elif number == 7:
            node.duration_us = _integer(value)
        elif number == 8:
            node.shapes = _shapes(_blob(value))
        elif number == 10:
            _attribute(_blob(value), node.attributes)
    return node


def _shapes(message: bytes) -> str:
    return next((_string(value) for number, _, value in _fields(message) if number == 2), "")


def _attribute(message: bytes, into: dict[str, Value]) -> None:
    name = ""
    found: Value | None = None
    for number, wire, value in _fields(message):
        if number == 1:
            name = _string(value)
        elif number == _STRING:
            found = _string(value)
        elif number == _BLOB:
            found = _blob(value)
        elif number in _PACKED and wire in {_FIXED32, _FIXED64}:
            found = struct.unpack(_PACKED[number], _blob(value))[0]
        elif wire == _VARINT and number > 2:
            found = _scalar(number, _integer(value))
    if name and found is not None:
        into[name] = found


def _scalar(number: int, value: int) -> Value:
    if number == _BOOL:
        return bool(value)
    if number in {_SINT32, _SINT64}:  # zigzag
        return (value >> 1) ^ -(value & 1)
    if number in {_INT32, _INT64} and value >> 63:  # negative: two's complement in 64 bits
        return value - (1 << 64)
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in {_FIXED64, _FIXED32}:
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} is not of this format")
        if at + size > len(message):
            raise ValueError("a field is longer than its message")
        yield number, wire, message[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(raw) and shift < 70:  # ten bytes at most
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
        shift += 7
    raise ValueError("a number is cut off")


def _packed(value: int | bytes) -> list[int]:
    raw, at, found = _blob(value), 0, []
    while at < len(raw):
        number, at = _varint(raw, at)
        found.append(number)
    return found


def _integer(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("bytes in place of a number")
    return value


def _blob(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number in place of bytes")
    return value


def _string(value: int | bytes) -> str:
    return _blob(value).decode("utf-8", errors="replace")


def _encoded(node: Node) -> bytes:
    parts = [_whole(1, node.number), _text(2, node.name), _whole(3, node.kind)]
    for number, wanted in ((4, node.control), (5, node.data)):
        if wanted:
            packed = b"".join(map(_number, wanted))
            parts.append(_number(number << 3 | _BYTES) + _number(len(packed)) + packed)
    parts += [_whole(6, node.start_us), _whole(7, node.duration_us)]
    if node.shapes:
        parts.append(_message(8, _text(2, node.shapes)))
    for name, value in node.attributes.items():
        parts.append(_message(10, _text(1, name) + _union(value)))
    return b"".join(parts)


def _union(value: Value) -> bytes:
    if isinstance(value, bool):
        return _whole(_BOOL, int(value), always=True)
    if isinstance(value, int):
        return _whole(_INT64, value & _MASK64, always=True)
    if isinstance(value, float):
        return _number(_DOUBLE << 3 | _FIXED64) + struct.pack("<d", value)
    if isinstance(value, str):
        return _text(_STRING, value)
    return _message(_BLOB, value)


def _whole(number: int, value: int, *, always: bool = False) -> bytes:
    return _number(number << 3) + _number(value) if value or always else b""


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode())


def _message(number: int, message: bytes) -> bytes:
    return _number(number << 3 | _BYTES) + _number(len(message)) + message


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
