"""Refuses reports that are out of sequence: duplicates, reordered ones, ranks far apart.

An iteration joins the reports of all GPUs of a job under one number, so a repeated or distant
number would be joined with another iteration. Reports of one GPU arrive in the order in which they
were sent; others are refused and counted.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from joulecut_controller.ports import ArrivedReport

RESTART_IN_ROW = 3  # reports that count on from a lower number: a restarted job, not an echo
PAUSE_S = 5.0  # an echo is late by seconds, a job that starts again by more ...
PAUSE_ITERATIONS = 4.0  # ... and by some iterations
NEAR = 64  # iterations: a GPU this close has lost reports, or reports soon


@dataclass(slots=True)
class _Place:
    """The sequence of one GPU."""

    last: int
    heard: int  # reports of the job until then
    ended_s: float
    behind: int = 0
    behind_last: int = -1


@dataclass(slots=True)
class SequenceFilter:
    """The numbers that each GPU of one job has come to. `refused` counts by reason."""

    refused: Counter[str] = field(default_factory=Counter)
    runs: int = 0  # how often the numbers began again
    _places: dict[str, _Place] = field(default_factory=dict)
    _heard: int = 0
    _run_last: int = -1  # the highest number of this run

    def taken(
        self, reports: Iterable[ArrivedReport], uuids: Collection[str]
    ) -> Iterator[ArrivedReport]:
        """Those of the job's GPUs `uuids` that count on."""
        for arrived in reports:
            uuid, number = arrived.report.uuid, arrived.report.iteration
            if uuid not in uuids:
                continue
            self._heard += 1
            reason = self._refusal(uuid, arrived)
            if reason:
                self.refused[reason] += 1
                continue
            place = self._places.get(uuid)
            if place is not None and number <= place.last and number <= self._run_last:
                self.runs, self._run_last = self.runs + 1, -1
            self._run_last = max(self._run_last, number)
            self._places[uuid] = _Place(number, self._heard, arrived.ended_s)
            yield arrived

    def apart(self, number: int, reported: Collection[str]) -> bool:
        """Whether more GPUs are elsewhere than `reported` this incomplete iteration.

        A GPU that never reported, or fell silent, is not elsewhere: one rank may report alone.
        """
        recent = self._heard - NEAR * len(self._places)
        elsewhere = sum(
            uuid not in reported
            and place.heard > recent
            and not number - NEAR <= place.last <= number + NEAR
            for uuid, place in self._places.items()
        )
        if elsewhere < len(reported):
            return False
        self.refused["apart"] += len(reported)
        return True

    def _refusal(self, uuid: str, arrived: ArrivedReport) -> str:
        place, number = self._places.get(uuid), arrived.report.iteration
        if place is None or number > place.last:
            return ""
        pause_s = max(PAUSE_S, PAUSE_ITERATIONS * arrived.report.duration_s)
        if arrived.ended_s - arrived.report.duration_s - place.ended_s > pause_s:
            return ""
        if number == place.last:
            return "duplicate"
        place.behind = place.behind + 1 if number > place.behind_last else 1
        place.behind_last = number
        return "" if place.behind >= RESTART_IN_ROW else "reordered"
