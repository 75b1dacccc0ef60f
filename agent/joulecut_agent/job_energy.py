"""Joules per job from the boards' own counters: never fewer than before, never guessed.

A counter that fell (driver reload) or was away counts as a new beginning, not as energy.
"""

from collections.abc import Mapping

JOBS_MAX = 64  # kept on one node; the longest silent one is forgotten first


class JobEnergy:
    """Adds what each GPU's counter grew by to the job that the GPU works for."""

    def __init__(self) -> None:
        self._counter_j: dict[str, float] = {}
        self._job_j: dict[str, float] = {}

    def add(self, counters_j: Mapping[str, float], jobs: Mapping[str, str]) -> None:
        """Counters of the GPUs that could be read, and the live job of those that have one."""
        for uuid, counter_j in counters_j.items():
            grown_j = counter_j - self._counter_j.get(uuid, counter_j)
            job = jobs.get(uuid)
            if job is not None:
                total_j = self._job_j.pop(job, 0.0) + max(0.0, grown_j)
                self._job_j[job] = total_j  # last in order: the most recently alive
        self._counter_j = dict(counters_j)
        while len(self._job_j) > JOBS_MAX:
            del self._job_j[next(iter(self._job_j))]

    def joules(self) -> dict[str, float]:
        return dict(self._job_j)
