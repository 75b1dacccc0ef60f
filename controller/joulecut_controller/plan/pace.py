"""Pace: measured iteration times from modelled ones, and back.

The graph has no communication and no optimizer step: clocks slow a job by less than it says. The
model predicts the slowdown of any clocks. The reference measures the time at default clocks, the
slowdown of the clocks held, and the part of predicted slowdowns that comes true. Times are never
scaled, so an error at one plan is no error of default clocks.
"""

import math
from dataclasses import dataclass

from joulecut_controller.reference.reference import Figure

# Where the graph misses the measured iteration by more, it does not describe this job.
EXPLAINED_RATIO = 0.03
# Communication and optimizer take 3.6 % of the time of the graph on average in 365 published
# executions, 8.2 % at most; waiting for data may take as long as the graph. Of a rate alone, which
# cannot show what is beside the graph, no more than a network that holds up a quarter.
BESIDE_RATIO_MAX, RATE_BESIDE_RATIO_MAX = 1.0, 0.3
# Two standard errors: one false alarm in forty windows, and a false alarm only raises clocks.
DOUBT_STDERRS = 2.0
# Bounds of the part of predicted slowdowns that comes true: outside of them the profile is of other
# work, and a scale would extrapolate noise.
SCALE_MIN, SCALE_MAX = 0.5, 3.0
# By how much the first clocks of a predicted profile may miss the budget where all work slows by as
# much as its clock, for the dozen iterations that show it.
FIRST_OVER = 0.01
# Of the scale. Under a measured profile whose curve is too flat by half, the first clocks then miss
# a budget of 5 % by one point, for the dozen iterations that show it.
CAREFUL_SDS = 0.5

NONE, EXACT = Figure(0.0, 0.0), Figure(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Pace:
    """`default_s` is measured at default clocks, `modelled_s` is what the model says of them.
    `held` is the log slowdown of the clocks held, as modelled and as measured: 0 at default clocks.
    `scale` is the part of further predicted slowdowns that comes true; `worst` is the most that can
    under a predicted profile, since no work slows by more than its clock.
    """

    default_s: float
    modelled_s: float
    held: tuple[float, Figure] = (0.0, NONE)
    scale: Figure = EXACT
    worst: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether clocks below the default ones have been measured."""
        return self.held != (0.0, NONE)

    @property
    def slope(self) -> float:
        return min(max(self.scale.mean, SCALE_MIN), SCALE_MAX)

    def real_s(self, modelled_s: float) -> float:
        """Expected seconds of an iteration that the model says takes so long."""
        if modelled_s == self.modelled_s:
            return self.default_s
        modelled, measured = self.held
        beyond = math.log(modelled_s / self.modelled_s) - modelled
        return self.default_s * math.exp(measured.mean + self.slope * beyond)

    def goal_s(self, limit_s: float, *, careful: bool) -> float:
        """The longest modelled time whose real one keeps a limit. `careful`: longer than the clocks
        held only by the room that they leave but for a standard error, and than the limit only
        where the model is known to say too much.
        """
        modelled, measured = self.held
        allowed = math.log(limit_s / self.default_s)
        room = allowed - measured.mean
        if room <= 0.0:
            return self.modelled_s * math.exp(modelled + room / min(self.slope, 1.0))
        slope = self.slope
        if careful:
            room = max(0.0, room - measured.sd)
            slope = max(slope, 1.0)
            if not self.holds and self.worst:
                slope = max(slope, self.worst * allowed / (allowed + FIRST_OVER))
            elif not self.holds:
                slope += CAREFUL_SDS * self.scale.sd
        beyond = room / slope
        if careful and measured.mean + DOUBT_STDERRS * measured.sd > modelled:
            # Where work varies, each further step would follow the noise of the last one.
            beyond = min(beyond, max(0.0, allowed - modelled))
        return self.modelled_s * math.exp(modelled + beyond)


def significantly_above(mean_s: float, stderr_ratio: float, limit_s: float) -> bool:
    """Whether the mean is more than DOUBT_STDERRS of its standard error above the limit."""
    return mean_s * (1.0 - DOUBT_STDERRS * stderr_ratio) > limit_s
