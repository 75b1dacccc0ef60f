"""The breaker of every job, at work: gives it what was measured, and does what it says.

Apart from stewards and planner on purpose: it looks before they do, at what the job reports
and at nothing they think, and what it ends they cannot begin again.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from joulecut_controller.observe.iteration_stats import BASELINE_ITERATIONS_MIN
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.orders import Hold
from joulecut_controller.reconcile.audit import Audit
from joulecut_controller.reconcile.holds import Holds
from joulecut_controller.verify.breaker import Breaker, Ended, limit_of


@dataclass(slots=True)
class _Watched:
    breaker: Breaker = field(default_factory=Breaker)
    controlled_since_s: float = math.inf
    default_since_s: float = math.inf
    shape: str = ""


class Breakers:
    """One breaker a job. `lag_s` as the ledger's: the longest way of a report."""

    def __init__(self, holds: Holds, audit: Audit, lag_s: float) -> None:
        self._holds, self._audit, self._lag_s = holds, audit, lag_s
        self._watched: dict[str, _Watched] = {}

    def keep_only(self, jobs: Iterable[str]) -> None:
        """Forgets jobs that left the policy; their trips stay with the holds."""
        wanted = set(jobs)
        for job in [job for job in self._watched if job not in wanted]:
            del self._watched[job]

    def look(
        self, observation: JobObservation, *, held: bool, now_s: float, allotted_s: float | None
    ) -> None:
        """Once a pass, before anything is decided. `held` says that the job's clocks are ours.

        Raises Unavailable where a trip could not be written down; it holds all the same.
        """
        job, measured = observation.view.policy.name, observation.measured
        watched = self._watched.setdefault(job, _Watched())
        if watched.shape != observation.shape:  # other GPUs, another pipeline: another job
            watched.breaker.forget()
            watched.shape = observation.shape
        watched.controlled_since_s = min(watched.controlled_since_s, now_s) if held else math.inf
        default = measured.at_default and not held
        watched.default_since_s = min(watched.default_since_s, now_s) if default else math.inf
        baseline = measured.baseline
        if baseline is None:
            return
        limit = limit_of(observation.view.policy, baseline, allotted_s)
        since_s = watched.controlled_since_s if held else watched.default_since_s
        ended = tuple(
            Ended(one.duration_s, max(one.peers_s.values()) if one.peers_s else None)
            for one in measured.told
            if one.arrived_s - self._lag_s - max(one.durations_s.values()) >= since_s
        )
        if held:
            finding = watched.breaker.controlled(ended, limit, peers_ours=_peers_ours(observation))
        else:
            finding = watched.breaker.at_default(ended, limit)
        if finding == "trip":
            hold = self._holds.trip(job, f"{watched.breaker.story}, twice in a row")
            self._audit.note("hold", job, hold.sentence, by=hold.by, trips=self._holds.trips(job))
        elif finding == "not-ours":
            self._holds.acquit(job)
            text = f"the trip does not count: at default clocks {watched.breaker.story}"
            self._audit.note("hold", job, text)

    def rearm(self, observation: JobObservation) -> Hold | None:
        """Ends the breaker's own hold when its time is over and default clocks were measured."""
        measured = observation.measured
        anew = measured.at_default and (
            measured.straggling or measured.current_iterations >= BASELINE_ITERATIONS_MIN
        )
        job = observation.view.policy.name
        ended = self._holds.expire(job, measured_anew=anew)
        if ended is not None:
            self._audit.note("hold", job, "the breaker is armed again: default clocks measured")
        return ended


def _peers_ours(observation: JobObservation) -> bool:
    """Whether the job's GPUs hold more than one pipeline, so that a sibling's lateness may be
    of our own making.
    """
    pipeline = observation.view.policy.pipeline
    width = max((len(stage) for stage in observation.view.stages), default=0)
    return pipeline is not None and width > pipeline.tensor_parallel
