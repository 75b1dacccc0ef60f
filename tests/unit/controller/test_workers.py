"""Worker processes: bounded, replaced when they die, gone when their controller is."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest

from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.workers import Workers

LIMIT_S = 90.0
PARENT = """
import os, time
from joulecut_controller.workers import Workers
if __name__ == "__main__":
    print(Workers(1, 0).submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(1, 0)
    yield made
    made.end()


def test_a_worker_that_died_is_replaced_at_the_next_call(workers: Workers) -> None:
    first = workers.submit(os.getpid).result(LIMIT_S)
    assert first != os.getpid()
    with pytest.raises(BrokenExecutor):
        workers.submit(os.kill, first, signal.SIGKILL).result(LIMIT_S)
    assert workers.submit(os.getpid).result(LIMIT_S) not in (first, os.getpid())


def test_signals_of_a_terminal_do_not_end_a_worker(workers: Workers) -> None:
    worker = workers.submit(os.getpid).result(LIMIT_S)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(worker, number)
    assert workers.submit(os.getpid).result(LIMIT_S) == worker


def test_work_whose_worker_died_is_done_once_more(workers: Workers, tmp_path: Path) -> None:
    async def go() -> None:
        tasks, got = BackgroundTasks(workers, retry_s=0.01), list[str]()
        mark = str(tmp_path / "tried")
        tasks.want(("topic", "job"), _Dying(mark), got.append)
        async with asyncio.timeout(LIMIT_S):
            while not got:
                await asyncio.sleep(0.02)
        assert got == ["done"]
        await tasks.stop()

    asyncio.run(go())


class _Dying:
    """Kills its process at the first call, and answers at the next."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __call__(self) -> str:
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return "done"
        os.kill(os.getpid(), signal.SIGKILL)
        return ""


def test_workers_end_with_their_controller(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as one:
        worker = int(one.stdout.readline())
        one.kill()
    until_s = time.monotonic() + LIMIT_S
    while _lives(worker):
        assert time.monotonic() < until_s
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
