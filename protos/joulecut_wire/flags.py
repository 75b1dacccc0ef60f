"""Numbers of flags, read as those of files are; a `Parser` takes a reader as the flag's `type`.

A word that is none is refused by `Fault`, which names what is allowed.
"""

import re
from collections.abc import Callable
from typing import TypeVar

from joulecut_wire import quantity
from joulecut_wire.quantity import Fault, shown

T = TypeVar("T")

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)


def number(
    low: float, high: float, *, above: bool = False, unit: str = "a number"
) -> Callable[[str], float]:
    """Reads a number within [low, high], or (low, high] with `above`."""
    read = quantity.number(low, high, above=above, unit=unit)

    def taken(word: str) -> float:
        return read(float(word) if _NUMBER.fullmatch(word.strip()) else word)

    return taken


def whole(low: int, high: int) -> Callable[[str], int]:
    """Reads a whole number within [low, high]."""
    read = quantity.whole(low, high)

    def taken(word: str) -> int:
        return read(int(word) if _WHOLE.fullmatch(word.strip()) else word)

    return taken


def percentage(high: float) -> Callable[[str], float]:
    """Reads `2` or `2%` as the fraction 0.02."""
    read = number(0.0, high, unit="a percentage like 2 or 2%,")

    def taken(word: str) -> float:
        return read(word.strip().removesuffix("%")) / 100.0

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
