"""Routes of the home page: the cluster in brief, its tables a page at a time, its history."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from joulecut_controller.answer import COUNT, NUMBER, Answer, Json, Key, listed
from joulecut_controller.board import Board
from joulecut_controller.cluster.history import COARSE_POINTS, COARSE_S, FINE_S, History
from joulecut_controller.cluster.summary import parts_of
from joulecut_controller.web.address import ANY, get, one_word, whole
from joulecut_controller.web.board_cache import Newest
from joulecut_controller.web.board_json import in_order, work_by_gpu
from joulecut_controller.web.cluster_json import (
    CLUSTER,
    GPU_COLUMNS,
    GPU_SEARCHED,
    JOB_COLUMNS,
    JOB_SEARCHED,
    NODE_COLUMNS,
    NODE_ROW,
    NODE_SEARCHED,
    STANDING,
    cluster_json,
    node_rows,
    series_json,
)
from joulecut_controller.web.gpu_json import GPU, gpu_json
from joulecut_controller.web.links import Links
from joulecut_controller.web.responses import encode, json_bytes, json_response
from joulecut_controller.web.week import Week

SIZE_DEFAULT = 50
SIZE_MAX = 200  # rows: more are not read, and cost a browser more than they show
PAGE_MAX = 100_000
SEARCH_LENGTH_MAX = 200
ORDERS = ("ascending", "descending")
SPAN_S_MAX = int(COARSE_S * COARSE_POINTS)
SPAN_S_DEFAULT = 86_400
SERIES: Json = {
    "type": "object",
    "properties": {"step_s": {"type": "number"}},
    "required": ["step_s", "at_unix_s"],
    "additionalProperties": listed(NUMBER).schema,
}


def paged(row: Answer | Key) -> Answer:
    """One page of a table, and how much there is."""
    return Answer(rows=listed(row), total=COUNT, page=COUNT, pages=COUNT, size=COUNT)


def question(columns: Sequence[str]) -> dict[str, tuple[Json, str]]:
    """The parameters of a table with these columns."""
    return {
        "search": (ANY | {"maxLength": SEARCH_LENGTH_MAX}, "in the row's words"),
        "sort": (one_word(*columns), "a column; unknown values come last"),
        "order": (one_word(*ORDERS), "of the sorted column"),
        "page": (whole(PAGE_MAX, 1), "from 1"),
        "size": (whole(SIZE_MAX, SIZE_DEFAULT), "rows of a page"),
    }


@dataclass(frozen=True, slots=True)
class _Tables:
    """All rows of one board, made once a pass."""

    jobs: list[Json]
    nodes: list[Json]


class ClusterPages:
    """Reads boards; `now` raises HTTPException before the first pass."""

    def __init__(
        self, now: Callable[[], Board], week: Week, history: History, links: Links
    ) -> None:
        self._now, self._week, self._history = now, week, history
        self._cluster = Newest(
            lambda board: encode(cluster_json(board, week=week.newest, links=links))
        )
        self._tables = Newest(_tables)

    @get("cluster", "the cluster in brief: the first screen", CLUSTER)
    async def cluster(self, _: Request) -> Response:
        board = self._now()
        self._week.refresh(board)
        return json_bytes(await self._cluster.of(board))

    @get("cluster/jobs", "jobs, in a line each", paged(STANDING), question(JOB_COLUMNS))
    async def jobs(self, request: Request) -> Response:
        tables = await self._tables.of(self._now())
        return json_response(page_json(tables.jobs, request.state.asked, JOB_SEARCHED))

    @get("cluster/nodes", "nodes, in a line each", paged(NODE_ROW), question(NODE_COLUMNS))
    async def nodes(self, request: Request) -> Response:
        tables = await self._tables.of(self._now())
        return json_response(page_json(tables.nodes, request.state.asked, NODE_SEARCHED))

    @get(
        "gpus",
        "GPUs",
        paged(GPU),
        {"node": (ANY, "only of this node"), "job": (ANY, "only of this job")}
        | question(GPU_COLUMNS),
        errors=(404, 503),
    )
    async def gpus(self, request: Request) -> Response:
        """Those of a node or a job, or all."""
        asked, board = request.state.asked, self._now()
        node, job = asked["node"], asked["job"]
        nodes = {one.node or one.address for one in board.view.nodes}
        _is_known("node", node, nodes | {gpu.node for gpu in board.view.gpus.values()})
        _is_known("job", job, (one.view.policy.name for one in board.jobs))

        def make() -> Json:
            return page_json(_gpu_rows(board, node, job), asked, GPU_SEARCHED)

        return json_response(await asyncio.to_thread(make))

    @get(
        "history",
        "means of the last hour (15 s each) or days (5 min each)",
        SERIES,
        {
            "job": (ANY, "of this job; without it of the cluster"),
            "span_s": (whole(SPAN_S_MAX, SPAN_S_DEFAULT), "how far back, in seconds"),
        },
        errors=(404, 503),
    )
    async def history(self, request: Request) -> Response:
        job, span_s = request.state.asked["job"], max(request.state.asked["span_s"], int(FINE_S))
        if job:
            _is_known("job", job, (one.view.policy.name for one in self._now().jobs))
        series = await asyncio.to_thread(self._history.series, time.time(), span_s, job)
        return json_response(series_json(series))


def _is_known(what: str, name: str, known: Iterable[str]) -> None:
    """Raises HTTPException for a name that is given and not known."""
    if name and name not in known:
        raise HTTPException(404, f"no {what} {name!r:.100}")


def _tables(board: Board) -> _Tables:
    others = [row for _, part in parts_of(board) for row in part.rows]
    return _Tables(jobs=[*map(STANDING.json, board.jobs), *others], nodes=list(node_rows(board)))


def _gpu_rows(board: Board, node: str, job: str) -> list[Json]:
    work = work_by_gpu(board)
    rows = []
    for gpu in in_order(board.view.gpus):
        of_job = work.get(gpu.uuid)
        if (node and gpu.node != node) or (job and (of_job is None or of_job[0] != job)):
            continue
        rows.append({"place": gpu.place, **gpu_json(gpu, of_job)})
    return rows


def page_json(rows: Iterable[Json], asked: Mapping[str, Any], searched: Sequence[str]) -> Json:
    """The rows that contain the search in one of the `searched` columns, one page of them. Unknown
    values come last in either order. `asked` are the parameters of a table.
    """
    search, sort, size = asked["search"].strip().lower(), asked["sort"], asked["size"]
    found = [row for row in rows if _contains(row, search, searched)]
    known = [row for row in found if row[sort] is not None]
    unknown = [row for row in found if row[sort] is None]
    known.sort(key=lambda row: _key(row[sort]), reverse=asked["order"] == ORDERS[1])
    ordered = known + unknown
    pages = max(1, math.ceil(len(ordered) / size))
    page = min(asked["page"], pages)
    begin = (page - 1) * size
    return {
        "rows": ordered[begin : begin + size],
        "total": len(ordered),
        "page": page,
        "pages": pages,
        "size": size,
    }


def _contains(row: Json, search: str, searched: Sequence[str]) -> bool:
    return not search or any(search in str(row[name]).lower() for name in searched)


def _key(value: Any) -> Any:
    """Of an interval its middle; text without case."""
    if isinstance(value, dict):
        return value["mid"]
    return value.lower() if isinstance(value, str) else value
