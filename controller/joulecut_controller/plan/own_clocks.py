"""Clocks of their own for GPUs that are faster than the slowest one of their stage.

A stage works at the pace of its slowest GPU; the others only wait for it. At a lower clock of its
own a faster GPU ends just in time, and draws less. Each clock of the stage stands for a pace, and
each GPU has its cheapest clock at that pace. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

# A clock step is 1 % on most cards: a GPU that is faster by less has nothing to gain.
FASTER_RATIO_MIN = 0.01
ROUNDING = 1e-9  # a GPU exactly at the pace keeps it

Floats = NDArray[np.float64]
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Own:
    """`mhz[i]` maps clocks of the stage to that of GPU i, empty where they are the same;
    `energy_j` are joules of one operation by key and clock of the stage, a mean over the GPUs.
    """

    mhz: tuple[Mapping[int, int], ...]
    energy_j: Mapping[object, Floats]


def own_clocks(
    clocks_mhz: Sequence[int],
    allowed: Sequence[bool],
    pace_s: Mapping[Key, Floats],
    power_w: Mapping[Key, Floats],
    *,
    ratios: Floats,
    blocking_power_w: float,
) -> Own:
    """The clocks of the GPUs of one stage.

    By key, an operation takes `pace_s` (clocks,) at the slowest GPU and draws `power_w`
    (GPUs, clocks); GPU i takes `ratios[i]` of that time and may have the clocks `allowed`. Keys
    count alike, since a GPU runs as many backwards as forwards.
    """
    faster = ratios < 1.0 - FASTER_RATIO_MIN
    count = len(clocks_mhz)
    at = np.broadcast_to(np.arange(count), (len(ratios), count)).copy()
    for i in np.flatnonzero(faster):
        # Rows: the clock of the stage; columns: that of the GPU.
        in_time = np.tril(np.broadcast_to(np.asarray(allowed, dtype=bool), (count, count)))
        cost_j = np.zeros(count)
        for key, stage_s in pace_s.items():
            own_s = ratios[i] * stage_s
            in_time = in_time & (own_s[None, :] <= stage_s[:, None] * (1.0 + ROUNDING))
            cost_j += (power_w[key][i] - blocking_power_w) * own_s
        best = np.where(in_time, cost_j[None, :], np.inf)
        at[i] = np.where(in_time.any(axis=1), best.argmin(axis=1), np.arange(count))
    rows = np.arange(len(ratios))[:, None]
    energy_j: dict[object, Floats] = {}
    for key, stage_s in pace_s.items():
        own_s = np.where(faster, ratios, 1.0)[:, None] * stage_s[at]
        working_j = power_w[key][rows, at] * own_s
        energy_j[key] = (working_j + blocking_power_w * (stage_s - own_s)).mean(axis=0)
    mhz = tuple(
        {clocks_mhz[j]: clocks_mhz[k] for j, k in enumerate(row)} if faster[i] else {}
        for i, row in enumerate(at)
    )
    return Own(mhz, energy_j)
