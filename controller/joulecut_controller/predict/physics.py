"""The shape that time and power take over a GPU's clock, fitted to measurements.

A few numbers with a meaning each, so that five measured clocks say what all of them
cost; a free curve through the same five misses several times as much. The form (clock f
in MHz, in GHz for power and voltage; Schoonhoven et al., PMBS'22; Wang & Chu):

    f_eff = min(f, f_cap)                              f_cap: where the power cap binds
    t     = t_fmax * ((1 - k) + k * f_max / f_eff)     k: share of the time that follows f
    P     = P0 + c * f_eff * V(f_eff)^2                V = 1 + s * max(0, f_eff - f_knee)

V is the GPU's and not the work's, so `f_knee` and `s` are shared by all curves fitted
together: on the public A100 and A40 sweeps that halves the power error from five clocks.
What is known of the card beforehand (`Prior`) counts as one more measurement of each
number, so that two clocks of unseen work are enough once other work was seen on it.
Pure and deterministic: a grid over the numbers that enter nonlinearly (f_cap, f_knee, s),
refined, and weighted least squares for the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_controller.predict.grid import Anchor, Axis, Floats, axis, fixed, line

MHZ_PER_GHZ = 1000.0
SLOPE_PRIOR_PER_GHZ = 0.6  # between the A100 (0.76) and A40 (0.45) sweeps; Hopper 0.4-0.5
SLOPE_PRIOR_SD = 0.3  # 0.41-1.12 were seen in seven fits
KNEE_PRIOR_RATIO = 0.77  # of f_max: where A100s have it, by three independent sweeps
KNEE_PRIOR_SD = 0.1  # of f_max: A40 0.65, Hopper 0.51-0.57
KNEE_RATIO_MIN = 0.45
SLOPE_MAX_PER_GHZ = 2.5
# Static share of the power at the highest clock: 0.07-0.32 over the same seven fits.
STATIC_PRIOR_SHARE = 0.15
STATIC_PRIOR_SD = 0.1
# Share of the time that follows the clock: 0 for memory, 1 for arithmetic. From one clock
# alone the slowest that a lower one can be is assumed.
CLOCKED_PRIOR = 1.0
CLOCKED_PRIOR_SD = 2.0  # so weak that a second clock decides
POINTS_FOR_CAP = 4  # below: no cap, unless the card's is known
KNEE_STEPS, SLOPE_STEPS, CAP_STEPS = 14, 13, 16  # of the first grid
CAP_STEPS_FEW = 96  # few points leave a narrow valley, which coarse steps would jump over
REFINEMENTS = 7  # each has steps half as long: at last f_max / 3000, less than 1 MHz
# Misfit in time and in power is weighed on one scale: how well the form can fit at all.
MISFIT = 0.005
# A cap must explain more than its one extra number does by chance (chi-squared, 5 %).
CAP_GAIN_MIN = 4.0
HELD_SD_MHZ = 20.0  # a held clock wanders by a step or two of the clock table
CAP_NEAR = 0.95  # of a known cap: work that pauses is held at 3-4 % below it on average
ROBUST_ROUNDS = 2
HUBER = 1.345  # as good as least squares to 95 % on clean data, deaf to outliers (Huber)
MAD_TO_SD = 1.4826  # of a normal distribution


@dataclass(frozen=True, slots=True)
class Sweep:
    """Measurements of one kind of work: arrays of shape (n,), n >= 1, finite and above 0.

    `weight` (above 0; 1 for all where None) says how much each counts. `held_mhz` is the
    clock that the power cap was seen to hold it at, where it was.
    """

    clocks_mhz: Floats
    time_s: Floats
    power_w: Floats
    weight: Floats | None = None
    power_weight: Floats | None = None  # of the powers, where they count otherwise
    held_mhz: float | None = None

    def __post_init__(self) -> None:
        arrays = (self.clocks_mhz, self.time_s, self.power_w, self.weights, self.power_weights)
        if len({a.shape for a in arrays}) != 1 or arrays[0].ndim != 1 or not arrays[0].size:
            raise ValueError("clocks, times and powers must be arrays of one length")
        if not all(np.isfinite(a).all() and (a > 0.0).all() for a in arrays):
            raise ValueError("clocks, times and powers must be finite and above 0")

    @property
    def weights(self) -> Floats:
        return np.ones_like(self.clocks_mhz) if self.weight is None else self.weight

    @property
    def power_weights(self) -> Floats:
        return self.weights if self.power_weight is None else self.power_weight


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of a card before its work is measured; `_sd` in the same unit.

    `None` means: as for any card. `cap_w` is the power at which it is held.
    """

    knee_mhz: float | None = None
    knee_sd_mhz: float = 50.0
    slope_per_ghz: float | None = None
    slope_sd: float = 0.15
    static_w: float | None = None
    static_sd_w: float = 10.0
    cap_w: float = float("inf")
    cap_sd: float = 0.02  # relative
    cap_mhz: float | None = None  # where other work of the card meets the cap
    cap_sd_mhz: float = 50.0
    clocked: float | None = None
    clocked_sd: float = 0.2


@dataclass(frozen=True, slots=True)
class Physics:
    """One fitted curve. `clock_cap_mhz` is infinite where no cap was seen."""

    clock_max_mhz: float
    time_fmax_s: float  # what `clock_max_mhz` would take without the cap
    clock_share: float  # k
    power_static_w: float  # P0
    power_w_per_ghz: float  # c
    voltage_slope_per_ghz: float  # s
    clock_knee_mhz: float
    clock_cap_mhz: float = float("inf")

    def time_s(self, clocks_mhz: Floats) -> Floats:
        """Seconds at each clock; same shape as `clocks_mhz`, which is above 0."""
        stretch = self.clock_max_mhz / np.minimum(clocks_mhz, self.clock_cap_mhz)
        return self.time_fmax_s * ((1.0 - self.clock_share) + self.clock_share * stretch)

    def power_w(self, clocks_mhz: Floats) -> Floats:
        """Watts at each clock; same shape as `clocks_mhz`, which is above 0."""
        effective_mhz = np.minimum(clocks_mhz, self.clock_cap_mhz)
        shape = _switching(effective_mhz, self.clock_knee_mhz, self.voltage_slope_per_ghz)
        return self.power_static_w + self.power_w_per_ghz * shape


NO_PRIOR = Prior()


def fit(
    sweeps: Sequence[Sweep], prior: Prior = NO_PRIOR, clock_max_mhz: float | None = None
) -> tuple[Physics, ...]:
    """One curve per sweep; all sweeps come from one kind of GPU and share its voltage curve.

    Outliers are weighed down (Huber, on the median misfit of their own curve).
    `clock_max_mhz` is the card's highest clock, where the sweeps do not reach it. No
    sweeps, no curves.
    """
    if not sweeps:
        return ()
    top_mhz = max(float(sweep.clocks_mhz.max()) for sweep in sweeps)
    top_mhz = max(top_mhz, clock_max_mhz or 0.0)
    weighed = [
        _Weighed.of(sweep, sweep.weights, sweep.power_weights, prior, top_mhz) for sweep in sweeps
    ]
    fitted = _search(weighed, top_mhz, prior)
    for _ in range(ROBUST_ROUNDS):
        weighed = [
            _reweighed(sweep, curve, prior, top_mhz)
            for sweep, curve in zip(sweeps, fitted, strict=True)
        ]
        fitted = _search(weighed, top_mhz, prior)
    return fitted


@dataclass(frozen=True, slots=True)
class _Weighed:
    sweep: Sweep
    time_weight: Floats
    power_weight: Floats
    time_anchor: Anchor  # of the time that does not follow the clock
    power_anchor: Anchor  # of the static power
    top_mhz: float  # of the card

    @staticmethod
    def of(
        sweep: Sweep, time_weight: Floats, power_weight: Floats, prior: Prior, top_mhz: float
    ) -> "_Weighed":
        top = int(sweep.clocks_mhz.argmax())
        time_s, power_w = float(sweep.time_s[top]), float(sweep.power_w[top])
        clocked = CLOCKED_PRIOR if prior.clocked is None else prior.clocked
        clocked_sd = CLOCKED_PRIOR_SD if prior.clocked is None else prior.clocked_sd
        static = Anchor(STATIC_PRIOR_SHARE * power_w, STATIC_PRIOR_SD * power_w)
        if prior.static_w is not None:
            static = Anchor(prior.static_w, prior.static_sd_w)
        return _Weighed(
            sweep,
            time_weight,
            power_weight,
            Anchor((1.0 - clocked) * time_s, clocked_sd * time_s),
            static,
            top_mhz,
        )


def _reweighed(sweep: Sweep, curve: Physics, prior: Prior, top_mhz: float) -> _Weighed:
    return _Weighed.of(
        sweep,
        sweep.weights * _huber(np.log(sweep.time_s / curve.time_s(sweep.clocks_mhz))),
        sweep.power_weights * _huber(np.log(sweep.power_w / curve.power_w(sweep.clocks_mhz))),
        prior,
        top_mhz,
    )


def _huber(errors: Floats) -> Floats:
    scale = max(MISFIT, MAD_TO_SD * float(np.median(np.abs(errors))))
    return np.minimum(1.0, HUBER * scale / np.maximum(np.abs(errors), 1e-300))


def _switching(
    clocks_mhz: Floats, knee_mhz: Floats | float, slope_per_ghz: Floats | float
) -> Floats:
    """f * V(f)^2 in GHz: what dynamic power is proportional to."""
    over_ghz = np.maximum(0.0, clocks_mhz - knee_mhz) / MHZ_PER_GHZ
    return np.asarray(clocks_mhz / MHZ_PER_GHZ * (1.0 + slope_per_ghz * over_ghz) ** 2)


def _search(weighed: Sequence[_Weighed], top_mhz: float, prior: Prior) -> tuple[Physics, ...]:
    """The best knee and slope for all curves together, and the best cap for each."""
    knees = axis(KNEE_RATIO_MIN * top_mhz, top_mhz, KNEE_STEPS)
    slopes = axis(0.0, SLOPE_MAX_PER_GHZ, SLOPE_STEPS)
    caps = [_cap_axis(one.sweep, top_mhz, prior) for one in weighed]
    for left in range(REFINEMENTS, -1, -1):
        misfits = [
            _misfit(one, _or_none(cap), knees.values, slopes.values, prior)
            for one, cap in zip(weighed, caps, strict=True)
        ]
        together = _disbelief(knees.values, slopes.values, top_mhz, prior)
        together = together + np.sum([misfit.min(axis=0) for misfit in misfits], axis=0)
        i, j = np.unravel_index(int(together.argmin()), together.shape)
        knee, slope = float(knees.values[i]), float(slopes.values[j])
        best = [
            float(_or_none(cap)[misfit[:, i, j].argmin()])
            for cap, misfit in zip(caps, misfits, strict=True)
        ]
        if left:
            knees, slopes = knees.around(knee), slopes.around(slope)
            caps = [  # refined even where none is best yet: coarse caps fit badly
                cap.around(float(cap.values[misfit[:-1, i, j].argmin()]))
                for cap, misfit in zip(caps, misfits, strict=True)
            ]
    return tuple(
        _curve(one, cap, knee, slope, top_mhz) for one, cap in zip(weighed, best, strict=True)
    )


def _disbelief(knees_mhz: Floats, slopes: Floats, top_mhz: float, prior: Prior) -> Floats:
    """Chi-squared of the card's own numbers against what is believed of them."""
    knee, knee_sd = KNEE_PRIOR_RATIO * top_mhz, KNEE_PRIOR_SD * top_mhz
    if prior.knee_mhz is not None:
        knee, knee_sd = prior.knee_mhz, prior.knee_sd_mhz
    slope, slope_sd = SLOPE_PRIOR_PER_GHZ, SLOPE_PRIOR_SD
    if prior.slope_per_ghz is not None:
        slope, slope_sd = prior.slope_per_ghz, prior.slope_sd
    off = ((knees_mhz - knee) / knee_sd) ** 2
    return np.asarray(off[:, None] + ((slopes - slope) / slope_sd) ** 2)


def _cap_axis(sweep: Sweep, top_mhz: float, prior: Prior) -> Axis:
    told = (prior.static_w, prior.cap_mhz, sweep.held_mhz)
    known = np.isfinite(prior.cap_w) or any(number is not None for number in told)
    if sweep.clocks_mhz.size < POINTS_FOR_CAP and not known:
        return fixed(float("inf"))
    low_mhz = float(sweep.clocks_mhz.min())
    if sweep.clocks_mhz.size == 1:
        seen = prior.cap_mhz is not None or sweep.held_mhz is not None
        low_mhz = min(low_mhz, KNEE_RATIO_MIN * top_mhz) if seen else low_mhz
    steps = CAP_STEPS if sweep.clocks_mhz.size >= POINTS_FOR_CAP else CAP_STEPS_FEW
    return axis(low_mhz, top_mhz, steps) if low_mhz < top_mhz else fixed(float("inf"))


def _or_none(caps: Axis) -> Floats:
    """No cap is tried at every step: it must lose against the best one there is."""
    return np.append(caps.values, np.inf)


def _misfit(
    one: _Weighed,
    caps_mhz: Floats,
    knees_mhz: Floats,
    slopes: Floats,
    prior: Prior,
) -> Floats:
    """Chi-squared of one curve, of shape (caps, knees, slopes)."""
    sweep = one.sweep
    effective_mhz = np.minimum(sweep.clocks_mhz, caps_mhz[:, None])
    x = MHZ_PER_GHZ / effective_mhz
    times = line(x, sweep.time_s, one.time_weight, one.time_anchor, MISFIT)
    shape = _switching(effective_mhz[:, None, None, :], knees_mhz[:, None, None], slopes[:, None])
    powers = line(shape, sweep.power_w, one.power_weight, one.power_anchor, MISFIT)
    total = (times.misfit[:, None, None] + powers.misfit) / MISFIT**2
    capped = np.isfinite(caps_mhz)
    near = float(sweep.power_w.max()) >= CAP_NEAR * prior.cap_w
    total = total + np.where(capped & (not near), CAP_GAIN_MIN, 0.0)[:, None, None]
    seen_mhz = float(sweep.clocks_mhz.max())
    held_mhz = np.where(capped, caps_mhz, seen_mhz)
    if sweep.held_mhz is not None:
        total = total + (((held_mhz - sweep.held_mhz) / HELD_SD_MHZ) ** 2)[:, None, None]
    elif near and prior.cap_mhz is not None:
        total = total + (((held_mhz - prior.cap_mhz) / prior.cap_sd_mhz) ** 2)[:, None, None]
    if not np.isfinite(prior.cap_w):
        return np.asarray(total)
    held_mhz = np.where(capped, caps_mhz, max(seen_mhz, one.top_mhz))  # nothing draws more there
    held_shape = _switching(held_mhz[:, None, None], knees_mhz[:, None], slopes)
    held_w = powers.offset + powers.slope * held_shape
    off = np.log(held_w / prior.cap_w) / prior.cap_sd
    return np.asarray(total + np.where(capped[:, None, None], off, np.maximum(0.0, off)) ** 2)


def _curve(
    one: _Weighed, cap_mhz: float, knee_mhz: float, slope: float, clock_max_mhz: float
) -> Physics:
    sweep = one.sweep
    effective_mhz = np.minimum(sweep.clocks_mhz, cap_mhz)
    x = MHZ_PER_GHZ / effective_mhz
    times = line(x, sweep.time_s, one.time_weight, one.time_anchor, MISFIT)
    shape = _switching(effective_mhz, knee_mhz, slope)
    powers = line(shape, sweep.power_w, one.power_weight, one.power_anchor, MISFIT)
    clocked_s = float(times.slope) * MHZ_PER_GHZ / clock_max_mhz
    time_fmax_s = float(times.offset) + clocked_s
    return Physics(
        clock_max_mhz=clock_max_mhz,
        time_fmax_s=time_fmax_s,
        clock_share=clocked_s / time_fmax_s,
        power_static_w=float(powers.offset),
        power_w_per_ghz=float(powers.slope),
        voltage_slope_per_ghz=slope,
        clock_knee_mhz=knee_mhz,
        clock_cap_mhz=cap_mhz,
    )
