"""Sections of a YAML file as classes: a field is a key, its value, its default and its page.

A section is a dataclass whose fields are made by `key`. `read` makes its value of a mapping, or
raises BadInput for the fault that stands first in the file: fixing it often fixes the others.
Fields without a key are for what no file says.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any

from joulecut_wire.document import Document, KeyPath
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import Fault, nearest, shown

Take = Callable[[object], Any]  # makes a value of what YAML read, or raises Fault
_KEY, _GIVEN = "key", "given"
_NOTHING = object()  # what no key takes


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section; `allowed`, `default` and `meaning` are its line on a page."""

    field: str
    take: "Take | type | Section | Listed | Named | Either"
    required: bool = False
    takes: str = ""  # empty: what the messages of `take` allow
    meaning: str = ""
    default: str | None = None  # None: as the field has it

    @property
    def allowed(self) -> str:
        """What it takes, in words."""
        try:
            return self.takes or (str(self.take(_NOTHING)) if callable(self.take) else "")
        except Fault as fault:
            return fault.allowed.removesuffix(" (quote it)")


@dataclass(frozen=True, slots=True)
class Section:
    """Keys by name, and what makes a value of theirs."""

    make: Callable[..., Any]
    keys: Mapping[str, Key]
    given: Mapping[str, str] | None = None  # by key: the field that says whether the file has it
    strict: bool = False  # an unknown key is refused even where others only warn


@dataclass(frozen=True, slots=True)
class Listed:
    """A list whose entries are all of one kind; a tuple as a value."""

    take: "Take | type | Section"


@dataclass(frozen=True, slots=True)
class Named:
    """A mapping of the user's own names; sorted pairs as a value."""

    take: Take


@dataclass(frozen=True, slots=True)
class Either:
    """A section where the file has a mapping, or a list where it has one; else something else."""

    first: "type | Listed"
    otherwise: "Take | Listed"


def key(
    take: "Take | type | Section | Listed | Named | Either",
    value: Any = MISSING,
    *,
    name: str = "",
    takes: str = "",
    meaning: str = "",
    default: str | None = None,
) -> Any:
    """A field that the file sets; without a `value` its key is required. `name` is the key where
    the field carries a unit.
    """
    about = (name, take, takes, meaning, default)
    return field(default=value, metadata={_KEY: about})


def whether_given(name: str) -> Any:
    """A field that says whether the file has the key."""
    return field(default=False, metadata={_GIVEN: name})


def flat(
    make: Callable[..., Any], *, strict: bool = False, required: bool | Collection[str] = False,
    **takes: "Take | type | Section | Listed | Named | Either",
) -> Section:  # fmt: skip
    """A section whose values `make` takes by the names of the keys."""
    needed = takes if required is True else required or ()
    keys = {name: Key(name, take, name in needed) for name, take in takes.items()}
    return Section(make, keys, strict=strict)


@cache
def section_of(kind: type) -> Section:
    """The section that a class describes."""
    keys, given = {}, {}
    for one in fields(kind):
        if _KEY in one.metadata:
            name, take, takes, meaning, default = one.metadata[_KEY]
            required = one.default is MISSING
            keys[name or one.name] = Key(one.name, take, required, takes, meaning, default)
        elif _GIVEN in one.metadata:
            given[one.metadata[_GIVEN]] = one.name
    return Section(kind, keys, given)


def read(
    document: Document,
    section: Section | type,
    given: object,
    path: KeyPath = (),
    unknown: Callable[[BadInput], None] | None = None,
) -> Any:
    """The value of a section. Raises BadInput for the first fault in the file.

    With `unknown`, unknown keys are handed to it outside strict sections, and a key without a value
    counts as left out.
    """
    reading = _Reading(document, unknown)
    value = reading.section(section, given, path)
    if fault := first(document, reading.faults):
        raise fault
    return value


def taken(document: Document, take: Take, given: object, path: KeyPath) -> Any:
    """One value alone. Raises BadInput."""
    try:
        return take(given)
    except Fault as fault:
        raise document.bad(path, fault.what, fault.allowed) from None


@dataclass(frozen=True, slots=True)
class Place:
    """A fault at one place of a file."""

    path: KeyPath
    what: str
    allowed: str = ""


def first(document: Document, faults: Iterable[Place]) -> BadInput | None:
    """The fault that stands first in the file; None without faults."""
    ordered = sorted(faults, key=lambda fault: document.line(fault.path))
    return document.bad(ordered[0].path, ordered[0].what, ordered[0].allowed) if ordered else None


class _Reading:
    """One reading: it goes on after a fault, to find the first."""

    def __init__(
        self, document: Document, unknown: Callable[[BadInput], None] | None = None
    ) -> None:
        self._document, self._unknown = document, unknown
        self.faults: list[Place] = []

    def section(self, section: Section | type, given: object, path: KeyPath) -> Any:
        """None where anything before or in it is wrong."""
        found = section_of(section) if isinstance(section, type) else section
        keys, named = found.keys, ", ".join(found.keys)
        if not isinstance(given, dict):
            return self._wrong(path, f"{shown(given)} is not a mapping", f"a mapping of {named}")
        values, mistyped = {}, False
        for name, value in given.items():
            if name not in keys and self._unknown is not None and not found.strict:
                place = (*path, name)
                self._unknown(self._document.bad(place, "unknown key is ignored", named))
            elif name not in keys:
                what, mistyped = f"unknown key{nearest(name, tuple(keys))}", True
                self._wrong((*path, name), what, named)
            elif value is not None or self._unknown is None:
                values[keys[name].field] = self._value(keys[name].take, value, (*path, name))
        for name, one in keys.items():  # of which a mistyped one may be the missing
            if one.required and one.field not in values and not mistyped:
                self._wrong((*path, name), "key missing", named if len(keys) > 1 else "")
        for name, told in (found.given or {}).items():
            values[told] = name in given
        return None if self.faults else found.make(**values)

    def _value(self, take: Any, given: object, path: KeyPath) -> Any:
        if given is None:
            return self._wrong(path, "has no value", "a value, or leave the key out")
        if isinstance(take, Either):
            kind = list if isinstance(take.first, Listed) else dict
            take = take.first if isinstance(given, kind) else take.otherwise
        if isinstance(take, type | Section):
            return self.section(take, given, path)
        if isinstance(take, Listed | Named):
            return self._values(take, given, path)
        try:
            return take(given)
        except Fault as fault:
            return self._wrong(path, fault.what, fault.allowed)

    def _values(self, take: Listed | Named, given: object, path: KeyPath) -> Any:
        if isinstance(take, Listed) and isinstance(given, list):
            return tuple(self._value(take.take, one, (*path, i)) for i, one in enumerate(given))
        if isinstance(take, Named) and isinstance(given, dict):
            return tuple((k, self._value(take.take, given[k], (*path, k))) for k in sorted(given))
        listed = isinstance(take, Listed)
        what = f"{shown(given)} is not a {'list' if listed else 'mapping'}"
        allowed = "a list: - one entry a line" if listed else "a mapping of names to names"
        return self._wrong(path, what, allowed)

    def _wrong(self, path: KeyPath, what: str, allowed: str) -> None:
        self.faults.append(Place(path, what, allowed))
