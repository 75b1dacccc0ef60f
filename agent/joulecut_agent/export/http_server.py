"""Where `/metrics` is fetched: a small HTTP server that a slow or hostile reader cannot hold.

Plain by default, as exporters are; with a web configuration it speaks TLS and asks for
passwords. `/healthz` (does it live) and `/readyz` (is it of use) never do; no driver is asked.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, Protocol

from prometheus_client.exposition import choose_encoder

from joulecut_agent import __version__
from joulecut_wire.errors import Unavailable
from joulecut_wire.web_config import WebConfig

SCRAPES_MAX = 8  # at once; one Prometheus and a few people
REQUEST_WAIT_S = 5.0  # who is slower than this holds a place for nothing
SEAT_S = 10.0  # and who takes this long in all gives it up where another one wants it
EVICT_WAIT_S = 0.5  # its thread ends within a moment
ANSWER_BYTES = 65_536  # head and body leave in one piece, and wake their reader once
TEXT = "text/plain; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
CHALLENGE = {"WWW-Authenticate": 'Basic realm="joulecut"'}


class Probe(Protocol):
    """An answer to a probe: see `heartbeat.Health`."""

    @property
    def well(self) -> bool: ...

    @property
    def text(self) -> str: ...


class Teller(Protocol):
    """What `/metrics` says, in one of two formats."""

    def __call__(self, *, openmetrics: bool) -> bytes: ...


class Exporter:
    """A small HTTP server: `/metrics`, and what `probes` answer by path."""

    def __init__(
        self,
        tell: Teller,
        host: str,
        port: int,
        web: WebConfig | None = None,
        probes: Mapping[str, Callable[[], Probe]] = MappingProxyType({}),
    ) -> None:
        """Binds. Raises Unavailable where the address is taken."""
        try:
            self._http = _server(host)((host, port), _handler(tell, web, probes))
        except OSError as error:
            raise Unavailable(f"metrics cannot listen on {host}:{port}: {error.strerror}") from None
        self._http.web = web
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)

    def start(self) -> None:
        """Serves until the process ends: a shutdown is worth seeing too."""
        self._thread.start()

    def _serve(self) -> None:
        self._http.serve_forever(poll_interval=60.0)  # nobody ever asks it to stop


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 2 * SCRAPES_MAX
    web: WebConfig | None = None

    def __init__(self, *args: Any) -> None:
        self._seats = threading.BoundedSemaphore(SCRAPES_MAX)
        self._seated_s: dict[Any, float] = {}  # since when; entries come and go whole
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._seats.acquire(timeout=EVICT_WAIT_S if self._evict() else 0.0):
            self._seated_s[request] = time.monotonic()
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _evict(self) -> bool:
        """Ends whoever sits too long, a byte at a time; whether a seat is free in a moment."""
        if len(self._seated_s) < SCRAPES_MAX:
            return False
        now_s = time.monotonic()
        slow = [one for one, since_s in self._seated_s.copy().items() if now_s - since_s > SEAT_S]
        for one in slow:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        return bool(slow)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._seated_s.pop(request, None)
            self._seats.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        context = self.web.context() if self.web else None
        if context is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(REQUEST_WAIT_S)
        # Here and not at the listening socket: a handshake must not hold up the others.
        with context.wrap_socket(request, server_side=True) as line:
            super().finish_request(line, client_address)
            line.settimeout(0.0)
            with contextlib.suppress(OSError, ValueError):
                line.unwrap()  # tells the end; nobody waits for the answer

    def handle_error(self, *_: object) -> None:
        """A client that hangs up, or fails the handshake, is no event."""


class _Http6(_Http):
    address_family = socket.AF_INET6


def _server(host: str) -> type[_Http]:
    return _Http6 if ":" in host else _Http


def _handler(
    tell: Teller, web: WebConfig | None, probes: Mapping[str, Callable[[], Probe]]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_WAIT_S
        wbufsize = ANSWER_BYTES
        server_version = f"joulecut-agent/{__version__}"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if probe := probes.get(path):
                told = probe()
                self._send(200 if told.well else 503, TEXT, told.text.encode())
            elif web and not web.admits(self.headers.get("Authorization")):
                self._send(401, TEXT, b"user and password, please\n", CHALLENGE)
            elif path == "/metrics":
                _, kind = choose_encoder(self.headers.get("Accept") or "")
                self._send(200, kind, tell(openmetrics=kind.startswith(OPENMETRICS)))
            else:
                self._send(404, TEXT, b"see /metrics, /healthz and /readyz\n")

        def _send(
            self, status: int, kind: str, body: bytes, extra: Mapping[str, str] | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in {**(web.headers() if web else {}), **(extra or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A scrape is no event."""

    return Handler
