"""Reports of measured savings, and receipts of single jobs, as JSON.

Made in a thread, one at a time: a month of windows takes seconds to read, and neither the pass nor
the page waits for them.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from joulecut_controller.answer import Json
from joulecut_controller.board import Board
from joulecut_controller.policy.policy import CO2_G_PER_KWH_MAX, Cost
from joulecut_controller.ports import Store
from joulecut_controller.savings.record import RECEIPT, REPORT, receipt_json, report_json
from joulecut_controller.savings.stored import known_jobs, read_receipt, read_report
from joulecut_controller.savings.wall import prices
from joulecut_controller.web.address import ANY, get
from joulecut_controller.web.responses import encode, joined, json_bytes
from joulecut_wire.errors import Unavailable

# Ten years: longer than anything is kept. A week.
_SECONDS: Json = {
    "type": "number", "exclusiveMinimum": 0, "maximum": 3660 * 86400, "default": 604800
}  # fmt: skip
_GRAMS: Json = {"type": "number", "exclusiveMinimum": 0, "maximum": int(CO2_G_PER_KWH_MAX)}
_PERIOD = {
    "since_s": (_SECONDS, "how far back, in seconds"),
    "co2": (_GRAMS, "grams of CO2 per kWh; default that of the policy"),
    "points": ({"enum": ["1"]}, "include the windows, thinned out"),
}


class Reports:
    """Answers from one store. `board` raises HTTPException before the first pass."""

    def __init__(self, store: Store | None, board: Callable[[], Board]) -> None:
        self._store = store
        self._board = board
        self._one_at_a_time = asyncio.Lock()

    @get(
        "report",
        "measured savings of a period",
        REPORT,
        {"job": (ANY, "only of this job")} | _PERIOD,
        errors=(404, 503),
    )
    async def report(self, request: Request) -> Response:
        asked, store = self._asked(request), self._of_store()
        job = request.state.asked["job"]

        def make() -> bytes:
            made = read_report(store, **asked.how, job=job)
            return _encoded(report_json(made, points=asked.points))

        return json_bytes(await self._made(make))

    @get(
        "jobs/{name}/receipt",
        "savings of the job in a period, and every change of its clocks",
        RECEIPT,
        _PERIOD,
        errors=(404, 503),
    )
    async def receipt(self, request: Request) -> Response:
        asked, store = self._asked(request), self._of_store()
        name = request.path_params["name"]

        def make() -> bytes:
            receipt = read_receipt(store, name, **asked.how)
            return encode(receipt_json(receipt, points=asked.points)) if receipt else b""

        made = await self._made(make)
        if not made:
            raise HTTPException(404, f"no job {name!r:.100} in policy or store")
        return json_bytes(made)

    def _of_store(self) -> Store:
        if self._store is None:
            raise HTTPException(404, "this controller serves no reports")
        return self._store

    def _asked(self, request: Request) -> "_Asked":
        board, now_s, query = self._board(), time.time(), request.state.asked
        cost = board.policy.cost if board.policy else Cost()  # a standby has no policy
        return _Asked(
            how={
                "since_unix_s": now_s - query["since_s"],
                "until_unix_s": now_s,
                "prices": prices(cost, query["co2"]),
                "known": known_jobs((job.view for job in board.jobs), board.view.gpus),
            },
            points=query["points"] is not None,
        )

    async def _made(self, make: Callable[[], bytes]) -> bytes:
        try:
            async with self._one_at_a_time:
                return await asyncio.to_thread(make)
        except Unavailable as error:
            raise HTTPException(503, str(error)) from None


@dataclass(frozen=True, slots=True)
class _Asked:
    how: dict[str, Any]  # arguments that a report and a receipt have in common
    points: bool


def _encoded(report: Json) -> bytes:
    jobs = joined(encode(job) for job in report.pop("jobs"))
    return encode(report)[:-1] + b',"jobs":' + jobs + b"}"
