"""Reports of measured savings, and receipts of single jobs, as JSON.

Made in a thread, one at a time: a month of windows takes seconds to read, and neither the pass nor
the page waits for them.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from joulecut_controller.answer import Json
from joulecut_controller.board import Board
from joulecut_controller.policy.policy import CO2_G_PER_KWH_MAX, Cost
from joulecut_controller.ports import Store
from joulecut_controller.savings.record import RECEIPT, REPORT, WEEK, receipt_json, report_json
from joulecut_controller.savings.stored import known_jobs, read_receipt, read_report
from joulecut_controller.savings.wall import prices
from joulecut_controller.web.address import ANY, get
from joulecut_controller.web.responses import encode, joined, json_bytes
from joulecut_wire.errors import Unavailable

T = TypeVar("T")
WEEK_S = 7 * 86_400.0
REFRESH_S = 300.0  # as often as a bucket of the history ends; a window lasts as long
# Ten years: longer than anything is kept. A week.
_SECONDS: Json = {
    "type": "number", "exclusiveMinimum": 0, "maximum": 3660 * 86400, "default": 604800
}  # fmt: skip
_GRAMS: Json = {"type": "number", "exclusiveMinimum": 0, "maximum": int(CO2_G_PER_KWH_MAX)}
_PERIOD = {
    "since_s": (_SECONDS, "how far back, in seconds"),
    "co2": (_GRAMS, "grams of CO2 per kWh; default that of the policy"),
}


class Reports:
    """Answers from one store. `board` raises HTTPException before the first pass. `week` is the
    newest finished summary of seven days; None before the first, and without a store.
    """

    def __init__(self, store: Store | None, board: Callable[[], Board]) -> None:
        self._store, self._board = store, board
        self._one_at_a_time = asyncio.Lock()
        self.week: Json | None = None
        self._week_s, self._week_cost = -math.inf, Cost()  # when it was made, and with which prices
        self._making: asyncio.Task[None] | None = None

    @get(
        "report",
        "measured savings of a period",
        REPORT,
        {"job": (ANY, "only of this job")} | _PERIOD,
        errors=(404, 503),
    )
    async def report(self, request: Request) -> Response:
        asked, store = request.state.asked, self._of_store()
        how = _how(self._board(), asked["since_s"], asked["co2"])

        def make() -> bytes:
            made = read_report(store, **how, job=asked["job"])
            return _encoded(report_json(made))

        return json_bytes(await self._made(make))

    @get(
        "jobs/{name}/receipt",
        "savings of the job in a period, and every change of its clocks",
        RECEIPT,
        _PERIOD,
        errors=(404, 503),
    )
    async def receipt(self, request: Request) -> Response:
        asked, store = request.state.asked, self._of_store()
        how = _how(self._board(), asked["since_s"], asked["co2"])
        name = request.path_params["name"]

        def make() -> bytes:
            receipt = read_receipt(store, name, **how)
            return encode(receipt_json(receipt)) if receipt else b""

        made = await self._made(make)
        if not made:
            raise HTTPException(404, f"no job {name!r:.100} in policy or store")
        return json_bytes(made)

    def _of_store(self) -> Store:
        if self._store is None:
            raise HTTPException(404, "this controller serves no reports")
        return self._store

    def refresh_week(self, board: Board) -> None:
        """Begins a new summary where the latest is old or was made with other prices."""
        cost = board.policy.cost if board.policy else None
        young = time.monotonic() - self._week_s < REFRESH_S and cost == self._week_cost
        if self._store is None or cost is None or self._making or young:
            return
        self._week_cost = cost
        self._making = asyncio.create_task(self._make_week(self._store, _how(board, WEEK_S)))

    async def _make_week(self, store: Store, how: dict[str, Any]) -> None:
        try:
            self.week = await self._made(lambda: WEEK.json(read_report(store, **how)))
        except HTTPException:
            self.week = None
        finally:
            self._week_s, self._making = time.monotonic(), None

    async def _made(self, make: Callable[[], T]) -> T:
        try:
            async with self._one_at_a_time:
                return await asyncio.to_thread(make)
        except Unavailable as error:
            raise HTTPException(503, str(error)) from None


def _how(board: Board, since_s: float, co2_g_per_kwh: float | None = None) -> dict[str, Any]:
    """Arguments that a report and a receipt have in common."""
    now_s = time.time()
    cost = board.policy.cost if board.policy else Cost()  # a standby has no policy
    return {
        "since_unix_s": now_s - since_s,
        "until_unix_s": now_s,
        "prices": prices(cost, co2_g_per_kwh),
        "known": known_jobs((job.view for job in board.jobs), board.view.gpus),
    }


def _encoded(report: Json) -> bytes:
    jobs = joined(encode(job) for job in report.pop("jobs"))
    return encode(report)[:-1] + b',"jobs":' + jobs + b"}"
