"""States of jobs for tests, from flat fields."""

import dataclasses
from typing import Any

from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.view import JobState, Measured, Placement, Stages

PLACED = {field.name for field in dataclasses.fields(Placement)}
MEASURED = {field.name for field in dataclasses.fields(Measured)}
SILENCE_LIMIT_S = 8.0


def job_state(
    policy: JobPolicy, stages: Stages, report_age_s: float = 0.0, **fields: Any
) -> JobState:
    """A job on these GPUs; other fields go where they belong."""
    placement = Placement(stages, report_age_s, SILENCE_LIMIT_S)
    return changed(JobState(policy, placement, Measured()), **fields)


def changed(job: JobState, **fields: Any) -> JobState:
    """The job with other fields, of its own, of its placement or of what was measured."""
    placed = {name: fields.pop(name) for name in PLACED & fields.keys()}
    measured = {name: fields.pop(name) for name in MEASURED & fields.keys()}
    return dataclasses.replace(
        job,
        placement=dataclasses.replace(job.placement, **placed),
        measured=dataclasses.replace(job.measured, **measured),
        **fields,
    )
