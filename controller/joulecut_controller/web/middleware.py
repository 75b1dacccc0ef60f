"""Checks in front of every route: a known host name, reading only, and user and password.

The page has no login by default: it relies on the loopback interface. That holds only if no other
site can read it through a visitor's browser, so a request must name a known host (DNS rebinding is
refused), and responses forbid framing, foreign scripts and reading from other origins.
"""

import asyncio
from collections.abc import Callable, Iterable

from starlette.datastructures import Headers, MutableHeaders
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


class HostGuard:
    """Lets reading requests for known hosts through, and adds security headers.

    `hosts` are names or addresses, without port, allowed besides the loopback ones; `any_host`
    is for TLS, where a foreign name already fails at the certificate. `posted` says which
    paths take commands.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Iterable[str] = (),
        *,
        any_host: bool = False,
        posted: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._app = app
        self._any_host = any_host
        self._posted = posted
        self._hosts = frozenset(host.lower().strip("[]") for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no web sockets, no lifespan: nothing else is served
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        host = host_name(Headers(scope=scope).get("host", ""))
        if not (self._any_host or is_loopback(host) or host in self._hosts):
            answer = error_response(403, "unknown host name: use http://127.0.0.1")
            await answer(scope, receive, marked)
        elif scope["method"] not in READING and not (
            scope["method"] == "POST" and self._posted(scope["path"])
        ):
            answer = error_response(405, "read-only: use GET or HEAD", {"allow": "GET, HEAD"})
            await answer(scope, receive, marked)
        else:
            await self._app(scope, receive, marked)


def host_name(header: str) -> str:
    """The host of a Host header, lower case, without port and brackets."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") <= 1 else text


OPEN = "/healthz"
CHALLENGE = {"www-authenticate": 'Basic realm="joulecut"'}


class BasicAuth:
    """Basic authentication where the web configuration names users, and its headers.

    Outermost, so that nothing behind it runs without a password. `/healthz` is open: a probe has no
    password, and learns only whether passes go on.
    """

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
        # In a thread: one bcrypt would hold up every other response.
        if scope["path"] == OPEN or await asyncio.to_thread(self._web.admits, header):
            await self._app(scope, receive, marked)
        else:
            answer = error_response(401, "user and password required", CHALLENGE)
            await answer(scope, receive, marked)
