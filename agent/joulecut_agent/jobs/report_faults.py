"""Reports that could not be used, for the owner of the process that sent them.

The newest fault of each owner and source is kept, with a count: a broken job repeats itself in each
iteration. The controller shows it at the job, so that a typing error is not lost in a node's log.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from joulecut_agent.jobs.rate_source import Fault
from joulecut_wire.messages import ReportFault

KEPT_MAX = 64  # a job on each of 16 GPUs, from four sources
KEPT_S = 600.0  # without a new one it is mended, or its job has ended
TEXT_MAX = 300


@dataclass(slots=True)
class _Kept:
    uuids: tuple[str, ...]
    text: str
    count: int
    last_s: float


class ReportFaults:
    """`owner` returns job and GPUs that a fault belongs to. Any thread."""

    def __init__(self, owner: Callable[[Fault], tuple[str, tuple[str, ...]]]) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, int], _Kept] = OrderedDict()

    def note(self, fault: Fault) -> None:
        job, uuids = self._owner(fault)
        # Without an owner the user is all that tells senders apart.
        key = (job, fault.source, -1 if job and not fault.foreign else fault.sender.uid)
        with self._lock:
            count = self._kept[key].count if key in self._kept else 0
            self._kept[key] = _Kept(uuids, fault.text[:TEXT_MAX], count + 1, time.monotonic())
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)

    def current(self) -> tuple[ReportFault, ...]:
        """Those of the last KEPT_S."""
        now_s = time.monotonic()
        with self._lock:
            kept = list(self._kept.items())
        return tuple(
            ReportFault(job, one.uuids, source, one.text, one.count, now_s - one.last_s)
            for (job, source, _), one in kept
            if now_s - one.last_s < KEPT_S
        )
