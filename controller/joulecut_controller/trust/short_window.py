"""Short default windows: a dozen iterations at default clocks, for their time alone.

What a job does by itself cannot be told from room once its clocks have changed: becoming faster
bit by bit, it would be lowered again and again. So clocks are lowered only against a measurement of
default clocks that is new enough. Pure.
"""

import hashlib

ITERATIONS = 12  # 1 % of noise leaves 0.3 % of doubt, about that of a baseline
SETTLING_S = 8.0  # beside its iterations: clocks change, and are observed
SHARE_MAX = 0.05  # of a job's time
EVERY_S = 1800.0  # at most, without any reason; at 5 s an iteration that costs 4 % of the saving
SPREAD_RATIO = 0.2  # of EVERY_S: jobs that began together are apart after some windows


def length_s(iteration_s: float) -> float:
    """How long a short window takes."""
    return ITERATIONS * iteration_s + SETTLING_S


def every_s(job: str) -> float:
    """Age at which default clocks of a job are measured again: its own, from its name."""
    drawn = int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big") / 2.0**32
    return EVERY_S * (1.0 - SPREAD_RATIO * drawn)
