"""Addresses of the API, each stated once at its handler: route, checks and document follow from it.

Schemas name what a client may rely on; responses may hold more, and a later version will.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from joulecut_controller.answer import COMPONENTS, TEXT, Answer, Json, Key
from joulecut_controller.web.responses import JSON_TYPE
from joulecut_controller.web.senders import MARK, Senders
from joulecut_wire import flags, strict_json
from joulecut_wire.quantity import Fault, choice

PREFIX = "/api/v1/"
VERSION = "1"
BODY_BYTES_MAX = 16_384
JOB_NAME = "the job's name in the policy, percent-encoded"
STATED = "stated"  # attribute of a handler: its addresses
ANY: Json = {"type": "string", "default": ""}
ERROR = Answer("Error", error=TEXT)
ERRORS = {
    400: "invalid request; the message says what is allowed",
    401: "user and password required (web_config)",
    403: "unknown host, or sender not authenticated",
    404: "not found",
    405: "this address is read-only",
    409: "conflict with the present state",
    413: f"more than {BODY_BYTES_MAX} bytes",
    415: "a command must be JSON",
    503: "unavailable: no pass has ended yet, or this controller does not lead",
    504: "not finished in time; it continues",
}
COMMON = (400, 401, 403)

Handler = Callable[[Request], Awaitable[Response]]
H = TypeVar("H")
Parameter = tuple[Json, str]  # its schema, and what it means


@dataclass(frozen=True, slots=True)
class Address:
    """One method of one address. `query` has the parameters, `body` is the schema of a command."""

    path: str
    text: str
    answer: Json
    errors: tuple[int, ...]
    query: Mapping[str, Parameter]
    body: Json | None = None

    @property
    def document(self) -> Json:
        """Its part of the document."""
        named = [_parameter("name", "path", {"type": "string", "minLength": 1}, JOB_NAME)]
        parameters = named if "{name}" in self.path else []
        parameters += [_parameter(key, "query", *facts) for key, facts in self.query.items()]
        result = "the result" if self.body else self.text
        errors = sorted({*COMMON, *self.errors})
        found = {
            "summary": self.text,
            "responses": {"200": _content(result, self.answer)}
            | {str(code): _content(ERRORS[code], ERROR.key.schema) for code in errors},
        }
        if self.body:
            words = "any value; pages of another site cannot send this header"
            parameters.insert(0, _parameter(MARK, "header", {"type": "string"}, words))
            content = {JSON_TYPE: {"schema": self.body}}
            required = "{name}" not in self.path
            found |= {"requestBody": {"required": required, "content": content}}
        return found | ({"parameters": parameters} if parameters else {})

    def route(self, handler: Handler, senders: Senders) -> Route:
        """`request.state` gets the checked parameters by name (`asked`), or the checked body of a
        command (`body`) and its sender (`by`): the stated name, and the one proven to the server.
        """
        path = PREFIX + self.path.replace("jobs/{name}", "jobs/{name:path}")

        async def read(request: Request) -> Response:
            if len(request.query_params.multi_items()) > len(request.query_params):
                raise HTTPException(400, "a parameter is given twice")
            request.state.asked = self.asked(request.query_params)
            return await handler(request)

        async def post(request: Request) -> Response:
            sender = senders.of(request)
            body = _checked_body(self.body or {}, await _body_of(request))
            claimed = body.get("by", "")
            request.state.body = body
            request.state.by = f"{claimed} ({sender})" if claimed else sender
            return await handler(request)

        return Route(path, post, methods=["POST"]) if self.body else Route(path, read)

    def asked(self, given: Mapping[str, str]) -> dict[str, Any]:
        """The value of each parameter, or its default (None without one). Raises HTTPException."""
        found = {name: schema.get("default") for name, (schema, _) in self.query.items()}
        for name, word in given.items():
            if name not in found:
                what = f"unknown parameter {name!r:.100}; allowed: {', '.join(found) or 'none'}"
                raise HTTPException(400, what)
            try:
                found[name] = _reader(self.query[name][0])(word)
            except Fault as fault:
                raise HTTPException(400, f"{name} must be {fault.allowed}") from None
        return found


def get(
    path: str,
    text: str,
    answer: Answer | Key | Json,
    query: Mapping[str, Parameter] = MappingProxyType({}),
    errors: tuple[int, ...] = (503,),
) -> Callable[[H], H]:
    """Reads."""
    return _states(Address(path, text, _schema(answer), errors, query))


def post(path: str, text: str, body: Json, answer: Answer) -> Callable[[H], H]:
    """Commands."""
    errors = (404, 405, 409, 413, 415, 503, 504)
    return _states(Address(path, text, _schema(answer), errors, {}, body))


def _states(one: Address) -> Callable[[H], H]:
    def mark(handler: H) -> H:
        setattr(handler, STATED, (one, *getattr(handler, STATED, ())))
        return handler

    return mark


def stated(kind: type) -> Iterator[tuple[Address, str]]:
    """The addresses of a class's handlers, and the handlers' names."""
    for name, member in vars(kind).items():
        for one in getattr(member, STATED, ()):
            yield one, name


def document(kinds: Iterable[type]) -> Json:
    """The OpenAPI 3.1 document of these classes' addresses."""
    paths: dict[str, Json] = {}
    for kind in kinds:
        for one, _ in stated(kind):
            paths.setdefault(PREFIX + one.path, {})["post" if one.body else "get"] = one.document
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Joulecut controller",
            "version": VERSION,
            "summary": "The board after each pass, and commands: pause, resume, restore.",
        },
        "paths": paths,
        "components": {"schemas": COMPONENTS},
    }


def one_word(*words: str) -> Json:
    """One of these, the first where nothing is said."""
    return {"enum": list(words), "default": words[0]}


def whole(most: int, default: int) -> Json:
    return {"type": "integer", "minimum": 1, "maximum": most, "default": default}


def _schema(answer: Answer | Key | Json) -> Json:
    return answer if isinstance(answer, dict) else answer.schema


def _content(text: str, schema: Json) -> Json:
    return {"description": text, "content": {JSON_TYPE: {"schema": schema}}}


def _parameter(name: str, place: str, schema: Json, text: str) -> Json:
    parameter = {"name": name, "in": place, "schema": schema, "description": text}
    return parameter if place == "query" else parameter | {"required": True}


def _reader(schema: Json) -> Callable[[str], Any]:
    if "enum" in schema:
        return choice(*schema["enum"])
    if schema["type"] == "integer":
        return flags.whole(schema["minimum"], schema["maximum"])
    return _text(schema.get("maxLength"))


def _text(length_max: int | None) -> Callable[[str], str]:
    def read(word: str) -> str:
        if length_max is not None and len(word) > length_max:
            raise Fault(f"{len(word)} characters", f"of at most {length_max} characters")
        return word

    return read


def _checked_body(schema: Json, body: Json) -> Json:
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
        which = f"exactly one of {', '.join(either)}" if len(either) > 1 else either[0]
        raise HTTPException(400, f"{which} is required")
    return body


async def _body_of(request: Request) -> Json:
    """The JSON object that a command carries. Raises HTTPException."""
    if (coding := request.headers.get("content-encoding", "identity")) != "identity":
        raise HTTPException(415, f"content-encoding {coding!r:.40}; allowed: none, identity")
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > BODY_BYTES_MAX:
            raise HTTPException(413, f"a command may have up to {BODY_BYTES_MAX} bytes")
    try:
        body = strict_json.loads(raw) if raw else {}
    except strict_json.GivenTwice as error:
        raise HTTPException(400, str(error)) from None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body is not a JSON object")
    return body
