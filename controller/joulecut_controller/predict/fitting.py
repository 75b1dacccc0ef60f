"""Fits the form of `physics` to measurements: the same numbers on every run, from any start.

A grid over the numbers that enter nonlinearly (where the cap binds, knee and slope of the
voltage), refined, and weighted least squares for the rest. Pure and deterministic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from joulecut_controller.predict.cap import KNEE_RATIO_MIN, Caps, caps, disbelief
from joulecut_controller.predict.grid import Anchor, Floats, axis, line
from joulecut_controller.predict.physics import (
    MHZ_PER_GHZ,
    NO_PRIOR,
    Physics,
    Prior,
    Sweep,
    switching,
)

SLOPE_PRIOR_PER_GHZ = 0.6  # between the A100 (0.76) and A40 (0.45) sweeps; Hopper 0.4-0.5
SLOPE_PRIOR_SD = 0.3  # 0.41-1.12 were seen in seven fits
KNEE_PRIOR_RATIO = 0.77  # of f_max: where A100s have it, by three independent sweeps
KNEE_PRIOR_SD = 0.1  # of f_max: A40 0.65, Hopper 0.51-0.57
SLOPE_MAX_PER_GHZ = 2.5
# Static share of the power at the highest clock: 0.07-0.32 over the same seven fits.
STATIC_PRIOR_SHARE = 0.15
STATIC_PRIOR_SD = 0.1
# Share of the time that follows the clock: 0 for memory, 1 for arithmetic. From one clock
# alone the slowest that a lower one can be is assumed.
CLOCKED_PRIOR = 1.0
CLOCKED_PRIOR_SD = 2.0  # so weak that a second clock decides
KNEE_STEPS, SLOPE_STEPS = 14, 13  # of the first grid
REFINEMENTS = 7  # each has steps half as long: at last f_max / 3000, less than 1 MHz
# Misfit in time and in power is weighed on one scale: how well the form can fit at all.
MISFIT = 0.005
ROBUST_ROUNDS = 2
HUBER = 1.345  # as good as least squares to 95 % on clean data, deaf to outliers (Huber)
MAD_TO_SD = 1.4826  # of a normal distribution


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


def _search(weighed: Sequence[_Weighed], top_mhz: float, prior: Prior) -> tuple[Physics, ...]:
    """The best knee and slope for all curves together, and the best caps for each."""
    knees = axis(KNEE_RATIO_MIN * top_mhz, top_mhz, KNEE_STEPS)
    slopes = axis(0.0, SLOPE_MAX_PER_GHZ, SLOPE_STEPS)
    tried = [caps(one.sweep, top_mhz, prior) for one in weighed]
    for left in range(REFINEMENTS, -1, -1):
        judged = [
            _misfit(one, these, knees.values, slopes.values, prior)
            for one, these in zip(weighed, tried, strict=True)
        ]
        together = _disbelief(knees.values, slopes.values, top_mhz, prior)
        together = together + np.sum([one.total.min(axis=0) for one in judged], axis=0)
        i, j = np.unravel_index(int(together.argmin()), together.shape)
        knee, slope = float(knees.values[i]), float(slopes.values[j])
        if left:
            knees, slopes = knees.around(knee), slopes.around(slope)
            # Refined even where none is best yet: coarse caps fit badly.
            tried = [
                these.around(*one.best(int(one.total[:-1, i, j].argmin())))
                for one, these in zip(judged, tried, strict=True)
            ]
    best = [one.best(int(one.total[:, i, j].argmin())) for one in judged]
    return tuple(
        _curve(one, caps_mhz, knee, slope, top_mhz)
        for one, caps_mhz in zip(weighed, best, strict=True)
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


@dataclass(frozen=True, slots=True)
class _Judged:
    """Chi-squared of one curve over (power caps, knees, slopes); the caps, and their time's."""

    total: Floats
    time_mhz: Floats
    power_mhz: Floats

    def best(self, at: int) -> tuple[float, float]:
        return float(self.time_mhz[at]), float(self.power_mhz[at])


def _misfit(one: _Weighed, tried: Caps, knees_mhz: Floats, slopes: Floats, prior: Prior) -> _Judged:
    sweep, power_mhz = one.sweep, tried.power_mhz
    x = MHZ_PER_GHZ / np.minimum(sweep.clocks_mhz, tried.time_mhz[:, None])
    times = line(x, sweep.time_s, one.time_weight, one.time_anchor, MISFIT)
    cost, time_mhz = disbelief(sweep, tried, times.misfit / MISFIT**2, prior)
    effective_mhz = np.minimum(sweep.clocks_mhz, power_mhz[:, None])
    shape = switching(effective_mhz[:, None, None, :], knees_mhz[:, None, None], slopes[:, None])
    powers = line(shape, sweep.power_w, one.power_weight, one.power_anchor, MISFIT)
    total = cost[:, None, None] + powers.misfit / MISFIT**2
    if np.isfinite(prior.cap_w):
        capped = np.isfinite(power_mhz)
        seen_mhz = max(float(sweep.clocks_mhz.max()), one.top_mhz)  # nothing draws more there
        held_shape = switching(
            np.where(capped, power_mhz, seen_mhz)[:, None, None], knees_mhz[:, None], slopes
        )
        off = np.log((powers.offset + powers.slope * held_shape) / prior.cap_w) / prior.cap_sd
        total = total + np.where(capped[:, None, None], off, np.maximum(0.0, off)) ** 2
    return _Judged(np.asarray(total), time_mhz, power_mhz)


def _curve(
    one: _Weighed,
    caps_mhz: tuple[float, float],
    knee_mhz: float,
    slope: float,
    clock_max_mhz: float,
) -> Physics:
    sweep, (time_cap_mhz, power_cap_mhz) = one.sweep, caps_mhz
    x = MHZ_PER_GHZ / np.minimum(sweep.clocks_mhz, time_cap_mhz)
    times = line(x, sweep.time_s, one.time_weight, one.time_anchor, MISFIT)
    shape = switching(np.minimum(sweep.clocks_mhz, power_cap_mhz), knee_mhz, slope)
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
        clock_cap_mhz=time_cap_mhz,
        power_lead=0.0 if np.isinf(time_cap_mhz) else log(power_cap_mhz / time_cap_mhz),
    )
