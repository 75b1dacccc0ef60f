"""HTTP server of `/metrics`, `/healthz` and `/readyz`, bounded against slow or hostile clients.

Plain by default, as exporters are; with a web configuration it has TLS and passwords. The probes
need no password, and call no driver.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from joulecut_agent import __version__
from joulecut_agent.control.health import Health
from joulecut_wire.errors import Unavailable
from joulecut_wire.web_config import WebConfig

SCRAPES_MAX = 8  # answered at once; one Prometheus and some operators
CONNECTIONS_MAX = 2 * SCRAPES_MAX  # the rest is for probes, and for clients that are slow
PEER_MAX = SCRAPES_MAX  # of one address: kubelet, Prometheus and a script share 127.0.0.1
REQUEST_WAIT_S = 5.0  # for a whole request, and for each write
SLOT_S = 10.0  # a client that takes longer to read its answer is ended
ACCEPT_RETRY_S = 0.1
EVICT_WAIT_S = 0.5  # for its thread to end
ANSWER_BYTES = 65_536  # headers and body are sent in one piece
TEXT = "text/plain; charset=utf-8"
CHALLENGE = {"WWW-Authenticate": 'Basic realm="joulecut"'}


class Exporter:
    """Serves `/metrics`, and `probes` by path."""

    def __init__(
        self, collect: Callable[[], Collector], host: str, port: int, web: WebConfig | None = None,
        probes: Mapping[str, Callable[[], Health]] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Binds. Raises Unavailable if the address is taken."""
        try:
            self._http = _Http((host, port), _handler(collect, web, probes))
        except OSError as error:
            raise Unavailable(f"metrics cannot listen on {host}:{port}: {error.strerror}") from None
        self._http.web = web
        self.port: int = self._http.server_address[1]
        serve = partial(self._http.serve_forever, poll_interval=REQUEST_WAIT_S)  # it never stops
        self._thread = threading.Thread(target=serve, name="metrics", daemon=True)

    def start(self) -> None:
        """Serves until the process ends, through its shutdown too."""
        self._thread.start()


@dataclass(slots=True)
class _Connection:
    socket: Any
    since_s: float
    asked: bool = False  # whether its request has come as a whole

    def is_slow(self, now_s: float) -> bool:
        return now_s - self.since_s > (SLOT_S if self.asked else REQUEST_WAIT_S)


class _Http(ThreadingHTTPServer):
    """A connection without a whole request gives way to a new one, the oldest first.

    A probe sends its request at once, so idle connections, however many, cannot keep it out.
    """

    daemon_threads = True
    request_queue_size = 2 * CONNECTIONS_MAX
    web: WebConfig | None = None

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        """Raises OSError if the address is taken."""
        self.scrapes = threading.BoundedSemaphore(SCRAPES_MAX)
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._connections: dict[Any, _Connection] = {}  # by the client's address and port
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

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

    def asked(self, client_address: Any) -> None:
        """The request of a client has come as a whole."""
        if connection := self._connections.get(client_address):
            connection.asked = True

    def get_request(self) -> tuple[Any, Any]:
        """The next connection. Without a free descriptor it waits, or the loop would spin."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(ACCEPT_RETRY_S)
            raise  # the server tries again

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._has_slot(client_address[0]):
            self.shutdown_request(request)
            return
        self._connections[client_address] = _Connection(request, time.monotonic())
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread is left
            self._leave(client_address)
            raise

    def service_actions(self) -> None:
        """Ends slow clients, also while no other waits."""
        now_s = time.monotonic()
        for address, connection in self._connections.copy().items():
            if connection.is_slow(now_s):
                self._end(address)

    def _has_slot(self, host: str) -> bool:
        """Takes a slot, if need be from a connection of `host`, or from any."""
        open_now = self._connections.copy()
        crowd = [address for address in open_now if address[0] == host]
        if len(crowd) < PEER_MAX:
            if self._slots.acquire(blocking=False):
                return True
            crowd = list(open_now)
        now_s = time.monotonic()
        ending = [a for a in crowd if not open_now[a].asked or open_now[a].is_slow(now_s)]
        if not ending:
            return False
        self._end(min(ending, key=lambda address: open_now[address].since_s))
        return self._slots.acquire(timeout=EVICT_WAIT_S)

    def _end(self, address: Any) -> None:
        """Its thread then finds the end of the connection, and leaves the slot."""
        if connection := self._connections.pop(address, None):
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(client_address)

    def _leave(self, client_address: Any) -> None:
        self._connections.pop(client_address, None)
        self._slots.release()

    def handle_error(self, *_: object) -> None:
        """A client that hangs up, or fails the handshake, is not logged."""


def _handler(
    collect: Callable[[], Collector], web: WebConfig | None,
    probes: Mapping[str, Callable[[], Health]],
) -> type[BaseHTTPRequestHandler]:  # fmt: skip
    class Handler(BaseHTTPRequestHandler):
        server: _Http
        timeout = REQUEST_WAIT_S
        wbufsize = ANSWER_BYTES
        server_version = f"joulecut-agent/{__version__}"
        sys_version = ""

        def do_GET(self) -> None:
            self.server.asked(self.client_address)
            path = self.path.partition("?")[0]
            if probe := probes.get(path):
                answer = probe()
                self._send(200 if answer.well else 503, TEXT, answer.text.encode())
            elif web and not web.admits(self.headers.get("Authorization")):
                self._send(401, TEXT, b"user name and password required\n", CHALLENGE)
            elif path == "/metrics":
                self._scrape()
            else:
                self._send(404, TEXT, b"see /metrics, /healthz and /readyz\n")

        def _scrape(self) -> None:
            if not self.server.scrapes.acquire(blocking=False):
                self._send(503, TEXT, b"too many scrapes at once\n")
                return
            try:
                encode, kind = choose_encoder(self.headers.get("Accept") or "")
                self._send(200, kind, encode(collect()))
            finally:
                self.server.scrapes.release()

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
