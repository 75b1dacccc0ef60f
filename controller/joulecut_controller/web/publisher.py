"""Hands each new board to whoever watches, without ever queueing one.

A browser on a slow line must not cost the controller memory: a watcher asks for
"anything newer than pass n" and gets the newest board there is; what it missed in
between is gone, since every board is whole. Published in one thread, watched in the event
loop of another or the same.
"""

import asyncio
import contextlib
import math
import time

from joulecut_controller.board import Board


class Closed(Exception):
    """No further board will come: the controller is stopping."""


class Publisher:
    """Keeps the newest board only. Memory is one board, however many watch."""

    def __init__(self) -> None:
        self._board: Board | None = None
        self._changed = asyncio.Event()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None  # of those who watch
        self._published_s = -math.inf

    def publish(self, board: Board) -> None:
        """Replaces the board and wakes all watchers."""
        self._board = board
        self._published_s = time.monotonic()
        self._wake()

    def current(self) -> Board | None:
        """The newest board; None before the first pass ended."""
        return self._board

    def age_s(self) -> float:
        """Seconds since the newest board was published; infinite before the first."""
        return time.monotonic() - self._published_s

    async def next(self, after_pass: int) -> Board:
        """The newest board whose pass number is not `after_pass`, waiting for one if need be.

        "Not", rather than "larger than": a restarted controller counts from 1 again.
        Raises Closed once `close` was called.
        """
        self._loop = asyncio.get_running_loop()
        while not self._closed:
            if self._board is not None and self._board.pass_number != after_pass:
                return self._board
            await self._changed.wait()
        raise Closed

    def close(self) -> None:
        """Ends all watching, so that open streams do not hold up a shutdown."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        loop = self._loop
        if loop is None:
            return  # nobody ever watched
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody watches any more
            loop.call_soon_threadsafe(self._changed_now)

    def _changed_now(self) -> None:
        # A fresh event per change: no watcher can miss one, and none can spin on an old one.
        self._changed.set()
        self._changed = asyncio.Event()
