"""Iteration times that agents estimate from power samples: used where a job reports nothing else.

Each agent estimates for itself and counts for itself, so the estimates of one GPU stand for the
whole job. Agents send the mean of a block of iterations, once per iteration. Pure.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from joulecut_controller.ports import ArrivedReport

POWER = "power"  # as agents name the source
# Longer than the longest block, eight iterations of 50 s.
SILENCE_S = 600.0


@dataclass(slots=True)
class _Job:
    uuid: str = ""  # whose estimates count
    seen_s: float = -math.inf
    reported_s: float = -math.inf  # by any other source


class PowerRates:
    """Remembers by job whose estimates count."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def keep_only(self, jobs: Iterable[str]) -> None:
        """Forgets jobs that left the policy."""
        self._jobs = {name: self._jobs[name] for name in jobs if name in self._jobs}

    def settled(
        self, job: str, reports: Sequence[ArrivedReport], uuids: Collection[str], now_s: float
    ) -> list[ArrivedReport]:
        """The reports of a pass, with estimates for all of the job's GPUs or without any."""
        own = [arrived for arrived in reports if arrived.report.source != POWER]
        known = self._jobs.setdefault(job, _Job())
        if own:
            known.reported_s = now_s
        if len(own) == len(reports) or now_s - known.reported_s < SILENCE_S:
            return own
        estimates = [arrived for arrived in reports if arrived.report.source == POWER]
        if known.uuid not in uuids or now_s - known.seen_s > SILENCE_S:
            known.uuid = estimates[0].report.uuid
        mine = [arrived for arrived in estimates if arrived.report.uuid == known.uuid]
        if not mine:
            return own
        known.seen_s = now_s
        begun_s = min(one.ended_s - one.report.duration_s for one in mine)  # of the block
        return [
            replace(one, report=replace(one.report, uuid=uuid), span_s=one.ended_s - begun_s)
            for one in mine
            for uuid in sorted(uuids)
        ]
