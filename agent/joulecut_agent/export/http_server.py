"""HTTP server of `/metrics`, `/healthz` and `/readyz`, bounded against slow or hostile clients.

Plain by default, as exporters are; with a web configuration it has TLS and passwords. The probes
need no password, and call no driver.
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
from prometheus_client.registry import Collector

from joulecut_agent import __version__
from joulecut_wire.errors import Unavailable
from joulecut_wire.web_config import WebConfig

SCRAPES_MAX = 8  # at once; one Prometheus and some operators
REQUEST_WAIT_S = 5.0  # of one read or write
SLOT_S = 10.0  # a client that takes longer is ended if another waits
EVICT_WAIT_S = 0.5  # for its thread to end
ANSWER_BYTES = 65_536  # headers and body are sent in one piece
TEXT = "text/plain; charset=utf-8"
CHALLENGE = {"WWW-Authenticate": 'Basic realm="joulecut"'}


class Probe(Protocol):
    """Answer of a probe; see `health.Health`."""

    @property
    def well(self) -> bool: ...

    @property
    def text(self) -> str: ...


class Exporter:
    """Serves `/metrics`, and `probes` by path."""

    def __init__(
        self,
        collect: Callable[[], Collector],
        host: str,
        port: int,
        web: WebConfig | None = None,
        probes: Mapping[str, Callable[[], Probe]] = MappingProxyType({}),
    ) -> None:
        """Binds. Raises Unavailable if the address is taken."""
        try:
            self._http = _server(host)((host, port), _handler(collect, web, probes))
        except OSError as error:
            raise Unavailable(f"metrics cannot listen on {host}:{port}: {error.strerror}") from None
        self._http.web = web
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)

    def start(self) -> None:
        """Serves until the process ends, through its shutdown too."""
        self._thread.start()

    def _serve(self) -> None:
        self._http.serve_forever(poll_interval=60.0)  # it is never stopped


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 2 * SCRAPES_MAX
    web: WebConfig | None = None

    def __init__(self, *args: Any) -> None:
        self._slots = threading.BoundedSemaphore(SCRAPES_MAX)
        self._since_s: dict[Any, float] = {}  # by connection
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(timeout=EVICT_WAIT_S if self._evict() else 0.0):
            self._since_s[request] = time.monotonic()
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _evict(self) -> bool:
        """Ends connections that take too long; whether a slot becomes free."""
        if len(self._since_s) < SCRAPES_MAX:
            return False
        now_s = time.monotonic()
        slow = [one for one, since_s in self._since_s.copy().items() if now_s - since_s > SLOT_S]
        for one in slow:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        return bool(slow)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._since_s.pop(request, None)
            self._slots.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        context = self.web.context() if self.web else None
        if context is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(REQUEST_WAIT_S)
        # Not at the listening socket: a handshake must not delay other clients.
        with context.wrap_socket(request, server_side=True) as line:
            super().finish_request(line, client_address)
            line.settimeout(0.0)
            with contextlib.suppress(OSError, ValueError):
                line.unwrap()  # sends close_notify without waiting for the answer

    def handle_error(self, *_: object) -> None:
        """A client that hangs up, or fails the handshake, is not logged."""


class _Http6(_Http):
    address_family = socket.AF_INET6


def _server(host: str) -> type[_Http]:
    return _Http6 if ":" in host else _Http


def _handler(
    collect: Callable[[], Collector],
    web: WebConfig | None,
    probes: Mapping[str, Callable[[], Probe]],
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_WAIT_S
        wbufsize = ANSWER_BYTES
        server_version = f"joulecut-agent/{__version__}"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if probe := probes.get(path):
                answer = probe()
                self._send(200 if answer.well else 503, TEXT, answer.text.encode())
            elif web and not web.admits(self.headers.get("Authorization")):
                self._send(401, TEXT, b"user name and password required\n", CHALLENGE)
            elif path == "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept") or "")
                self._send(200, kind, encode(collect()))
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
            """Scrapes are not logged."""

    return Handler
