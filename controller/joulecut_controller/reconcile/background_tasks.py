"""Long computations beside the passes: there to be looked at, never waited for.

A frontier is thirty solves; it must not hold up a decision. One runs at a time, so that the
rest of the machine belongs to the passes; of a question asked again only the newest counts.
"""

import asyncio
from collections.abc import Callable, Container
from functools import partial
from typing import Any, TypeVar

from joulecut_wire.errors import JoulecutError

# (topic, job); topics are worked off in alphabetical order. A job "" is the whole controller's.
Key = tuple[str, str]
T = TypeVar("T")
RETRY_S = 5.0  # a store that is away is back no sooner, and a pass of the default comes meanwhile


class BackgroundTasks:
    """Questions not yet answered, by key. Bounded by jobs times topics."""

    def __init__(self, retry_s: float = RETRY_S) -> None:
        self._retry_s = retry_s
        self._pending: dict[Key, tuple[Callable[[], Any], Callable[[Any], None]]] = {}
        self._task: asyncio.Task[None] | None = None

    def pending(self, key: Key) -> bool:
        return key in self._pending

    def want(self, key: Key, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Runs `work` in a thread some time, then `done` with its result in this loop."""
        self._pending[key] = (work, done)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="studies")

    def keep_only(self, jobs: Container[str]) -> None:
        for key in [key for key in self._pending if key[1] and key[1] not in jobs]:
            del self._pending[key]

    async def stop(self) -> None:
        """What already runs in its thread is left to end by itself."""
        self._pending.clear()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._pending:
            key = min(self._pending)
            asked = self._pending[key]
            work, done = asked
            result = await asyncio.to_thread(work)
            if self._pending.get(key) is asked:  # neither withdrawn nor asked anew
                del self._pending[key]
                try:
                    done(result)
                except JoulecutError:  # nobody keeps it now; passes say why
                    self._pending.setdefault(key, (partial(_again, result), done))
                    await asyncio.sleep(self._retry_s)


def _again(result: T) -> T:
    return result
