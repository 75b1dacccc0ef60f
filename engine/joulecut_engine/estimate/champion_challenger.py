"""Which of two models has described a workload better so far: the one in force is the one proven.

A model that fits more may fit worse, and nobody can know beforehand on whose cluster. So both
are asked before each sample is learnt, and the challenger leads only where it was no further
off: at clocks a GPU had run at before, and at those new to it, where plans are made or broken.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

WEIGHT = 0.05  # of the newest comparison: some forty count
COMPARED_MIN = 30  # before that the first look decides by luck
# The challenger takes the lead when it is no further off than this, and loses it when it is
# further off than prices may differ for planning (`plan.costs.TIME_TOLERANCE`).
LEADS, LOSES = 0.0005, 0.002
TRACKED_MAX = 1024  # workloads; the one compared longest ago goes


@dataclass(slots=True)
class _Tally:
    """Mean absolute errors (logarithms) of champion and challenger."""

    champion: float = 0.0
    challenger: float = 0.0
    count: int = 0

    def add(self, champion: float, challenger: float) -> None:
        share = max(WEIGHT, 1.0 / (self.count + 1))
        self.champion += share * (champion - self.champion)
        self.challenger += share * (challenger - self.challenger)
        self.count = min(self.count + 1, COMPARED_MIN)

    def worse_by(self, allowed: float) -> bool:
        return self.challenger > self.champion + allowed


@dataclass(slots=True)
class _Score:
    known: _Tally
    new: _Tally
    leads: bool = False


class Contest:
    """Scores by workload, bounded."""

    def __init__(self, tracked_max: int = TRACKED_MAX) -> None:
        self._tracked_max = tracked_max
        self._scores: OrderedDict[str, _Score] = OrderedDict()

    def saw(self, workload: str, champion: float, challenger: float, *, new: bool) -> None:
        """Takes one comparison; both are log(predicted / measured), `new` at a new clock."""
        score = self._scores.setdefault(workload, _Score(_Tally(), _Tally()))
        self._scores.move_to_end(workload)
        while len(self._scores) > self._tracked_max:
            self._scores.popitem(last=False)
        (score.new if new else score.known).add(abs(champion), abs(challenger))
        tallies = (score.known, score.new)
        if score.leads:
            score.leads = not any(tally.worse_by(LOSES) for tally in tallies)
        else:
            enough = sum(tally.count for tally in tallies) >= COMPARED_MIN
            score.leads = enough and not any(tally.worse_by(LEADS) for tally in tallies)

    def leads(self, workload: str) -> bool:
        """Whether the challenger has proved itself on this workload."""
        score = self._scores.get(workload)
        return score is not None and score.leads

    def errors(self, workload: str) -> tuple[float, float] | None:
        """Mean absolute errors of champion and challenger at clocks known; None before any."""
        score = self._scores.get(workload)
        if score is None or not score.known.count:
            return None
        return score.known.champion, score.known.challenger

    def forget(self, workload: str) -> None:
        self._scores.pop(workload, None)

    def state(self) -> list[list[Any]]:
        return [
            [workload, *_row(score.known), *_row(score.new), score.leads]
            for workload, score in self._scores.items()
        ]

    def restore(self, rows: Iterable[Iterable[Any]]) -> None:
        """Takes rows of `state` in. Raises TypeError, ValueError where one is none."""
        for workload, *numbers, leads in rows:
            a, b, known, c, d, new = numbers
            if not all(math.isfinite(x) and x >= 0 for x in (a, b, c, d)):
                raise ValueError(f"{numbers} is no score")
            score = _Score(_Tally(a, b, int(known)), _Tally(c, d, int(new)), bool(leads))
            self._scores[str(workload)] = score


def _row(tally: _Tally) -> tuple[float, float, int]:
    return tally.champion, tally.challenger, tally.count
