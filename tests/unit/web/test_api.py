"""The JSON API through a real server on a real socket."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import boards
import pytest
from serving import WAIT_S, Serving

from joulecut_controller.answer import Json
from joulecut_controller.board import Board
from joulecut_controller.cluster.summary import part_of
from joulecut_controller.orders import Done, Order
from joulecut_controller.web import server
from joulecut_controller.web.app import DOCUMENT, build
from joulecut_controller.web.board_cache import Publisher
from joulecut_controller.web.cluster_json import STANDING
from joulecut_controller.web.job_json import job_json
from joulecut_controller.web.responses import encode
from joulecut_controller.web.server import Server
from joulecut_wire.errors import Unavailable


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    with Serving(boards.board(), metrics=lambda _: b"joulecut_controller_leader 1\n") as server:
        yield server


def test_names_with_odd_letters_are_found() -> None:
    name = "a/b c%d?e/timeline"
    shown = boards.job("recommend", microbatches=12)
    policy = replace(shown.view.policy, name=name)
    odd = replace(shown, view=replace(shown.view, policy=policy))
    with Serving(replace(boards.board("recommend"), jobs=(odd,))) as served:
        quoted = "a%2Fb%20c%25d%3Fe%2Ftimeline"
        assert served.get(f"/api/v1/jobs/{quoted}/timeline").json["generation"] == 42


def test_what_no_address_takes_is_refused(served: Serving) -> None:
    for path, ways in DOCUMENT["paths"].items():
        if "get" in ways:
            found = served.get(path.replace("{name}", "gpt3-175b") + "?since=abc")
            assert (found.status, found.json["error"][:26]) == (
                400,
                "unknown parameter 'since';",
            ), path
    for path in ("gpus?node=nope", "gpus?job=nope", "history?job=nope", "board/", "profiles/"):
        assert served.get(f"/api/v1/{path}").status == 404, path
    assert served.get("/api/v1/gpus?node=node1").json["total"] == 4
    assert served.get("/api/v1/events?detail=2").status == 400
    assert served.get("/api/v1/events?limit=2&limit=3").status == 400


@pytest.mark.parametrize(
    "half",
    [b"", b"\x16\x03\x01\r\n\r\n", b"GET / HT", (b"POST /api/v1/pause HTTP/1.1\r\n"
     b"Host: localhost\r\ncontent-type: application/json\r\nx-joulecut-command: 1\r\n"
     b"content-length: 9\r\n\r\n{")],
)  # fmt: skip
def test_half_a_request_is_not_kept_and_leaves_no_line(
    half: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "REQUEST_S_MAX", 0.2)

    async def obey(_: Order) -> Done:
        raise AssertionError("half a command was carried out")

    with Serving(boards.board(), obey=obey) as served:
        where = served.url.removeprefix("http://").partition(":")
        with socket.create_connection((where[0], int(where[2])), timeout=WAIT_S) as peer:
            peer.sendall(half)
            assert b"200" not in peer.recv(4096)[:20]
        assert not caplog.records
        assert served.get("/healthz").status == 200


def test_events_by_job_and_limit(served: Serving) -> None:
    events = served.get("/api/v1/events?job=gpt3-175b&limit=2").json["events"]
    assert [event["kind"] for event in events] == ["renew", "verify"]
    everything = served.get("/api/v1/events").json["events"]
    assert len(everything) == len(boards.EVENTS)
    assert everything[3]["detail"] == {"generation": 42}


def test_an_unknown_job_is_named_with_those_there_are(served: Serving) -> None:
    for path in ("/api/v1/jobs/x", "/api/v1/jobs/x/timeline"):
        answer = served.get(path)
        assert answer.status == 404
        assert answer.json == {"error": "no job 'x' in the policy; there are: gpt3-175b"}


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/api/v2/board",
        "/static/nothing.js",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
    ],
)
def test_unknown_addresses_are_json_errors(served: Serving, path: str) -> None:
    answer = served.get(path)
    assert answer.status == 404
    assert list(answer.json) == ["error"]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9440", "localhost.evil.example", "10.0.0.1", "127.0.0.1.evil"],
)
def test_a_foreign_host_name_is_refused(served: Serving, host: str) -> None:
    for path in ("/", "/api/v1/board", "/metrics", "/api/v1/cluster", "/static/page.css"):
        answer = served.get(path, host=host)
        assert answer.status == 403
        assert list(answer.json) == ["error"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:9440", "127.8.8.8", "[::1]:9440"]
)
def test_loopback_names_are_served(served: Serving, host: str) -> None:
    assert served.get("/healthz", host=host).status == 200


def test_a_missing_host_is_refused(served: Serving) -> None:
    with socket.create_connection(("127.0.0.1", served.server.port), WAIT_S) as raw:
        raw.sendall(b"GET /api/v1/board HTTP/1.0\r\n\r\n")
        assert b" 403 " in raw.makefile("rb").readline()


def test_answers_cannot_be_read_or_framed_by_other_sites(served: Serving) -> None:
    for path in ("/", "/api/v1/board", "/static/main.js", "/nothing"):
        headers = served.get(path).headers
        assert "access-control-allow-origin" not in headers
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]


def test_before_the_first_pass_every_answer_says_so() -> None:
    with Serving(None) as served:
        for path in ("/api/v1/board", "/api/v1/cluster", "/api/v1/events", "/healthz"):
            answer = served.get(path)
            assert answer.status == 503
            assert "first pass" in answer.json["error"]
        assert served.get("/").status == 200
        assert served.get("/metrics").status == 404


def test_health_says_when_passes_stopped() -> None:
    with Serving(replace(boards.board(), interval_s=5.0)) as served:
        assert served.get("/healthz").json["ok"] is True
        served.publisher._published_s -= 3600.0  # as if an hour had gone by
        answer = served.get("/healthz")
        assert answer.status == 503
        ago = re.search(r"the last pass ended (36\d\d) s ago", answer.json["error"])
        assert ago, answer.json


def test_a_taken_port_is_one_line() -> None:
    with (
        Serving(boards.empty()) as served,
        pytest.raises(Unavailable, match="cannot listen on"),
        Serving(boards.empty(), port=served.server.port),
    ):
        pass


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1", "http://127.0.0.1:9"), ("::1", "http://[::1]:9")]
)
def test_the_url_is_one_that_can_be_opened(host: str, url: str) -> None:
    assert Server(build(Publisher()), host, 9).url == url


def test_a_job_of_another_controller_is_shown_once_that_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("joulecut_controller.web.app.POLL_S", 0.02)
    whole, asked = boards.board(), dict[str, float]()
    name, rows = whole.jobs[0].view.policy.name, tuple(map(STANDING.json, whole.jobs))
    shown = job_json(whole.jobs[0], whole.view, policy=whole.policy)

    def seen(**jobs: Json) -> Board:
        """As a controller without jobs sees the other, which shows these."""
        part = replace(part_of(whole), controller="host:9440", rows=rows, jobs=jobs)
        return replace(whole, jobs=(), elsewhere=((3.0, json.dumps(asdict(part))),))

    def answer() -> None:
        until_s = time.monotonic() + WAIT_S
        while name not in asked and time.monotonic() < until_s:
            time.sleep(0.01)
        served.publish(seen(**{name: shown}))

    with Serving(seen(), asked=asked) as served:
        answering = threading.Thread(target=answer)
        answering.start()
        found = served.get(f"/api/v1/jobs/{name}").json
        answering.join(WAIT_S)
        assert found == json.loads(encode(shown)) | {"controller": "host:9440", "age_s": 3.0}
        assert served.get(f"/api/v1/jobs/{name}/timeline").status == 404
        monkeypatch.setattr("joulecut_controller.web.app.ELSEWHERE_S", 0.0)
        late = served.get(f"/api/v1/jobs/{name}").json
        assert late["error"] == f"job '{name}' is at the controller host:9440"
        assert served.get("/api/v1/jobs/none").status == 404


def test_the_granularity_shown_is_of_the_plan_that_runs() -> None:
    """The next plan is made at another one while this one is held."""
    shown = boards.job("enforce")
    assert shown.applied is not None
    next_one = replace(shown, choice=replace(shown.choice, granularity="changes"))
    assert (shown.applied.granularity, next_one.granularity) == ("gpu", "gpu")
    assert replace(next_one, applied=None).granularity == "changes"
