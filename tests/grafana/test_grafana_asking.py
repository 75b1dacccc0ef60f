"""A Prometheus that starts, fails or is none at all is told in one line."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from queries import ask

from joulecut_wire.errors import Unavailable


class Answering(BaseHTTPRequestHandler):
    """Every question is answered with what the class holds."""

    answer: ClassVar[tuple[int, bytes]] = (200, b"")

    def do_GET(self) -> None:
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Silent."""


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((503, b"Service Unavailable"), "does not answer: HTTP Error 503"),
        ((400, b'{"status": "error", "error": "parse error"}'), ": parse error: up{"),
        ((404, b"<html>"), ": Not Found: up{"),
        ((404, b"[1]"), ": Not Found: up{"),
        ((200, b"<html>"), "does not answer: "),
    ],
)
def test_what_is_no_answer_is_one_line(
    server: str, answer: tuple[int, bytes], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answering, "answer", answer)
    with pytest.raises(Unavailable) as raised:
        ask(server, "query", query="up{")
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_answer_is_its_data(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answering, "answer", (200, b'{"data": {"result": [1]}}'))
    assert ask(server, "query", query="up") == {"result": [1]}
