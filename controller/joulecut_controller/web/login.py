"""Asks for user and password where the web configuration names users, and adds its headers.

Outermost, so that nothing behind it runs for a stranger. `/healthz` is open: a probe has no
password, and learns whether passes go on, nothing else.
"""

import asyncio

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joulecut_controller.web.answer import refusal
from joulecut_wire.web_config import WebConfig

OPEN = "/healthz"
CHALLENGE = {"www-authenticate": 'Basic realm="joulecut"'}


class Login:
    """Lets requests of users through."""

    def __init__(self, app: ASGIApp, web: WebConfig) -> None:
        self._app = app
        self._web = web

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(dict(self._web.headers()))
            await send(message)

        header = Headers(scope=scope).get("authorization")
        # In a thread: one bcrypt would hold up every other answer.
        if scope["path"] == OPEN or await asyncio.to_thread(self._web.admits, header):
            await self._app(scope, receive, marked)
        else:
            answer = refusal(401, "user and password, please", CHALLENGE)
            await answer(scope, receive, marked)
