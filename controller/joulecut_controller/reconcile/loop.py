"""The loop: runs the steps of keys when they are due, each key's one at a time.

A key is a job, or something that belongs to all jobs. It is due by time, and sooner where there is
news for it. Steps of different keys run side by side: the next begins when the one before has
ended, or waits for an agent, a worker or the store. A step that raises costs its own key only: it
is tried again later, twice as late after each failure.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from joulecut_controller.reconcile.loop_metrics import Histogram
from joulecut_controller.reconcile.work_queue import WorkQueue
from joulecut_wire.errors import described

# A step computes for 10 to 40 ms, in slices. One that takes longer waits for something.
BESIDE_S = 0.05
# Of a pass on a virtual clock, where nothing computes beside it: agents answer within 3 s.
PASS_LIMIT_S = 5.0
TICK_S = 0.5  # between two looks at what arrived: agents send once a second at most
# A new leader clears what the one before left, waits until agents have shown that (a second),
# and plans: no reason to wait a whole interval for each.
HURRY_S = 1.0
HURRIED_STEPS = 8
RETRY_INTERVALS_MAX = 6.0  # a store that is back is used half a minute later at most
DOUBLINGS_MAX = 16  # more than RETRY_INTERVALS_MAX needs


@dataclass(slots=True)
class _Record:
    """How the steps of a key went. `error` is of the last one; empty where it succeeded."""

    succeeded_s: float
    steps: int = 0
    failures: int = 0
    error: str = ""


@dataclass(slots=True)
class Loop:
    """Steps of one leadership term. `step(key)` returns the seconds until the key is due again;
    infinite where only something new makes it due. `take_in` adds the keys that have news; `failed`
    gets a key and a new error of it. `durations` are those of steps that are due by time.
    """

    step: Callable[[str], Awaitable[float]]
    take_in: Callable[[], None]
    failed: Callable[[str, str], None]
    interval_s: float
    durations: Histogram
    now_s: Callable[[], float]
    failed_steps: int = 0
    _queue: WorkQueue = field(default_factory=WorkQueue)
    _records: dict[str, _Record] = field(default_factory=dict)
    _steps: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _answers: deque[str] = field(default_factory=deque)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _running: asyncio.AbstractEventLoop | None = None

    @property
    def troubles(self) -> Mapping[str, str]:
        """The error of each key whose last step failed."""
        return {key: record.error for key, record in self._records.items() if record.error}

    def silent_s(self, key: str) -> float:
        """How long no step of the key has succeeded."""
        return self.now_s() - self._records[key].succeeded_s if key in self._records else math.inf

    def add(self, key: str, wait_s: float = 0.0) -> None:
        """The key is due in `wait_s`, or sooner where it is already."""
        now_s = self.now_s()
        self._records.setdefault(key, _Record(now_s))
        self._queue.add(key, now_s + wait_s)
        self._wake()

    def answered(self, key: str) -> None:
        """A worker has answered a question of this key; called in any thread."""
        self._answers.append(key)
        self._wake()

    async def run(self) -> None:
        """Steps by due time and news, until it is cancelled."""
        self._running = asyncio.get_running_loop()
        try:
            while True:
                await self._begin_due(BESIDE_S)
                wait_s = min(self._queue.next_s - self.now_s(), TICK_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, wait_s)):
                        await self._woken.wait()
                self._woken.clear()
        finally:
            self._running = None

    async def run_due(self) -> None:
        """Runs every key that is due now to its end, on a clock that stands still meanwhile."""
        await self._begin_due(PASS_LIMIT_S)

    async def stop(self, limit_s: float) -> None:
        """Lets the steps under way end; what takes longer than `limit_s` is cancelled."""
        if self._steps:
            _, late = await asyncio.wait(self._steps.values(), timeout=limit_s)
            for step in late:
                step.cancel()

    async def _begin_due(self, beside_s: float) -> None:
        while True:
            while self._answers:
                self.add(self._answers.popleft())
            self.take_in()
            key = self._queue.take(self.now_s())
            if key is None:
                return
            step = asyncio.create_task(self._run_step(key), name=f"step {key}")
            self._steps[key] = step
            await asyncio.wait((step,), timeout=beside_s)

    async def _run_step(self, key: str) -> None:
        begun_s, wait_s = self.now_s(), 0.0  # a step that is cancelled is due again
        record = self._records.setdefault(key, _Record(begun_s))
        try:
            wait_s = await self.step(key)
        except Exception as error:
            wait_s = self._note(key, record, described(error))
        else:
            record.succeeded_s, record.failures, record.error = self.now_s(), 0, ""
            if record.steps < HURRIED_STEPS and math.isfinite(wait_s):
                wait_s = min(wait_s, HURRY_S)
        finally:
            record.steps += 1
            if math.isfinite(wait_s):
                self.durations.add(self.now_s() - begun_s)
            del self._steps[key]
            self._queue.done(key, begun_s + wait_s)
            if math.isinf(wait_s) and not record.error:
                self._records.pop(key, None)

    def _note(self, key: str, record: _Record, error: str) -> float:
        """Shows the error as long as it lasts, and reports it once. Returns the time to wait."""
        self.failed_steps += 1
        said, record.error = record.error, error
        if error != said:
            self.failed(key, error)
        doublings = 2.0 ** min(record.failures, DOUBLINGS_MAX)
        record.failures += 1
        return self.interval_s * min(doublings, RETRY_INTERVALS_MAX)

    def _wake(self) -> None:
        if self._running is not None:
            with suppress(RuntimeError):  # the event loop is closed: the term has ended
                self._running.call_soon_threadsafe(self._woken.set)
