"""Ranges of all numbers, texts and lists on the wire, enforced where a message is decoded.

No peer is believed: a number that is not finite, or that no GPU, job or clock can have, makes the
whole message invalid. Ranges are wide. They keep arithmetic safe; the user of a value checks what
is allowed in its place. A range belongs to the unit at the end of a field's name, unless the field
has one of its own.
"""

import math
from collections.abc import Callable, Iterator, Mapping
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


Check = Callable[[Any, str], None]
_CHECKS: dict[str, Check] = {}


def check(message: Message) -> None:
    """Raises BadInput that names the first field out of its range."""
    _check_of(message.DESCRIPTOR)(message, "")


def range_of(field: FieldDescriptor) -> Range:
    """The range of a number. Raises KeyError where none is stated."""
    own = f"{field.full_name.rpartition('.')[0].rpartition('.')[2]}.{field.name}"
    return BY_NAME.get(own) or BY_NAME.get(field.name) or BY_UNIT[field.name.rpartition("_")[2]]


def _check_of(about: Any) -> Check:
    """The check of one kind of message. It is written from the descriptor, once: of thousands of
    messages a second nearly all are fine, and each field is looked at without a call.
    """
    if about.full_name not in _CHECKS:
        known: dict[str, Any] = {
            "inf": math.inf,
            "fault": _fault,
            "too_long": _too_long,
            "numbers": _check_numbers,
            "texts": _check_texts,
        }
        lines = [line for field in about.fields for line in _lines(field, known)]
        text = "\n    ".join(["def check(one, path):", *lines, "return"])
        exec(text, known)  # noqa: S102 -- our own words
        _CHECKS[about.full_name] = known["check"]
    return _CHECKS[about.full_name]


def _lines(field: Any, known: dict[str, Any]) -> Iterator[str]:
    """The statements that check one field of the message `one`, which stands at `path`."""
    name, inner, many = field.name, field.message_type, field.default_value == []
    most, one = LENGTHS.get(name, LIST_LENGTH_MAX), f"one.{name}"
    if inner is not None and inner.GetOptions().map_entry:
        yield f"if {one}: texts({one}, path, {name!r}, {most})"
    elif inner is not None:
        known[f"check_{name}"] = _check_of(inner)
        if not many:
            yield f"if one.HasField({name!r}): check_{name}({one}, f'{{path}}{name}.')"
            return
        yield f"if len({one}) > {most}: raise too_long(path, {name!r}, {most}, 'entries')"
        yield f"for n, x in enumerate({one}): check_{name}(x, f'{{path}}{name}[{{n}}].')"
    elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING and many:
        yield f"if {one}: texts({one}, path, {name!r}, {most})"
    elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        most = TEXT_LENGTH_MAX
        yield f"if len({one}) > {most}: raise too_long(path, {name!r}, {most}, 'characters')"
    elif field.cpp_type != FieldDescriptor.CPPTYPE_BOOL:
        low, high = range_of(field)
        if many:
            yield f"if {one}: numbers({one}, path, {name!r}, ({low}, {high}), {most})"
        else:
            fault = f"fault(path, {name!r}, {one}, {low}, {high})"
            yield f"if not {low} <= {one} <= {high}: raise {fault}"


def _check_numbers(values: Any, path: str, name: str, allowed: Range, most: int) -> None:
    low, high = allowed
    if len(values) > most:
        raise _too_long(path, name, most, "entries")
    # A NaN may hide from min and max, and never from the sum.
    if not low <= min(values) <= max(values) <= high or math.isnan(sum(values)):
        bad = next(value for value in values if not low <= value <= high)
        raise _fault(path, name, bad, low, high)


def _check_texts(values: Any, path: str, name: str, most: int) -> None:
    if len(values) > most:
        raise _too_long(path, name, most, "entries")
    texts = [*values, *values.values()] if hasattr(values, "values") else values
    if max(map(len, texts)) > TEXT_LENGTH_MAX:
        raise _too_long(path, name, TEXT_LENGTH_MAX, "characters")


def _fault(path: str, name: str, value: float, low: float, high: float) -> BadInput:
    return BadInput(f"{path}{name}", f"{value:g}", f"{low:g} to {high:g}")


def _too_long(path: str, name: str, most: int, unit: str) -> BadInput:
    return BadInput(f"{path}{name}", "too long", f"at most {most} {unit}")
