"""The HTTP client is bounded in time and size, whatever the peer sends."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from joulecut_wire.errors import BadInput
from joulecut_wire.http_client import Answer, NotHttp, Server, TooLong, checked_url

WITHIN_S = 0.3  # of the answers that must not be waited for
PATIENCE_S = 60.0  # ends a test that hangs
Serve = Callable[[socket.socket, threading.Event], None]


@contextlib.contextmanager
def peer(serve: Serve) -> Iterator[Server]:
    """A server that reads one request and lets `serve` answer it."""
    closed = threading.Event()

    def run(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            serve(connection, closed)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, args=(listener,))
        thread.start()
        yield Server("127.0.0.1", listener.getsockname()[1])
        closed.set()
        thread.join(PATIENCE_S)


def ask(server: Server, *, within_s: float = PATIENCE_S, bytes_max: int = 100) -> Answer:
    return server.ask("/", within_s=within_s, bytes_max=bytes_max)


@pytest.mark.parametrize(
    "begun",
    [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", b"H"],
    ids=["headers", "body", "status"],
)
def test_an_answer_that_drips_ends_in_time(begun: bytes) -> None:
    def drip(connection: socket.socket, closed: threading.Event) -> None:
        connection.sendall(begun)
        while not closed.wait(WITHIN_S / 10):
            connection.sendall(b" ")

    with peer(drip) as server, pytest.raises(TimeoutError, match="no answer within"):
        ask(server, within_s=WITHIN_S)


def test_a_silent_peer_ends_sooner_than_a_slow_one() -> None:
    def silent(_: socket.socket, closed: threading.Event) -> None:
        closed.wait(PATIENCE_S)

    with peer(silent) as server, pytest.raises(TimeoutError, match="no answer within"):
        server.ask("/", within_s=PATIENCE_S, silent_s=WITHIN_S, bytes_max=1)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"220 mail.example ESMTP\r\n", NotHttp),
        (b"", NotHttp),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", NotHttp),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n", NotHttp),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101, TooLong),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", NotHttp),
    ],
    ids=["mail", "nothing", "half", "headers", "long", "chunk"],
)
def test_what_is_no_complete_answer_is_named(sent: bytes, error: type[OSError]) -> None:
    with peer(lambda connection, _: connection.sendall(sent)) as server, pytest.raises(error):
        ask(server)


def test_a_complete_answer_comes_back_whole_whatever_its_status() -> None:
    sent = b"HTTP/1.1 404 Nope\r\nLocation: /\r\n\r\n" + b"x" * 100
    with peer(lambda connection, _: connection.sendall(sent)) as server:
        found = ask(server)
    assert (found.status, found.reason, found.headers["location"]) == (404, "Nope", "/")
    assert found.body == b"x" * 100


def test_json_that_python_cannot_read_is_a_value_error() -> None:
    for body in (b"[" * 100_000, b"{", b"9" * 5000, b"\xff"):
        found = Answer(200, "OK", None, body)
        with pytest.raises(ValueError):  # noqa: PT011 -- the text is Python's
            found.json()


@pytest.mark.parametrize(
    "url",
    [
        "http://me:s3cret@host:9090",
        "me:s3cret@host:9090",
        "http://me:s3/cr/s3cret@host:port",
        "http://host/?token=s3cret",
        "http://host?token=s3cret",
        "http://me:s3cret@[::1",
        "http://me:s3cret\n@host",
    ],
)
def test_a_url_that_is_refused_shows_no_secret(url: str) -> None:
    with pytest.raises(BadInput) as told:
        checked_url("prometheus.url", url, "a Prometheus", "a URL", prefix=True)
    assert "s3cret" not in str(told.value)
    assert "host" in str(told.value) or "::1" in str(told.value)
