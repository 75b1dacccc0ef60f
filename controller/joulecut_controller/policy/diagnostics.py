"""From a fault anywhere in the policy file to the one line an operator reads.

Of several faults the first in the file is reported: fixing it often fixes the others.
"""

import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from joulecut_controller.policy.quantity import Fault, nearest, shown
from joulecut_wire.document import Document, KeyPath
from joulecut_wire.errors import BadInput


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A fault at one place of the file."""

    path: KeyPath
    what: str
    allowed: str = ""


def first(document: Document, diagnostics: Iterable[Diagnostic]) -> BadInput | None:
    """The diagnostic that stands first in the file, as an error; None without faults."""
    ordered = sorted(diagnostics, key=lambda c: _line(document, c.path))
    return document.bad(ordered[0].path, ordered[0].what, ordered[0].allowed) if ordered else None


def of_shape(error: ValidationError, root: type[BaseModel]) -> list[Diagnostic]:
    """Errors of pydantic in terms of keys, types and values."""
    return [_of_shape(details, root) for details in error.errors(include_url=False)]


def empty_values(data: object, path: KeyPath = ()) -> list[Diagnostic]:
    """Keys without a value: an empty value is more likely a mistake than a default."""
    if data is None:
        return [Diagnostic(path, "has no value", "a value, or leave the key out")]
    inside: Iterable[tuple[str | int, object]] = ()
    if isinstance(data, dict):
        inside = data.items()
    elif isinstance(data, list):
        inside = enumerate(data)
    return [found for key, value in inside for found in empty_values(value, (*path, key))]


def _line(document: Document, path: KeyPath) -> int:
    while path and path not in document.lines:
        path = path[:-1]
    return document.lines.get(path, 1)


def _of_shape(details: Any, root: type[BaseModel]) -> Diagnostic:
    path: KeyPath = tuple(part for part in details["loc"] if part != "[key]")
    kind, value = details["type"], details["input"]
    fault = details.get("ctx", {}).get("error")
    if kind == "missing":
        keys = _keys(root, path[:-1])
        return Diagnostic(path, "key missing", ", ".join(keys) if len(keys) > 1 else "")
    if kind == "extra_forbidden":
        keys = _keys(root, path[:-1])
        return Diagnostic(path, f"unknown key{nearest(path[-1], keys)}", ", ".join(keys))
    if value is None:
        return Diagnostic(path, "has no value", "a value, or leave the key out")
    if isinstance(fault, Fault):
        return Diagnostic(path, fault.what, fault.allowed)
    return _of_type(path, kind, value, root)


def _of_type(path: KeyPath, kind: str, value: object, root: type[BaseModel]) -> Diagnostic:
    """For mappings and lists, the only types that the schema leaves to pydantic."""
    if kind == "list_type":
        return Diagnostic(path, f"{shown(value)} is not a list", "a list: - one entry a line")
    keys = _keys(root, path)
    allowed = f"a mapping of {', '.join(keys)}" if keys else "a mapping of names to names"
    return Diagnostic(path, f"{shown(value)} is not a mapping", allowed)


def _keys(root: type[BaseModel], path: KeyPath) -> tuple[str, ...]:
    """The keys allowed at a place; empty where the place holds no fixed keys."""
    model: Any = root
    for part in path:
        if isinstance(part, int):
            continue  # a list's entries are all of the type that its field names
        field = model.model_fields.get(part) if model else None
        model = _model(field.annotation) if field else None
    return tuple(model.model_fields) if model else ()


def _model(annotation: Any) -> type[BaseModel] | None:
    """The model inside `Model`, `Model | None` or `list[Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in {Union, types.UnionType, list}:
        found = [_model(argument) for argument in get_args(annotation)]
        return next((model for model in found if model), None)
    return None
