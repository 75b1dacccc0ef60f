"""Prices by the hour from a CSV file: the columns time and value; times have a zone and ascend."""

from dataclasses import dataclass
from datetime import datetime

from joulecut_controller.policy.hourly import Points
from joulecut_controller.policy.policy import CO2_G_PER_KWH_MAX
from joulecut_controller.sources.csv_file import rows, table
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import PRICE_MAX, Fault, shown
from joulecut_wire.section import key

FILE_BYTES_MAX = 4 << 20  # ten years of hours
VALUE_MAX = max(PRICE_MAX, CO2_G_PER_KWH_MAX)


def _moment(value: object) -> float:
    try:
        found = datetime.fromisoformat(str(value))
        if found.tzinfo is not None:
            return found.timestamp()
    except (ValueError, OverflowError):
        pass
    raise Fault(f"{shown(value)} is not a time with its zone", "2026-11-29T14:00+01:00, or ...Z")


def _value(value: object) -> float:
    """Prices of electricity may be below zero."""
    try:
        found = float(str(value))
        if abs(found) <= VALUE_MAX:
            return found
    except ValueError:
        pass
    raise Fault(f"{shown(value)} is not a value", f"a number up to {VALUE_MAX:g}")


@dataclass(frozen=True, slots=True)
class _Row:
    time: float = key(_moment)
    value: float = key(_value)


def parse(raw: bytes, name: str) -> Points:
    """The series of a file. Raises BadInput with line and column."""
    found: list[tuple[float, float]] = []
    for line, row in table(rows(raw, name), name, _Row):
        if found and row.time <= found[-1][0]:
            raise BadInput(f"{name}:{line}", "a time that does not ascend", "times in their order")
        found.append((row.time, row.value))
    if not found:
        raise BadInput(name, "no values", "lines like 2026-11-29T14:00Z,0.08")
    return tuple(found)
