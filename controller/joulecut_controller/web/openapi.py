"""What the HTTP API promises, as an OpenAPI 3.1 document: served, and kept in docs/openapi.json.

Schemas name what a client may rely on; answers may hold more, and a later version will.
"""

from typing import Any, get_args

from joulecut_controller.orders import HoldKind
from joulecut_controller.web.commands import (
    BODY_BYTES_MAX,
    MARK,
    NAME_LENGTH_MAX,
    REASON_LENGTH_MAX,
)
from joulecut_controller.web.schemas import SCHEMAS, obj

Json = dict[str, Any]

VERSION = "1"


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(text: str, schema: Json) -> Json:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _errors(*codes: int) -> Json:
    """The common refusals, with those of this address."""
    texts = {
        400: "the request is wrong; the sentence says what is allowed",
        401: "user and password are asked for (web_config)",
        403: "not for this host, or who asks is not known",
        404: "there is no such thing",
        405: "this address is read only",
        409: "something else stands against it",
        413: f"more than {BODY_BYTES_MAX} bytes",
        415: "a command is JSON",
        503: "not now: no pass has ended yet, or this controller does not lead",
        504: "not known to be done in time; it goes on",
    }
    return {str(code): _answer(texts[code], _ref("Error")) for code in sorted({*codes, 401, 403})}


def _get(text: str, schema: Json, *parameters: Json, errors: tuple[int, ...] = (503,)) -> Json:
    found = {"summary": text, "responses": {"200": _answer(text, schema), **_errors(*errors)}}
    return {"get": found | ({"parameters": list(parameters)} if parameters else {})}


def _query(name: str, schema: Json, text: str) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": text}


_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "the job's name in the policy, percent-encoded",
}
_MARK = {
    "name": MARK,
    "in": "header",
    "required": True,
    "schema": {"type": "string"},
    "description": "any value: what a page of another site cannot send",
}
_WORDS = {
    "reason": {"type": "string", "maxLength": REASON_LENGTH_MAX},
    "by": {"type": "string", "maxLength": NAME_LENGTH_MAX},
}


def _post(text: str, body: Json, *, named: bool) -> Json:
    parameters = [_MARK, _NAME] if named else [_MARK]
    return {
        "post": {
            "summary": text,
            "parameters": parameters,
            "requestBody": {
                "required": not named,
                "content": {"application/json": {"schema": body}},
            },
            "responses": {
                "200": _answer("what became of it", _ref("Done")),
                **_errors(400, 404, 405, 409, 413, 415, 503, 504),
            },
        }
    }


def _words(**more: Json) -> Json:
    return {"type": "object", "properties": more | _WORDS, "additionalProperties": False}


_ALL = _words(all={"const": True}) | {"required": ["all"]}
_RESTORED = _words(
    job={"type": "string", "minLength": 1, "maxLength": 253},
    node={"type": "string", "minLength": 1, "maxLength": 253},
    all={"const": True},
) | {"oneOf": [{"required": [key]} for key in ("job", "node", "all")]}

_LISTED = {"type": "array", "items": _ref("Job")}
_EVENTS = obj(events={"type": "array", "items": _ref("Event")})
_LIMIT = _query("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "default 100")
_SECONDS = {"type": "number", "exclusiveMinimum": 0, "maximum": 3660 * 86400}
_SINCE = _query("since_s", _SECONDS, "how far back, in seconds; default 604800")
_GRAMS = {"type": "number", "exclusiveMinimum": 0, "maximum": 10000}
_CO2 = _query("co2", _GRAMS, "grams of CO2 per kWh; default that of the policy")
_POINTS = _query("points", {"enum": ["1"]}, "with the windows themselves, thinned")
_TEXT = {"type": "string"}


def document() -> Json:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Joulecut controller",
            "version": VERSION,
            "summary": "What is shown after each pass, and the few commands a person gives.",
        },
        "paths": _paths(),
        "components": {"schemas": SCHEMAS | {"HoldKind": {"enum": list(get_args(HoldKind))}}},
    }


def _paths() -> Json:
    one = "/api/v1/jobs/{name}"
    return {
        "/api/v1/board": _get("everything shown, as of the last pass", _ref("Board")),
        "/api/v1/brief": _get("the board, of a fleet of any size on one screen", _ref("Brief")),
        "/api/v1/policy": _get("the policy in force, as values", _ref("Policy")),
        "/api/v1/jobs": _get("all jobs", obj(jobs=_LISTED)),
        one: _get("one job", _ref("Job"), _NAME, errors=(404, 503)),
        f"{one}/timeline": _get(
            "the operations of its newest plan", _ref("Timeline"), _NAME, errors=(404, 503)
        ),
        f"{one}/receipt": _get(
            "what a period saved the job, and every change of its clocks",
            {"type": "object"},
            _NAME,
            _SINCE,
            _CO2,
            _POINTS,
            errors=(400, 404, 503),
        ),
        "/api/v1/report": _get(
            "measured savings of a period",
            {"type": "object"},
            _query("job", _TEXT, "only of this job"),
            _SINCE,
            _CO2,
            _POINTS,
            errors=(400, 404, 503),
        ),
        "/api/v1/events": _get(
            "the audit trail, newest first",
            _EVENTS,
            _query("job", _TEXT, "only of this job"),
            _LIMIT,
            errors=(400, 503),
        ),
        "/api/v1/openapi.json": _get("this document", {"type": "object"}, errors=()),
        f"{one}/pause": _post("gives the job's GPUs back and holds it", _words(), named=True),
        f"{one}/resume": _post("ends what holds the job", _words(), named=True),
        "/api/v1/pause": _post("gives every GPU back and holds all jobs", _ALL, named=False),
        "/api/v1/resume": _post("ends what a person asked for", _ALL, named=False),
        "/api/v1/restore": _post(
            "GPUs of a job, of a node, or all: back to default, whoever holds them",
            _RESTORED,
            named=False,
        ),
    }


DOCUMENT = document()
