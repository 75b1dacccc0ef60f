"""Answers of API and store, each stated once: a key gives the JSON and the schema.

A key says of what kind its value is, and where in the value it comes from: the attribute of its own
name, `at` another place, or `given` by the caller. Unknown values are null, never zero and never
NaN.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from operator import attrgetter
from typing import Any, get_args

Json = dict[str, Any]
Get = Callable[[Any], Any]
_GIVEN = "given"
COMPONENTS: Json = {}  # schemas of the document, by name


def number(value: float | None) -> float | None:
    """A finite number, or null: in a view infinity means "never", which JSON cannot hold."""
    return value if value is not None and isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Key:
    """`make` turns the value at `source` into JSON; None where it is JSON already."""

    schema: Json
    make: Get | None = None
    source: str | Get = ""

    def at(self, source: str | Get) -> "Key":
        """Taken from another attribute, a dotted path of them, or a function of the value."""
        return replace(self, source=source)

    @property
    def here(self) -> "Key":
        """Taken from the value itself, not from an attribute of it."""
        return self.at(lambda value: value)

    @property
    def given(self) -> "Key":
        """Handed over beside the value, as JSON."""
        return replace(self, source=_GIVEN)


class Answer:
    """An object with these keys; with a name it is a component of the document."""

    def __init__(self, name: str = "", /, **keys: Key) -> None:
        self.keys = keys
        properties = {key: one.schema for key, one in keys.items()}
        schema: Json = {"type": "object", "properties": properties, "required": list(properties)}
        self.schema = component(name, schema).schema if name else schema
        self._made = [
            (key, _get(key, one), one.make) for key, one in keys.items() if one.source != _GIVEN
        ]

    def json(self, value: Any, **given: Any) -> Json:
        """The answer, in the order of its keys; `given` has those that are given."""
        made = {
            key: get(value) if make is None else make(get(value)) for key, get, make in self._made
        }
        return (
            {key: given[key] if key in given else made[key] for key in self.keys} if given else made
        )

    @property
    def key(self) -> Key:
        """One of these as a value."""
        return Key(self.schema, self.json)


def _get(name: str, key: Key) -> Get:
    return key.source if callable(key.source) else attrgetter(key.source or name)


def component(name: str, schema: Json) -> Key:
    """A value whose schema is a component of the document."""
    COMPONENTS[name] = schema
    return Key({"$ref": f"#/components/schemas/{name}"})


def one_of(name: str, kind: Any) -> Key:
    """One of the words of a Literal, as a component."""
    return component(name, {"enum": list(get_args(kind))})


def listed(one: Key | Answer) -> Key:
    key = one.key if isinstance(one, Answer) else one
    make = key.make
    many: Get = list if make is None else (lambda values: [make(value) for value in values])
    return Key({"type": "array", "items": key.schema}, many)


def maybe(one: Key | Answer) -> Key:
    """Null where there is none."""
    key = one.key if isinstance(one, Answer) else one
    make: Get = key.make or (lambda value: value)
    schema = {"anyOf": [key.schema, {"type": "null"}]}
    return Key(schema, lambda value: None if value is None else make(value))


def _numbers(values: Mapping[str, float | None]) -> Json:
    return {name: number(value) for name, value in values.items()}


TEXT = Key({"type": "string"})
NUMBER = Key({"type": ["number", "null"]}, number)  # null: not known
COUNT = Key({"type": "integer", "minimum": 0})
CLOCK = Key({"type": ["integer", "null"]})
FLAG = Key({"type": "boolean"})
WORD = Key({"type": ["string", "null"]}, lambda value: value or None)
NUMBERS = Key({"type": "object", "additionalProperties": NUMBER.schema}, _numbers)  # by name
OBJECT = Key({"type": "object"})
INTERVAL = Answer("Interval", mid=NUMBER, low=NUMBER, high=NUMBER)  # of 95 %, and the estimate
