"""Records the operations of an iteration and reports it: what the hooks of all frameworks call.

Operations on a GPU are timed with CUDA events, which are read once they are complete: the training
thread never waits. An iteration ends at the optimizer's step. Nothing here raises, and only the
process and thread that recorded first go on: a forked worker does not report.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joulecut import process
from joulecut.reporter import Reporter

MARKS = "JOULECUT_MARKS"  # 1: a datagram at the begin and end of each operation as well
PENDING_MAX = 4  # iterations whose events are not complete; older ones are reported without
FAILURES_MAX = 16  # after so many the recorder stays silent
OPERATIONS_MAX = 65_536  # of one iteration; a loop that never steps an optimizer
REPLACED_STEPS = 16  # of others without one of the first: a GAN's critic steps five times as often
UUID_WAIT_ITERATIONS = 32  # CUDA may be initialised late; without a GPU nothing is reported


class CpuClock:
    """Times of operations that run at once."""

    def now(self) -> float:
        return time.perf_counter()

    def done(self, _at: float) -> bool:
        return True

    def between_s(self, begin: float, end: float) -> float:
        return end - begin


class CudaClock:
    """CUDA events of the current stream; None while a graph is captured."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._free: list[Any] = []

    def now(self) -> Any:
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def done(self, at: Any) -> bool:
        if self._cuda.is_current_stream_capturing():
            return False
        return bool(at.query())

    def between_s(self, begin: Any, end: Any) -> float:
        seconds = float(begin.elapsed_time(end)) / 1000.0
        self._free += (begin, end)
        return seconds


@dataclass
class _Iteration:
    number: int
    duration_s: float
    ended_s: float
    operations: list[tuple[str, Any, Any]] = field(default_factory=list)


class IterationRecorder:
    """One of a process. `clock` is chosen when the first operation or iteration is recorded."""

    def __init__(self, reporter: Callable[[str, str, int], Reporter] = Reporter) -> None:
        self._make_reporter = reporter
        self._reporter: Reporter | None = None
        self._clock: Any = None
        self._owner = (0, 0)
        self._failures = 0
        self._open: list[tuple[str, Any, Any]] = []
        self._pending: deque[_Iteration] = deque()
        self._stepped_s = 0.0
        self._number = 0
        self._misses = 0
        self._first_optimizer: Any = None  # a weak reference
        self._steps_of_others = 0
        self.ends_elsewhere = False  # a framework calls `step` itself
        self._marks = os.environ.get(MARKS, "") == "1"
        self.stage: int | None = None
        self.shape: Mapping[str, Any] | None = None

    def begin(self, kind: str, microbatch: int) -> Any:
        """The begin of an operation; its result goes to `end`."""
        try:
            if not self._is_mine():
                return None
            if self._marks and self._reporter is not None:
                self._reporter.mark("begin", kind, microbatch, self._number)
            return self._clock.now()
        except Exception:
            self._failed()
            return None

    def end(self, kind: str, microbatch: int, begin: Any) -> None:
        try:
            if begin is None or not self._is_mine():
                return
            end = self._clock.now()
            if end is not None and len(self._open) < OPERATIONS_MAX:
                self._open.append((kind, begin, end))
            if self._marks and self._reporter is not None:
                self._reporter.mark("end", kind, microbatch, self._number)
        except Exception:
            self._failed()

    def optimizer(self, optimizer: object) -> None:
        """An optimizer's step. Of several in one iteration, one for each part of a model for
        instance, the first counts, until it is gone or has been replaced.
        """
        try:
            if self.ends_elsewhere or not self._is_mine():
                return
            first = self._first_optimizer and self._first_optimizer()
            if first is not optimizer:
                self._steps_of_others += 1
                if first is not None and self._steps_of_others < REPLACED_STEPS:
                    return
                self._first_optimizer, self._stepped_s = weakref.ref(optimizer), 0.0
            self._steps_of_others = 0
        except Exception:
            self._failed()
        self.step()

    def step(self) -> None:
        """The end of an iteration."""
        try:
            if self._is_mine():
                self._step(time.monotonic())
        except Exception:
            self._failed()

    def _step(self, now_s: float) -> None:
        if self._stepped_s:
            one = _Iteration(self._number, now_s - self._stepped_s, now_s, self._open)
            self._pending.append(one)
        self._open, self._stepped_s, self._number = [], now_s, self._number + 1
        if self._reporter is None and not self._find_reporter():
            self._pending.clear()
            return
        while self._pending:
            one, late = self._pending[0], len(self._pending) > PENDING_MAX
            if not late and one.operations and not self._clock.done(one.operations[-1][2]):
                return
            self._pending.popleft()
            self._report(one, [] if late else self._timed(one), now_s)

    def _timed(self, one: _Iteration) -> list[tuple[str, float]]:
        """Kind and seconds of each operation, in order."""
        between_s = self._clock.between_s
        return [(kind, between_s(begin, end)) for kind, begin, end in one.operations]

    def _report(self, one: _Iteration, timed: list[tuple[str, float]], now_s: float) -> None:
        assert self._reporter is not None
        self._reporter.iteration(
            one.number,
            one.duration_s,
            timed=timed,
            age_s=now_s - one.ended_s,
            shape=self.shape,
        )

    def _find_reporter(self) -> bool:
        if self._misses >= UUID_WAIT_ITERATIONS:
            return False
        uuid = process.uuid()
        if not uuid:
            self._misses += 1
            return False
        stage = process.stage() if self.stage is None else self.stage
        self._reporter = self._make_reporter(process.job(), uuid, stage)
        stages = process.stages()
        if self.shape is None and self.stage is None and stages:
            self.shape = {"schedule": "", "stages": stages, "microbatches": 0}
        return True

    def _is_mine(self) -> bool:
        me = (os.getpid(), threading.get_ident())
        if self._owner == (0, 0):
            self._owner = me
            torch = sys.modules.get("torch")
            on_gpu = torch is not None and torch.cuda.is_initialized()
            self._clock = CudaClock(torch) if on_gpu else CpuClock()
        return self._owner == me and self._failures < FAILURES_MAX

    def _failed(self) -> None:
        self._failures += 1


recorder = IterationRecorder()
