"""Checks in front of every route: a known host name, reading only, and user and password.

The page has no login by default: it relies on the loopback interface. That holds only if no other
site can read it through a visitor's browser, so a request must name a known host (DNS rebinding is
refused), and responses forbid framing, foreign scripts and reading from other origins.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joulecut_controller.web.responses import error_response
from joulecut_wire.address import is_loopback
from joulecut_wire.web_config import WebConfig

READING = ("GET", "HEAD")

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


OPEN = "/healthz"  # without a password: a probe has none, and learns only whether passes go on
CHALLENGE = {"www-authenticate": 'Basic realm="joulecut"'}


@dataclass(eq=False)
class Guard:
    """Admits requests with the right password and a loopback host that read, or that post to a path
    of commands; adds security headers, and those of the web configuration.

    With TLS any host is served: a foreign name already fails at the certificate. `posted` says
    which paths take commands.
    """

    app: ASGIApp
    web: WebConfig | None = None
    posted: Callable[[str], bool] = lambda _: False

    def __post_init__(self) -> None:
        self._any_host = self.web is not None and self.web.context() is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no web sockets, no lifespan: nothing else is served
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = self.web.headers() if self.web else {}
                MutableHeaders(scope=message).update({**HEADERS, **given})
            await send(message)

        answer = await self._refusal(scope) or self.app
        await answer(scope, receive, marked)

    async def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        # First, so that nothing runs without a password; in a thread: one bcrypt would hold up
        # every other response.
        web = self.web if path != OPEN else None
        if web and not await asyncio.to_thread(web.admits, headers.get("authorization")):
            return error_response(401, "user and password required", CHALLENGE)
        if not (self._any_host or is_loopback(host_name(headers.get("host", "")))):
            return error_response(403, "unknown host name: use http://127.0.0.1")
        posts = scope["method"] == "POST" and self.posted(path)
        if scope["method"] not in READING and not posts:
            return error_response(405, "read-only: use GET or HEAD", {"allow": "GET, HEAD"})
        return None


def host_name(header: str) -> str:
    """The host of a Host header, lower case, without port and brackets."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") <= 1 else text
