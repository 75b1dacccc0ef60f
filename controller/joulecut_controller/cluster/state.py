"""The state of one job, and what stands between it and enforcement.

Computed from the board alone, so that page and command line agree and no sentence of an earlier
pass survives the state it described.
"""

import math
from typing import Literal

from joulecut_controller.board import JobBoard
from joulecut_controller.view import NOT_REPORTED

State = Literal[
    "enforced", "default", "recommended", "steady", "measuring", "silent", "unplaced",
    "paused", "tripped", "parked", "off",
]  # fmt: skip


def budget_ratio(job: JobBoard) -> float | None:
    """The tolerated slowdown, as a fraction of the baseline; None where unknown."""
    baseline = job.view.measured.baseline
    if baseline is None or baseline.time_mean_s <= 0.0:
        return None
    deadline_s = job.view.deadline_s or math.inf
    return max(0.0, deadline_s / baseline.time_mean_s - 1.0) if math.isfinite(deadline_s) else None


def state_of(job: JobBoard) -> State:
    """One word; what keeps a job from control comes before what is missing for it."""
    kinds = {hold.kind for hold in job.holds}
    view, plan, policy = job.view, job.decision, job.view.policy
    unknown = policy.profile is None and not policy.is_order  # its work at default clocks
    ordered: tuple[tuple[bool, State], ...] = (
        (job.mode == "off", "off"),
        ("breaker" in kinds, "tripped"),
        (bool(kinds), "paused"),
        (view.placement.complaint not in {"", NOT_REPORTED}, "unplaced"),
        (job.applied is not None and any(one.unused_mhz for one in job.applied.actions), "parked"),
        (job.applied is not None and not job.applied.changes_nothing, "enforced"),
        (
            view.measured.baseline is None and not math.isfinite(view.placement.report_age_s),
            "silent",
        ),
        (view.measured.baseline is None or unknown, "measuring"),
        (job.mode == "enforce" and not view.reservation, "default"),
        (plan is not None and not plan.changes_nothing, "recommended"),
        (plan is None or (plan.generation == 0 and job.computing), "measuring"),
    )
    return next((state for applies, state in ordered if applies), "steady")


def rate_source(job: JobBoard) -> str:
    """The source of the job's iterations; empty without one."""
    if job.timing is not None and job.view.policy.rate is None:
        return job.timing.source
    reports = math.isfinite(job.view.placement.report_age_s)
    return job.view.placement.source or "report" if reports else ""


def predicted_saved_ratio(job: JobBoard) -> float | None:
    """Predicted for the newest plan; None where it changes no clock."""
    plan = job.decision
    if plan is None or plan.changes_nothing or plan.forecast is None:
        return None
    return plan.forecast.saved_ratio


def next_step(job: JobBoard) -> str:
    """Empty where a job is enforced and nothing is missing."""
    view, plan, lock = job.view, job.decision, job.view.measured.external_lock
    reserved = f"recommended only: {view.reservation}" if view.reservation else ""
    steps: dict[State, str] = {
        "off": "set `mode: recommend` in the policy",
        "paused": job.holds[0].sentence if job.holds else "",
        "tripped": job.holds[0].sentence if job.holds else "",
        "unplaced": f"its GPUs cannot be assigned to stages: {view.placement.complaint}",
        "silent": "no report yet: the job must report its iterations (docs/integrations.md)",
        "measuring": f"no baseline is measured: {lock}" if lock else job.sentence,
        "enforced": reserved,
        "parked": "",
        "default": plan.refused if plan and plan.refused else job.sentence,
        "steady": job.sentence,
        "recommended": reserved or _towards_enforcement(job),
    }
    return steps[state_of(job)]


def _towards_enforcement(job: JobBoard) -> str:
    verdict, plan = job.advisable, job.decision
    if plan is not None and plan.predicted_from:
        if job.view.hindrance:
            return f"{plan.predicted_from}; not enforceable now: {job.view.hindrance}"
        return f"{plan.predicted_from}; `mode: enforce` in the policy begins with it"
    if verdict is None or verdict.yes:
        return "ready: set `mode: enforce` in the policy"
    return verdict.text
