"""Long computations beside the steps, which never wait for them.

A frontier is thirty solves; it must not delay a decision. One task runs at a time, in a worker, so
that passes and plans keep the rest of the machine. A task requested again replaces the pending one.
A few jobs have theirs at once; a hundred would keep a processor busy for good, so that tasks beyond
CREDIT_S get SHARE of it. A task that fails is dropped and reported; the others go on.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Container
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from joulecut_wire.errors import JoulecutError

# (topic, job). Job "" stands for the whole controller: its tasks come first, the others in order.
Key = tuple[str, str]
Done = Callable[[Any], Awaitable[None] | None]
T = TypeVar("T")
RETRY_S = 5.0  # one interval by default; an absent store is not back sooner
SHARE = 0.15  # of one processor, in the long run
CREDIT_S = 120.0  # of work at once: everything about ten jobs


@dataclass(slots=True)
class BackgroundTasks:
    """Pending tasks by key, bounded by jobs times topics. Without `workers` a thread runs them.
    `failed` gets the key and the error of a task that was dropped; `finished` is called after one
    that was not.
    """

    workers: Executor | None = None
    retry_s: float = RETRY_S
    failed: Callable[[Key, str], None] = lambda *_: None
    finished: Callable[[], None] = lambda: None
    _pending: dict[Key, tuple[Callable[[], Any], Done]] = field(default_factory=dict)
    _errors: dict[Key, str] = field(default_factory=dict)  # reported last
    _task: asyncio.Task[None] | None = None
    _credit_s: float = CREDIT_S
    _credited_s: float = field(default_factory=time.monotonic)

    def pending(self, key: Key) -> bool:
        return key in self._pending

    def want(self, key: Key, work: Callable[[], Any], done: Done) -> None:
        """Runs `work` in a worker later, then `done` with its result in the event loop."""
        self._pending[key] = (work, done)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="studies")

    def keep_only(self, jobs: Container[str]) -> None:
        for kept in (self._pending, self._errors):
            for key in [key for key in kept if key[1] and key[1] not in jobs]:
                del kept[key]

    async def stop(self) -> None:
        """A task that runs is left to finish."""
        self._pending.clear()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._pending:
            key = next((key for key in self._pending if not key[1]), next(iter(self._pending)))
            asked = self._pending[key]
            work, done = asked
            begun_s = time.monotonic()
            try:
                result = await asyncio.get_running_loop().run_in_executor(self.workers, work)
                if self._pending.get(key) is asked:  # neither dropped nor replaced meanwhile
                    del self._pending[key]
                    try:
                        if (ending := done(result)) is not None:
                            await ending
                        self.finished()
                    except JoulecutError:  # the store is away; steps report that
                        self._pending.setdefault(key, (partial(_again, result), done))
                        await asyncio.sleep(self.retry_s)
            except BrokenExecutor:  # its worker died: once more, in a new one
                await asyncio.sleep(self.retry_s)
                continue
            except Exception as error:  # kept, it would hold up all behind it for good
                if self._pending.get(key) is asked:
                    del self._pending[key]
                self._report(key, f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._rest_s(time.monotonic() - begun_s))

    def _report(self, key: Key, error: str) -> None:
        """Once, though a frontier is asked for again in every step."""
        if self._errors.get(key) != error:
            self._errors[key] = error
            self.failed(key, error)

    def _rest_s(self, took_s: float) -> float:
        """How long the worker rests after a task, so that it keeps to its share."""
        now_s = time.monotonic()
        earned_s = SHARE * (now_s - self._credited_s)
        self._credit_s = min(CREDIT_S, self._credit_s + earned_s) - took_s
        self._credited_s = now_s
        return max(0.0, -self._credit_s / SHARE)


def _again(result: T) -> T:
    return result
