"""Worker processes for whatever takes longer than a moment: solving, fitting, frontiers.

The event loop keeps leases alive, so nothing long runs in its process: a thread would hold the
interpreter's lock. Plans have workers of their own, and background work has one, so that a frontier
for the page never delays a plan. Workers are forked from a process of their own, which has loaded
what they share: gRPC does not survive a fork of the controller.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from multiprocessing import connection, get_context, parent_process
from typing import Any, TypeVar

# A hundred jobs are planned in half a minute. Three at least, so that one clock per GPU waits
# neither for a plan whose clocks change nor for an answer that is not wanted any more.
PLANNERS_MIN, PLANNERS_MAX = 3, 4
PRELOADED = "joulecut_controller.worker_preload"
# Heartbeats first, then plans, then what is only shown. A step is a quarter of the share: with five
# for plans, six other programs on two processors made a plan of 3 s take a minute and a half.
NICENESS_PLANS, NICENESS_BACKGROUND = 1, 10
T = TypeVar("T")


class Workers(Executor):
    """`count` processes, started when first used. A worker that dies fails the calls under way
    with BrokenExecutor; the next call starts new workers.
    """

    def __init__(self, count: int, niceness: int) -> None:
        self._count, self._niceness = count, niceness
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """`fn` and its arguments travel: functions of modules, and plain values."""
        pool = self._pool or self._started()
        try:
            return pool.submit(fn, *args, **kwargs)
        except BrokenExecutor:
            pool.shutdown(wait=False, cancel_futures=True)
            return self._started().submit(fn, *args, **kwargs)

    def end(self) -> None:
        """Ends the workers. Work under way is not waited for: nothing of it is needed any more."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()

    def _started(self) -> ProcessPoolExecutor:
        context = get_context("forkserver")
        context.set_forkserver_preload([PRELOADED])
        self._pool = ProcessPoolExecutor(self._count, context, _begin, (self._niceness,))
        return self._pool


def planners() -> Workers:
    """Workers for plans: as many as processors, within PLANNERS_MIN and PLANNERS_MAX."""
    return Workers(max(PLANNERS_MIN, min(PLANNERS_MAX, os.cpu_count() or 1)), NICENESS_PLANS)


def background() -> Workers:
    """The worker for fits, forecasts and frontiers."""
    return Workers(1, NICENESS_BACKGROUND)


def _begin(niceness: int) -> None:
    """In the worker. Signals of a terminal or of systemd are for the controller, which ends its
    workers itself; where the controller dies, they end too.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # a unit may forbid it
        os.nice(niceness)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
