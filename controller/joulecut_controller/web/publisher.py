"""The newest board, as the web shows it: the controller publishes one after each pass, routes read
it from another thread.
"""

import math
import time

from joulecut_controller.board import Board


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
