"""Short default windows: a dozen iterations at default clocks, for their time alone.

What a job does by itself cannot be told from room once its clocks have changed: becoming faster
bit by bit, it would be lowered again and again. So clocks are lowered only against a measurement of
default clocks that is new enough. Pure.
"""

ITERATIONS = 12  # 1 % of noise leaves 0.3 % of doubt, about that of a baseline
SETTLING_S = 8.0  # beside its iterations: clocks change, and are observed
SHARE_MAX = 0.05  # of a job's time


def length_s(iteration_s: float) -> float:
    """How long a short window takes."""
    return ITERATIONS * iteration_s + SETTLING_S
