"""A query to a server that is not well: one sentence, whatever it answers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from held_port import held_port
from joulecut_dashboards.asked import ask

from joulecut_wire.errors import Unavailable


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A query is no event."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, b"Service Unavailable", "does not answer: Service Unavailable"),  # it still starts
        (503, b"", "does not answer: Service Unavailable"),
        (503, b"[]", "does not answer: Service Unavailable"),
        (200, b"<html>", "does not answer: "),
        (400, b'{"error": "parse error"}', ": parse error: up =="),
    ],
)
def test_what_is_no_answer_is_one_sentence(status: int, body: bytes, said: str) -> None:
    with answering(status, body) as url, pytest.raises(Unavailable) as caught:
        ask(url, "query", query="up ==")
    assert said in str(caught.value)


def test_nobody_there_is_one_sentence() -> None:
    with held_port() as port, pytest.raises(Unavailable, match="does not answer"):
        ask(f"http://127.0.0.1:{port}", "query", query="up")
