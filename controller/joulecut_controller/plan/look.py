"""Looks: a dozen iterations at default clocks, so that the promise is against the job as it is now.

What a job does by itself cannot be told from room once its clocks have changed: becoming faster
bit by bit, it would be lowered again and again. So clocks are lowered only against a baseline that
is new enough.
"""

import hashlib

from joulecut_controller.plan.planning_input import PlanningInput

ITERATIONS = 12  # 1 % of noise leaves 0.3 % of doubt, about that of a baseline
SETTLING_S = 8.0  # beside its iterations: clocks change, and are observed
SHARE_MAX = 0.05  # of a job's time
EVERY_S = 1800.0  # at most, without any reason; at 5 s an iteration that costs 4 % of the saving
SPREAD_RATIO = 0.2  # of EVERY_S: jobs that began together are apart after some looks


def look_s(iteration_s: float) -> float:
    """How long a look takes."""
    return ITERATIONS * iteration_s + SETTLING_S


def every_s(job: str) -> float:
    """Age at which a job's baseline is measured again: its own, from its name."""
    drawn = int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big") / 2.0**32
    return EVERY_S * (1.0 - SPREAD_RATIO * drawn)


def anchored(inputs: PlanningInput, lowered_s: float) -> bool:
    """Whether the baseline is new enough to lower clocks, which were lowered last at `lowered_s`.

    It is if measured since then, and while the job does not move, for as long as looks keep their
    share. A straggler and a power budget set deadlines of their own.
    """
    job, drift = inputs.job, inputs.job.drift
    if job.baseline is None or job.peer_iteration_time_s or inputs.allotted_s is not None:
        return True
    age_s = inputs.view.now_s - drift.measured_s
    held_s = look_s(job.baseline.time_mean_s) / SHARE_MAX
    return drift.measured_s > lowered_s or (not drift.moving and age_s <= held_s)
