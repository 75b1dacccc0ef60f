"""The routes that change state: pause, resume, restore, adopt. `senders` says who may."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from joulecut_controller.answer import COUNT, FLAG, TEXT, Answer, Json, Key, listed
from joulecut_controller.orders import Commander, Done, Op, Order
from joulecut_controller.web.address import post
from joulecut_controller.web.responses import error_response, json_response

# A pass may be applying plans to every node, and wait for the deadline of a silent agent.
ORDER_WAIT_S = 20.0
STATUS = {"unknown": 404, "conflict": 409, "standby": 503, "failed": 503}
STANDBY = "this controller is a standby: send the command to the leader"
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
_WORDS: Json = {
    "reason": {"type": "string", "maxLength": 500},
    "by": {"type": "string", "maxLength": 100},
}
_ALL: Json = {"const": True}
_PLACE = {"type": "string", "minLength": 1, "maxLength": 253}


def body(*required: str, **keys: Json) -> Json:
    """The body of a command, with words for the audit log beside these keys."""
    made = {"type": "object", "properties": keys | _WORDS, "additionalProperties": False}
    return made | ({"required": list(required)} if required else {})


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
    """Handlers of POST; `request.state` has the checked body and the sender (`address`)."""

    def __init__(self, channel: CommandChannel) -> None:
        self._channel = channel

    @post("jobs/{name}/pause", "resets the job's clocks and holds it", body(), DONE)
    @post("pause", "resets all clocks and holds all jobs", body("all", all=_ALL), DONE)
    async def pause(self, request: Request) -> Response:
        return await self._order("pause", request)

    @post("jobs/{name}/resume", "ends the hold of the job", body(), DONE)
    @post("resume", "ends holds that were set by command", body("all", all=_ALL), DONE)
    async def resume(self, request: Request) -> Response:
        return await self._order("resume", request)

    @post(
        "restore",
        "resets the clocks of a job, of a node, or all, whatever job holds them",
        body(job=_PLACE, node=_PLACE, all=_ALL)
        | {"oneOf": [{"required": [key]} for key in ("job", "node", "all")]},
        DONE,
    )
    async def restore(self, request: Request) -> Response:
        return await self._order("restore", request)

    @post(
        "adopt",
        "assigns to a node the GPUs that it and another node report",
        body("node", node=_PLACE),
        DONE,
    )
    async def adopt(self, request: Request) -> Response:
        return await self._order("adopt", request)

    async def _order(self, op: Op, request: Request) -> Response:
        said, by = request.state.body, request.state.by
        job = request.path_params.get("name") or said.get("job", "")
        reason = said.get("reason", "")
        order = Order(op, job=job, node=said.get("node", ""), reason=reason, by=by)
        try:
            done = await self._channel.take(order)
        except TimeoutError:
            text = f"not finished after {ORDER_WAIT_S:g} s; it continues: see the events"
            return error_response(504, text)
        if done.refused:
            return error_response(STATUS[done.refused], done.sentence)
        return json_response(DONE.json(done, op=op, by=by))
