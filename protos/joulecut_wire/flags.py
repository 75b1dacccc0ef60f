"""Numbers of flags and table cells, read as those of files are; a `Parser` takes a reader as the
flag's `type`. A word that is none is refused by `Fault`, which names what is allowed.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from joulecut_wire import quantity
from joulecut_wire.quantity import Fault, shown

T = TypeVar("T")

WHOLE_MAX = 2**53  # beyond it a float skips whole numbers

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)


def plain(word: str) -> object:
    """A word as YAML would read it; a number without a fraction is whole."""
    if _WHOLE.fullmatch(word.strip()):
        return int(word)
    if not _NUMBER.fullmatch(word.strip()):
        return word
    value = float(word)
    return int(value) if value.is_integer() and abs(value) < WHOLE_MAX else value


def number(
    low: float, high: float, *, above: bool = False, unit: str = "a number"
) -> Callable[[Any], float]:
    """Reads a number within [low, high], or (low, high] with `above`."""
    read = quantity.number(low, high, above=above, unit=unit)

    return lambda word: read(plain(word))


def whole(low: int, high: int) -> Callable[[Any], int]:
    """Reads a whole number within [low, high], in digits."""
    read = quantity.whole(low, high)
    return lambda word: read(int(word) if _WHOLE.fullmatch(word.strip()) else word)


def percentage(high: float) -> Callable[[Any], float]:
    """Reads `2` or `2%` as the fraction 0.02. A bare `0.02` has two readings and is refused."""
    read = number(0.0, high, unit="a percentage like 2 or 2%,")

    def taken(word: str) -> float:
        percent = read(word.strip().removesuffix("%"))
        if 0.0 < percent < 1.0 and "%" not in word:
            raise Fault(
                f"{shown(word)} could be a fraction or a percentage",
                f"{percent:g}% or {100.0 * percent:g}%",
            )
        return percent / 100.0

    return taken


def listed(one: Callable[[str], T], most: int) -> Callable[[str], tuple[T, ...]]:
    """Reads up to so many words between commas."""

    def taken(word: str) -> tuple[T, ...]:
        words = word.split(",")
        if len(words) > most:
            raise Fault(f"{len(words)} words", f"at most {most} between commas")
        return tuple(map(one, words))

    return taken


def words(*known: str) -> Callable[[str], tuple[str, ...]]:
    """Reads some of these between commas, in their own order."""

    def taken(word: str) -> tuple[str, ...]:
        given = [one.strip() for one in word.split(",")]
        for one in given:
            if one not in known:
                raise Fault(f"{shown(one)} is none of them", ", ".join(known))
        return tuple(one for one in known if one in given)

    return taken
