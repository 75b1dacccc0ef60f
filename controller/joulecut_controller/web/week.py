"""Measured savings of the last seven days, for the first screen.

Made in a thread: a week of windows takes seconds to read, and neither the pass nor the page waits
for them.
"""

import asyncio
import math
import time
from collections.abc import Sequence

from joulecut_controller import answer as a
from joulecut_controller.answer import INTERVAL, Answer, Json, maybe
from joulecut_controller.board import Board
from joulecut_controller.policy.policy import Cost
from joulecut_controller.ports import Store
from joulecut_controller.savings.stored import read_prices, read_savings
from joulecut_controller.savings.wall import sum_of
from joulecut_engine.money import JOULES_PER_KWH
from joulecut_wire.errors import Unavailable

_INTERVAL = maybe(INTERVAL)
# Of all jobs, for the first screen. Money and CO2 are null without a price and an intensity.
WEEK = Answer(
    since_unix_s=a.NUMBER.given,
    until_unix_s=a.NUMBER.given,
    jobs=a.COUNT,
    jobs_unknown=a.COUNT.at("unknown"),
    saved_kwh=_INTERVAL.at(lambda made: made.saved_j and made.saved_j.scaled(1.0 / JOULES_PER_KWH)),
    measured_kwh=_INTERVAL.at(  # of it, in windows; the rest is assumed alike
        lambda made: made.measured_j and made.measured_j.scaled(1.0 / JOULES_PER_KWH)
    ),
    predicted_kwh=a.NUMBER.given,
    energy_money=_INTERVAL.at(lambda made: made.wall and made.wall.energy_money),
    co2_kg=_INTERVAL.at(lambda made: made.wall and made.wall.co2_kg),
)
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
        try:
            names = [job.view.policy.name for job in board.jobs]
            self.newest = await asyncio.to_thread(_week, store, self._cost, names)
        except Unavailable:
            self.newest = None
        finally:
            self._made_s, self._making = time.monotonic(), None


def _week(store: Store, cost: Cost, names: Sequence[str]) -> Json:
    """Raises Unavailable."""
    until_s = time.time()
    since_s = until_s - WEEK_S
    found, _ = read_savings(store, since_unix_s=since_s, until_unix_s=until_s, known=names)
    prices = read_prices(store, cost, since_s, until_s)
    return WEEK.json(
        sum_of(found.values(), prices),
        since_unix_s=since_s,
        until_unix_s=until_s,
        predicted_kwh=sum(one.predicted_j for one in found.values()) / JOULES_PER_KWH,
    )
