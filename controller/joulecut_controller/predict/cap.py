"""Where the power cap holds a piece of work: one clock for its time, one for its power.

A cap is the one number of a curve that some curves do not have, and few clocks are easily
taken in by one: a cap that is only noise, or a roofline, costs 10 % of the power below it.
So it has to explain more than it takes.
"""

from dataclasses import dataclass

import numpy as np

from joulecut_controller.predict.grid import Axis, Floats, axis, fixed
from joulecut_controller.predict.physics import Prior, Sweep, switching

KNEE_RATIO_MIN = 0.45  # of f_max; no cap is below the lowest knee
POINTS_FOR_CAP = 4  # fewer are all taken up by the other numbers of time and power
# With three a cap must show in the time alone, where it is the third number. Their power has
# five numbers, and shared priors would rather believe in a cap than in an unusual card.
POINTS_FOR_CAP_IN_TIME = 3
CAP_STEPS = 16  # of the first grid
CAP_STEPS_FEW = 96  # few points leave a narrow valley, which coarse steps would jump over
# A cap must explain more than its one extra number does by chance (chi-squared, 5 %; 0.3 %
# where three clocks are all there is).
CAP_GAIN_MIN = 4.0
CAP_GAIN_MIN_FEW = 9.0
# Time may flatten without any cap (memory takes over): four standard deviations and no more
# count against a power that goes on rising.
LEAD_COST_MAX = 16.0
HELD_SD_MHZ = 20.0  # a held clock wanders by a step or two of the clock table
CAP_NEAR = 0.95  # of a known cap: work that pauses is held at 3-4 % below it on average
# Work of one card draws within a factor of two of other work there, the clock it is held at
# is within as much; a step of 1 % of it is well below what is believed of it.
MET_RATIO_MIN, MET_RATIO_MAX, MET_STEPS = 0.5, 2.0, 151


@dataclass(frozen=True, slots=True)
class Caps:
    """Clocks to try for one curve, of its time and of its power."""

    time: Axis
    power: Axis

    @property
    def time_mhz(self) -> Floats:
        """No cap is tried at every step: it must lose against the best one there is."""
        return np.append(self.time.values, np.inf)

    @property
    def power_mhz(self) -> Floats:
        return np.append(self.power.values, np.inf)

    def around(self, time_mhz: float, power_mhz: float) -> "Caps":
        """Finer ones near these; near the highest where one is infinite."""
        return Caps(
            self.time.around(min(time_mhz, float(self.time.values[-1]))),
            self.power.around(min(power_mhz, float(self.power.values[-1]))),
        )


def caps(sweep: Sweep, top_mhz: float, prior: Prior) -> Caps:
    """What to try at first; nothing but "none" where too little is known."""
    clocks = sweep.clocks_mhz.size
    if clocks < POINTS_FOR_CAP_IN_TIME and not _known(sweep, prior):
        return Caps(fixed(float("inf")), fixed(float("inf")))
    low_mhz = float(sweep.clocks_mhz.min())
    if clocks == 1:
        seen = prior.cap_mhz is not None or sweep.held_mhz is not None
        low_mhz = min(low_mhz, KNEE_RATIO_MIN * top_mhz) if seen else low_mhz
    steps = CAP_STEPS if clocks >= POINTS_FOR_CAP else CAP_STEPS_FEW
    found = axis(low_mhz, top_mhz, steps) if low_mhz < top_mhz else fixed(float("inf"))
    return Caps(found, found)


def near(sweep: Sweep, prior: Prior) -> bool:
    """Whether the work draws what its card is known to be held at."""
    return float(sweep.power_w.max()) >= CAP_NEAR * prior.cap_w


def disbelief(sweep: Sweep, tried: Caps, times: Floats, prior: Prior) -> tuple[Floats, Floats]:
    """Chi-squared of the best time cap for each power cap, and which it is; shape (power caps,).

    `times` is the misfit of the time for each time cap, the last without any.
    """
    at_mhz = tried.time_mhz
    capped = np.isfinite(at_mhz)
    close = near(sweep, prior)
    cost = times + np.where(capped & (not close), CAP_GAIN_MIN, 0.0)
    if sweep.clocks_mhz.size < POINTS_FOR_CAP and not _known(sweep, prior):
        cost = np.where(capped & (times + CAP_GAIN_MIN_FEW > times[-1]), np.inf, cost)
    held_mhz = np.where(capped, at_mhz, float(sweep.clocks_mhz.max()))
    if sweep.held_mhz is not None:
        cost = cost + ((held_mhz - sweep.held_mhz) / HELD_SD_MHZ) ** 2
    elif close and prior.cap_mhz is not None:
        cost = cost + ((held_mhz - _met_mhz(sweep, prior.cap_mhz, prior)) / prior.cap_sd_mhz) ** 2
    pairs = cost[:, None] + _lead_cost(sweep, tried, prior)
    best = pairs.argmin(axis=0)
    return np.asarray(pairs.min(axis=0)), at_mhz[best]


def load(power_w: float, clock_mhz: float, prior: Prior) -> float | None:
    """Watts per GHz (c of the form) of work that draws so much below its cap.

    None where the card is not known well enough, or the power is all static.
    """
    if prior.static_w is None or prior.knee_mhz is None or prior.slope_per_ghz is None:
        return None
    shape = switching(np.array([clock_mhz]), prior.knee_mhz, prior.slope_per_ghz)
    found = (power_w - prior.static_w) / float(shape[0])
    return found if found > 0.0 else None


def _met_mhz(sweep: Sweep, other_mhz: float, prior: Prior) -> float:
    """Where this work meets the cap that other work meets at `other_mhz`.

    Both draw the same there, so what it draws at its lowest clock tells; not where that is
    held as well.
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


def _lead_cost(sweep: Sweep, tried: Caps, prior: Prior) -> Floats:
    """Chi-squared of each pair of a time cap (rows) and a power cap: both, or power none."""
    time_mhz, power_mhz = tried.time_mhz[:, None], tried.power_mhz[None, :]
    met_mhz = np.where(np.isfinite(power_mhz), power_mhz, float(sweep.clocks_mhz.max()))
    lead = np.log(met_mhz / np.minimum(time_mhz, met_mhz))
    cost = np.minimum(((lead - prior.lead) / prior.lead_sd) ** 2, LEAD_COST_MAX)
    none = np.isinf(time_mhz) & np.isinf(power_mhz)
    return np.where(none, 0.0, np.where(time_mhz <= met_mhz, cost, np.inf))


def _known(sweep: Sweep, prior: Prior) -> bool:
    told = (prior.static_w, prior.cap_mhz, sweep.held_mhz)
    return bool(np.isfinite(prior.cap_w)) or any(number is not None for number in told)
