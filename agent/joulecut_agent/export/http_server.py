"""HTTP server of `/metrics`, `/healthz` and `/readyz`, bounded against slow or hostile clients.

Plain by default, as exporters are; with a web configuration it has TLS and passwords. The probes
need no password, and call no driver.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from joulecut_agent import __version__
from joulecut_agent.bounded_http import REQUEST_WAIT_S, BoundedHttp
from joulecut_agent.control.health import Health
from joulecut_wire.errors import Unavailable
from joulecut_wire.web_config import WebConfig

SCRAPES_MAX = 8  # answered at once; one Prometheus and some operators
CONNECTIONS_MAX = 2 * SCRAPES_MAX  # the rest is for probes, and for clients that are slow
PEER_MAX = SCRAPES_MAX  # of one address: kubelet, Prometheus and a script share 127.0.0.1
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


class _Http(BoundedHttp):
    web: WebConfig | None = None

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.scrapes = threading.BoundedSemaphore(SCRAPES_MAX)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        limits = {"connections_max": CONNECTIONS_MAX, "peer_max": PEER_MAX}
        super().__init__(address, handler, **limits)

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
