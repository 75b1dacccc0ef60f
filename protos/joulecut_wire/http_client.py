"""One bounded HTTP request: the whole answer within one time and one size, whatever the peer sends.

The timeout of a socket bounds one read, so a peer that sends a byte at a time holds its reader for
ever. Here every wait ends at the same moment, those for headers too. Standard library only, without
proxies and redirects: the peers are on this machine or this network, and a password would go along.
"""

import http.client
import io
import json
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import urlsplit

from joulecut_wire.errors import BadInput

HTTP_PORT, HTTPS_PORT = 80, 443


class NotHttp(OSError):
    """The peer answers with something else than HTTP."""


class TooLong(OSError):
    """The answer is longer than its reader allows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer, whatever its status."""

    status: int
    reason: str
    headers: Message
    body: bytes

    def json(self) -> Any:
        """Raises ValueError, also for what is nested deeper than Python reads."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deeply") from None


@dataclass(frozen=True, slots=True)
class Server:
    """A peer; `context` makes it HTTPS."""

    host: str
    port: int
    context: ssl.SSLContext | None = None

    def ask(
        self,
        path: str,
        *,
        within_s: float,
        bytes_max: int,
        silent_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """GET, or POST with a body. The whole takes at most `within_s`, a silence of the peer at
        most `silent_s`. Raises OSError: TimeoutError, NotHttp, TooLong, and what connecting raises.
        """
        wait = _Wait(time.monotonic() + within_s, within_s if silent_s is None else silent_s)
        try:
            return self._ask(path, wait, bytes_max, headers or {}, body)
        except http.client.HTTPException as error:
            raise NotHttp(str(error) or type(error).__name__) from None
        except TimeoutError:
            late = time.monotonic() >= wait.ends_s and wait.each_s != within_s
            said = f"its answer is not complete after {within_s:.0f} s"
            raise TimeoutError(said if late else f"no answer within {wait.each_s:.0f} s") from None

    def _ask(
        self,
        path: str,
        wait: "_Wait",
        bytes_max: int,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> Answer:
        plain = socket.create_connection((self.host, self.port), timeout=wait.left_s())
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = http.client.HTTPConnection(self.host, self.port)
            if self.context is not None:
                plain.settimeout(wait.left_s())
                plain = self.context.wrap_socket(plain, server_hostname=self.host)
                connection.default_port = HTTPS_PORT
            connection.sock = _Timed(plain, wait)
            sent = {name: value.encode() for name, value in headers.items()}
            connection.request("GET" if body is None else "POST", path, body, sent)
            return _whole(connection.getresponse(), bytes_max)
        finally:
            plain.close()


@dataclass(frozen=True, slots=True)
class _Wait:
    """A wait takes at most `each_s`, and never beyond `ends_s` of the monotonic clock."""

    ends_s: float
    each_s: float

    def left_s(self) -> float:
        left_s = min(self.each_s, self.ends_s - time.monotonic())
        if left_s <= 0.0:
            raise TimeoutError
        return left_s


def _whole(answer: http.client.HTTPResponse, bytes_max: int) -> Answer:
    body = answer.read(bytes_max + 1)
    if len(body) > bytes_max:
        raise TooLong(f"more than {bytes_max} bytes")
    if answer.length:
        raise NotHttp(f"{answer.length} bytes of its answer are missing")
    return Answer(answer.status, answer.reason, answer.headers, body)


class _Timed(io.RawIOBase):
    """What http.client needs of a socket: it sends and reads, each within the time left."""

    def __init__(self, plain: socket.socket, wait: _Wait) -> None:
        self._plain, self._wait = plain, wait

    def sendall(self, data: bytes) -> None:
        self._plain.settimeout(self._wait.left_s())
        self._plain.sendall(data)

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """Nothing: http.client closes before the body is read, and the request at its end."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._plain.settimeout(self._wait.left_s())
        return self._plain.recv_into(buffer)


def server_of(url: str, context: ssl.SSLContext | None = None) -> Server:
    """The server of a checked URL; `context` counts for https only."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    if secure and context is None:
        context = ssl.create_default_context()
    port = parts.port or (HTTPS_PORT if secure else HTTP_PORT)
    return Server(parts.hostname or "", port, context if secure else None)


def _without_secrets(url: str) -> str:
    """For a message: without user, password and query."""
    return re.sub(
        r"[?].*", "?***", re.sub(r"^(\w+://)?.*@", r"\1***@", url, flags=re.DOTALL), flags=re.DOTALL
    )


def checked_url(where: str, url: str, what: str, allowed: str, *, prefix: bool = False) -> str:
    """The URL of `what` without a slash at its end; only with `prefix` may it have a path.

    Raises BadInput.
    """
    shown = _without_secrets(url)
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is none
        (parts.hostname or "").encode("idna")  # raises for what no resolver takes
    except ValueError as error:
        what = "a wrong port or name" if shown != url else str(error)
        raise BadInput(where, f"{shown}: {what}", allowed) from None
    path = parts.path.rstrip("/")
    plain = not (parts.query or parts.fragment or parts.username or (path and not prefix))
    if parts.scheme not in {"http", "https"} or not parts.hostname or not plain:
        raise BadInput(where, f"{shown!r} is not the URL of {what}", allowed)
    if any(ord(letter) <= 32 or ord(letter) > 126 for letter in url):
        raise BadInput(where, f"{shown!r} has characters that no URL may have", allowed)
    return f"{parts.scheme}://{parts.netloc}{path}"


def why(error: OSError) -> str:
    """The reason of a failed request in a few words."""
    return error.strerror or str(error) or type(error).__name__
