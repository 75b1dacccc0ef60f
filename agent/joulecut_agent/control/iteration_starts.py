"""Starts of iterations on the GPUs of this node: one entry point for every source of them.

Sources are judged by their callers: a start that arrives here may come from the job of that GPU.
Where several sources report, the best one that is not silent times the clock changes.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from joulecut_agent.control.iteration_clock import PACES, IterationClock, Prediction
from joulecut_wire.messages import IterationTiming

REPORT, LOG, MARK = "report", "log", "mark"
# The best first. A first mark comes with the first operation of its own GPU, which on a later stage
# is after the start of the iteration.
SOURCES = (REPORT, LOG, MARK)
GPUS_MAX = 64  # four times the largest machines


@dataclass(slots=True)
class _Gpu:
    """One job on one GPU. `paces_s` are periods that its plans expect."""

    job: str
    clocks: dict[str, IterationClock] = field(default_factory=dict)  # by source
    paces_s: deque[float] = field(default_factory=lambda: deque(maxlen=PACES))

    def is_marked(self, now_s: float) -> bool:
        """Whether marks of operations come."""
        marks = self.clocks.get(MARK)
        return marks is not None and not marks.is_silent(now_s)

    def best(self, now_s: float) -> tuple[str, IterationClock] | None:
        """The best source that still reports, and its clock."""
        for source in SOURCES:
            clock = self.clocks.get(source)
            if clock is not None and not clock.is_silent(now_s):
                return source, clock
        return None


class IterationStarts:
    """Thread-safe. `changed(uuid)` is called after each start, in the thread of its source."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gpus: dict[str, _Gpu] = {}
        self.changed: Callable[[str], None] = lambda _: None

    def on_start(
        self, job: str, uuid: str, time_s: float, iteration: int | None, source: str
    ) -> None:
        """An iteration began at the monotonic `time_s`, now or some time ago.

        `iteration` is its number, or that of the one that ended then, always in the same sense.
        """
        with self._lock:
            gpu = self._gpus.get(uuid)
            if gpu is None or gpu.job != job:
                if gpu is None and len(self._gpus) >= GPUS_MAX:
                    return
                gpu = self._gpus[uuid] = _Gpu(job)
            clock = gpu.clocks.setdefault(source, IterationClock(paces_s=gpu.paces_s))
            newer = clock.seen(time_s, iteration, time.monotonic())
        if newer:
            self.changed(uuid)

    def expect(self, job: str, uuid: str, period_s: float) -> None:
        """A plan that comes into force may change the period to this one, or back from it."""
        now_s = time.monotonic()
        with self._lock:
            gpu = self._gpus.get(uuid)
            if gpu is not None and gpu.job == job:
                best = gpu.best(now_s)
                for pace_s in (best[1].period_s if best else 0.0, period_s):
                    if pace_s > 0.0 and pace_s not in gpu.paces_s:
                        gpu.paces_s.append(pace_s)

    def prediction(self, job: str, uuid: str, now_s: float) -> Prediction | None:
        """The next start of a job on a GPU; None while it cannot be known."""
        with self._lock:
            gpu = self._gpus.get(uuid)
            best = gpu.best(now_s) if gpu is not None and gpu.job == job else None
            return best[1].prediction() if best else None

    def timings(self, change_error_s: Callable[[str], float]) -> tuple[IterationTiming, ...]:
        """One for each GPU with a source that is not silent."""
        now_s, found = time.monotonic(), []
        with self._lock:
            for uuid, gpu in self._gpus.items():
                if best := gpu.best(now_s):
                    source, clock = best
                    rate, error_s = clock.starts_per_minute(now_s), change_error_s(uuid)
                    starts = (clock.period_s, clock.jitter_s, rate, clock.missed_ratio)
                    marked = gpu.is_marked(now_s)
                    found.append(IterationTiming(gpu.job, uuid, source, *starts, error_s, marked))
        return tuple(found)
