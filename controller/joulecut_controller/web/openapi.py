"""The HTTP API as an OpenAPI 3.1 document: served, and kept in docs/openapi.json.

Schemas name what a client may rely on; responses may hold more, and a later version will.
"""

from typing import Any, get_args

from joulecut_controller.cluster.needs import SEVERITIES
from joulecut_controller.cluster.standing import State
from joulecut_controller.orders import HoldKind
from joulecut_controller.web.cluster_json import GPU_COLUMNS, JOB_COLUMNS, NODE_COLUMNS
from joulecut_controller.web.cluster_pages import SPAN_S_DEFAULT, SPAN_S_MAX
from joulecut_controller.web.commands import (
    BODY_BYTES_MAX,
    MARK,
    NAME_LENGTH_MAX,
    REASON_LENGTH_MAX,
)
from joulecut_controller.web.paging import (
    ORDERS,
    PAGE_MAX,
    SEARCH_LENGTH_MAX,
    SIZE_DEFAULT,
    SIZE_MAX,
)

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
NUMBER: Json = {"type": ["number", "null"]}  # null: not known
COUNT: Json = {"type": "integer", "minimum": 0}
CLOCK: Json = {"type": ["integer", "null"]}
FLAG: Json = {"type": "boolean"}
WORD: Json = {"type": ["string", "null"]}


def obj(**keys: Json) -> Json:
    """An object that has at least these keys."""
    return {"type": "object", "properties": keys, "required": list(keys)}


def listed(schema: Json) -> Json:
    return {"type": "array", "items": schema}


def maybe(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_NUMBERS: Json = {"type": "object", "additionalProperties": NUMBER}  # by name
_EVENT = {"at_unix_s": NUMBER, "kind": TEXT, "job": TEXT, "generation": COUNT, "text": TEXT}
_RUN = {
    "at_unix_s": NUMBER,
    "role": {"enum": ["leader", "standby"]},
    "leader": TEXT,
    "pass_number": COUNT,
    "epoch": COUNT,
    "interval_s": NUMBER,
    "mode": ref("Mode"),
    "simulated": FLAG,
    "policy": obj(source=TEXT, digest=TEXT, error=TEXT),
    "events": listed(obj(**_EVENT)),
}
_MEASUREMENT = obj(
    clocks_mhz=listed(COUNT),
    iterations=COUNT,
    iteration_time_s=NUMBER,
    iteration_time_sd_s=NUMBER,
    energy_j=listed(NUMBER),
    busy_s=listed(listed(NUMBER)),
    operation_sd_ratio=NUMBER,
)
_PROBED = obj(
    default_mhz=listed(COUNT),
    clock_max_mhz=COUNT,
    blocking_power_w=NUMBER,
    clocks_mhz=listed(listed(COUNT)),
    alike=listed(COUNT),
    window_s=NUMBER,
    measurements=listed(_MEASUREMENT),
)
_WINDOW = obj(
    iterations=COUNT,
    iteration_time_s=NUMBER,
    iteration_time_sd_s=NUMBER,
    energy_j=NUMBER,
    power_w=NUMBER,
)
_PLAN = obj(
    job=TEXT,
    generation=COUNT,
    parent=COUNT,
    mode=ref("Mode"),
    granularity=TEXT,
    granularity_asked=TEXT,
    granularity_why=TEXT,
    shortest_step_s=NUMBER,
    changes_nothing=FLAG,
    reason=TEXT,
    refused=TEXT,
    made_at_unix_s=NUMBER,
    deadline_s=NUMBER,
    actions=listed(obj(uuid=TEXT, stage=COUNT, verb=TEXT, clock_mhz=CLOCK, reason=TEXT)),
    forecast=maybe({"type": "object"}),
    solution=maybe({"type": "object"}),
)
_HOLD = obj(
    job=TEXT,
    kind=ref("HoldKind"),
    reason=TEXT,
    by=TEXT,
    since_unix_s=NUMBER,
    until_unix_s=NUMBER,
    sentence=TEXT,
)
_JOB = obj(
    name=TEXT,
    mode=ref("Mode"),
    sentence=TEXT,
    complaint=TEXT,
    holds=listed(ref("Hold")),
    breaker_trips=COUNT,
    slo=obj(
        given_as=TEXT,
        statistic=TEXT,
        max_slowdown_ratio=NUMBER,
        max_iteration_time_s=NUMBER,
        deadline_s=NUMBER,
    ),
    granularity=TEXT,
    granularity_asked=TEXT,
    granularity_why=TEXT,
    timing=maybe(
        obj(
            source=TEXT,
            iteration_time_s=NUMBER,
            start_jitter_s=NUMBER,
            starts_per_minute=NUMBER,
            missed_ratio=NUMBER,
            change_error_s=NUMBER,
        )
    ),
    clock_min_mhz=COUNT,
    pipeline=maybe({"type": "object"}),
    profile=WORD,
    evidence=obj(level=TEXT, text=TEXT),
    hindrance=TEXT,
    phase=obj(
        kind={"enum": ["train", "evaluate", "other", "pause"]},
        operations=TEXT,
        seconds_by_kind=_NUMBERS,
    ),
    vetoes=listed(obj(kind=TEXT, action={"enum": ["suspend", "release"]}, text=TEXT)),
    report_age_s=NUMBER,
    report_faults=listed(obj(node=TEXT, source=TEXT, text=TEXT, count=COUNT, age_s=NUMBER)),
    delay=maybe(
        obj(
            pipeline=COUNT,
            stage=COUNT,
            gpus=listed(TEXT),
            cause=TEXT,
            delay_ratio=NUMBER,
            factor=NUMBER,
            text=TEXT,
        )
    ),
    peer_iteration_time_s=NUMBER,
    generation_running=COUNT,
    baseline=maybe(ref("Window")),
    baseline_look=maybe(
        obj(share_ratio=NUMBER, age_s=NUMBER, text=TEXT, share_ratio_by_asker=_NUMBERS)
    ),
    current=maybe(ref("Window")),
    measured=obj(
        saved_j=NUMBER,
        saved_known_ratio=NUMBER,
        saved_ratio=NUMBER,
        slowdown_ratio=NUMBER,
        slowdown=maybe(ref("Interval")),
    ),
    predicted=obj(saved_j=NUMBER, error_time_ratio=NUMBER, error_power_ratio=NUMBER),
    bloat_w=_NUMBERS,
    frontier=listed(obj(iteration_time_s=NUMBER, energy_j=NUMBER, lower_bound_j=NUMBER)),
    decision=maybe(ref("Plan")),
    applied=maybe(ref("Plan")),
    state=ref("JobState"),
    next_step=TEXT,
    rate_source=WORD,
    predicted_saved_ratio=NUMBER,
    gpus=listed(obj(uuid=TEXT, stage=COUNT, clock_recommended_mhz=CLOCK, verb=WORD, reason=TEXT)),
)
_GPU = obj(
    uuid=TEXT,
    node=TEXT,
    index=COUNT,
    model=TEXT,
    simulated=FLAG,
    job=WORD,
    stage=CLOCK,
    age_s=NUMBER,
    controllable=FLAG,
    why_not_controllable=TEXT,
    clock_seen_mhz=CLOCK,
    clock_asked_mhz=CLOCK,
    power_average_w=NUMBER,
    temperature_celsius=NUMBER,
    event_reasons=listed(TEXT),
    lease=maybe(obj(job=TEXT, epoch=COUNT, generation=COUNT, remaining_s=NUMBER)),
)
_POWER_BUDGET = obj(
    budget_w=NUMBER,
    capacity_w=NUMBER,
    in_force_w=NUMBER,
    least_w=NUMBER,
    limits_w=_NUMBERS,
    state={"enum": ["kept", "lowering", "recommended", "lifted"]},
    best_effort=TEXT,
    sentence=TEXT,
)
_SUMMARY_KEYS: Json = {
    "headline": TEXT,
    "needs": listed(
        obj(severity=ref("Severity"), text=TEXT, job=TEXT, node=TEXT, runbook=TEXT),
    ),
    "need_counts": obj(fault=COUNT, decision=COUNT, note=COUNT),
    "power": obj(now_w=NUMBER, without_w=NUMBER, without_is_predicted=FLAG, available_w=NUMBER),
    "savings": obj(measured_j=NUMBER, predicted_j=NUMBER),
    "gpu_counts": obj(
        all=COUNT, controlled=COUNT, default=COUNT, silent=COUNT, not_controllable=COUNT
    ),
    "node_counts": obj(all=COUNT, lost=COUNT),
    "job_counts": {
        "type": "object",
        "properties": {"all": COUNT},
        "required": ["all"],
        "additionalProperties": COUNT,
    },
}
_BOARD = obj(
    **_RUN,
    sentence=TEXT,
    nodes=listed(ref("Node")),
    gpus=listed(ref("Gpu")),
    holds=listed(ref("Hold")),
    cluster=obj(**_SUMMARY_KEYS),
    power_budget=maybe(_POWER_BUDGET),
    jobs=listed(ref("Job")),
)
_INTERVAL = obj(mid=NUMBER, low=NUMBER, high=NUMBER)
_CLUSTER = obj(
    **_RUN,
    **_SUMMARY_KEYS,
    savings_week=maybe(
        obj(
            since_unix_s=NUMBER,
            until_unix_s=NUMBER,
            jobs=COUNT,
            jobs_unknown=COUNT,
            saved_kwh=maybe(ref("Interval")),
            predicted_kwh=NUMBER,
            energy_money=maybe(ref("Interval")),
            co2_kg=maybe(ref("Interval")),
        )
    ),
    prices=obj(money_per_kwh=NUMBER, co2_kg_per_kwh=NUMBER),
    power_budget=maybe(
        obj(budget_w=NUMBER, in_force_w=NUMBER, state=TEXT, best_effort=TEXT, sentence=TEXT)
    ),
    links=obj(grafana=TEXT, runbook=TEXT, audit_log=TEXT),
)
_STANDING = obj(
    name=TEXT,
    state=ref("JobState"),
    next_step=TEXT,
    rate_source=WORD,
    granularity=TEXT,
    gpus=COUNT,
    power_w=NUMBER,
    slowdown_ratio=NUMBER,
    budget_ratio=NUMBER,
    predicted_saved_ratio=NUMBER,
    saved_now_ratio=NUMBER,
    saved_ratio=maybe(ref("Interval")),
    saved_measured_j=NUMBER,
    saved_predicted_j=NUMBER,
    straggler=FLAG,
)
_NODE_ROW = obj(
    node=TEXT,
    address=TEXT,
    state={"enum": ["connected", "lost", "stopped"]},
    error=TEXT,
    gpus=COUNT,
    controlled_gpus=COUNT,
    power_w=NUMBER,
    temperature_celsius=NUMBER,
    jobs=TEXT,
)


def paged(row: Json) -> Json:
    """One page of a table, and how much there is."""
    return obj(rows=listed(row), total=COUNT, page=COUNT, pages=COUNT, size=COUNT)


_OPERATION = obj(
    stage=COUNT, microbatch=COUNT, kind=TEXT, clock_mhz=COUNT, start_s=NUMBER, duration_s=NUMBER
)

SCHEMAS: Json = {
    "Board": _BOARD,
    "Brief": {
        "allOf": [
            ref("Board"),
            obj(
                brief=FLAG,
                gpu_counts=obj(all=COUNT, leased=COUNT, default=COUNT, silent=COUNT),
                node_counts=obj(all=COUNT, lost=COUNT),
                node_names=listed(TEXT),
            ),
        ]
    },
    "Cluster": _CLUSTER,
    "Done": obj(
        op={"enum": ["pause", "resume", "restore"]},
        complete=FLAG,
        sentence=TEXT,
        jobs=listed(TEXT),
        gpus=COUNT,
        unanswered=listed(TEXT),
        by=TEXT,
    ),
    "Error": obj(error=TEXT),
    "Event": obj(**_EVENT, detail={}),
    "Gpu": _GPU,
    "Hold": _HOLD,
    "Interval": _INTERVAL,
    "Job": _JOB,
    "JobState": {"enum": list(get_args(State))},
    "Mode": {"enum": ["off", "recommend", "enforce"]},
    "Node": obj(node=TEXT, address=TEXT, connected=FLAG, error=TEXT, agent_version=TEXT),
    "NodeRow": _NODE_ROW,
    "Plan": _PLAN,
    "Policy": obj(mode=ref("Mode"), jobs=listed(obj(name=TEXT, mode=ref("Mode")))),
    "Severity": {"enum": list(SEVERITIES)},
    "Standing": _STANDING,
    "Measurements": obj(
        name=TEXT,
        mode=ref("Mode"),
        profile=WORD,
        pipeline=maybe({"type": "object"}),
        complaint=TEXT,
        sentence=TEXT,
        verdict=WORD,
        reason=TEXT,
        probed=maybe(_PROBED),
    ),
    "Timeline": obj(
        job=TEXT,
        generation=COUNT,
        basis={"const": "predicted"},
        iteration_time_s=NUMBER,
        deadline_s=NUMBER,
        operations=listed(_OPERATION),
        fastest=maybe({"type": "object"}),
    ),
    "Window": _WINDOW,
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
_RESTORED = _words(
    job={"type": "string", "minLength": 1, "maxLength": 253},
    node={"type": "string", "minLength": 1, "maxLength": 253},
    all={"const": True},
) | {"oneOf": [{"required": [key]} for key in ("job", "node", "all")]}

_PROFILE_NAME = _NAME | {"description": "NAME.csv"}
_UPLOADED = _words(content={"type": "string"}) | {"required": ["content"]}
_PROFILES = listed(
    obj(name=TEXT, digest=TEXT, bytes={"type": "integer"}, at_unix_s={"type": "number"})
)
_SPAN = _query(
    "span_s", {"type": "integer", "minimum": 1, "maximum": SPAN_S_MAX}, f"default {SPAN_S_DEFAULT}"
)
_SERIES = {
    "type": "object",
    "properties": {"step_s": {"type": "number"}},
    "required": ["step_s", "at_unix_s"],
    "additionalProperties": {"type": "array", "items": {"type": ["number", "null"]}},
}
_EVENTS = obj(events=listed(ref("Event")))
_LIMIT = _query("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "default 100")
_SECONDS = {"type": "number", "exclusiveMinimum": 0, "maximum": 3660 * 86400}
_SINCE = _query("since_s", _SECONDS, "how far back, in seconds; default 604800")
_GRAMS = {"type": "number", "exclusiveMinimum": 0, "maximum": 10000}
_CO2 = _query("co2", _GRAMS, "grams of CO2 per kWh; default that of the policy")
_POINTS = _query("points", {"enum": ["1"]}, "include the windows, thinned out")


def _table(text: str, row: str, columns: tuple[str, ...], *more: Json) -> Json:
    """A table a page at a time."""
    return _get(
        text,
        paged(ref(row)),
        *more,
        _query("search", {"type": "string", "maxLength": SEARCH_LENGTH_MAX}, "in the row's words"),
        _query("sort", {"enum": list(columns)}, f"default {columns[0]}; unknown values come last"),
        _query("order", {"enum": list(ORDERS)}, f"default {ORDERS[0]}"),
        _query("page", {"type": "integer", "minimum": 1, "maximum": PAGE_MAX}, "default 1"),
        _query(
            "size",
            {"type": "integer", "minimum": 1, "maximum": SIZE_MAX},
            f"default {SIZE_DEFAULT}",
        ),
        errors=(400, 503),
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
            _query("node", TEXT, "only of this node"),
            _query("job", TEXT, "only of this job"),
        ),
        "/api/v1/history": _get(
            "means of the last hour (15 s each) or days (5 min or more)",
            _SERIES,
            _query("job", TEXT, "of this job; without it of the cluster"),
            _SPAN,
            errors=(400, 404, 503),
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
            _query("job", TEXT, "only of this job"),
            _SINCE,
            _CO2,
            _POINTS,
            errors=(400, 404, 503),
        ),
        "/api/v1/events": _get(
            "the audit log, newest first",
            _EVENTS,
            _query("job", TEXT, "only of this job"),
            _LIMIT,
            _query("detail", {"enum": ["0", "1"]}, "0: without the details; default 1"),
            errors=(400, 503),
        ),
        "/api/v1/profiles": _get("the uploaded profiles", obj(profiles=_PROFILES)),
        "/api/v1/profiles/{name}": _get(
            "an uploaded profile",
            obj(name=TEXT, content=TEXT),
            _PROFILE_NAME,
            errors=(400, 404, 503),
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
    }


DOCUMENT = document()
