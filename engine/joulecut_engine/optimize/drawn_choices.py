"""Choices judged by iterations as they are drawn, not by mean times.

Where times vary, whichever path is late delays the iteration. The statistic of many drawn
iterations stands here in the place of the iteration time of a choice, and in the place of its
longest path stands how often each operation lies on one. So a search over choices (`choice_search`)
takes margin by itself, and only where it is needed: an operation that is never critical keeps its
slow clock, and the bottleneck, which always is, its fast one.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from joulecut_engine.optimize.jitter import P95, Trials
from joulecut_engine.optimize.levels import Floats, Ints

if TYPE_CHECKING:
    from joulecut_engine.optimize.change_schedules import ChangeSchedules

Statistic = Literal["p95", "mean"]
LATE = 0.85  # P95 is read from the draws later than this quantile: a few more than those that miss


@dataclass(frozen=True, slots=True)
class Limit:
    """The statistic of these trials' iteration times is at most `limit_s`."""

    trials: Trials
    statistic: Statistic
    limit_s: float

    def seconds(self, duration_s: Floats) -> float:
        """The statistic, from mean seconds by operation."""
        times_s = self.trials.drawn_s(duration_s)
        return float(times_s.mean() if self.statistic == "mean" else np.quantile(times_s, P95))

    def critical(self, duration_s: Floats) -> tuple[float, Floats]:
        """The statistic, and by operation its seconds per second that the operation takes. Their
        sum over all operations is the statistic, as with a path."""
        if self.statistic == "mean":
            seconds, weight = self.trials.mean(duration_s)
        else:
            times_s = self.trials.drawn_s(duration_s)
            seconds = float(np.quantile(times_s, P95))
            late = np.flatnonzero(times_s >= np.quantile(times_s, LATE))
            weight = self.trials.late(duration_s, late)
        return seconds, weight * (seconds / float(weight @ duration_s))


class DrawnChoices:
    """A table as `choice_search` takes it. Iteration times are scaled so that the limit is kept
    where they are at most the deadline, which mean times keep in any case."""

    def __init__(self, table: "ChangeSchedules", limit: Limit, deadline_s: float) -> None:
        self._table, self._limit, self._deadline_s = table, limit, deadline_s
        self._scale = deadline_s / limit.limit_s

    @property
    def cost_j(self) -> Floats:
        return self._table.cost_j

    def iteration_times(self, choice: Ints) -> Floats:
        times_s = self._table.iteration_times(choice)
        duration_s = self._table.durations(choice)
        for k in np.flatnonzero(times_s <= self._deadline_s * (1 + 1e-9)).tolist():
            times_s[k] = max(times_s[k], self._scale * self._limit.seconds(duration_s[:, k]))
        return times_s

    def critical(self, choice: Ints) -> Floats:
        mean_s = float(self._table.iteration_times(choice[:, None])[0])
        seconds, weight = self._limit.critical(self._table.durations(choice[:, None])[:, 0])
        if mean_s > self._scale * seconds:
            return self._table.critical(choice)
        return self._scale * weight

    def longest(self, share: Floats) -> tuple[float, Floats]:
        """The scaled statistic of a mixture (`change_schedules`), and its weights."""
        seconds, weight = self._limit.critical(self._table.mixed_s(share))
        return self._scale * seconds, self._scale * weight

    def lengths(self, weight: Floats) -> Floats:
        return self._table.lengths(weight)
