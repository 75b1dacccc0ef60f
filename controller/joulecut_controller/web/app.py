"""The web application: routes to the page, the JSON API and the metrics.

Reads boards, so it cannot plan. Commands are forwarded (`commands`), and only where a channel to
the controller is given. Every other route is read-only by construction.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, Unpack

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from joulecut_controller.answer import OBJECT, Answer, Json, listed
from joulecut_controller.board import Board, JobBoard
from joulecut_controller.cluster.history import History
from joulecut_controller.cluster.summary import parts_of
from joulecut_controller.ports import Store
from joulecut_controller.web.address import ANY, document, get, one_word, stated, whole
from joulecut_controller.web.board_cache import Newest, Publisher, render
from joulecut_controller.web.board_json import BOARD, BRIEF, EVENT, EVENT_WITH_DETAIL, brief_json
from joulecut_controller.web.cluster_pages import ClusterPages
from joulecut_controller.web.commands import CommandChannel, Commands
from joulecut_controller.web.job_json import JOB
from joulecut_controller.web.links import Links
from joulecut_controller.web.middleware import Guard
from joulecut_controller.web.responses import (
    ChunkedResponse,
    encode,
    error_response,
    json_bytes,
    json_response,
)
from joulecut_controller.web.senders import Roles, Senders
from joulecut_controller.web.timeline import TIMELINE, timeline_json
from joulecut_controller.web.week import Week
from joulecut_wire.web_config import WebConfig

STATIC = Path(__file__).parent / "static"
PAGE = (STATIC / "index.html").read_bytes()
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
STALE_PASSES = 6  # One pass may be slow or fail; six in a row are a fault.
STALE_S_MIN = 30.0  # At intervals of a second a busy machine is no fault.
ELSEWHERE_S, POLL_S = 15.0, 0.5  # controllers show their parts, and hear questions, every 3 s


class Parts(TypedDict, total=False):
    """What the application serves beside the board; without a part its routes are empty or absent.

    `metrics` yields the text of /metrics, as OpenMetrics where it is True. `web` asks for
    passwords, `roles` says which of its users may command. `store` has the week's
    savings; `channel` takes commands; `asked` are the jobs that others are to show, and until when
    on the monotonic clock. The charts show `history`, the page points to `links`.
    """

    metrics: Callable[[bool], bytes] | None
    web: WebConfig | None
    roles: Roles
    store: Store | None
    channel: CommandChannel | None
    asked: dict[str, float]
    history: History | None
    links: Links | None


def build(publisher: Publisher, **parts: Unpack[Parts]) -> ASGIApp:
    """The whole web application."""
    handlers: Any = {HTTPException: _refused, ClientDisconnect: _failed, Exception: _failed}
    served = routes(publisher, **parts)
    app = Starlette(routes=served, exception_handlers=handlers)
    app.router.redirect_slashes = False  # an address with a slash too many is no address
    api = [one for one in served if isinstance(one, Route)]
    commands = [one.path_regex for one in api if one.methods and "POST" in one.methods]

    def posted(path: str) -> bool:
        return any(one.match(path) for one in commands)

    return Guard(app, web=parts.get("web"), posted=posted)


def routes(publisher: Publisher, **parts: Unpack[Parts]) -> list[BaseRoute]:
    """Every route; those of commands only with a channel for them."""
    senders = Senders(parts.get("web"), parts.get("roles", Roles()))
    channel = parts.get("channel")
    history, links = parts.get("history") or History(None), parts.get("links") or Links()
    pages = Pages(publisher, parts)
    cluster = ClusterPages(pages.now, Week(parts.get("store")), history, links)
    stating = [pages, cluster, *([Commands(channel)] if channel else ())]
    found = [(one, getattr(part, name)) for part in stating for one, name in stated(type(part))]
    found.sort(key=lambda pair: pair[0].path == "jobs/{name}")  # the name takes any address below
    return [
        *(one.route(handler, senders) for one, handler in found),
        Route("/", pages.page),
        Mount("/static", StaticFiles(directory=STATIC)),
        Route("/metrics", pages.metrics),
        Route("/healthz", pages.health),
    ]


class Pages:
    """Responses about the board and its jobs. A board is encoded once, whatever the number of
    readers.
    """

    def __init__(self, publisher: Publisher, parts: Parts) -> None:
        self._publisher, self._metrics = publisher, parts.get("metrics")
        self._asked = parts.get("asked", {})
        self._whole = Newest(render)
        self._brief = Newest(lambda board: encode(brief_json(board)))

    async def page(self, _: Request) -> Response:
        return Response(PAGE, media_type="text/html", headers={"cache-control": "no-cache"})

    @get("board", "the whole board, as of the last pass", BOARD)
    async def board(self, _: Request) -> Response:
        return json_bytes((await self._whole.of(self.now())).whole)

    @get("brief", "the board in brief: a large fleet is counted", BRIEF)
    async def brief(self, _: Request) -> Response:
        return json_bytes(await self._brief.of(self.now()))

    @get("openapi.json", "this document", OBJECT, errors=())
    async def openapi(self, _: Request) -> Response:
        return json_response(DOCUMENT)

    @get("jobs/{name}", "one job", JOB, errors=(404, 503))
    async def job(self, request: Request) -> Response:
        name = request.path_params["name"]
        if found := await self._elsewhere(name):
            return json_response(found)
        rendered = await self._whole.of(self.now())
        return json_bytes(rendered.jobs[_job_of(rendered.board, name).view.policy.name])

    @get("jobs/{name}/timeline", "the operations of its newest plan", TIMELINE, errors=(404, 503))
    async def timeline(self, request: Request) -> Response:
        name = request.path_params["name"]
        timeline = await asyncio.to_thread(timeline_json, _job_of(self.now(), name))
        if timeline is None:
            raise HTTPException(404, f"job {name} has no plan with operations yet")
        return json_response(timeline)

    @get(
        "events",
        "the audit log, newest first",
        Answer(events=listed(EVENT_WITH_DETAIL)),
        {
            "job": (ANY, "only of this job"),
            "limit": (whole(1000, 100), "at most so many"),
            "detail": (one_word("1", "0"), "0: without the details"),
        },
    )
    async def events(self, request: Request) -> Response:
        asked, shown = request.state.asked, self.now().events
        chosen = [one for one in shown if asked["job"] in {"", one.job}][: asked["limit"]]
        if asked["detail"] == "0":
            return json_response({"events": [EVENT.json(event) for event in chosen]})
        return await asyncio.to_thread(
            lambda: json_response({"events": [EVENT_WITH_DETAIL.json(event) for event in chosen]})
        )

    async def metrics(self, request: Request) -> Response:
        if self._metrics is None:
            raise HTTPException(404, "this controller serves no metrics")
        is_open = OPENMETRICS in request.headers.get("accept", "")
        text = await asyncio.to_thread(self._metrics, is_open)
        kind = OPENMETRICS_TYPE if is_open else METRICS_TYPE
        return ChunkedResponse(text, headers={"content-type": kind})

    async def health(self, _: Request) -> Response:
        board = self.now()
        age_s = self._publisher.age_s()
        limit_s = max(STALE_S_MIN, STALE_PASSES * board.interval_s)
        if age_s > limit_s:
            raise HTTPException(503, f"the last pass ended {age_s:.0f} s ago")
        role = "leader" if board.leads else "standby"
        number, age_s = board.pass_number, round(age_s, 3)
        return json_response({"ok": True, "role": role, "pass_number": number, "age_s": age_s})

    async def _elsewhere(self, name: str) -> Json | None:
        """A job of another controller, which shows details of a job on request. None if none comes
        within `ELSEWHERE_S`.
        """
        until_s = time.monotonic() + ELSEWHERE_S
        while time.monotonic() < until_s and (
            there := [one for one in parts_of(self.now()) if one[1].has(name)]
        ):
            (age_s, part), self._asked[name] = there[0], until_s
            if name in part.jobs:
                return part.jobs[name] | {"controller": part.controller, "age_s": age_s}
            await asyncio.sleep(POLL_S)
        return None

    def now(self) -> Board:
        board = self._publisher.current()
        if board is None:
            raise HTTPException(503, "the first pass has not ended yet: try again in a moment")
        return board


DOCUMENT = document((Pages, ClusterPages, Commands))


def _job_of(board: Board, name: str) -> JobBoard:
    for job in board.jobs:
        if job.view.policy.name == name:
            return job
    if not board.leads:
        raise HTTPException(503, f"a standby has no jobs; {board.sentence}")
    for _, part in parts_of(board):
        if part.has(name):
            raise HTTPException(404, f"job {name!r:.100} is at the controller {part.controller}")
    known = ", ".join(job.view.policy.name for job in board.jobs) or "none"
    raise HTTPException(404, f"no job {name!r:.100} in the policy; there are: {known:.500}")


async def _refused(request: Request, error: HTTPException) -> Response:
    sentence = (
        error.detail if error.detail != "Not Found" else f"no such address: {request.url.path:.200}"
    )
    return error_response(error.status_code, sentence, error.headers)


async def _failed(_: Request, error: Exception) -> Response:
    # Starlette raises the error again after this response, so the log has its traceback.
    return error_response(500, f"internal error: {type(error).__name__}")
