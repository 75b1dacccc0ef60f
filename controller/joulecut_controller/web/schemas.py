"""What the answers of the HTTP API look like, as JSON schemas."""

from typing import Any

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
    clock_min_mhz=COUNT,
    pipeline=maybe({"type": "object"}),
    profile=WORD,
    evidence=obj(level=TEXT, text=TEXT),
    report_age_s=NUMBER,
    peer_iteration_time_s=NUMBER,
    generation_running=COUNT,
    baseline=maybe(ref("Window")),
    current=maybe(ref("Window")),
    measured=obj(saved_j=NUMBER, saved_ratio=NUMBER, slowdown_ratio=NUMBER),
    predicted=obj(saved_j=NUMBER, error_time_ratio=NUMBER, error_power_ratio=NUMBER),
    frontier=listed(obj(iteration_time_s=NUMBER, energy_j=NUMBER, lower_bound_j=NUMBER)),
    decision=maybe(ref("Plan")),
    applied=maybe(ref("Plan")),
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
_BOARD = obj(
    at_unix_s=NUMBER,
    role={"enum": ["leader", "standby"]},
    leader=TEXT,
    pass_number=COUNT,
    epoch=COUNT,
    interval_s=NUMBER,
    sentence=TEXT,
    mode=ref("Mode"),
    simulated=FLAG,
    policy=obj(source=TEXT, digest=TEXT, error=TEXT),
    nodes=listed(ref("Node")),
    gpus=listed(ref("Gpu")),
    holds=listed(ref("Hold")),
    jobs=listed(ref("Job")),
    events=listed(obj(at_unix_s=NUMBER, kind=TEXT, job=TEXT, generation=COUNT, text=TEXT)),
)
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
    "Event": obj(at_unix_s=NUMBER, kind=TEXT, job=TEXT, generation=COUNT, text=TEXT, detail={}),
    "Gpu": _GPU,
    "Hold": _HOLD,
    "Job": _JOB,
    "Mode": {"enum": ["off", "recommend", "enforce"]},
    "Node": obj(node=TEXT, address=TEXT, connected=FLAG, error=TEXT, agent_version=TEXT),
    "Plan": _PLAN,
    "Policy": obj(mode=ref("Mode"), jobs=listed(obj(name=TEXT, mode=ref("Mode")))),
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
