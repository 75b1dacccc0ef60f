"""Parameters and bodies of requests, checked by the schemas of the API's document."""

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


def checked_body(schema: Json, body: Json) -> Json:
    """The body of a command: lines of text, or `true`. Raises HTTPException."""
    known = schema["properties"]
    for name, value in body.items():
        if name not in known:
            what = f"unknown key {name!r:.100}; allowed: {', '.join(known)}"
            raise HTTPException(400, what)
        least, most = known[name].get("minLength", 0), known[name].get("maxLength")
        if "const" in known[name]:
            if value is not known[name]["const"]:
                raise HTTPException(400, f"{name} can only be true")
        elif not isinstance(value, str):
            raise HTTPException(400, f"{name} must be text")
        elif most is not None and not (least <= len(value) <= most and value.isprintable()):
            what = f"{name} must be one line of text of at most {most} letters"
            raise HTTPException(400, what)
    either = [one["required"][0] for one in schema.get("oneOf", ())] or schema.get("required", ())
    if either and sum(name in body for name in either) != 1:
        raise HTTPException(400, f"exactly one of {', '.join(either)} is required")
    return body
