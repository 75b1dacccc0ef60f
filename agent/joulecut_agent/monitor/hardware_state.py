"""Hardware counters of the GPUs between two readings of them, and XID errors since the agent began.

The reader process counts XID errors from its own start, and is replaced now and then; the counts
here never fall.
"""

import time
from collections.abc import Iterable

from joulecut_agent.ports.reader import HardwareCounters, Reading

STALE_S = 30.0  # three readings


class HardwareState:
    """Written by one thread, read by any."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[float, HardwareCounters]] = {}
        # By GPU and XID: count, and Unix time of the last.
        self._xids: dict[tuple[str, int], tuple[int, float]] = {}

    def add(self, readings: Iterable[Reading], at_s: float, unix_s: float) -> None:
        """Adds readings of one tick, at monotonic `at_s` and Unix time `unix_s`."""
        for reading in readings:
            if reading.hardware is not None:
                self._count(reading.uuid, reading.hardware, unix_s)
                self._latest[reading.uuid] = (at_s, reading.hardware)

    def latest(self, uuid: str) -> HardwareCounters | None:
        """The newest counters of a GPU; None without any, or if they are stale."""
        at_s, counters = self._latest.get(uuid, (0.0, None))
        return counters if time.monotonic() - at_s <= STALE_S else None

    def xid_errors(self) -> list[tuple[str, int, int, float]]:
        """(UUID, XID, count, Unix time of the last), in order."""
        rows = list(self._xids.items())
        return sorted((uuid, xid, count, at_s) for (uuid, xid), (count, at_s) in rows)

    def _count(self, uuid: str, counters: HardwareCounters, unix_s: float) -> None:
        _, before = self._latest.get(uuid, (0.0, HardwareCounters()))
        same = before.since_s == counters.since_s
        counted = dict(before.xid_errors) if same else {}
        for xid, count in counters.xid_errors:
            new = count - counted.get(xid, 0)
            if new > 0:
                total, _ = self._xids.get((uuid, xid), (0, 0.0))
                self._xids[uuid, xid] = (total + new, unix_s)
