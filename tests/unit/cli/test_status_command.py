"""`joulecut status` and `joulecut explain` as a person types them, against a real server."""

import contextlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import boards
import commands
import pytest
import yaml
from certificates import Authority
from hypothesis import given
from hypothesis import strategies as st
from serving import WAIT_S, Serving

from joulecut_cli import controller_client
from joulecut_controller.board import standby_board
from joulecut_controller.orders import Done, Order
from joulecut_controller.ports import FleetState
from joulecut_controller.web.board_json import board_json
from joulecut_controller.web.commands import STANDBY
from joulecut_wire.web_config import WebConfig


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    with Serving(boards.board()) as server:
        yield server


def joulecut(
    *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # A proxy in the environment must not be asked for a controller on this machine.
    proxy = {"http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
    return commands.run(*words, env={**proxy, **(environment or {})})


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_status_json_is_the_board(served: Serving) -> None:
    done = joulecut("status", "--json", "--controller", served.url + "/")
    assert done.returncode == 0
    assert json.loads(done.stdout) == served.get("/api/v1/board").json


def test_explain_json_has_job_and_events(served: Serving) -> None:
    done = joulecut("explain", "gpt3-175b", "--json", "--controller", served.url)
    shown = json.loads(done.stdout)
    assert shown["job"] == served.get("/api/v1/jobs/gpt3-175b").json
    assert [event["kind"] for event in shown["events"]] == ["renew", "verify", "apply", "plan"]


@pytest.mark.parametrize(
    "url",
    [
        "", "x", "127.0.0.1:9440", "ftp://127.0.0.1", "http://", "http://:80", "http://h:x",
        "http://h:99999", "http://h/api", "http://h?a=b", "http://u@h", "http://[::1", "http://h h",
        "file:///etc/passwd", "http://h\n", "http://ü.example", "http://" + "h" * 70_000,
        "http://" + "h" * 64 + ".example", "http://a..b",
    ],
)  # fmt: skip
def test_a_bad_url_is_bad_input(url: str) -> None:
    done = joulecut("status", "--controller", url)
    assert done.returncode == 2
    assert "--controller" in one_line(done)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>", "its answer is not JSON"),
        (200, b"[]", "its answer is not JSON"),
        (200, b'{"hello": 1}', "its answer lacks"),
        (200, b"\xff\xfe\x00", "its answer is not JSON"),
        (500, b"oops", "500"),
        (404, b'{"error": ["x"]}', "x"),
        (200, b"[" * 100_000, "its answer is not JSON"),
        (200, b'{"at_unix_s": ' + b"9" * 400 + b"}", "its answer lacks"),
    ],
)
def test_something_else_on_the_port_is_named(status: int, body: bytes, said: str) -> None:
    done = _asked_of(status, body, "status")
    assert done.returncode == 1
    assert said in one_line(done)


def test_a_clock_that_is_ahead_of_the_controllers_is_named(
    served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = formatdate(time.time() - 600.0, usegmt=True)
    monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", lambda *_: late)
    done = _asked_of(200, served.get("/api/v1/brief").body, "status")
    assert "The clock of this machine is 10 min ahead of the controller's clock" in done.stdout


@pytest.mark.parametrize("words", [("explain", "a"), ("doctor", "a")])
def test_another_json_service_on_the_port_is_named(words: tuple[str, ...]) -> None:
    done = _asked_of(200, b'{"jobs": 5}', *words)
    assert done.returncode == 1
    assert "is not a Joulecut controller of this version" in one_line(done)


@given(st.data(), st.sampled_from([("status",), ("doctor", "gpt3-175b"), ("explain", "gpt3-175b")]))
def test_right_keys_with_wrong_values_are_one_line(data: st.DataObject, words: tuple[str]) -> None:
    """Whatever stands at one place of a board: the page, or one line that names the version."""
    board = json.loads(json.dumps(board_json(boards.board())))
    holder, key = data.draw(st.sampled_from(list(_places(board))))
    holder[key] = data.draw(st.sampled_from([None, True, -1, 10**400, 1e308, "x", [], [1], {}]))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("board", "brief"):
            patch.setattr(controller_client.Controller, name, lambda _: board)
        patch.setattr(controller_client.Controller, "job", lambda *_: board["jobs"][0])
        patch.setattr(controller_client.Controller, "events", lambda *_: [])
        done = joulecut(*words)
    if done.stdout == "":
        assert done.returncode in (1, 2)
        one_line(done)


def _places(value: object) -> Iterator[tuple[dict[str, object], str]]:
    """Every key of every mapping below a value."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield value, key
            yield from _places(inside)
    elif isinstance(value, list):
        for inside in value[:2]:
            yield from _places(inside)


def _asked_of(status: int, body: bytes, *words: str) -> subprocess.CompletedProcess[str]:
    """A command at a server that gives one answer to everything."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        done = joulecut(*words, "--controller", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join(WAIT_S)
    return done


def test_an_answer_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_client, "ANSWER_TIMES", 0.05)
    closed = threading.Event()

    def drip(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError):
            peer.recv(4096)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not closed.wait(0.05):
                peer.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        done = joulecut("status", "--controller", f"http://127.0.0.1:{listener.getsockname()[1]}")
        closed.set()
        thread.join(WAIT_S)
    assert done.returncode == 1
    assert "its answer is not complete" in one_line(done)


def test_something_that_is_not_http_is_named() -> None:
    def greet(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(b"220 mail.example ESMTP\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=greet, args=(listener,))
        thread.start()
        done = joulecut("status", "--controller", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(WAIT_S)
    assert done.returncode == 1
    assert "does not speak HTTP" in one_line(done)


@pytest.fixture(scope="module")
def standing() -> Iterator[Serving]:
    board = standby_board(
        FleetState(boards.nodes(), ()),
        "standby: joulecut-controller ctl-1:9440 leads",
        leader="ctl-1:9440",
        number=1,
        interval_s=5.0,
        now_s=1.0,
        unix_s=boards.NOON_UNIX_S,
    )

    async def nobody(_: Order) -> Done:
        return Done(STANDBY, "standby")

    with Serving(board, obey=nobody) as server:
        yield server


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "gpt3-175b"), ("pause", "gpt3-175b"),
        ("resume", "--all"), ("restore", "--all"),
    ],
)  # fmt: skip
def test_a_standby_says_who_leads(standing: Serving, words: tuple[str, ...]) -> None:
    """Not that the policy has no such job: this one has no policy."""
    done = joulecut(*words, "--controller", standing.url)
    assert done.returncode == 1
    line = one_line(done)
    assert "is a standby without jobs" in line
    assert line.count("use the leader: --controller http://ctl-1:9440") == 1


def test_status_of_a_standby_names_the_leader(standing: Serving) -> None:
    done = joulecut("status", "--controller", standing.url)
    assert done.returncode == 0
    assert "standby, no commands" in done.stdout
    assert "Joulecut-controller ctl-1:9440 leads." in done.stdout
    assert "--controller http://ctl-1:9440" in done.stdout
    assert "epoch 0" not in done.stdout


def test_a_certificate_nobody_vouches_for_is_named_and_what_to_do(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    leaf = ca.leaf("server", "IP:127.0.0.1")
    (tmp_path / "web.yml").write_text(
        yaml.safe_dump(
            {"tls_server_config": {"cert_file": str(leaf.cert), "key_file": str(leaf.key)}}
        )
    )
    with Serving(boards.board(), web=WebConfig(tmp_path / "web.yml", lambda _: None)) as served:
        url = served.url.replace("http://", "https://")
        line = one_line(joulecut("status", "--controller", url))
        assert "has a certificate that is not trusted here" in line
        assert "SSL_CERT_FILE=ca.crt" in line
        line = one_line(joulecut("status", "--controller", url.replace("https", "http")))
        assert "https://" in line.split(": ", 2)[2]
        done = joulecut("status", "--controller", url, environment={"SSL_CERT_FILE": str(ca.cert)})
        assert done.returncode == 0, done.stderr


def test_encryption_where_there_is_none(served: Serving) -> None:
    line = one_line(joulecut("status", "--controller", served.url.replace("http", "https")))
    assert "is it http:// instead of https://?" in line
