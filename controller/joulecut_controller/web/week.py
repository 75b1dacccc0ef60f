"""Measured savings of the last seven days, for the first screen.

Made in a thread: a week of windows takes seconds to read, and neither the pass nor the page waits
for them.
"""

import asyncio
import math
import time

from joulecut_controller.answer import Json
from joulecut_controller.board import Board
from joulecut_controller.policy.policy import Cost
from joulecut_controller.ports import Store
from joulecut_controller.savings.record import WEEK
from joulecut_controller.savings.stored import known_jobs, read_report
from joulecut_wire.errors import Unavailable

WEEK_S = 7 * 86_400.0
REFRESH_S = 300.0  # as often as a bucket of the history ends; a window lasts as long


class Week:
    """`newest` is the newest finished summary; None before the first, and without a store."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self.newest: Json | None = None
        self._made_s, self._cost = -math.inf, Cost()  # when it was made, and with which prices
        self._making: asyncio.Task[None] | None = None

    def refresh(self, board: Board) -> None:
        """Begins a new summary where the latest is old or was made with other prices."""
        policy = board.policy
        if self._store is None or policy is None or self._making:
            return
        if time.monotonic() - self._made_s >= REFRESH_S or policy.cost != self._cost:
            self._cost = policy.cost
            self._making = asyncio.create_task(self._make(self._store, board))

    async def _make(self, store: Store, board: Board) -> None:
        now_s = time.time()

        def made() -> Json:
            found = read_report(
                store,
                since_unix_s=now_s - WEEK_S,
                until_unix_s=now_s,
                prices=self._cost,
                known=known_jobs(job.view.policy for job in board.jobs),
            )
            return WEEK.json(found)

        try:
            self.newest = await asyncio.to_thread(made)
        except Unavailable:
            self.newest = None
        finally:
            self._made_s, self._making = time.monotonic(), None
