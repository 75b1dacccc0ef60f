"""The HTTP API as an OpenAPI 3.1 document: served, and kept in docs/openapi.json.

Schemas name what a client may rely on; responses may hold more, and a later version will.
"""

from typing import get_args

from joulecut_controller.answer import COUNT, FLAG, TEXT, Answer, Json, Key, ref
from joulecut_controller.answer import listed as many
from joulecut_controller.cluster.needs import SEVERITIES
from joulecut_controller.cluster.standing import State
from joulecut_controller.orders import HoldKind
from joulecut_controller.plan.record import PLAN
from joulecut_controller.policy.policy import CO2_G_PER_KWH_MAX
from joulecut_controller.savings.record import INTERVAL, RECEIPT, REPORT
from joulecut_controller.web.board_json import BOARD, EVENT, GPU, NODE
from joulecut_controller.web.cluster_json import (
    CLUSTER,
    GPU_COLUMNS,
    JOB_COLUMNS,
    NODE_COLUMNS,
    NODE_ROW,
    STANDING,
)
from joulecut_controller.web.cluster_pages import SPAN_S_DEFAULT, SPAN_S_MAX
from joulecut_controller.web.commands import (
    BODY_BYTES_MAX,
    DONE,
    NAME_LENGTH_MAX,
    REASON_LENGTH_MAX,
)
from joulecut_controller.web.job_json import HOLD, JOB, WINDOW
from joulecut_controller.web.measurements import MEASUREMENTS
from joulecut_controller.web.paging import (
    ORDERS,
    PAGE_MAX,
    SEARCH_LENGTH_MAX,
    SIZE_DEFAULT,
    SIZE_MAX,
)
from joulecut_controller.web.senders import MARK
from joulecut_controller.web.timeline import TIMELINE


def listed(schema: Json) -> Json:
    return {"type": "array", "items": schema}


def obj(**keys: Json) -> Json:
    """An object that has at least these keys."""
    return {"type": "object", "properties": keys, "required": list(keys)}


def paged(row: Json) -> Json:
    """One page of a table, and how much there is."""
    count = COUNT.schema
    return obj(rows=listed(row), total=count, page=count, pages=count, size=count)


_BRIEF = Answer(
    brief=FLAG,
    gpu_counts=Answer(all=COUNT, leased=COUNT, default=COUNT, silent=COUNT).key,
    node_counts=Answer(all=COUNT, lost=COUNT).key,
    node_names=many(TEXT),
)
ANSWERS = (
    BOARD, CLUSTER, GPU, HOLD, INTERVAL, JOB, MEASUREMENTS, NODE, NODE_ROW, PLAN, STANDING,
    TIMELINE, WINDOW,
)  # fmt: skip
SCHEMAS: Json = {answer.name: answer.schema for answer in ANSWERS} | {
    "Brief": {"allOf": [ref("Board"), _BRIEF.schema]},
    "Done": DONE.schema,
    "Error": obj(error=TEXT.schema),
    "Event": Answer(**EVENT.keys, detail=Key({})).schema,
    "JobState": {"enum": list(get_args(State))},
    "Mode": {"enum": ["off", "recommend", "enforce"]},
    "Policy": obj(mode=ref("Mode"), jobs=listed(obj(name=TEXT.schema, mode=ref("Mode")))),
    "Severity": {"enum": list(SEVERITIES)},
}


VERSION = "1"


def _answer(text: str, schema: Json) -> Json:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _errors(*codes: int) -> Json:
    """The common errors, with those of this address."""
    texts = {
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
    return {str(code): _answer(texts[code], ref("Error")) for code in sorted({*codes, 401, 403})}


def _get(text: str, schema: Json, *parameters: Json, errors: tuple[int, ...] = (503,)) -> Json:
    found = {"summary": text, "responses": {"200": _answer(text, schema), **_errors(400, *errors)}}
    return {"get": found | ({"parameters": list(parameters)} if parameters else {})}


def _query(name: str, schema: Json, text: str) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": text}


_ANY: Json = {"type": "string", "default": ""}


def _choice(*words: str) -> Json:
    """One of these, the first where nothing is said."""
    return {"enum": list(words), "default": words[0]}


def _count(most: int, default: int) -> Json:
    return {"type": "integer", "minimum": 1, "maximum": most, "default": default}


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
    "description": "any value; pages of another site cannot send this header",
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
                "200": _answer("the result", ref("Done")),
                **_errors(400, 404, 405, 409, 413, 415, 503, 504),
            },
        }
    }


def _upload(text: str, body: Json) -> Json:
    found = _post(text, body, named=True)
    found["post"]["parameters"] = [_MARK, _PROFILE_NAME]
    done = obj(complete={"const": True}, sentence={"type": "string"}, name={"type": "string"})
    found["post"]["responses"]["200"] = _answer("the result", done)
    return found


def _words(**more: Json) -> Json:
    return {"type": "object", "properties": more | _WORDS, "additionalProperties": False}


_ALL = _words(all={"const": True}) | {"required": ["all"]}
_PLACE = {"type": "string", "minLength": 1, "maxLength": 253}
_RESTORED = _words(
    job=_PLACE,
    node=_PLACE,
    all={"const": True},
) | {"oneOf": [{"required": [key]} for key in ("job", "node", "all")]}

_PROFILE_NAME = _NAME | {"description": "NAME.csv"}
_UPLOADED = _words(content={"type": "string"}, replace={"const": True}) | {"required": ["content"]}
_PROFILES = listed(
    obj(
        name=TEXT.schema,
        digest=TEXT.schema,
        bytes={"type": "integer"},
        at_unix_s={"type": "number"},
    )
)
_SPAN = _query("span_s", _count(SPAN_S_MAX, SPAN_S_DEFAULT), "how far back, in seconds")
_SERIES = {
    "type": "object",
    "properties": {"step_s": {"type": "number"}},
    "required": ["step_s", "at_unix_s"],
    "additionalProperties": {"type": "array", "items": {"type": ["number", "null"]}},
}
_EVENTS = obj(events=listed(ref("Event")))
_LIMIT = _query("limit", _count(1000, 100), "at most so many")
# Ten years: longer than anything is kept. A week.
_SECONDS = {"type": "number", "exclusiveMinimum": 0, "maximum": 3660 * 86400, "default": 604800}
_SINCE = _query("since_s", _SECONDS, "how far back, in seconds")
_GRAMS = {"type": "number", "exclusiveMinimum": 0, "maximum": int(CO2_G_PER_KWH_MAX)}
_CO2 = _query("co2", _GRAMS, "grams of CO2 per kWh; default that of the policy")
_POINTS = _query("points", {"enum": ["1"]}, "include the windows, thinned out")


def _table(
    text: str, row: str, columns: tuple[str, ...], *more: Json, errors: tuple[int, ...] = (503,)
) -> Json:
    """A table a page at a time."""
    return _get(
        text,
        paged(ref(row)),
        *more,
        _query("search", _ANY | {"maxLength": SEARCH_LENGTH_MAX}, "in the row's words"),
        _query("sort", _choice(*columns), "a column; unknown values come last"),
        _query("order", _choice(*ORDERS), "of the sorted column"),
        _query("page", _count(PAGE_MAX, 1), "from 1"),
        _query("size", _count(SIZE_MAX, SIZE_DEFAULT), "rows of a page"),
        errors=errors,
    )


def document() -> Json:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Joulecut controller",
            "version": VERSION,
            "summary": "The board after each pass, and commands: pause, resume, restore.",
        },
        "paths": _paths(),
        "components": {"schemas": SCHEMAS | {"HoldKind": {"enum": list(get_args(HoldKind))}}},
    }


def _paths() -> Json:
    one = "/api/v1/jobs/{name}"
    return {
        "/api/v1/board": _get("the whole board, as of the last pass", ref("Board")),
        "/api/v1/brief": _get("the board in brief: a large fleet is counted", ref("Brief")),
        "/api/v1/cluster": _get("the cluster in brief: the first screen", ref("Cluster")),
        "/api/v1/cluster/jobs": _table("jobs, in a line each", "Standing", JOB_COLUMNS),
        "/api/v1/cluster/nodes": _table("nodes, in a line each", "NodeRow", NODE_COLUMNS),
        "/api/v1/gpus": _table(
            "GPUs",
            "Gpu",
            GPU_COLUMNS,
            _query("node", _ANY, "only of this node"),
            _query("job", _ANY, "only of this job"),
            errors=(404, 503),
        ),
        "/api/v1/history": _get(
            "means of the last hour (15 s each) or days (5 min or more)",
            _SERIES,
            _query("job", _ANY, "of this job; without it of the cluster"),
            _SPAN,
            errors=(404, 503),
        ),
        "/api/v1/policy": _get("the policy in force, as values", ref("Policy")),
        "/api/v1/jobs": _get("all jobs", obj(jobs=listed(ref("Job")))),
        one: _get("one job", ref("Job"), _NAME, errors=(404, 503)),
        f"{one}/timeline": _get(
            "the operations of its newest plan", ref("Timeline"), _NAME, errors=(404, 503)
        ),
        f"{one}/measurements": _get(
            "windows measured on a job without a profile",
            ref("Measurements"),
            _NAME,
            errors=(404, 503),
        ),
        f"{one}/receipt": _get(
            "savings of the job in a period, and every change of its clocks",
            RECEIPT.schema,
            _NAME,
            _SINCE,
            _CO2,
            _POINTS,
            errors=(404, 503),
        ),
        "/api/v1/report": _get(
            "measured savings of a period",
            REPORT.schema,
            _query("job", _ANY, "only of this job"),
            _SINCE,
            _CO2,
            _POINTS,
            errors=(404, 503),
        ),
        "/api/v1/events": _get(
            "the audit log, newest first",
            _EVENTS,
            _query("job", _ANY, "only of this job"),
            _LIMIT,
            _query("detail", _choice("1", "0"), "0: without the details"),
        ),
        "/api/v1/profiles": _get("the uploaded profiles", obj(profiles=_PROFILES)),
        "/api/v1/profiles/{name}": _get(
            "an uploaded profile",
            obj(name=TEXT.schema, content=TEXT.schema),
            _PROFILE_NAME,
            errors=(404, 503),
        )
        | _upload("keeps a profile in the store, where policies can name it", _UPLOADED),
        "/api/v1/profiles/{name}/remove": _upload("removes an uploaded profile", _words()),
        "/api/v1/openapi.json": _get("this document", {"type": "object"}, errors=()),
        f"{one}/pause": _post("resets the job's clocks and holds it", _words(), named=True),
        f"{one}/resume": _post("ends the hold of the job", _words(), named=True),
        "/api/v1/pause": _post("resets all clocks and holds all jobs", _ALL, named=False),
        "/api/v1/resume": _post("ends holds that were set by command", _ALL, named=False),
        "/api/v1/restore": _post(
            "resets the clocks of a job, of a node, or all, whatever job holds them",
            _RESTORED,
            named=False,
        ),
        "/api/v1/adopt": _post(
            "assigns to a node the GPUs that it and another node report",
            _words(node=_PLACE) | {"required": ["node"]},
            named=False,
        ),
    }


DOCUMENT = document()
