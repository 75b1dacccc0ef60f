"""Windows that probing measured on one job as JSON: what `joulecut profile` makes a profile of."""

from joulecut_controller.board import JobBoard
from joulecut_controller.learn.measurement_log import Measurement, ProbedJob
from joulecut_controller.web.job_json import pipeline_json
from joulecut_controller.web.responses import Json, number


def measurements_json(job: JobBoard) -> Json:
    """`probed` is null before the first window, and for a job with a profile."""
    policy = job.view.policy
    return {
        "name": policy.name,
        "mode": job.mode,
        "profile": policy.profile.source if policy.profile else None,
        "pipeline": pipeline_json(policy),
        "complaint": job.view.placement.complaint,
        "sentence": job.sentence,
        "verdict": job.probing.verdict if job.probing else None,
        "reason": job.probing.reason if job.probing else "",
        "probed": job.probed and _probed_json(job.probed),
    }


def _probed_json(probed: ProbedJob) -> Json:
    constants = probed.constants
    return {
        "default_mhz": list(constants.default_mhz),
        "clock_max_mhz": constants.clock_max_mhz,
        "blocking_power_w": number(constants.blocking_power_w or None),
        "clocks_mhz": [list(grid) for grid in probed.grids_mhz],
        "alike": list(probed.alike),
        "window_s": number(probed.window_s),
        "measurements": [_measurement_json(one) for one in probed.measurements],
    }


def _measurement_json(one: Measurement) -> Json:
    return {
        "clocks_mhz": list(one.clocks_mhz),
        "iterations": one.iterations,
        "iteration_time_s": number(one.time_s),
        "iteration_time_sd_s": number(one.time_sd_s),
        "energy_j": [number(joules) for joules in one.energy_j],
        "busy_s": [[number(seconds) for seconds in kinds] for kinds in one.busy_s],
        "operation_sd_ratio": number(one.operation_sd_ratio),
    }
