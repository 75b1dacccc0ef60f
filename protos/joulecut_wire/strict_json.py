"""JSON from strangers, in which a name given twice is an error and not a choice.

The standard leaves open what such an object means (RFC 8259, section 4), and every reader we
have takes the last value: who sends two clocks, or two jobs, must hear of it.
"""

import json
from typing import Any


class GivenTwice(ValueError):
    """A name stands twice in one object; the text says which."""


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


_DECODER = json.JSONDecoder(object_pairs_hook=_object)  # made once: marks are in a hurry
