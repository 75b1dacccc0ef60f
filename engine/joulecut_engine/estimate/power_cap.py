"""Where the power cap holds a piece of work: one clock for its time, one for its power.

The cap is the one number that only some curves have, and a few noisy clocks suggest one easily: a
false cap, or a roofline taken for one, costs 10 % of the power below it. So a cap must explain
more than its extra number does by chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.estimate.physics import Floats, Prior, Sweep, switching

Flags = NDArray[np.bool_]

# Points around the best of one grid, in its steps; the next grid has steps half as long. It
# reaches a whole old step either way, because the numbers trade off against each other.
NEARBY = np.linspace(-1.0, 1.0, 5)
KNEE_RATIO_MIN = 0.45  # of f_max; no cap is below the lowest knee
POINTS_FOR_CAP = 4  # the other numbers of time and power use up fewer
# With three a cap must show in time alone, where it is the third number. Power has five numbers,
# and shared priors prefer a cap to an unusual card.
POINTS_FOR_CAP_IN_TIME = 3
CAP_STEPS = 16  # of the first grid
CAP_STEPS_FEW = 96  # few points leave a narrow valley, which coarse steps would jump over
# Chi-squared that a cap must explain: 5 % chance for its one number, 0.3 % with only three clocks.
CAP_GAIN_MIN = 4.0
CAP_GAIN_MIN_FEW = 9.0
# Time may flatten without a cap (memory bound) while power rises: at most four standard
# deviations count against that.
LEAD_COST_MAX = 16.0
CAP_NEAR = 0.95  # of a known cap: work that pauses is held at 3-4 % below it on average
# Work on one card draws within a factor of two of other work, and so do the clocks it is held at;
# steps of 1 % are well below the prior's deviation.
MET_RATIO_MIN, MET_RATIO_MAX, MET_STEPS = 0.5, 2.0, 151


@dataclass(frozen=True, slots=True)
class Caps:
    """Candidate caps of many curves, for time and for power.

    Clocks have shape (curves, n), ascending except where `_tried` is false; the last is infinity,
    no cap. Lowest clock and steps have shape (curves, 1).
    """

    low_mhz: Floats
    high_mhz: float
    step_mhz: Floats
    time_mhz: Floats
    time_tried: Flags
    power_mhz: Floats
    power_tried: Flags

    def around(self, time_mhz: Floats, power_mhz: Floats) -> "Caps":
        """Finer candidates near these caps (curves,); near the highest one for infinity."""
        if self.time_mhz.shape[1] == 1:
            return self
        time_mhz, time_tried = self._near(time_mhz, self.time_mhz, self.time_tried)
        power_mhz, power_tried = self._near(power_mhz, self.power_mhz, self.power_tried)
        return replace(
            self,
            step_mhz=self.step_mhz / 2.0,
            time_mhz=time_mhz,
            time_tried=time_tried,
            power_mhz=power_mhz,
            power_tried=power_tried,
        )

    def _near(self, best_mhz: Floats, before_mhz: Floats, tried: Flags) -> tuple[Floats, Flags]:
        highest_mhz = np.where(tried, before_mhz, 0.0)[:, :-1].max(axis=1)
        near_mhz = np.minimum(best_mhz, highest_mhz)[:, None] + self.step_mhz * NEARBY
        inside = (near_mhz >= self.low_mhz) & (near_mhz <= self.high_mhz)
        # Excluded candidates repeat the lowest included one.
        first = np.take_along_axis(near_mhz, inside.argmax(axis=1)[:, None], axis=1)
        none = np.full_like(first, np.inf)
        clocks_mhz = np.hstack([np.where(inside, near_mhz, first), none])
        return clocks_mhz, np.hstack([inside, np.isinf(none)])


@dataclass(frozen=True, slots=True)
class CapPrior:
    """What is known of each curve's cap before the search; arrays (curves, 1)."""

    highest_mhz: Floats  # that was measured
    close: Flags  # power is near the card's known cap
    few: Flags  # so few clocks that a cap must explain more
    held_mhz: Floats
    held_sd_mhz: Floats  # infinite if unknown

    @staticmethod
    def of(sweeps: Sequence[Sweep], prior: Prior) -> "CapPrior":
        held = [_held(sweep, prior) for sweep in sweeps]
        few = [s.clocks_mhz.size < POINTS_FOR_CAP and not _known(prior) for s in sweeps]
        return CapPrior(
            highest_mhz=np.array([[float(sweep.clocks_mhz.max())] for sweep in sweeps]),
            close=np.array([[_near(sweep, prior)] for sweep in sweeps]),
            few=np.array(few)[:, None],
            held_mhz=np.array([[mhz] for mhz, _ in held]),
            held_sd_mhz=np.array([[sd] for _, sd in held]),
        )


def steps(sweep: Sweep, top_mhz: float, prior: Prior) -> int:
    """Number of caps in the first grid besides none; 0 if a cap cannot be determined."""
    clocks = sweep.clocks_mhz.size
    if clocks < POINTS_FOR_CAP_IN_TIME and not _known(prior):
        return 0
    if _lowest_mhz(sweep, top_mhz, prior) >= top_mhz:
        return 0
    return CAP_STEPS if clocks >= POINTS_FOR_CAP else CAP_STEPS_FEW


def caps(sweeps: Sequence[Sweep], top_mhz: float, prior: Prior, steps: int) -> Caps:
    """First grid of caps, `steps` for each curve."""
    low_mhz = np.array([_lowest_mhz(sweep, top_mhz, prior) for sweep in sweeps])
    none = np.full((len(sweeps), 1), np.inf)
    found = none
    if steps:
        found = np.hstack([np.linspace(low_mhz, top_mhz, steps + 1, axis=1), none])
    tried = np.ones(found.shape, dtype=np.bool_)
    return Caps(
        low_mhz=low_mhz[:, None],
        high_mhz=top_mhz,
        step_mhz=(top_mhz - low_mhz[:, None]) / max(1, steps),
        time_mhz=found,
        time_tried=tried,
        power_mhz=found,
        power_tried=tried,
    )


def disbelief(known: CapPrior, tried: Caps, times: Floats, prior: Prior) -> tuple[Floats, Floats]:
    """Chi-squared of the best time cap for each power cap, and that cap: (curves, power caps).

    `times` (curves, time caps) is the misfit of time for each time cap, the last without a cap.
    """
    at_mhz = tried.time_mhz
    capped = np.isfinite(at_mhz)
    cost = times + np.where(capped & ~known.close, CAP_GAIN_MIN, 0.0)
    unlikely = known.few & capped & (times + CAP_GAIN_MIN_FEW > times[:, -1:])
    cost = np.where(unlikely | ~tried.time_tried, np.inf, cost)
    held_mhz = np.where(capped, at_mhz, known.highest_mhz)
    cost = cost + ((held_mhz - known.held_mhz) / known.held_sd_mhz) ** 2
    pairs = cost[:, :, None] + _lead_cost(known, tried, prior)
    best = pairs.argmin(axis=1)
    cost = np.where(tried.power_tried, pairs.min(axis=1), np.inf)
    return cost, np.take_along_axis(at_mhz, best, axis=1)


def load(power_w: float, clock_mhz: float, prior: Prior) -> float | None:
    """Watts per GHz (c of the form) of work that draws `power_w` below its cap.

    None if the card's numbers are unknown, or if all power is static.
    """
    if prior.static_w is None or prior.knee_mhz is None or prior.slope_per_ghz is None:
        return None
    shape = switching(np.array([clock_mhz]), prior.knee_mhz, prior.slope_per_ghz)
    found = (power_w - prior.static_w) / float(shape[0])
    return found if found > 0.0 else None


def _lowest_mhz(sweep: Sweep, top_mhz: float, prior: Prior) -> float:
    """Lowest candidate cap: the lowest measured clock, or the lowest knee if only one is known."""
    low_mhz = float(sweep.clocks_mhz.min())
    if sweep.clocks_mhz.size == 1 and prior.cap_mhz is not None:
        return min(low_mhz, KNEE_RATIO_MIN * top_mhz)
    return low_mhz


def _near(sweep: Sweep, prior: Prior) -> bool:
    """Whether the work's power is near the card's known cap."""
    return float(sweep.power_w.max()) >= CAP_NEAR * prior.cap_w


def _held(sweep: Sweep, prior: Prior) -> tuple[float, float]:
    """Prior of the clock at which the cap holds the work, and its standard deviation."""
    if _near(sweep, prior) and prior.cap_mhz is not None:
        return _met_mhz(sweep, prior.cap_mhz, prior), prior.cap_sd_mhz
    return 0.0, float("inf")


def _met_mhz(sweep: Sweep, other_mhz: float, prior: Prior) -> float:
    """Clock at which this work meets the cap that other work meets at `other_mhz`.

    Both draw the same power there, so the power at the lowest clock determines it, unless the cap
    holds that clock too.
    """
    lowest = int(sweep.clocks_mhz.argmin())
    power_w, clock_mhz = float(sweep.power_w[lowest]), float(sweep.clocks_mhz[lowest])
    own = None if power_w >= CAP_NEAR * prior.cap_w else load(power_w, clock_mhz, prior)
    if own is None or prior.cap_load_w_per_ghz is None:
        return other_mhz
    clocks_mhz = other_mhz * np.linspace(MET_RATIO_MIN, MET_RATIO_MAX, MET_STEPS)
    shapes = switching(clocks_mhz, prior.knee_mhz or 0.0, prior.slope_per_ghz or 0.0)
    met = switching(np.array([other_mhz]), prior.knee_mhz or 0.0, prior.slope_per_ghz or 0.0)
    return float(np.interp(float(met[0]) * prior.cap_load_w_per_ghz / own, shapes, clocks_mhz))


def _lead_cost(known: CapPrior, tried: Caps, prior: Prior) -> Floats:
    """Chi-squared of the power cap's lead over the time cap: (curves, time caps, power caps)."""
    time_mhz, power_mhz = tried.time_mhz[:, :, None], tried.power_mhz[:, None, :]
    met_mhz = np.where(np.isfinite(power_mhz), power_mhz, known.highest_mhz[:, :, None])
    lead = np.log(met_mhz / np.minimum(time_mhz, met_mhz))
    cost = np.minimum(((lead - prior.lead) / prior.lead_sd) ** 2, LEAD_COST_MAX)
    none = np.isinf(time_mhz) & np.isinf(power_mhz)
    return np.where(none, 0.0, np.where(time_mhz <= met_mhz, cost, np.inf))


def _known(prior: Prior) -> bool:
    return bool(np.isfinite(prior.cap_w)) or prior.static_w is not None or prior.cap_mhz is not None
