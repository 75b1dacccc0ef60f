"""Server-sent events: one `board` event a pass, for pages that stay open for weeks.

Nothing is queued. A watcher that reads slowly gets the newest board when it is ready for
one; a watcher that does not read at all is dropped; and there is room for a fixed number.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from joulecut_controller.board import Board
from joulecut_controller.web.answer import refusal
from joulecut_controller.web.pieces import push
from joulecut_controller.web.publisher import Closed, Publisher

WATCHERS_MAX = 64  # Browser tabs and wall screens of one operations team; each holds a socket.
KEEPALIVE_S = 15.0  # Below the 30-60 s after which proxies and NAT drop a silent connection.
RETRY_MS = 1000  # How soon a browser tries again after we went away.

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
            text = f"{WATCHERS_MAX} pages watch this controller already: close one"
            await refusal(503, text, {"retry-after": "10"})(scope, receive, send)
            return
        self._watchers += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            if scope["method"] != "HEAD":
                await self._feed_until_gone(receive, send)
            await push(send, b"", more=False)
        except (TimeoutError, OSError):
            return  # The reader is gone, or as good as gone; there is nobody to tell.
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
        await push(send, b"retry: %d\n\n" % RETRY_MS)
        shown = 0
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE_S):
                    board = await self._publisher.next(shown)
            except TimeoutError:
                await push(send, b": alive\n\n")
                continue
            except Closed:
                return
            shown = board.pass_number
            data = await self._encoded(board)
            await push(send, b"event: board\nid: %d\ndata: %b\n\n" % (shown, data))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
