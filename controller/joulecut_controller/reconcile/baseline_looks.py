"""Looks: a dozen iterations at default clocks, so that the promise is against the job as it is now.

A look follows a shift of the job's pace, comes before clocks are lowered against an old baseline,
and now and then without either. The plan is suspended meanwhile, as for a hold-out window, which
measures the same. All looks of a job take at most SHARE_MAX of its time in the long run.

Default clocks draw more power, so jobs take turns: without a shift a look begins only while fewer
than TOGETHER_MAX of all GPUs are looked at.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from joulecut_controller.board import BaselineLook
from joulecut_controller.observe.iteration_stats import Measured
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.goal import dwell_s
from joulecut_controller.plan.look import ITERATIONS, SHARE_MAX, every_s, look_s
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.view import BaselineDrift, GpuView

LOOKS_SAVED = 2.0  # a phase of other work, as an evaluation, is looked at when it begins and ends
# Of the GPUs of all enforced jobs: twice what looks take in the long run, so that all have a turn.
TOGETHER_MAX = 2.0 * SHARE_MAX
LATE_RATIO = 2.0  # of its expected time: a look that lasts longer takes no turn from others
FIRST_S = 60.0  # a new leader's plans and leases come first


@dataclass(slots=True)
class _Job:
    """Credit and time spent, in seconds at default clocks. `measured_s` is when they were measured
    last, `text` the open look's sentence, `until_s` when that should be over.
    """

    credit_s: float
    since_s: float
    seen_s: float
    measured_s: float = -math.inf
    spent_s: float = 0.0
    text: str = ""
    until_s: float = -math.inf
    gpus: int = 0  # while it is enforced


class BaselineLooks:
    """Looks of every job."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def keep_only(self, jobs: Iterable[str]) -> None:
        """Forgets jobs that left the policy."""
        wanted = set(jobs)
        for name in [name for name in self._jobs if name not in wanted]:
            del self._jobs[name]

    def step(
        self,
        inputs: PlanningInput,
        observation: JobObservation,
        *,
        wanted: bool,
        held_out: bool = False,
    ) -> str:
        """Once a pass, before planning; the sentence of the open look, or "". `wanted`: a plan
        waits for one.
        """
        name, now_s = inputs.job.policy.name, inputs.view.now_s
        baseline, measured = inputs.job.baseline, observation.measured
        if baseline is None or inputs.mode != "enforce" or inputs.vetoes:
            if name in self._jobs:
                self._jobs[name].text, self._jobs[name].gpus = "", 0
            return ""
        # Clocks are not lowered again before the dwell, so a look costs no less.
        expected_s = max(look_s(baseline.time_mean_s), dwell_s(inputs))
        most_s = LOOKS_SAVED * expected_s
        job = self._jobs.setdefault(name, _Job(most_s, now_s, now_s))
        passed_s, job.seen_s = now_s - job.seen_s, now_s
        job.measured_s, job.gpus = measured.drift.measured_s, len(inputs.running)
        job.credit_s = min(job.credit_s + SHARE_MAX * passed_s, most_s)
        if job.text:
            job.spent_s += passed_s
            job.credit_s -= passed_s
            if _complete(inputs, measured):
                job.text = ""
        elif (
            (job.credit_s >= expected_s or _slows(inputs))
            and any(inputs.running.values())
            and not held_out
        ):
            why = self._why(job, inputs, measured, wanted=wanted)
            job.text = why and f"look at default clocks: {why}"
            job.until_s = now_s + LATE_RATIO * expected_s
        return job.text

    def _why(self, job: _Job, inputs: PlanningInput, measured: Measured, *, wanted: bool) -> str:
        """The reason for a look; empty without one. A straggler, a power budget and another
        writer's lock change the pace themselves, so that a look shows nothing.
        """
        if measured.straggling or measured.external_lock or inputs.allotted_s is not None:
            return ""
        now_s = inputs.view.now_s
        shifted = _shifted(measured.drift, inputs.view.gpus)
        if shifted or not self._has_turn(now_s):
            return shifted
        if wanted:
            return "clocks could be lowered, but the baseline is old"
        age_s = now_s - job.measured_s
        if age_s < every_s(inputs.job.policy.name) or now_s - job.since_s < FIRST_S:
            return ""
        old = f"{age_s / 60.0:.0f} min old" if math.isfinite(age_s) else "of an earlier controller"
        return f"the baseline is {old}"

    def _has_turn(self, now_s: float) -> bool:
        jobs = self._jobs.values()
        looked_at = sum(job.gpus for job in jobs if job.text and now_s < job.until_s)
        return looked_at < TOGETHER_MAX * sum(job.gpus for job in jobs)

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


def _shifted(drift: BaselineDrift, gpus: Mapping[str, GpuView]) -> str:
    """How the job's pace has changed by itself since default clocks were measured; empty if not."""
    if drift.gpu_shift is not None:
        places = [gpus[uuid].place if uuid in gpus else uuid for uuid in drift.gpu_shift.uuids]
        return drift.gpu_shift.text(places)
    if drift.shift_ratio != 1.0:
        return f"iterations at the same clocks changed by {drift.shift_ratio - 1.0:+.1%}"
    return ""
