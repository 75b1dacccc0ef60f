"""Measurements of a job that began without a profile, as JSON: what `joulecut profile` reads."""

from typing import Any

from joulecut_controller.answer import COUNT, NUMBER, TEXT, Answer, Json, listed, maybe
from joulecut_controller.board import JobBoard, MeasuredProfile
from joulecut_controller.web.job_json import JOB

_OPTION = Answer(stage=COUNT, kind=TEXT, clock_mhz=COUNT, time_s=NUMBER, energy_j=NUMBER)


def _options(made: MeasuredProfile) -> list[dict[str, Any]]:
    return [
        {
            "stage": stage,
            "kind": kind,
            "clock_mhz": one.clock_mhz,
            "time_s": one.time_s,
            "energy_j": one.energy_j,
        }
        for (stage, kind), options in made.profile.options.items()
        for one in options
    ]


# `measured` is null for a job with a profile of its own, and before there is a prediction. One
# option is an operation at a clock that it ran at.
MEASUREMENTS = Answer(
    "Measurements",
    **{key: JOB.keys[key] for key in ("name", "mode", "profile", "pipeline")},
    **{key: JOB.keys[key] for key in ("complaint", "sentence")},
    measured=maybe(Answer(blocking_power_w=NUMBER, options=listed(_OPTION).at(_options))).at(
        "measured_profile"
    ),
)


def measurements_json(job: JobBoard) -> Json:
    return MEASUREMENTS.json(job)
