"""Updates a baseline from hold-out windows that are too short to replace it.

Each window is averaged into the known baseline; the older iterations weigh only as many as a
steady mean still needs, so that the baseline follows a drifting job. Pure.
"""

import math
from dataclasses import replace

from joulecut_controller.view import Window

ITERATIONS_MIN = 8  # fewer give no standard deviation worth the name


def blended(known: Window, seen: Window, wanted: int) -> Window:
    """Both as one window of at most `wanted` iterations, the newer ones all counted."""
    if seen.iterations < ITERATIONS_MIN:
        return known
    older = max(0, min(known.iterations, wanted - seen.iterations))
    share = seen.iterations / (seen.iterations + older)
    variance = (1.0 - share) * known.time_sd_s**2 + share * seen.time_sd_s**2
    return replace(
        seen,
        iterations=seen.iterations + older,
        time_mean_s=known.time_mean_s + share * (seen.time_mean_s - known.time_mean_s),
        time_sd_s=math.sqrt(variance),
        energy_j=_between(known.energy_j, seen.energy_j, share),
        power_w=_between(known.power_w, seen.power_w, share),
        operation_sd_ratio=_between(known.operation_sd_ratio, seen.operation_sd_ratio, share),
        gpu_sd_ratio=_between(known.gpu_sd_ratio, seen.gpu_sd_ratio, share),
    )


def _between(known: float | None, seen: float | None, share: float) -> float | None:
    if known is None or seen is None:
        return known if seen is None else seen
    return known + share * (seen - known)
