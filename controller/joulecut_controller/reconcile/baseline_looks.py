"""Looks: a dozen iterations at default clocks, so that the promise is against the job as it is now.

A look follows a shift of the job's pace, comes before clocks are lowered against an old baseline,
and now and then without either. The plan is suspended meanwhile, as for a hold-out window, which
measures the same. All looks of a job take at most SHARE_MAX of its time in the long run.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from joulecut_controller.board import BaselineLook
from joulecut_controller.observe.iteration_stats import Measured
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.goal import dwell_s
from joulecut_controller.plan.look import EVERY_S, ITERATIONS, SHARE_MAX, look_s
from joulecut_controller.plan.planning_input import PlanningInput

LOOKS_SAVED = 2.0  # a phase of other work, as an evaluation, is looked at when it begins and ends


@dataclass(slots=True)
class _Job:
    """Credit and time spent, in seconds at default clocks. `measured_s` is when they were measured
    last, `text` the open look's sentence.
    """

    credit_s: float
    since_s: float
    seen_s: float
    measured_s: float = -math.inf
    spent_s: float = 0.0
    text: str = ""


class BaselineLooks:
    """Looks of every job."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def keep_only(self, jobs: Iterable[str]) -> None:
        """Forgets jobs that left the policy."""
        wanted = set(jobs)
        for name in [name for name in self._jobs if name not in wanted]:
            del self._jobs[name]

    def step(self, inputs: PlanningInput, observation: JobObservation, *, wanted: bool) -> str:
        """Once a pass, before planning; the sentence of the open look, or "". `wanted`: a plan
        waits for one.
        """
        name, now_s = inputs.job.policy.name, inputs.view.now_s
        baseline, measured = inputs.job.baseline, observation.measured
        if baseline is None or inputs.mode != "enforce" or inputs.paused:
            if name in self._jobs:
                self._jobs[name].text = ""
            return ""
        # Clocks are not lowered again before the dwell, so a look costs no less.
        expected_s = max(look_s(baseline.time_mean_s), dwell_s(inputs))
        most_s = LOOKS_SAVED * expected_s
        job = self._jobs.setdefault(name, _Job(most_s, now_s, now_s))
        passed_s, job.seen_s = now_s - job.seen_s, now_s
        job.measured_s = measured.drift.measured_s
        job.credit_s = min(job.credit_s + SHARE_MAX * passed_s, most_s)
        if job.text:
            job.spent_s += passed_s
            job.credit_s -= passed_s
            if _complete(inputs, measured):
                job.text = ""
        elif (
            (job.credit_s >= expected_s or _slows(inputs))
            and any(inputs.running.values())
            and not inputs.holdout
        ):
            why = _why(inputs, observation, wanted=wanted)
            job.text = why and f"look at default clocks: {why}"
        return job.text

    def shown(self, name: str) -> BaselineLook | None:
        """None for a job that is not enforced."""
        job = self._jobs.get(name)
        if job is None:
            return None
        passed_s, age_s = job.seen_s - job.since_s, job.seen_s - job.measured_s
        share = job.spent_s / passed_s if passed_s > 0.0 else 0.0
        return BaselineLook(share, age_s if math.isfinite(age_s) else None, job.text)


def _complete(inputs: PlanningInput, measured: Measured) -> bool:
    """Whether default clocks are measured, energy included where it can be."""
    baseline, current = inputs.job.baseline, measured.current
    if not (measured.at_default and measured.settled and baseline and current):
        return False
    powered = current.power_w is not None or baseline.power_w is None
    return measured.current_iterations >= ITERATIONS and powered


def _slows(inputs: PlanningInput) -> bool:
    """Whether a GPU that the others wait for at lower clocks is faster now: they slow the job."""
    shift = inputs.job.drift.gpu_shift
    return shift is not None and shift.ratio < 1.0


def _why(inputs: PlanningInput, observation: JobObservation, *, wanted: bool) -> str:
    """The reason for a look; empty without one. A straggler, a power budget and another writer's
    lock change the pace themselves, so that a look shows nothing.
    """
    measured = observation.measured
    if measured.straggling or measured.external_lock or inputs.allotted_s is not None:
        return ""
    drift = measured.drift
    if drift.gpu_shift is not None:
        gpus = inputs.view.gpus
        places = [gpus[uuid].place if uuid in gpus else uuid for uuid in drift.gpu_shift.uuids]
        return drift.gpu_shift.text(places)
    if drift.shift_ratio != 1.0:
        return f"iterations at the same clocks changed by {drift.shift_ratio - 1.0:+.1%}"
    if wanted:
        return "clocks could be lowered, but the baseline is old"
    age_s = inputs.view.now_s - drift.measured_s
    return f"the baseline is {age_s / 60.0:.0f} min old" if age_s >= EVERY_S else ""
