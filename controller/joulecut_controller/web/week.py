"""Savings of the last seven days for the first screen: energy, money and CO2, with intervals.

Read from the store in a thread, since a week of windows takes seconds, and kept for a while: the
first screen shows the newest that is finished.
"""

import asyncio
import math
import time

from joulecut_controller.answer import Json
from joulecut_controller.board import Board
from joulecut_controller.policy.policy import Cost
from joulecut_controller.ports import Store
from joulecut_controller.savings.record import interval_json
from joulecut_controller.savings.report import Report
from joulecut_controller.savings.stored import known_jobs, read_report
from joulecut_engine.money import JOULES_PER_KWH
from joulecut_wire.errors import Unavailable

WEEK_S = 7 * 86_400.0
REFRESH_S = 300.0  # as often as a bucket of the history ends; a window lasts as long


class Week:
    """The newest finished summary. Used in one event loop."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._made_s = -math.inf
        self._cost: Cost | None = None
        self._making: asyncio.Task[None] | None = None
        self.latest: Json | None = None  # None before the first, and without a store

    def refresh(self, board: Board) -> None:
        """Begins a new summary where the latest is old or was made with other prices."""
        cost = board.policy.cost if board.policy else None
        young = time.monotonic() - self._made_s < REFRESH_S
        if self._store is None or cost is None or self._making or (young and cost == self._cost):
            return
        self._cost = cost
        self._making = asyncio.create_task(self._make(self._store, board, cost))

    async def _make(self, store: Store, board: Board, cost: Cost) -> None:
        now_s = time.time()
        try:
            report = await asyncio.to_thread(
                read_report,
                store,
                since_unix_s=now_s - WEEK_S,
                until_unix_s=now_s,
                prices=cost,
                known=known_jobs((job.view for job in board.jobs), board.view.gpus),
            )
            self.latest = week_json(report)
        except Unavailable:
            self.latest = None
        finally:
            self._made_s, self._making = time.monotonic(), None


def week_json(report: Report) -> Json:
    """Of all jobs. Money and CO2 are null without a price and an intensity in the policy."""
    whole = report.total
    predicted_j = sum(
        job.spent.all.energy_j * ratio / (1.0 - ratio)
        for job in report.jobs
        if job.saved_j is not None  # the same jobs as in the measured sum
        and (ratio := job.saving.predicted_saved_ratio) is not None
        and ratio < 1.0
    )
    wall = whole.wall
    return {
        "since_unix_s": report.since_unix_s,
        "until_unix_s": report.until_unix_s,
        "jobs": whole.jobs,
        "jobs_unknown": whole.unknown,
        "saved_kwh": interval_json(whole.saved_j, 1.0 / JOULES_PER_KWH),
        "predicted_kwh": predicted_j / JOULES_PER_KWH,
        "energy_money": interval_json(wall.energy_money) if wall and wall.energy_money else None,
        "co2_kg": interval_json(wall.co2_kg) if wall and wall.co2_kg else None,
    }
