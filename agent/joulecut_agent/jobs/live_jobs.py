"""Jobs that are alive on each GPU, by their own reports.

All of them count, not only the newest: a GPU that several jobs share is not controlled.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

HOLDERS_MAX = 64  # live jobs of one GPU; bounds a process that keeps changing its job's name


@dataclass(frozen=True, slots=True)
class _Work:
    job: str
    until_s: float  # infinite while the reporting process is visible


class LiveJobs:
    """One thread writes, any thread reads a consistent state."""

    def __init__(self) -> None:
        self._works: Mapping[str, tuple[_Work, ...]] = {}
        # Called at each change: GPU, its live jobs, and since when (monotonic).
        self.changed: Callable[[str, tuple[str, ...], float], None] = lambda *_: None

    def holding(self) -> dict[str, tuple[str, ...]]:
        """Every live job of each GPU that has some."""
        held, now_s = self._works, time.monotonic()
        return {u: tuple(w.job for w in works if now_s < w.until_s) for u, works in held.items()}

    def is_crowded(self, job: str, uuid: str) -> bool:
        """Whether another job is too many: each costs a series and a reading."""
        now_s, works = time.monotonic(), self._works.get(uuid, ())
        if len(works) < HOLDERS_MAX or any(work.job == job for work in works):
            return False
        return sum(now_s < work.until_s for work in works) >= HOLDERS_MAX

    def reported(self, job: str, uuid: str, until_s: float, duration_s: float) -> None:
        """A job has worked on the GPU for the iteration that it reports."""
        work, now_s = _Work(job, until_s), time.monotonic()
        others = tuple(w for w in self._works.get(uuid, ()) if w.job != job and now_s < w.until_s)
        if (*others, work) != self._works.get(uuid):
            self._works = {**self._works, uuid: (*others, work)}
            self.changed(uuid, tuple(w.job for w in (*others, work)), now_s - max(0.0, duration_s))

    def ended(self, job: str, uuid: str) -> None:
        """The last process of a job has ended."""
        left = tuple(w for w in self._works.get(uuid, ()) if w.job != job)
        self._works = {**self._works, uuid: left}
        self.changed(uuid, tuple(w.job for w in left), time.monotonic())
