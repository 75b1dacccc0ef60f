"""Runs the web application in its own thread and event loop.

A pass over a large fleet keeps the controller's loop busy for tenths of a second, and requests must
not wait for it. By default uvicorn takes over signals and logging, which belong to the controller;
this module prevents both.
"""

import asyncio
import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Iterator

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from joulecut_controller.web.senders import NAMES
from joulecut_wire.errors import Unavailable
from joulecut_wire.web_config import RotatingContext, WebConfig

CONNECTIONS_MAX = 512  # pages and scrapers; more is a fault
GRACE_S = 2.0  # for responses in progress at a stop
BACKLOG = 128
REQUEST_S_MAX = 30.0  # for a whole request to come in: 6 MB of a profile over a slow link
# Beside two busy threads, 10 MB took 25 ms with switch intervals of 0.25 ms and 41 ms with 1 ms
# (medians; the loop was late by 2 and 5 ms); the busy threads lost 5 %.
TURN_S = 0.00025


class Server:
    """One listening socket and its application. `await start()`, then `await stop()`."""

    def __init__(self, app: ASGIApp, host: str, port: int, web: WebConfig | None = None) -> None:
        """Speaks TLS where `web` says so."""
        self._app = app
        self._web = web
        self._host = host
        self._port = port
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._uvicorn: _Quiet | None = None

    @property
    def port(self) -> int:
        """The port in use; after `start`, also where 0 was given."""
        return self._port

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        scheme = "https" if self._web and self._web.context() else "http"
        return f"{scheme}://{host}:{self._port}"

    async def start(self) -> None:
        """Binds and serves. Raises Unavailable where the address cannot be had."""
        listener = _bind(self._host, self._port)
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            http=_Impatient,
            lifespan="off",
            ws="none",
            log_config=None,  # logging belongs to the controller
            proxy_headers=False,  # the peer is who is connected, whatever it says of others
            access_log=False,  # a line per scrape would bury the decisions
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=int(GRACE_S),
        )
        if self._web and self._web.context():
            config.load()  # which sets no TLS context of ours
            config.ssl = RotatingContext.of(self._web)
        serving = self._uvicorn = _Quiet(config)
        self._thread = threading.Thread(
            target=self._run, args=(serving, listener), name="web", daemon=True
        )
        self._thread.start()
        while not serving.started and self._thread.is_alive():
            await asyncio.sleep(0.01)
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Stops listening and ends all answers."""
        if self._uvicorn is not None and self._thread is not None:
            self._uvicorn.should_exit = True
            await asyncio.to_thread(self._thread.join)

    def _run(self, serving: "_Quiet", listener: socket.socket) -> None:
        # For the whole process: a response takes many short turns, and a pass or solver that keeps
        # the interpreter for the usual 5 ms would delay each of them.
        sys.setswitchinterval(TURN_S)
        try:
            asyncio.run(serving.serve([listener]))
        except BaseException as failure:  # raised by `start`
            self._failure = failure


# A line for each stranger who speaks TLS, or nothing, to a plain port would bury the decisions.
logging.getLogger("uvicorn.error").addFilter(
    lambda one: not str(one.msg).startswith("Invalid HTTP")
)


class _Impatient(H11Protocol):
    """uvicorn's protocol, which drops a peer that does not end its request in time, and hands on
    the names in its client certificate.

    Else half a request would take one of CONNECTIONS_MAX for ever.
    """

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        given = (transport.get_extra_info("peercert") or {}).get("subjectAltName", ())
        names = frozenset(name for kind, name in given if kind in ("DNS", "URI"))
        self.app_state = {**self.app_state, NAMES: names}
        self._limit = self.loop.call_later(REQUEST_S_MAX, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        incomplete = self.conn.their_state in {h11.IDLE, h11.SEND_BODY}
        if self._limit is None and incomplete:
            self._limit = self.loop.call_later(REQUEST_S_MAX, self.transport.close)
        elif self._limit is not None and not incomplete:
            self._limit.cancel()
            self._limit = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)


class _Quiet(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unavailable(
            f"cannot listen on {host}:{port}: {reason}; choose another listen.http"
        ) from None
