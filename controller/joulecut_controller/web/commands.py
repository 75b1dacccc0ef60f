"""The routes that change state: pause, resume, restore, adopt.

The sender is identified by the kernel (loopback), a user's password or a client certificate. A
page of another site in the same browser has that access as well, so a command must carry what such
a page cannot send: a JSON body and the header `x-joulecut-command`, from our own origin.
"""

import asyncio
import base64
import binascii
import os
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from joulecut_controller.answer import COUNT, FLAG, TEXT, Answer, Key, listed
from joulecut_controller.orders import Commander, Done, Op, Order
from joulecut_controller.web.responses import JSON_TYPE, error_response, json_response
from joulecut_wire import strict_json
from joulecut_wire.address import is_loopback
from joulecut_wire.loopback_socket import client_of
from joulecut_wire.web_config import WebConfig

# A pass may be applying plans to every node, and wait for the deadline of a silent agent.
ORDER_WAIT_S = 20.0
BODY_BYTES_MAX = 16_384
REASON_LENGTH_MAX = 500
NAME_LENGTH_MAX = 100
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
MARK = "x-joulecut-command"  # a header that no form and no script of another site can send
STATUS = {"unknown": 404, "conflict": 409, "standby": 503, "failed": 503}
STANDBY = "this controller is a standby: send the command to the leader"
PREFIX = "/api/v1/"
# The outcome of a command.
DONE = Answer(
    "Done",
    op=Key({"enum": ["pause", "resume", "restore", "adopt"]}).given,
    complete=FLAG,
    sentence=TEXT,
    jobs=listed(TEXT),
    gpus=COUNT,
    unanswered=listed(TEXT),
    by=TEXT.given,
)


class CommandChannel:
    """Hands orders from the web thread to the controller's event loop; open while it leads."""

    def __init__(self) -> None:
        self._obeys: tuple[Commander, asyncio.AbstractEventLoop] | None = None

    def open(self, obey: Commander) -> None:
        """Hands orders to `obey`, in the running event loop."""
        self._obeys = (obey, asyncio.get_running_loop())

    def close(self) -> None:
        self._obeys = None

    async def take(self, order: Order) -> Done:
        """The result of the order. Raises TimeoutError; the order is still carried out."""
        if self._obeys is None:
            return Done(STANDBY, "standby")
        obey, loop = self._obeys
        done = asyncio.run_coroutine_threadsafe(_obeyed(obey, order), loop)
        async with asyncio.timeout(ORDER_WAIT_S):
            return await asyncio.shield(asyncio.wrap_future(done))


async def _obeyed(obey: Commander, order: Order) -> Done:
    return await obey(order)


class Commands:
    """Handlers of POST; `request.state` has the checked body and the sender (`app`)."""

    def __init__(self, channel: CommandChannel) -> None:
        self._channel = channel

    async def pause(self, request: Request) -> Response:
        return await self._order("pause", request)

    async def resume(self, request: Request) -> Response:
        return await self._order("resume", request)

    async def restore(self, request: Request) -> Response:
        return await self._order("restore", request)

    async def adopt(self, request: Request) -> Response:
        return await self._order("adopt", request)

    async def _order(self, op: Op, request: Request) -> Response:
        body, by = request.state.body, request.state.by
        job = request.path_params.get("name") or body.get("job", "")
        reason = body.get("reason", "")
        order = Order(op, job=job, node=body.get("node", ""), reason=reason, by=by)
        try:
            done = await self._channel.take(order)
        except TimeoutError:
            text = f"not finished after {ORDER_WAIT_S:g} s; it continues: see the events"
            return error_response(504, text)
        if done.refused:
            return error_response(STATUS[done.refused], done.sentence)
        return json_response(DONE.json(done, op=op, by=by))


def sender(request: Request, web: WebConfig | None) -> str:
    """The authenticated sender of a command. Without a login root and the controller's own user may
    send one, over loopback: a sidecar's callers come from there as well. Raises HTTPException.
    """
    _check_origin(request)
    if web is not None and web.authenticates:
        return _user(request.headers.get("authorization", "")) or "a client certificate"
    asked = "set users or client certificates in web_config"
    if any(name in request.headers for name in FORWARDED):
        raise HTTPException(403, f"a proxy's callers are not authenticated: {asked}")
    if request.client is None or not is_loopback(request.client.host):
        text = "the sender is not authenticated: use the loopback interface"
        raise HTTPException(403, f"{text}, or {asked}")
    uid, _ = client_of(*request.client, request.scope["server"][1])
    if uid not in (0, os.geteuid()):
        raise HTTPException(
            403, f"only root and the user of the controller may command without a login: {asked}"
        )
    return f"loopback, uid {uid}"


def is_command(path: str) -> bool:
    """Whether commands are posted to this path."""
    rest = path.removeprefix(PREFIX)
    if rest == path:
        return False
    last = rest.rpartition("/")[2]
    return (
        rest in ("pause", "resume", "restore", "adopt")
        or (rest.startswith("jobs/") and rest.count("/") > 1 and last in ("pause", "resume"))
        or (rest.startswith("profiles/") and rest.count("/") < 3)
    )


def _check_origin(request: Request) -> None:
    """Raises HTTPException for requests that a page of another site could send."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON_TYPE:
        raise HTTPException(415, f"a command needs content-type {JSON_TYPE}")
    if MARK not in request.headers:
        raise HTTPException(403, f"a command needs the header {MARK}")
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise HTTPException(403, "commands from another site are refused")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "commands from another site are refused")


async def body_of(request: Request, bytes_max: int) -> dict[str, Any]:
    """The JSON object that a command carries. Raises HTTPException."""
    if (coding := request.headers.get("content-encoding", "identity")) != "identity":
        raise HTTPException(415, f"content-encoding {coding!r:.40}; allowed: none, identity")
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > bytes_max:
            raise HTTPException(413, f"a command may have up to {bytes_max} bytes")
    try:
        body = strict_json.loads(raw) if raw else {}
    except strict_json.GivenTwice as error:
        raise HTTPException(400, str(error)) from None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body is not a JSON object")
    return body


def _user(header: str) -> str:
    """The user of an accepted Authorization header; empty where it has none."""
    scheme, _, token = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(token.strip()).partition(b":")[0].decode(errors="replace")
    except (binascii.Error, ValueError):
        return ""
