"""The metrics as text: of each board once, and of each plan once, however many scrape.

Ten thousand GPUs have ten thousand planned clocks, which stay as they are for hours. Written
anew for every scrape they would keep the interpreter from everybody else for a tenth of a second.
"""

import threading
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.metrics.collector import BoardCollector, Family, clocks_of
from joulecut_controller.plan.plan import Plan


class Exposition:
    """Text of one collector. Its own figures are those of the moment, the jobs' of the board."""

    def __init__(self, collector: BoardCollector) -> None:
        self._collector = collector
        self._one_at_a_time = threading.Lock()
        self._shown: tuple[Board | None, bytes] | None = None
        self._plans: dict[str, tuple[Plan | None, bytes]] = {}
        self.plans_written = 0

    def text(self) -> bytes:
        """As `prometheus_client.generate_latest` would write it. In any thread: whoever comes
        while a board is written waits for it rather than writing it too.
        """
        with self._one_at_a_time:
            board = self._collector.board()
            if self._shown is None or self._shown[0] is not board:
                self._shown = (board, self._jobs(board.jobs if board else ()))
            jobs = self._shown[1]
        return written(self._collector.own(board)) + jobs

    def _jobs(self, jobs: tuple[JobBoard, ...]) -> bytes:
        parts, clocks = [], clocks_of(())
        for family in self._collector.of_jobs(jobs, clocks=False):
            parts.append(written([family]))
            if family.name == clocks.name:
                parts.extend(self._clocks(jobs, len(written([clocks]))))
        return b"".join(parts)

    def _clocks(self, jobs: tuple[JobBoard, ...], head: int) -> list[bytes]:
        """Lines of every job's plan, without the `head` bytes that all begin with."""
        before, self._plans = self._plans, {}
        for job in jobs:
            name = job.view.policy.name
            known = before.get(name)
            if known is None or known[0] is not job.decision:
                known = (job.decision, written([clocks_of((job,))])[head:])
                self.plans_written += 1
            self._plans[name] = known
        return [lines for _, lines in self._plans.values()]


def written(families: Iterable[Family]) -> bytes:
    """Families in the text format, in their order."""
    registry = CollectorRegistry()
    registry.register(_Given(families))
    return generate_latest(registry)


class _Given(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families
