"""Why each GPU was set, and since when that can show: what a watcher asks about a slow one.

An order is known here before it is written, and until it is answered nothing that is read can
be held against it.
"""

import math
import threading
import time

from joulecut_agent.keeper.lease import Command
from joulecut_wire.messages import Lease

REASONS_MAX = 4  # of one GPU: its lease's, and of orders under way


class Purposes:
    """Safe to use from every thread."""

    def __init__(self) -> None:
        # Job, generation and why of the newest orders, newest first.
        self._reasons: dict[str, tuple[tuple[str, int, str], ...]] = {}
        self._ordered_s: dict[str, float] = {}  # when it was answered; infinite until then
        self._lock = threading.Lock()

    def ordered(self, command: Command, reason: str) -> None:
        """Remembers why a job's GPUs will be slow, for who asks; before the order is sent.

        Nothing is judged until `answered`: an order with the knobs of the one before it shows in
        nothing else.
        """
        why = (command.job, command.generation, reason)
        with self._lock:
            for uuid in command.clocks_mhz:
                self._reasons[uuid] = (why, *self._reasons.get(uuid, ()))[:REASONS_MAX]
                self._ordered_s[uuid] = math.inf

    def answered(self, command: Command) -> None:
        """What is read from now on shows the order, whatever became of it."""
        with self._lock:
            self._ordered_s.update(dict.fromkeys(command.clocks_mhz, time.monotonic()))

    def withdrawn(self, command: Command, reason: str) -> None:
        """The order was refused: what it said counts for nothing."""
        why = (command.job, command.generation, reason)
        with self._lock:
            for uuid in command.clocks_mhz:
                if (known := self._reasons.get(uuid, ())) and known[0] == why:
                    self._reasons[uuid] = known[1:]

    def shows_s(self, uuid: str) -> float:
        """Since when a reading shows the newest order (monotonic); infinite until answered."""
        return self._ordered_s.get(uuid, 0.0)

    def of(self, uuid: str, lease: Lease) -> str:
        """Why a lease was taken, or ""; what a keeper of its own was told by an agent before
        this one is not known.
        """
        why = {row[:2]: row[2] for row in reversed(self._reasons.get(uuid, ()))}
        return why.get((lease.job, lease.generation), "")
