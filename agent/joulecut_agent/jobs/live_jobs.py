"""Which jobs are alive on which GPU, as far as they say so themselves.

Every one of them counts, not the newest alone: a GPU that several share is nobody's to slow.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

HOLDERS_MAX = 64  # live jobs of one GPU; who names himself anew each time is none of them


@dataclass(frozen=True, slots=True)
class _Work:
    job: str
    until_s: float  # infinite while we see the process that reports


class LiveJobs:
    """One thread writes, any thread reads: each answer is of one moment."""

    def __init__(self) -> None:
        self._works: Mapping[str, tuple[_Work, ...]] = {}
        # GPU, its live jobs, and since when (monotonic): told of each change.
        self.changed: Callable[[str, tuple[str, ...], float], None] = lambda *_: None

    def holding(self) -> dict[str, tuple[str, ...]]:
        """Every live job of each GPU that has some."""
        held, now_s = self._works, time.monotonic()
        return {u: tuple(w.job for w in works if now_s < w.until_s) for u, works in held.items()}

    def is_crowded(self, job: str, uuid: str) -> bool:
        """Whether this would be one job too many; each new one is a series and costs a reading."""
        now_s, works = time.monotonic(), self._works.get(uuid, ())
        if len(works) < HOLDERS_MAX or any(work.job == job for work in works):
            return False
        return sum(now_s < work.until_s for work in works) >= HOLDERS_MAX

    def reported(self, job: str, uuid: str, until_s: float, duration_s: float) -> None:
        """Who reports an iteration has worked for as long as that took."""
        work, now_s = _Work(job, until_s), time.monotonic()
        others = tuple(w for w in self._works.get(uuid, ()) if w.job != job and now_s < w.until_s)
        if (*others, work) != self._works.get(uuid):
            self._works = {**self._works, uuid: (*others, work)}
            self.changed(uuid, tuple(w.job for w in (*others, work)), now_s - max(0.0, duration_s))

    def ended(self, job: str, uuid: str) -> None:
        """Its last process has gone."""
        left = tuple(w for w in self._works.get(uuid, ()) if w.job != job)
        self._works = {**self._works, uuid: left}
        self.changed(uuid, tuple(w.job for w in left), time.monotonic())
