"""Keys and values of a YAML file, each checked where it stands."""

from collections.abc import Callable
from typing import TypeVar

from joulecut_wire.document import Document, KeyPath
from joulecut_wire.quantity import Fault, nearest

_Value = TypeVar("_Value")


def mapping(
    document: Document,
    path: KeyPath,
    given: object,
    keys: tuple[str, ...],
    optional: tuple[str, ...] = (),
) -> dict[str, object]:
    """A mapping with exactly these keys, and any of the optional ones."""
    known = (*keys, *optional)
    if not isinstance(given, dict):
        raise document.bad(path, "not a mapping", f"the keys {', '.join(known)}")
    for key in given:
        if key not in known:
            what = f"unknown key{nearest(key, known)}"
            raise document.bad((*path, key), what, ", ".join(known))
    for key in keys:
        if key not in given:
            raise document.bad(path, f"{key} is missing", f"the keys {', '.join(keys)}")
    return given


def value(
    document: Document, path: KeyPath, given: object, reader: Callable[[object], _Value]
) -> _Value:
    """One value, or BadInput at its place."""
    try:
        return reader(given)
    except Fault as fault:
        raise document.bad(path, fault.what, fault.allowed) from None
