"""One probe, and what it is worth: what all ways of finding one have in common. Pure."""

from dataclasses import dataclass

import numpy as np

from joulecut_controller.learn.search import Floats, Judge

Clocks = tuple[int, ...]  # MHz by stage

# What making room costs in one window has to come back in so many of what is aimed at ...
PAYBACK_WINDOWS = 10
# ... and within some ten minutes (windows last up to 12 s) of the step it is made for: with little
# room a step is one clock of the table, and ten minutes have too few windows for those.
ROOM_WINDOWS = 50
# What a window cannot tell from no change of the iteration time.
LATER_MIN = 0.002


@dataclass(frozen=True, slots=True)
class Probe:
    """Stages to be lowered below their evidence, or whose slack is to be seen. `gain_ratio` is of
    the present energy, of this step or, of a supposed one, of what it leads to."""

    gain_ratio: float
    stages: tuple[int, ...]
    clocks_mhz: Clocks


def progress(judge: Judge, lowest_mhz: Clocks, now_j: float, rows: Floats) -> Floats:
    """What it saves to lower stages as in each row of clocks (m, stages), less what making room
    for it costs, for the time it takes, shape (m,): as long as the job is hardly slower, the
    worst case has room for whole steps, so stages that wait come before those waited for.
    """
    times_s, costs_j = judge(rows)
    before_s, before_j = judge(np.maximum(rows, np.array(lowest_mhz, dtype=np.float64)))
    room_j = np.maximum(0.0, before_j - now_j) / ROOM_WINDOWS
    worth = (before_j - costs_j - room_j) / now_j
    later = LATER_MIN + np.maximum(0.0, times_s / before_s - 1.0)
    return np.asarray(np.where(worth > 0.0, worth / later, worth))
