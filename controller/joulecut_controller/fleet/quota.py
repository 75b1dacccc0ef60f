"""What one agent may send in a time, by its number of GPUs.

Reports above a GPU's share are dropped and counted: they cost the job on that GPU. An agent itself
bounds what it sends, so more messages or bytes than an agent ever sends are a flood. Pure.
"""

import math
from collections.abc import Container
from dataclasses import dataclass, field

# Ten iterations a second with the times of 600 operations are half of it.
REPORT_BYTES_PER_S = 64 << 10  # of one GPU
BYTES_PER_S = 2 * REPORT_BYTES_PER_S  # of one GPU, with readings and what is dropped
MESSAGES_PER_INTERVAL, INTERVAL_S_MIN = 2.0, 0.01
BURST_S = 30.0  # what a controller that was stopped for so long finds in its sockets


@dataclass(slots=True)
class _Bucket:
    """An allowance that refills evenly."""

    left: float = math.inf  # full
    at_s: float = 0.0

    def take(self, amount: float, per_s: float, most: float, now_s: float) -> bool:
        self.left = min(most, self.left + per_s * (now_s - self.at_s))
        self.at_s = now_s
        if amount > self.left:
            return False
        self.left -= amount
        return True


@dataclass(slots=True)
class Quota:
    """One agent's, whose messages come every `interval_s`. `largest` is the size of the largest
    message that a connection takes, in bytes.
    """

    interval_s: float
    largest: int
    dropped: int = 0  # reports, in all
    _messages: _Bucket = field(default_factory=_Bucket)
    _bytes: _Bucket = field(default_factory=_Bucket)
    _reports: dict[str, _Bucket] = field(default_factory=dict)  # by GPU

    def flood(self, size: int, gpus: int, now_s: float) -> str:
        """Takes in a message of `size` bytes. Returns why it is too much, or ""."""
        per_s = MESSAGES_PER_INTERVAL / max(self.interval_s, INTERVAL_S_MIN)
        if not self._messages.take(1.0, per_s, per_s * BURST_S, now_s):
            return f"sends more than {per_s:g} messages a second"
        per_s = float(BYTES_PER_S * max(gpus, 1))
        if not self._bytes.take(size, per_s, max(per_s * BURST_S, 2.0 * self.largest), now_s):
            return f"sends more than {per_s / 1024:g} KiB a second for {gpus} GPUs"
        return ""

    def has_room(self, uuid: str, size: int, now_s: float) -> bool:
        """Whether a report of `size` bytes about a GPU of this agent is taken."""
        per_s = float(REPORT_BYTES_PER_S)
        bucket = self._reports.setdefault(uuid, _Bucket())
        fits = bucket.take(size, per_s, per_s * BURST_S, now_s)
        self.dropped += not fits
        return fits

    def keep_only(self, uuids: Container[str]) -> None:
        """Forgets GPUs that the agent has no longer."""
        self._reports = {uuid: one for uuid, one in self._reports.items() if uuid in uuids}
