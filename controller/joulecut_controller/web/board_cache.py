"""The newest board, which the controller publishes and routes read in another thread, and its text,
encoded once per pass, whatever the number of readers.

The board of a large fleet is ten megabytes. Making it on request would hold up every other response
for half a second, so a thread does; until it is done, readers get the board of the previous pass.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from joulecut_controller.board import Board
from joulecut_controller.web.board_json import gpus_in_order, shell_json
from joulecut_controller.web.job_json import job_json
from joulecut_controller.web.responses import encode

T = TypeVar("T")

INLINE_GPUS_MAX = 256  # encoded within some ten milliseconds, sooner than a thread starts
# The previous board may replace the newest while that is encoded, not for longer.
STALE_PASSES = 2.0
STALE_S_MIN = 10.0


class Publisher:
    """Keeps the newest board only, whatever the number of readers."""

    def __init__(self) -> None:
        self._board: Board | None = None
        self._published_s = -math.inf

    def publish(self, board: Board) -> None:
        self._board = board
        self._published_s = time.monotonic()

    def current(self) -> Board | None:
        """The newest board; None before the first pass ended."""
        return self._board

    def age_s(self) -> float:
        """Seconds since the newest board was published; infinite before the first."""
        return time.monotonic() - self._published_s


class Newest(Generic[T]):
    """Caches a function of the newest board; of a large one it runs in a thread."""

    def __init__(self, make: Callable[[Board], T]) -> None:
        self._make = make
        self._last: tuple[Board, T] | None = None
        self._making: asyncio.Task[T] | None = None

    async def of(self, board: Board) -> T:
        last = self._last
        if last is not None and last[0] is board:
            return last[1]
        if len(board.view.gpus) <= INLINE_GPUS_MAX:
            made = self._make(board)
            self._last = (board, made)
            return made
        if self._making is None:
            self._making = asyncio.create_task(self._made(board))
        young_s = max(STALE_S_MIN, STALE_PASSES * board.interval_s)
        if last is not None and abs(board.at_unix_s - last[0].at_unix_s) < young_s:
            return last[1]
        return await asyncio.shield(self._making)

    async def _made(self, board: Board) -> T:
        try:
            made = await asyncio.to_thread(self._make, board)
            self._last = (board, made)
            return made
        finally:
            self._making = None


@dataclass(frozen=True, slots=True)
class Rendered:
    """One board as JSON: whole, and each job by its name."""

    board: Board
    whole: bytes
    jobs: dict[str, bytes]


def render(board: Board) -> Rendered:
    """A job is encoded once for both."""
    jobs = {
        job.view.policy.name: encode(job_json(job, board.view, policy=board.policy))
        for job in board.jobs
    }
    gpus = gpus_in_order(board)
    whole = shell_json(board) | {"gpus": gpus, "jobs": [msgspec.Raw(one) for one in jobs.values()]}
    return Rendered(board, encode(whole), jobs)
