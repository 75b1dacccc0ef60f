"""Virtual time must not fly while a real thread works: a story would hang on a machine's speed.

asyncio.get_running_loop().set_default_executor(AtOnce())
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

TURNS = 100  # of the loop, for what a pass has asked to be studied; each question takes four
T = TypeVar("T")


class AtOnce(ThreadPoolExecutor):
    """No thread at all: what is asked of it is done when it is asked."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # it is whoever waits that meets it
            done.set_exception(error)
        return done


async def studied() -> None:
    """Lets what runs beside the passes end, so that the end of a run withdraws nothing."""
    for _ in range(TURNS):
        if not any(
            task.get_name().startswith(("studies", "step ")) for task in asyncio.all_tasks()
        ):
            return
        await asyncio.sleep(0)
