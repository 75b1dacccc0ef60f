"""Parameters of an address, checked by the schemas that the API's document has for them."""

from collections.abc import Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException

from joulecut_controller.answer import Json
from joulecut_wire import flags
from joulecut_wire.quantity import Fault, choice


def checked(documented: Json, given: Mapping[str, str]) -> dict[str, Any]:
    """The value of each, or its default (None without one). Raises HTTPException."""
    parameters = documented.get("parameters", ())
    schemas = {one["name"]: one["schema"] for one in parameters if one["in"] == "query"}
    found = {name: schema.get("default") for name, schema in schemas.items()}
    for name, word in given.items():
        if name not in schemas:
            what = f"unknown parameter {name!r:.100}; allowed: {', '.join(schemas) or 'none'}"
            raise HTTPException(400, what)
        try:
            found[name] = _reader(schemas[name])(word)
        except Fault as fault:
            raise HTTPException(400, f"{name} must be {fault.allowed}") from None
    return found


def _reader(schema: Json) -> Callable[[str], Any]:
    if "enum" in schema:
        return choice(*schema["enum"])
    if schema["type"] == "integer":
        return flags.whole(schema["minimum"], schema["maximum"])
    if schema["type"] == "number":
        return flags.number(schema["exclusiveMinimum"], schema["maximum"], above=True)
    return _text(schema.get("maxLength"))


def _text(length_max: int | None) -> Callable[[str], str]:
    def read(word: str) -> str:
        if length_max is not None and len(word) > length_max:
            raise Fault(f"{len(word)} characters", f"of at most {length_max} characters")
        return word

    return read
