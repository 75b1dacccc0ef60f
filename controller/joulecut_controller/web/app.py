"""The web application: routes to the page, the JSON API and the metrics.

Reads boards, so it cannot plan. Commands are forwarded (`commands`), and only where a channel to
the controller is given. Every other route is read-only by construction.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypedDict, Unpack

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.cluster.history import History
from joulecut_controller.policy.policy import policy_json
from joulecut_controller.ports import Event, Store
from joulecut_controller.web.board_cache import BoardCache
from joulecut_controller.web.board_json import event_json, event_with_detail_json
from joulecut_controller.web.cluster_pages import ClusterPages
from joulecut_controller.web.commands import (
    BODY_BYTES_MAX,
    PREFIX,
    CommandChannel,
    Commands,
    body_of,
    is_command,
)
from joulecut_controller.web.links import Links
from joulecut_controller.web.measurements import measurements_json
from joulecut_controller.web.middleware import BasicAuth, HostGuard
from joulecut_controller.web.openapi import DOCUMENT
from joulecut_controller.web.parameters import checked, checked_body
from joulecut_controller.web.profiles import UPLOAD_BYTES_MAX, ProfileLibrary, Profiles
from joulecut_controller.web.publisher import Publisher, Stream
from joulecut_controller.web.reports import Reports
from joulecut_controller.web.responses import (
    JSON_TYPE,
    ChunkedResponse,
    error_response,
    json_bytes,
    json_response,
)
from joulecut_controller.web.senders import Roles, Senders
from joulecut_controller.web.timeline import timeline_json
from joulecut_controller.web.week import Week
from joulecut_wire.web_config import WebConfig

STATIC = Path(__file__).parent / "static"
PAGE = (STATIC / "index.html").read_bytes()
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
STALE_PASSES = 6  # One pass may be slow or fail; six in a row are a fault.
STALE_S_MIN = 30.0  # At intervals of a second a busy machine is no fault.


class Parts(TypedDict, total=False):
    """What the application serves beside the board; without a part its routes are empty or absent.

    `metrics_text` yields Prometheus text for /metrics, `openmetrics_text` OpenMetrics for readers
    that ask for it. `web` asks for passwords, `roles` says which of its users may command. `store`
    is the source of reports; `channel` takes commands, `profiles` uploads. The charts show
    `history`, the page points to `links`.
    """

    metrics_text: Callable[[], bytes] | None
    openmetrics_text: Callable[[], bytes] | None
    web: WebConfig | None
    roles: Roles
    store: Store | None
    channel: CommandChannel | None
    profiles: ProfileLibrary | None
    history: History | None
    links: Links | None


def build(publisher: Publisher, *, hosts: Iterable[str] = (), **parts: Unpack[Parts]) -> ASGIApp:
    """The whole web application.

    `hosts` are names or addresses allowed in the Host header besides loopback ones, for a
    controller that listens there. Under TLS the browser verifies the name, and any host is served.
    """
    handlers: dict[Any, Any] = {HTTPException: _refused, Exception: _failed}
    app = Starlette(routes=routes(publisher, **parts), exception_handlers=handlers)
    app.router.redirect_slashes = False  # an address with a slash too many is no address
    web, posted = parts.get("web"), is_command if parts.get("channel") else lambda _: False
    if web is None:
        return HostGuard(app, hosts, posted=posted)
    return BasicAuth(HostGuard(app, hosts, any_host=web.context() is not None, posted=posted), web)


def routes(publisher: Publisher, **parts: Unpack[Parts]) -> list[BaseRoute]:
    """Every route; those of commands only with a channel for them."""
    store, senders = parts.get("store"), Senders(parts.get("web"), parts.get("roles", Roles()))
    channel, profiles = parts.get("channel"), parts.get("profiles")
    history, links = parts.get("history") or History(None), parts.get("links") or Links()
    pages = _Pages(publisher, parts.get("metrics_text"), parts.get("openmetrics_text"))
    reports = Reports(store, pages.now)
    cluster = ClusterPages(pages.now, Week(store), history, links)
    return [
        *(_commands(channel, senders) if channel else ()),
        *(_profiles(Profiles(profiles, pages.now), senders) if profiles else ()),
        Route("/", pages.page),
        Mount("/static", StaticFiles(directory=STATIC)),
        _read("board", pages.board),
        _read("brief", pages.brief),
        _read("cluster", cluster.cluster),
        _read("cluster/jobs", cluster.jobs),
        _read("cluster/nodes", cluster.nodes),
        Route(PREFIX + "cluster/stream", Stream(publisher, cluster.encoded)),
        _read("gpus", cluster.gpus),
        _read("history", cluster.history),
        _read("policy", pages.policy),
        _read("openapi.json", pages.openapi),
        _read("jobs", pages.jobs),
        _read("jobs/{name:path}/timeline", pages.timeline),
        _read("jobs/{name:path}/measurements", pages.measurements),
        _read("jobs/{name:path}/receipt", reports.receipt),
        _read("jobs/{name:path}", pages.job),
        _read("report", reports.report),
        _read("events", pages.events),
        Route(PREFIX + "stream", Stream(publisher, pages.encoded)),
        Route("/metrics", pages.metrics),
        Route("/healthz", pages.health),
    ]


def _read(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    """A read-only address of the API; `request.state.asked` has its parameters by name."""
    documented = DOCUMENT["paths"][PREFIX + path.replace(":path", "")]["get"]

    async def read(request: Request) -> Response:
        request.state.asked = checked(documented, request.query_params)
        return await endpoint(request)

    return Route(PREFIX + path, read)


def _posted(
    path: str,
    endpoint: Callable[[Request], Awaitable[Response]],
    senders: Senders,
    bytes_max: int = BODY_BYTES_MAX,
) -> Route:
    """An address of commands; `request.state` has the checked body, and the sender as he calls
    himself and as he is known.
    """
    documented = DOCUMENT["paths"][PREFIX + path.replace(":path", "")]["post"]
    schema = documented["requestBody"]["content"][JSON_TYPE]["schema"]

    async def post(request: Request) -> Response:
        sender = senders.of(request)
        body = checked_body(schema, await body_of(request, bytes_max))
        claimed = body.get("by", "")
        request.state.body, request.state.replaces = body, sender.replaces
        request.state.by = f"{claimed} ({sender.name})" if claimed else sender.name
        return await endpoint(request)

    return Route(PREFIX + path, post, methods=["POST"])


def _commands(channel: CommandChannel, senders: Senders) -> list[Route]:
    commands = Commands(channel)
    posted = {
        "jobs/{name:path}/pause": commands.pause,
        "jobs/{name:path}/resume": commands.resume,
        "pause": commands.pause,
        "resume": commands.resume,
        "restore": commands.restore,
        "adopt": commands.adopt,
    }
    return [_posted(path, do, senders) for path, do in posted.items()]


def _profiles(profiles: Profiles, senders: Senders) -> list[Route]:
    return [
        _read("profiles", profiles.listed),
        _read("profiles/{name}", profiles.one),
        _posted("profiles/{name}", profiles.keep, senders, UPLOAD_BYTES_MAX),
        _posted("profiles/{name}/remove", profiles.remove, senders),
    ]


class _Pages:
    """The routes' responses. A board is encoded once, whatever the number of readers."""

    def __init__(
        self,
        publisher: Publisher,
        metrics_text: Callable[[], bytes] | None,
        openmetrics_text: Callable[[], bytes] | None,
    ) -> None:
        self._publisher = publisher
        self._metrics_text, self._openmetrics_text = metrics_text, openmetrics_text
        self._rendering = BoardCache()

    async def encoded(self, board: Board) -> bytes:
        return (await self._rendering.of(board)).whole

    async def page(self, _: Request) -> Response:
        return Response(PAGE, media_type="text/html", headers={"cache-control": "no-cache"})

    async def board(self, _: Request) -> Response:
        return json_bytes(await self.encoded(self.now()))

    async def brief(self, _: Request) -> Response:
        return json_bytes(await self._rendering.brief(self.now()))

    async def policy(self, _: Request) -> Response:
        policy = self.now().policy
        if policy is None:
            raise HTTPException(503, "a standby has no policy in force")
        return json_response(policy_json(policy))

    async def openapi(self, _: Request) -> Response:
        return json_response(DOCUMENT)

    async def jobs(self, _: Request) -> Response:
        return json_bytes((await self._rendering.of(self.now())).jobs)

    async def job(self, request: Request) -> Response:
        rendered = await self._rendering.of(self.now())
        name = request.path_params["name"]
        if name not in rendered.job:
            _job_of(rendered.board, name)
        return json_bytes(rendered.job[name])

    async def timeline(self, request: Request) -> Response:
        name = request.path_params["name"]
        timeline = await asyncio.to_thread(timeline_json, _job_of(self.now(), name))
        if timeline is None:
            raise HTTPException(404, f"job {name} has no plan with operations yet")
        return json_response(timeline)

    async def measurements(self, request: Request) -> Response:
        return json_response(measurements_json(_job_of(self.now(), request.path_params["name"])))

    async def events(self, request: Request) -> Response:
        board, asked = self.now(), request.state.asked
        job = asked["job"]
        chosen = [event for event in board.events if not job or event.job == job][: asked["limit"]]
        if asked["detail"] == "0":
            return json_response({"events": [event_json(event) for event in chosen]})
        return await asyncio.to_thread(_events, chosen)

    async def metrics(self, request: Request) -> Response:
        write, kind = self._metrics_text, METRICS_TYPE
        if self._openmetrics_text and OPENMETRICS in request.headers.get("accept", ""):
            write, kind = self._openmetrics_text, OPENMETRICS_TYPE
        if write is None:
            raise HTTPException(404, "this controller serves no metrics")
        text = await asyncio.to_thread(write)
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

    def now(self) -> Board:
        board = self._publisher.current()
        if board is None:
            raise HTTPException(503, "the first pass has not ended yet: try again in a moment")
        return board


def _events(events: list[Event]) -> Response:
    return json_response({"events": [event_with_detail_json(event) for event in events]})


def _job_of(board: Board, name: str) -> JobBoard:
    for job in board.jobs:
        if job.view.policy.name == name:
            return job
    if not board.leads:
        raise HTTPException(503, f"a standby has no jobs; {board.sentence}")
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
