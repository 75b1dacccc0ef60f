"""How many jobs a controller can keep, measured by its event loop: one that is late for most of the
time renews leases late, loses its session with the database, and has each of its jobs begin again.
Pure.
"""

import math

from joulecut_controller.election.reach import LATE_S

WINDOW_S = 30.0  # a job that moves measures its baseline again, which takes about as long
LATE_RATIO = 0.5  # of a window, twice in a row: a pause is no lack of processor time
FEWER = 0.5  # of the jobs that it has: the loop is on time again after one or two steps
MORE = 1.25  # after a window on time: twice as many in a minute and a half


class Capacity:
    """Of one process, over all of its terms. `most` is None until its event loop was late."""

    def __init__(self) -> None:
        self.most: int | None = None
        self._begun_s, self._late_s, self._was_late = -math.inf, 0.0, False

    def run_late(self, late_s: float, jobs: int, now_s: float) -> None:
        """The event loop was late by so much, with so many jobs."""
        self._late_s += late_s if late_s >= LATE_S else 0.0
        if (took_s := now_s - self._begun_s) < WINDOW_S:
            return
        ratio, self._begun_s, self._late_s = self._late_s / took_s, now_s, 0.0
        if ratio >= LATE_RATIO and self._was_late:
            self.most = max(1, int(FEWER * jobs))
        elif self.most is not None and ratio < LATE_RATIO / 2.0:
            self.most = math.ceil(MORE * self.most)
        self._was_late = ratio >= LATE_RATIO
