"""Work of a job as a model of its run predicts it, before the first window.

Only ratios are used: between stages, between forward and backward, between clocks. The first window
settles the scale of time and power. Predictions are wrong by 10 to 20 %, so every ratio keeps a
standard deviation, and windows replace it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_controller.learn.regression import Floats
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Profile

# Standard deviations of predicted ratios; without a prediction they are 0.12, 0.3, 0.05 and 0.12.
STAGE_SD = 0.07  # of the logarithm of a stage's work; of a head the model may miss a tenth
CLOCK_SHARE_SD = 0.08
FORWARD_SHARE_SD = 0.03
POWER_SD = 0.05  # of power over power at default clocks, at any clock


@dataclass(frozen=True, slots=True)
class WorkPrior:
    """Predicted operations by stage and kind, in the order of `KINDS`.

    `busy_s` is at `default_mhz` and linear in 1/f by `clock_share`. `power_w` (rising with
    `clocks_mhz`) is the mean over stages and kinds while working.
    """

    default_mhz: int
    busy_s: tuple[tuple[float, ...], ...]
    clock_share: tuple[tuple[float, ...], ...]
    clocks_mhz: tuple[int, ...]
    power_w: tuple[float, ...]

    def at(self, default_mhz: Floats) -> tuple[Floats, Floats]:
        """Seconds and clock shares (stages, kinds) at other default clocks by stage."""
        share = np.array(self.clock_share)
        stretch = share * (self.default_mhz / default_mhz)[:, None]
        slower = 1.0 - share + stretch
        return np.array(self.busy_s) * slower, stretch / slower


def work_prior(profile: Profile, default_mhz: int) -> WorkPrior:
    """The prediction as numbers, at clocks up to the highest that the job runs at by default.

    `profile` has every stage and kind of `KINDS`. Its clocks are not those of a power cap, above
    which it describes nothing that runs.
    """
    busy, shares = [], []
    for stage in range(profile.stages):
        lines = [_line(profile.options[stage, kind], default_mhz) for kind in KINDS]
        busy.append(tuple(seconds for seconds, _ in lines))
        shares.append(tuple(share for _, share in lines))
    works = [profile.options[stage, kind] for stage in range(profile.stages) for kind in KINDS]
    shared = set.intersection(*({one.clock_mhz for one in options} for options in works))
    clocks = tuple(sorted(mhz for mhz in shared if mhz <= default_mhz)) or (min(shared),)
    powers = [{one.clock_mhz: one.power_w for one in options} for options in works]
    mean_w = tuple(float(np.mean([power_w[mhz] for power_w in powers])) for mhz in clocks)
    return WorkPrior(default_mhz, tuple(busy), tuple(shares), clocks, mean_w)


def _line(options: Sequence[ClockOption], default_mhz: int) -> tuple[float, float]:
    """Seconds at the default clock and the share that follows it, by least squares in 1/f."""
    below = [one for one in options if one.clock_mhz <= default_mhz]
    if len(below) < 2:
        return min(one.time_s for one in options), 1.0
    stretch = np.array([default_mhz / one.clock_mhz - 1.0 for one in below])
    times_s = np.array([one.time_s for one in below])
    slope_s, seconds = np.polyfit(stretch, times_s, 1)
    return float(seconds), float(np.clip(slope_s / seconds, 0.0, 1.0))
