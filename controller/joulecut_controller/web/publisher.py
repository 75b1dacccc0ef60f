"""Publishes each new board to its readers: to routes as the newest value, to pages as a stream.

Nothing is queued. A stream (server-sent events, one `board` event a pass) that reads slowly gets
the newest board when it is ready for one; every board is whole, so what it missed does not matter.
A reader that stops reading is dropped. Publishing happens in one thread, reading in the event loop
of another or the same.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from joulecut_controller.board import Board
from joulecut_controller.web.responses import error_response, send_chunks


class Closed(Exception):
    """No further board will come: the controller is stopping."""


class Publisher:
    """Keeps the newest board only, whatever the number of readers."""

    def __init__(self) -> None:
        self._board: Board | None = None
        self._changed = asyncio.Event()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None  # of the readers
        self._published_s = -math.inf

    def publish(self, board: Board) -> None:
        """Replaces the board and wakes all readers."""
        self._board = board
        self._published_s = time.monotonic()
        self._wake()

    def current(self) -> Board | None:
        """The newest board; None before the first pass ended."""
        return self._board

    def age_s(self) -> float:
        """Seconds since the newest board was published; infinite before the first."""
        return time.monotonic() - self._published_s

    async def next(self, after_pass: int) -> Board:
        """The newest board whose pass number is not `after_pass`, waiting for one if need be.

        "Not", rather than "larger than": a restarted controller counts from 1 again.
        Raises Closed once `close` was called.
        """
        self._loop = asyncio.get_running_loop()
        while not self._closed:
            if self._board is not None and self._board.pass_number != after_pass:
                return self._board
            await self._changed.wait()
        raise Closed

    def close(self) -> None:
        """Ends all streams, so that they do not hold up a shutdown."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        loop = self._loop
        if loop is None:
            return  # no reader yet
        with contextlib.suppress(RuntimeError):  # the loop is closed: no readers left
            loop.call_soon_threadsafe(self._changed_now)

    def _changed_now(self) -> None:
        # A new event per change: no reader can miss one, and none can spin on an old one.
        self._changed.set()
        self._changed = asyncio.Event()


WATCHERS_MAX = 64  # browser tabs and wall screens of one team; each holds a socket
KEEPALIVE_S = 15.0  # below the 30-60 s after which proxies and NAT drop a silent connection
RETRY_MS = 1000  # delay before a browser reconnects

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would otherwise hold events back
)


class Stream:
    """The ASGI application behind /api/v1/stream. `encoded(board)` is the event's data."""

    def __init__(self, publisher: Publisher, encoded: Callable[[Board], Awaitable[bytes]]) -> None:
        self._publisher = publisher
        self._encoded = encoded
        self._watchers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._watchers >= WATCHERS_MAX:
            text = f"{WATCHERS_MAX} pages are connected already: close one"
            await error_response(503, text, {"retry-after": "10"})(scope, receive, send)
            return
        self._watchers += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            if scope["method"] != "HEAD":
                await self._feed_until_gone(receive, send)
            await send_chunks(send, b"", more=False)
        except (TimeoutError, OSError):
            return  # the reader is gone
        finally:
            self._watchers -= 1

    async def _feed_until_gone(self, receive: Receive, send: Send) -> None:
        feeding = asyncio.ensure_future(self._feed(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({feeding, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            feeding.cancel()
            gone.cancel()
            fed, _ = await asyncio.gather(feeding, gone, return_exceptions=True)
        if isinstance(fed, Exception):
            raise fed

    async def _feed(self, send: Send) -> None:
        await send_chunks(send, b"retry: %d\n\n" % RETRY_MS)
        shown = 0
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE_S):
                    board = await self._publisher.next(shown)
            except TimeoutError:
                await send_chunks(send, b": alive\n\n")
                continue
            except Closed:
                return
            shown = board.pass_number
            data = await self._encoded(board)
            await send_chunks(send, b"event: board\nid: %d\ndata: %b\n\n" % (shown, data))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
