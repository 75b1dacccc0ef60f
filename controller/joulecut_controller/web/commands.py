"""The routes that change state: pause, resume, restore, adopt. `senders` says who may."""

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from joulecut_controller.answer import COUNT, FLAG, TEXT, Answer, Key, listed
from joulecut_controller.orders import Commander, Done, Op, Order
from joulecut_controller.web.responses import error_response, json_response
from joulecut_wire import strict_json

# A pass may be applying plans to every node, and wait for the deadline of a silent agent.
ORDER_WAIT_S = 20.0
BODY_BYTES_MAX = 16_384
REASON_LENGTH_MAX = 500
NAME_LENGTH_MAX = 100
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
