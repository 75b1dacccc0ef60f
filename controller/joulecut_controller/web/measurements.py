"""Windows that probing measured on one job as JSON: what `joulecut profile` makes a profile of."""

from typing import Any

from joulecut_controller.answer import COUNT, NUMBER, TEXT, WORD, Answer, Json, listed, maybe
from joulecut_controller.board import JobBoard
from joulecut_controller.web.job_json import JOB

_MEASUREMENT = Answer(
    clocks_mhz=listed(COUNT),
    iterations=COUNT,
    iteration_time_s=NUMBER.at("time_s"),
    iteration_time_sd_s=NUMBER.at("time_sd_s"),
    energy_j=listed(NUMBER),
    busy_s=listed(listed(NUMBER)),
    operation_sd_ratio=NUMBER,
)
_PROBED = Answer(
    default_mhz=listed(COUNT).at("constants.default_mhz"),
    clock_max_mhz=COUNT.at("constants.clock_max_mhz"),
    blocking_power_w=NUMBER.at(lambda probed: probed.constants.blocking_power_w or None),
    clocks_mhz=listed(listed(COUNT)).at("grids_mhz"),
    alike=listed(COUNT),
    window_s=NUMBER,
    measurements=listed(_MEASUREMENT),
)


def _reason(job: Any) -> str:
    return job.probing.reason if job.probing else ""


# `probed` is null before the first window, and for a job with a profile.
MEASUREMENTS = Answer(
    "Measurements",
    **{key: JOB.keys[key] for key in ("name", "mode", "profile", "pipeline")},
    **{key: JOB.keys[key] for key in ("complaint", "sentence")},
    verdict=WORD.at(lambda job: job.probing and job.probing.verdict),
    reason=TEXT.at(_reason),
    probed=maybe(_PROBED),
)


def measurements_json(job: JobBoard) -> Json:
    return MEASUREMENTS.json(job)
