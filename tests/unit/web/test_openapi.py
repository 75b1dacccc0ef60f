"""The API's document: it is what is served and kept, and answers keep to it, whatever is asked."""

import http.client
import json
import runpy
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import boards
import jsonschema
import large
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import WAIT_S, Serving
from starlette.routing import Route

from joulecut_controller.orders import Done, Hold, Order
from joulecut_controller.policy.policy import Policy
from joulecut_controller.web.app import DOCUMENT, routes
from joulecut_controller.web.board_cache import Publisher
from joulecut_controller.web.commands import CommandChannel

ROOT = Path(__file__).resolve().parents[3]
KEPT = ROOT / "docs" / "openapi.json"
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
REFUSED = ("", "unknown", "conflict", "standby", "failed")


async def whim(order: Order) -> Done:
    """An answer of every kind, by the order's words."""
    refused = REFUSED[len(order.reason + order.node) % len(REFUSED)]
    return Done("as you say", refused, unanswered=("n1: no",) * (len(order.by) % 2))


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    hold = Hold("gpt3-175b", "pause", "reset", "alice", boards.NOON_UNIX_S)
    board = boards.board()
    job = replace(board.jobs[0], holds=(hold,), trips=1)
    board = replace(
        board, jobs=(job,), holds=(hold,), policy=Policy(jobs=(job.view.policy,), source="p.yaml")
    )
    with Serving(board, obey=whim, metrics=lambda _: b"") as server:
        yield server


def test_the_kept_document_is_the_one_served(served: Serving) -> None:
    text = runpy.run_path(str(ROOT / "tools" / "openapi-doc"))["page"]()
    assert KEPT.read_text() == text, "run make docs"
    assert served.get("/api/v1/openapi.json").json == json.loads(text)


def test_every_address_is_documented_and_every_documented_one_is_there() -> None:
    there = {
        (route.path.replace(":path}", "}"), method)
        for route in routes(Publisher(), channel=CommandChannel())
        if isinstance(route, Route) and route.path.startswith("/api/")
        for method in (route.methods or {"GET"}) - {"HEAD"}
    }
    told = {(path, method.upper()) for path, ways in DOCUMENT["paths"].items() for method in ways}
    assert there == told


def test_schemas_are_schemas_and_refer_to_each_other() -> None:
    for name in DOCUMENT["components"]["schemas"]:
        jsonschema.Draft202012Validator.check_schema(
            _schema({"$ref": f"#/components/schemas/{name}"})
        )
    text = json.dumps(DOCUMENT)
    for part in text.split('"$ref": "')[1:]:
        name = part.partition('"')[0].removeprefix("#/components/schemas/")
        assert name in DOCUMENT["components"]["schemas"], name


def _schema(schema: Any) -> Any:
    """With the components it may refer to."""
    return {"components": DOCUMENT["components"], **schema}


@cache
def _validator(path: str, method: str, status: str) -> Any:
    answers = DOCUMENT["paths"][path][method]["responses"]
    assert status in answers, f"{method} {path} answered {status}, which is not documented"
    schema = answers[status]["content"]["application/json"]["schema"]
    return jsonschema.Draft202012Validator(_schema(schema))


def test_answers_keep_to_their_schemas(served: Serving) -> None:
    for path, ways in DOCUMENT["paths"].items():
        if "get" not in ways:
            continue
        answer = served.get(path.replace("{name}", "gpt3-175b"))
        assert answer.status == 200, path
        _validator(path, "get", "200").validate(answer.json)
    for board in (boards.empty(), boards.measuring(), boards.straggling(), large.board(40, jobs=4)):
        with Serving(board) as other:
            for path in (
                "/api/v1/board", "/api/v1/brief", "/api/v1/cluster",
                "/api/v1/cluster/jobs", "/api/v1/cluster/nodes", "/api/v1/gpus",
            ):  # fmt: skip
                _validator(path, "get", "200").validate(other.get(path).json)


def test_a_large_fleet_in_brief_is_short() -> None:
    with Serving(large.board(400, jobs=10)) as served:
        brief = served.get("/api/v1/brief")
        whole = served.get("/api/v1/board")
        assert len(brief.body) < len(whole.body) / 20
        assert brief.json["cluster"]["gpu_counts"] == {
            "all": 3200, "controlled": 3200, "default": 0, "silent": 0, "not_controllable": 0,
        }  # fmt: skip
        assert brief.json["gpus"] == []
        assert len(brief.json["nodes"]) == 400
        assert len(whole.json["gpus"]) == 3200


# -- fuzz ----------------------------------------------------------------------------------

WORDS = st.text(max_size=40)
NAMES = st.one_of(st.just("gpt3-175b"), WORDS, st.just("../../etc"), st.just("a/pause"))
BODIES = st.one_of(
    st.binary(max_size=200),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), WORDS),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
    st.dictionaries(
        st.sampled_from(("all", "job", "node", "reason", "by")),
        st.one_of(st.just(True), WORDS, st.integers()),
    ).map(lambda value: json.dumps(value).encode()),
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "content-type": st.sampled_from(("application/json", "text/plain", "")),
        "x-joulecut-command": st.just("1"),
        "origin": st.sampled_from(("null", "http://evil.example", "http://[")),
        "host": st.sampled_from(("localhost", "evil", "127.0.0.1:x")),
        "authorization": st.sampled_from(("Basic ?", "Basic dTpw", "x")),
    },
)
PARAMETERS = {
    one["name"]
    for ways in DOCUMENT["paths"].values()
    for one in ways.get("get", {}).get("parameters", ())
    if one["in"] == "query"
}
QUERIES = st.dictionaries(
    st.sampled_from(sorted(PARAMETERS | {"since", "x"})),
    st.text(max_size=20) | st.sampled_from(("1", "200", "name", "0")),
    max_size=2,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.one_of(
        st.sampled_from(sorted(DOCUMENT["paths"])), st.just("/api/v1/{name}"), st.just("/{name}")
    ),
    method=st.sampled_from(METHODS),
    name=NAMES,
    query=QUERIES,
    body=BODIES,
    headers=HEADERS,
    good=st.booleans(),
)
def test_nothing_that_is_asked_breaks_it(
    served: Serving,
    path: str,
    method: str,
    name: str,
    query: dict[str, str],
    body: bytes,
    headers: dict[str, str],
    good: bool,
) -> None:
    """No failure, no traceback; what is answered is JSON, and where documented, as documented."""
    if good:
        headers = {"content-type": "application/json", "x-joulecut-command": "1"}
    target = path.replace("{name}", quote(name.encode("utf-8", "replace"), safe=""))
    target += "?" + "&".join(f"{k}={quote(v.encode('utf-8', 'replace'))}" for k, v in query.items())
    where = urlsplit(served.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=WAIT_S)
    try:
        connection.request(method, target, body if method == "POST" else None, headers)
        answer = connection.getresponse()
        said = answer.read()
    finally:
        connection.close()
    assert answer.status < 500 or answer.status in (503, 504), (answer.status, said)
    assert b"Traceback" not in said
    if method == "HEAD" or not answer.headers["content-type"].startswith("application/json"):
        return
    told = json.loads(said)
    if answer.status >= 400:
        assert list(told) == ["error"]
        assert "\n" not in told["error"]
    way = DOCUMENT["paths"].get(path, {}).get(method.lower())
    if way is not None and "/" not in name and name not in ("", ".", ".."):
        _validator(path, method.lower(), str(answer.status)).validate(told)
