"""Ranges of all numbers, texts and lists on the wire, enforced where a message is decoded.

No peer is believed: a number that is not finite, or that no GPU, job or clock can have, makes the
whole message invalid. Ranges are wide. They keep arithmetic safe; the user of a value checks what
is allowed in its place. A range belongs to the unit at the end of a field's name, unless the field
has one of its own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from joulecut_wire.duration import ITERATION_S_MAX
from joulecut_wire.errors import BadInput
from joulecut_wire.reports import BUSY_SHARE_MAX, DATAGRAM_BYTES_MAX, OPERATIONS_MAX

TEXT_LENGTH_MAX = LIST_LENGTH_MAX = DATAGRAM_BYTES_MAX  # a whole report of a job fits
RANK_MAX = 65_535  # of a process in its job, as in reports
ITERATION_S_MIN = 1e-6  # shorter ones are no iterations

Range = tuple[float, float]
ITERATION_S: Range = (0.0, ITERATION_S_MAX)
NUMBER: Range = (0.0, 2.0**63)  # SQLite and arrays hold 63 bits
WORD: Range = (0.0, 2.0**32)
RANK: Range = (0.0, RANK_MAX)
BY_UNIT: Mapping[str, Range] = {
    "s": (0.0, 1e10),  # Unix times as well
    "mhz": (0.0, 1e5),
    "mw": (0.0, 1e8),  # a board of 100 kW
    "j": (0.0, 1e15),  # a megawatt for thirty years
    "ratio": (0.0, 100.0),  # drivers and overlapping timers exceed 1
    "celsius": (-273.15, 1000.0),
    "bytes": (0.0, 2.0**60),
    "minute": (0.0, 1e8),
    "max": (0.0, 1e6),  # clock changes of an iteration
}
# Fields with ranges of their own, by name, or by message and name.
BY_NAME: Mapping[str, Range] = {
    "epoch": (0.0, math.inf),  # only compared: `reset-epoch` ends what cannot have been reached
    "epoch_seen": (0.0, math.inf),
    "WatchResponse.age_s": (0.0, math.inf),  # infinite before the first reading
    "IterationReport.duration_s": (ITERATION_S_MIN, ITERATION_S_MAX),
    "IterationReport.age_s": ITERATION_S,
    "peer_iteration_time_s": ITERATION_S,
    "busy_s": (0.0, BUSY_SHARE_MAX * ITERATION_S_MAX),
    "durations_s": ITERATION_S,
    "OperationReport.count": (0.0, 1e6),
    "stage": RANK,
    "replica": RANK,
    "stages": (0.0, 256.0),
    "microbatches": (0.0, 4096.0),
    "tensor_parallel": RANK,
    "data_parallel": RANK,
    "index": RANK,
    # The keeper refuses a setting by GPU, with the bounds of that card.
    "Setting.power_limit_mw": WORD,
    "Setting.clock_min_mhz": WORD,
    "Setting.clock_max_mhz": WORD,
    "value": (-1e15, 1e15),
    "count": NUMBER,
    "dropped": NUMBER,
    "reports_dropped": NUMBER,
    "generation": NUMBER,
    "iteration": NUMBER,
    "microbatch": NUMBER,
    "sequence": NUMBER,
    "number": NUMBER,
}
# How many entries a list may have, where not LIST_LENGTH_MAX.
LENGTHS: Mapping[str, int] = {
    "gpus": 64,  # four times the largest machines
    "clocks_mhz": 1024,
    "operations": OPERATIONS_MAX,
    "allocations": 64,
    "labels": 256,
    "event_reasons": 64,
    "reports": 4096,  # four times what an agent keeps for a watcher
}


@dataclass(frozen=True, slots=True)
class _Number:
    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of one kind of message by how they are checked, lists with their lengths."""

    numbers: tuple[_Number, ...]
    texts: tuple[str, ...]
    number_lists: tuple[tuple[_Number, int], ...]
    text_lists: tuple[tuple[str, int], ...]  # maps of texts as well
    parts: tuple[tuple[str, "_Fields"], ...]
    part_lists: tuple[tuple[str, int, "_Fields"], ...]


_KNOWN: dict[str, _Fields] = {}


def check(message: Message) -> None:
    """Raises BadInput that names the first field out of its range."""
    _check(message, _fields(message.DESCRIPTOR), "")


def range_of(field: FieldDescriptor) -> Range:
    """The range of a number. Raises KeyError where none is stated."""
    own = f"{field.full_name.rpartition('.')[0].rpartition('.')[2]}.{field.name}"
    return BY_NAME.get(own) or BY_NAME.get(field.name) or BY_UNIT[field.name.rpartition("_")[2]]


def _check(message: Any, fields: _Fields, path: str) -> None:
    # Of thousands of messages a second nearly all are fine: each field is looked at without a call.
    for one in fields.numbers:
        if not one.low <= getattr(message, one.name) <= one.high:
            raise _fault(path, one, getattr(message, one.name))
    for name in fields.texts:
        if len(getattr(message, name)) > TEXT_LENGTH_MAX:
            raise _too_long(path, name, TEXT_LENGTH_MAX, "characters")
    for one, most in fields.number_lists:
        if values := getattr(message, one.name):
            _check_numbers(values, one, most, path)
    for name, most in fields.text_lists:
        if values := getattr(message, name):
            _check_texts(values, name, most, path)
    _check_parts(message, fields, path)


def _check_parts(message: Any, fields: _Fields, path: str) -> None:
    for name, kind in fields.parts:
        if message.HasField(name):
            _check(getattr(message, name), kind, f"{path}{name}.")
    for name, most, kind in fields.part_lists:
        if values := getattr(message, name):
            if len(values) > most:
                raise _too_long(path, name, most, "entries")
            for n, part in enumerate(values):
                _check(part, kind, f"{path}{name}[{n}].")


def _check_numbers(values: Any, one: _Number, most: int, path: str) -> None:
    if len(values) > most:
        raise _too_long(path, one.name, most, "entries")
    # A NaN may hide from min and max, and never from the sum.
    if not one.low <= min(values) <= max(values) <= one.high or math.isnan(sum(values)):
        bad = next(value for value in values if not one.low <= value <= one.high)
        raise _fault(path, one, bad)


def _check_texts(values: Any, name: str, most: int, path: str) -> None:
    if len(values) > most:
        raise _too_long(path, name, most, "entries")
    texts = [*values, *values.values()] if hasattr(values, "values") else values
    if max(map(len, texts)) > TEXT_LENGTH_MAX:
        raise _too_long(path, name, TEXT_LENGTH_MAX, "characters")


def _fields(about: Any) -> _Fields:
    known = _KNOWN.get(about.full_name)
    if known is None:
        known = _KNOWN[about.full_name] = _described(about)
    return known


def _described(about: Any) -> _Fields:
    groups: dict[str, list[Any]] = {name: [] for name in _Fields.__slots__}
    for field in about.fields:
        name, inner, many = field.name, field.message_type, field.default_value == []
        most = LENGTHS.get(name, LIST_LENGTH_MAX)
        if inner is not None and inner.GetOptions().map_entry:
            groups["text_lists"].append((name, most))
        elif inner is not None and many:
            groups["part_lists"].append((name, most, _fields(inner)))
        elif inner is not None:
            groups["parts"].append((name, _fields(inner)))
        elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            groups["text_lists" if many else "texts"].append((name, most) if many else name)
        elif field.cpp_type != FieldDescriptor.CPPTYPE_BOOL:
            one = _Number(name, *range_of(field))
            groups["number_lists" if many else "numbers"].append((one, most) if many else one)
    return _Fields(**{name: tuple(group) for name, group in groups.items()})


def _fault(path: str, one: _Number, value: float) -> BadInput:
    return BadInput(f"{path}{one.name}", f"{value:g}", f"{one.low:g} to {one.high:g}")


def _too_long(path: str, name: str, most: int, unit: str) -> BadInput:
    return BadInput(f"{path}{name}", "too long", f"at most {most} {unit}")
