"""Words and numbers as users write them, read without guessing.

`0.5` may mean half or half a percent, `10` seconds or minutes: a value with two readings is refused
with the way to write it. Readers take the value that YAML made of the text and raise `Fault`; the
caller adds the place in the file.
"""

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from joulecut_wire.address import port_of
from joulecut_wire.duration import ITERATION_S_MAX, parse_s

POWER_W_MAX = 10_000.0  # per GPU and its share of the host
PRICE_MAX = 1e6  # per GPU hour or kWh, in whatever currency
PUE_MAX = 10.0  # the worst published figures are around 3
WAITING_W_MAX = 2_000.0  # of a GPU that waits: above what any card of the datasheets draws at work

_PERCENTAGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")
# YAML 1.1 reads `1e3` as a word: a float needs the dot.
_EXPONENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]{1,3}")
_SHOWN_MAX = 60  # characters of a value repeated in a message


class Fault(ValueError):
    """A fault in one value, and the allowed values."""

    def __init__(self, what: str, allowed: str) -> None:
        self.what = what
        self.allowed = allowed
        super().__init__(what)


def shown(value: object) -> str:
    """A value for a message: short, on one line."""
    if isinstance(value, str):
        return f'"{value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + "..."}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        small = isinstance(value, float) or abs(value) < 10**12
        return f"{value:.12g}" if small else "a huge number"
    # Dates and binary data are what YAML makes of some words by itself.
    names = {"NoneType": "no value", "dict": "a mapping", "list": "a list"}
    return names.get(type(value).__name__, f"a {type(value).__name__}")


def flag(value: object) -> bool:
    """Reads true or false."""
    if isinstance(value, bool):
        return value
    raise Fault(f"{shown(value)} is neither true nor false", "true, false")


def number(
    low: float, high: float, *, above: bool = False, unit: str = "a number"
) -> Callable[[object], float]:
    """Reads a plain number within [low, high], or (low, high] with `above`."""
    span = f"{unit} {'above' if above else 'from'} {low:g} {'up ' if above else ''}to {high:g}"

    def read(value: object) -> float:
        if isinstance(value, str) and _EXPONENT.fullmatch(value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Fault(f"{shown(value)} is not a number", span)
        if not (low < value if above else low <= value) or value > high:
            raise Fault(f"{shown(value)} is out of range", span)
        return float(value)

    return read


def whole(low: int, high: int) -> Callable[[object], int]:
    """Reads a whole number within [low, high]."""
    span = f"a whole number from {low} to {high}"

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Fault(f"{shown(value)} is not a whole number", span)
        if not low <= value <= high:
            raise Fault(f"{shown(value)} is out of range", span)
        return value

    return read


def duration(*, above_zero: bool) -> Callable[[object], float]:
    """Reads `500ms`, `10s`, `2min`, `2m`, `1h` or `1d` as seconds; a bare number only if 0."""
    lowest = "above 0" if above_zero else "from 0"
    allowed = f"a time {lowest} up to 24h with its unit: 500ms, 10s, 2min, 1h"

    def read(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and value != 0:
            raise Fault(f"{shown(value)} has no unit", allowed)
        found = parse_s(value) if isinstance(value, str) else None
        if value == 0 and not isinstance(value, bool):
            seconds = 0.0
        elif found and found[1]:
            seconds = found[0]
        else:
            raise Fault(f"{shown(value)} is not a time", allowed)
        if seconds > ITERATION_S_MAX or (above_zero and seconds <= 0.0):
            raise Fault(f"{shown(value)} is out of range", allowed)
        return seconds

    return read


def percentage(high: float) -> Callable[[object], float]:
    """Reads `0.5%` as the fraction 0.005; a bare number has two readings and is refused."""
    allowed = f"a percentage from 0% to {high:g}%, like 0.5% or 2%"

    def read(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and value != 0:
            raise Fault(f"{shown(value)} could be a fraction or a percentage", allowed)
        match = _PERCENTAGE.fullmatch(value) if isinstance(value, str) else None
        if value == 0 and not isinstance(value, bool):
            percent = 0.0
        elif match:
            percent = float(match[1])
        else:
            raise Fault(f"{shown(value)} is not a percentage", allowed)
        if percent > high:
            raise Fault(f"{shown(value)} is out of range", allowed)
        return percent / 100.0

    return read


def choice(*words: str) -> Callable[[object], Any]:
    """Reads one of a few words. `off` arrives as false, since YAML 1.1 reads it so."""
    allowed = " | ".join(words)

    def read(value: object) -> str:
        if value is False and "off" in words:
            return "off"
        if isinstance(value, str) and value in words:
            return value
        raise Fault(f"{shown(value)} is not allowed{nearest(value, words)}", allowed)

    return read


def name(pattern: str, length_max: int, allowed: str) -> Callable[[object], str]:
    """Reads a word that matches `pattern`."""
    compiled = re.compile(pattern)

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise Fault(f"{shown(value)} is not a word", f"{allowed} (quote it)")
        if len(value) > length_max or not compiled.fullmatch(value):
            raise Fault(f"{shown(value)} does not fit", allowed)
        return value

    return read


CURRENCY = name(r"[^\s\d:;,]+", 8, "a word of up to 8 letters or a sign: EUR")


def text(length_max: int, what: str) -> Callable[[object], str]:
    """Reads any text on one line, not blank."""
    allowed = f"{what}, up to {length_max} characters"

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise Fault(f"{shown(value)} is not text", f"{allowed} (quote it)")
        if not value.strip() or len(value) > length_max or not value.isprintable():
            raise Fault(f"{shown(value)} does not fit", allowed)
        return value

    return read


def address(port_min: int) -> Callable[[object], tuple[str, int]]:
    """Reads HOST:PORT as host and port; an IPv6 address stands in brackets."""
    allowed = f"host:port, port {port_min} to 65535" + (", 0 for a free one" * (port_min == 0))

    def read(value: object) -> tuple[str, int]:
        host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        bare = host.removeprefix("[").removesuffix("]")
        plain = bare and bare.isprintable() and not set(bare) & set(" []")
        bracketed = host == f"[{bare}]"
        if not plain or bracketed != (":" in bare) or port_of(port) < port_min:
            raise Fault(f"{shown(value)} is not an address", allowed)
        return bare, int(port)

    return read


def nearest(value: object, words: tuple[str, ...]) -> str:
    """` (did you mean WORD?)` where something close is allowed, else nothing."""
    close = get_close_matches(value, words, n=1) if isinstance(value, str) else []
    return f" (did you mean {close[0]}?)" if close else ""
