"""A real web server in this process, for tests of what a client sees.

Server, publisher and application are the product's own; only the boards are made up. They
run in an event loop of their own thread, as they run beside the controller's passes.
"""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from joulecut_controller.board import Board
from joulecut_controller.cluster.history import History
from joulecut_controller.orders import Commander
from joulecut_controller.ports import Store
from joulecut_controller.web.app import build
from joulecut_controller.web.board_cache import Publisher
from joulecut_controller.web.commands import CommandChannel
from joulecut_controller.web.links import Links
from joulecut_controller.web.senders import Roles
from joulecut_controller.web.server import Server
from joulecut_wire.web_config import WebConfig

WAIT_S = 90.0  # for a machine that stands still now and then; met early on every other


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Serving:
    """`with Serving(board) as served:` serves it on a free loopback port; see `url`."""

    def __init__(
        self,
        board: Board | None = None,
        *,
        port: int = 0,
        metrics: Callable[[bool], bytes] | None = None,
        store: Store | None = None,
        history: History | None = None,
        links: Links | None = None,
        obey: Commander | None = None,
        asked: dict[str, float] | None = None,
        web: WebConfig | None = None,
        roles: Roles = Roles(),  # noqa: B008 - frozen
    ) -> None:
        self._first = board
        self._port = port
        self._metrics = metrics
        self._store = store
        self._history = history
        self._links = links
        self._obey, self._asked = obey, {} if asked is None else asked
        self._web, self._roles = web, roles
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="web")
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self.publisher = Publisher()
        if self._first is not None:
            self.publisher.publish(self._first)
        channel = CommandChannel()
        if self._obey is not None:
            channel.open(self._obey)
        app = build(
            self.publisher,
            channel=channel,
            asked=self._asked,
            web=self._web,
            roles=self._roles,
            metrics=self._metrics,
            store=self._store,
            history=self._history,
            links=self._links,
        )
        self.server = Server(app, "127.0.0.1", self._port, self._web)
        try:
            await self.server.start()
        except BaseException as failure:  # handed to the test's thread
            self.failure = failure
            return
        finally:
            self._ready.set()
        await self._end.wait()
        await self.server.stop()

    @property
    def url(self) -> str:
        return self.server.url

    def publish(self, board: Board) -> None:
        self._loop.call_soon_threadsafe(self.publisher.publish, board)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the server does not stop"

    def get(self, path: str, *, method: str = "GET", host: str | None = None) -> Answer:
        headers = {} if host is None else {"Host": host}
        return self._sent(urllib.request.Request(self.url + path, method=method, headers=headers))

    def post(self, path: str, body: bytes = b"{}", **headers: str) -> Answer:
        """A command as the command line sends it; `headers` with _ for - change that."""
        sent = {"content-type": "application/json", "x-joulecut-command": "1"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in sent.items() if value}
        return self._sent(urllib.request.Request(self.url + path, body, sent, method="POST"))

    def _sent(self, request: urllib.request.Request) -> Answer:
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return Answer(answer.status, _lower(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _lower(error.headers), error.read())


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
