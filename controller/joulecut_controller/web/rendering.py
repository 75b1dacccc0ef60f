"""Each board as bytes, made once, however many ask, and beside whoever asks meanwhile.

The board of a large fleet is ten megabytes. Made on request it would hold up every other
answer for half a second; so it is made in a thread, in pieces, and until it is there the one
of the pass before is shown.
"""

import asyncio
from dataclasses import dataclass

from joulecut_controller.board import Board
from joulecut_controller.web.answer import encode
from joulecut_controller.web.brief import brief_json
from joulecut_controller.web.job import job_json
from joulecut_controller.web.render import gpus_in_order, shell_json

INLINE_GPUS_MAX = 256  # made in some ten milliseconds: sooner than a thread would begin
# The board before may stand in for the newest while that is made, not for longer.
STALE_PASSES = 2.0
STALE_S_MIN = 10.0


@dataclass(frozen=True, slots=True)
class Rendered:
    """One board as JSON: whole, all jobs, and each by its name."""

    board: Board
    whole: bytes
    jobs: bytes
    job: dict[str, bytes]


class Rendering:
    """Rendered boards. Used in one event loop."""

    def __init__(self) -> None:
        self._last: Rendered | None = None
        self._making: asyncio.Task[Rendered] | None = None
        self._brief: tuple[Board, bytes] | None = None

    async def of(self, board: Board) -> Rendered:
        """This board rendered; of a large fleet maybe the one before."""
        last = self._last
        if last is not None and last.board is board:
            return last
        if len(board.view.gpus) <= INLINE_GPUS_MAX:
            self._last = render(board)
            return self._last
        if self._making is None:
            self._making = asyncio.create_task(self._make(board))
        young_s = max(STALE_S_MIN, STALE_PASSES * board.interval_s)
        if last is not None and abs(board.at_unix_s - last.board.at_unix_s) < young_s:
            return last
        return await asyncio.shield(self._making)

    def brief(self, board: Board) -> bytes:
        """In brief, always of the newest board: little, so made at once."""
        if self._brief is None or self._brief[0] is not board:
            self._brief = (board, encode(brief_json(board)))
        return self._brief[1]

    async def _make(self, board: Board) -> Rendered:
        try:
            self._last = await asyncio.to_thread(render, board)
            return self._last
        finally:
            self._making = None


def render(board: Board) -> Rendered:
    """All of a board. In small pieces: another thread may go on between any two."""
    jobs = {job.view.policy.name: encode(job_json(job, board.view)) for job in board.jobs}
    listed = b"[" + b",".join(jobs.values()) + b"]"
    gpus = b"[" + b",".join(encode(gpu) for gpu in gpus_in_order(board)) + b"]"
    rows = {"gpus": gpus, "jobs": listed}
    whole = b",".join(
        encode(key) + b":" + (rows[key] if key in rows else encode(value))
        for key, value in shell_json(board).items()
    )
    return Rendered(
        board=board,
        whole=b"{" + whole + b"}",
        jobs=b'{"jobs":' + listed + b"}",
        job=jobs,
    )
