"""One probe, and what it is worth: what all ways of finding one have in common. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from joulecut_controller.plan.search import Floats, Judge

Clocks = tuple[int, ...]  # MHz by stage

# What making room costs in one window has to come back in so many.
PAYBACK_WINDOWS = 10
# What a window cannot tell from no change of the iteration time.
LATER_MIN = 0.002


@dataclass(frozen=True, slots=True)
class Probe:
    """Stages below their evidence. `gain_ratio` is of the present energy, of this step or, of a
    supposed one, of what it leads to."""

    gain_ratio: float
    stages: tuple[int, ...]
    clocks_mhz: Clocks


Order = tuple[float, tuple[int, ...], Clocks]


def progress(judge: Judge, lowest_mhz: Clocks, now_j: float) -> Callable[[Probe], Order]:
    """What lowering these stages saves, less what making room for it costs, for the time it
    takes: as long as the job is hardly slower, the worst case has room for whole steps, so
    stages that wait come before those waited for.
    """

    def of(probe: Probe) -> Order:
        base = tuple(map(max, zip(probe.clocks_mhz, lowest_mhz, strict=True)))
        rows: Floats = np.array([base, probe.clocks_mhz], dtype=np.float64)
        (base_s, later_s), (base_j, later_j) = judge(rows)
        room = max(0.0, base_j / now_j - 1.0) / PAYBACK_WINDOWS
        worth = (base_j - later_j) / now_j - room
        later = LATER_MIN + max(0.0, later_s / base_s - 1.0)
        return float(worth / later if worth > 0.0 else worth), probe.stages, probe.clocks_mhz

    return of
