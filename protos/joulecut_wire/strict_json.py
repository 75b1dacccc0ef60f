"""Strict JSON decoder: a duplicate name is an error.

The standard leaves the meaning of such an object open (RFC 8259, section 4), and the standard
library takes the last value: a command with two jobs must be refused.
"""

import json
from typing import Any


class GivenTwice(ValueError):
    """A duplicate name in one object; the text names it."""


def loads(raw: bytes | bytearray) -> Any:
    """Of UTF-8. Raises GivenTwice; ValueError and RecursionError where `json.loads` does."""
    return _DECODER.decode(raw.decode())


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise GivenTwice(f"{twice!r:.100} is given twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)  # made once: marks are time-critical
