"""Commands over HTTP: who may, what is refused, and what is answered."""

import asyncio
import json
import os
from collections.abc import Iterator

import boards
import pytest
from serving import Serving

from joulecut_controller.orders import Done, Order

PATHS = (
    "/api/v1/jobs/gpt3-175b/pause",
    "/api/v1/jobs/gpt3-175b/resume",
    "/api/v1/pause",
    "/api/v1/resume",
    "/api/v1/restore",
)
ALL = b'{"all": true}'
US = f"loopback, uid {os.geteuid()}"


class Clerk:
    """Takes orders down, and answers what it was told to."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.answer = Done("done so", jobs=("gpt3-175b",), gpus=8)

    async def obey(self, order: Order) -> Done:
        await asyncio.sleep(0)
        self.orders.append(order)
        return self.answer


@pytest.fixture
def clerk() -> Clerk:
    return Clerk()


@pytest.fixture
def served(clerk: Clerk) -> Iterator[Serving]:
    with Serving(boards.board(), obey=clerk.obey) as server:
        yield server


def test_every_command_reaches_the_loop_whole(served: Serving, clerk: Clerk) -> None:
    said = b'{"reason": "paged", "by": "alice@laptop"}'
    for path in PATHS[:2]:
        assert served.post(path, said).json == {
            "op": path.rpartition("/")[2],
            "complete": True,
            "sentence": "done so",
            "jobs": ["gpt3-175b"],
            "gpus": 8,
            "unanswered": [],
            "by": f"alice@laptop ({US})",
        }
    for path in PATHS[2:]:
        assert served.post(path, ALL).status == 200
    assert served.post("/api/v1/restore", b'{"node": "node1"}').status == 200
    assert served.post("/api/v1/restore", b'{"job": "a/b"}').status == 200
    assert served.post("/api/v1/adopt", b'{"node": "node1"}').status == 200
    assert served.post("/api/v1/adopt", b'{"all": true}').status == 400
    assert served.post("/api/v1/jobs/a%2Fb%20%C3%A9/pause", b"").status == 200
    by, reason = f"alice@laptop ({US})", "paged"
    assert clerk.orders == [
        Order("pause", job="gpt3-175b", reason=reason, by=by),
        Order("resume", job="gpt3-175b", reason=reason, by=by),
        Order("pause", by=US),
        Order("resume", by=US),
        Order("restore", by=US),
        Order("restore", node="node1", by=US),
        Order("restore", job="a/b", by=US),
        Order("adopt", node="node1", by=US),
        Order("pause", job="a/b é", by=US),
    ]


@pytest.mark.parametrize(
    ("refused", "status"), [("unknown", 404), ("conflict", 409), ("standby", 503), ("failed", 503)]
)
def test_refusals_are_one_sentence(
    served: Serving, clerk: Clerk, refused: str, status: int
) -> None:
    clerk.answer = Done("not so", refused)
    answer = served.post(PATHS[0])
    assert (answer.status, answer.json) == (status, {"error": "not so"})


def test_a_standby_says_that_it_does_not_lead() -> None:
    with Serving(boards.board()) as served:
        for path in PATHS:
            answer = served.post(path, ALL if "jobs" not in path else b"")
            assert answer.status == 503
            assert "is a standby" in answer.json["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATHS[0], b"["), (PATHS[0], b"[]"), (PATHS[0], b"\xff"), (PATHS[0], b"[" * 10_000),
        (PATHS[0], b'{"all": true}'), (PATHS[0], b'{"reason": 7}'), (PATHS[0], b'{"by": null}'),
        (PATHS[0], b'{"reason": "a\\nb"}'), (PATHS[0], json.dumps({"by": "x" * 101}).encode()),
        (PATHS[0], b'{"reason": "\\ud800"}'),
        (PATHS[2], b"{}"), (PATHS[2], b'{"all": false}'), (PATHS[2], b'{"job": "x"}'),
        (PATHS[4], b"{}"), (PATHS[4], b'{"job": ""}'), (PATHS[4], b'{"job": "a", "all": true}'),
        (PATHS[4], b'{"node": 3}'), (PATHS[4], b'{"node": "a", "job": "b"}'),
    ],
)  # fmt: skip
def test_bad_bodies_are_one_sentence(served: Serving, clerk: Clerk, path: str, body: bytes) -> None:
    answer = served.post(path, body)
    assert answer.status == 400
    assert list(answer.json) == ["error"]
    assert clerk.orders == []


def test_a_command_that_says_two_things_says_none(served: Serving, clerk: Clerk) -> None:
    answer = served.post(PATHS[4], b'{"job": "a", "job": "b"}')
    assert (answer.status, answer.json) == (400, {"error": "'job' is given twice"})
    assert clerk.orders == []


def test_a_body_too_large_is_refused(served: Serving, clerk: Clerk) -> None:
    assert served.post(PATHS[0], b" " * 20_000).status == 413
    assert clerk.orders == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "text/plain"}, 415),
        ({"content_encoding": "gzip"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"x_joulecut_command": ""}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"host": "evil.example"}, 403),
    ],
)
def test_another_site_cannot_command(
    served: Serving, clerk: Clerk, headers: dict[str, str], status: int
) -> None:
    for path in PATHS:
        assert served.post(path, ALL if "jobs" not in path else b"{}", **headers).status == status
    assert clerk.orders == []


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded", "via", "x_real_ip"])
def test_the_callers_of_a_proxy_are_no_people_of_this_machine(
    served: Serving, clerk: Clerk, header: str
) -> None:
    for path in PATHS:
        body = ALL if "jobs" not in path else b"{}"
        assert served.post(path, body, **{header: "127.0.0.1"}).status == 403
    assert clerk.orders == []


def test_the_page_itself_may_command(served: Serving, clerk: Clerk) -> None:
    answer = served.post(PATHS[0], origin=served.url, sec_fetch_site="same-origin")
    assert answer.status == 200
    assert len(clerk.orders) == 1


def test_nothing_else_takes_a_post(served: Serving, clerk: Clerk) -> None:
    for path in ("/", "/api/v1/board", "/api/v1/jobs/gpt3-175b", "/metrics",
                 "/api/v1/jobs/pause", "/api/v1/nodes/n/pause", "/pause"):  # fmt: skip
        assert served.post(path).status == 405, path
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert served.get(PATHS[2], method=method).status == 405
    assert served.get(PATHS[4]).status == 405
    assert clerk.orders == []
