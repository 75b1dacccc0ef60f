"""The shape that time and power take over a GPU's clock, fitted to measurements.

A few numbers with a meaning each, so that five measured clocks say what all of them
cost; a free curve through the same five misses several times as much. The form (clock f
in MHz, in GHz for power and voltage; Schoonhoven et al., PMBS'22; Wang & Chu):

    f_eff = min(f, f_cap)                              f_cap: where the power cap binds
    t     = t_fmax * ((1 - k) + k * f_max / f_eff)     k: share of the time that follows f
    P     = P0 + c * f_eff * V(f_eff)^2                V = 1 + s * max(0, f_eff - f_knee)

V is the GPU's and not the work's, so `f_knee` and `s` are shared by all curves fitted
together: on the public A100 and A40 sweeps that halves the power error from five clocks.
Pure and deterministic: a grid over the numbers that enter nonlinearly (f_cap, f_knee, s),
refined twice, and weighted least squares for the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MHZ_PER_GHZ = 1000.0
# With fewer points than free numbers anything fits, so numbers are freed one by one.
# 1 point: k = 1 (the slowest a lower clock can be) and P0 = 0.  2: k and P0.
POINTS_FOR_SLOPE = 3  # below: s as between the A100 and A40 sweeps
SLOPE_PRIOR_PER_GHZ = 0.6  # 0.76 and 0.45; on Hopper 0.4-0.5
POINTS_FOR_KNEE = 4  # below: f_knee is where A100s have it, by three independent sweeps
POINTS_FOR_CAP = 4  # below: no cap
KNEE_PRIOR_RATIO = 0.77  # 0.76-0.79 of f_max
KNEE_RATIO_MIN = 0.45  # Hopper's knee lies at 0.51 of f_max
SLOPE_MAX_PER_GHZ = 2.5  # 0.4-1.1 were seen
KNEE_STEPS, SLOPE_STEPS, CAP_STEPS = 14, 13, 16  # of the first grid
REFINEMENTS = 7  # each has steps half as long: at last f_max / 3000, less than 1 MHz
# Misfit in time and in power is weighed on one scale: how well the form can fit at all.
MISFIT = 0.005
# A cap must explain more than its one extra number does by chance (chi-squared, 5 %).
CAP_GAIN_MIN = 4.0
ROBUST_ROUNDS = 2
HUBER = 1.345  # as good as least squares to 95 % on clean data, deaf to outliers (Huber)
MAD_TO_SD = 1.4826  # of a normal distribution


@dataclass(frozen=True, slots=True)
class Sweep:
    """Measurements of one kind of work: arrays of shape (n,), n >= 1, finite and above 0."""

    clocks_mhz: Floats
    time_s: Floats
    power_w: Floats

    def __post_init__(self) -> None:
        arrays = (self.clocks_mhz, self.time_s, self.power_w)
        if len({a.shape for a in arrays}) != 1 or arrays[0].ndim != 1 or not arrays[0].size:
            raise ValueError("clocks, times and powers must be arrays of one length")
        if not all(np.isfinite(a).all() and (a > 0.0).all() for a in arrays):
            raise ValueError("clocks, times and powers must be finite and above 0")


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


def fit(sweeps: Sequence[Sweep]) -> tuple[Physics, ...]:
    """One curve per sweep; all sweeps come from one kind of GPU and share its voltage curve.

    With fewer points fewer numbers are free (constants above). Outliers are weighed down
    (Huber, on the median misfit of their own curve). No sweeps, no curves.
    """
    if not sweeps:
        return ()
    clock_max_mhz = max(float(sweep.clocks_mhz.max()) for sweep in sweeps)
    weighed = [_Weighed(s, np.ones_like(s.time_s), np.ones_like(s.power_w)) for s in sweeps]
    fitted = _search(weighed, clock_max_mhz)
    for _ in range(ROBUST_ROUNDS):
        weighed = [_reweighed(sweep, curve) for sweep, curve in zip(sweeps, fitted, strict=True)]
        fitted = _search(weighed, clock_max_mhz)
    return fitted


@dataclass(frozen=True, slots=True)
class _Weighed:
    sweep: Sweep
    time_weight: Floats
    power_weight: Floats


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values to try for one number, and how far apart they lie."""

    low: float
    high: float
    step: float
    values: Floats

    def around(self, best: float) -> "_Axis":
        """The same axis near its best value, with steps half as long.

        It reaches a whole old step either way: the numbers trade off against each other,
        so the best pair may lie further along the valley than half a step.
        """
        if self.step <= 0.0:
            return self
        near = best + self.step * np.linspace(-1.0, 1.0, 5)
        inside = near[(near >= self.low) & (near <= self.high)]
        return _Axis(self.low, self.high, self.step / 2.0, inside)


def _axis(low: float, high: float, steps: int) -> _Axis:
    return _Axis(low, high, (high - low) / steps, np.linspace(low, high, steps + 1))


def _fixed(value: float) -> _Axis:
    return _Axis(value, value, 0.0, np.array([value]))


def _reweighed(sweep: Sweep, curve: Physics) -> _Weighed:
    return _Weighed(
        sweep,
        _huber(np.log(sweep.time_s / curve.time_s(sweep.clocks_mhz))),
        _huber(np.log(sweep.power_w / curve.power_w(sweep.clocks_mhz))),
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


def _search(weighed: Sequence[_Weighed], clock_max_mhz: float) -> tuple[Physics, ...]:
    """The best knee and slope for all curves together, and the best cap for each."""
    points = max(one.sweep.clocks_mhz.size for one in weighed)
    knees = (
        _axis(KNEE_RATIO_MIN * clock_max_mhz, clock_max_mhz, KNEE_STEPS)
        if points >= POINTS_FOR_KNEE
        else _fixed(KNEE_PRIOR_RATIO * clock_max_mhz)
    )
    slopes = (
        _axis(0.0, SLOPE_MAX_PER_GHZ, SLOPE_STEPS)
        if points >= POINTS_FOR_SLOPE
        else _fixed(SLOPE_PRIOR_PER_GHZ)
    )
    caps = [_cap_axis(one.sweep, clock_max_mhz) for one in weighed]
    for left in range(REFINEMENTS, -1, -1):
        misfits = [
            _misfit(one, _or_none(axis), knees.values, slopes.values)
            for one, axis in zip(weighed, caps, strict=True)
        ]
        together = np.sum([misfit.min(axis=0) for misfit in misfits], axis=0)
        i, j = np.unravel_index(int(together.argmin()), together.shape)
        knee, slope = float(knees.values[i]), float(slopes.values[j])
        best = [
            float(_or_none(axis)[misfit[:, i, j].argmin()])
            for axis, misfit in zip(caps, misfits, strict=True)
        ]
        if left:
            knees, slopes = knees.around(knee), slopes.around(slope)
            caps = [
                axis.around(cap) if np.isfinite(cap) else _fixed(float("inf"))
                for axis, cap in zip(caps, best, strict=True)
            ]
    return tuple(
        _curve(one, cap, knee, slope, clock_max_mhz) for one, cap in zip(weighed, best, strict=True)
    )


def _cap_axis(sweep: Sweep, clock_max_mhz: float) -> _Axis:
    if sweep.clocks_mhz.size < POINTS_FOR_CAP:
        return _fixed(float("inf"))
    return _axis(float(sweep.clocks_mhz.min()), clock_max_mhz, CAP_STEPS)


def _or_none(caps: _Axis) -> Floats:
    """No cap is tried at every step: it must lose against the best one there is."""
    return np.append(caps.values, np.inf)


def _misfit(one: _Weighed, caps_mhz: Floats, knees_mhz: Floats, slopes: Floats) -> Floats:
    """Chi-squared of one curve, of shape (caps, knees, slopes)."""
    effective_mhz = np.minimum(one.sweep.clocks_mhz, caps_mhz[:, None])
    times = _line(MHZ_PER_GHZ / effective_mhz, one.sweep.time_s, one.time_weight)
    shape = _switching(effective_mhz[:, None, None, :], knees_mhz[:, None, None], slopes[:, None])
    powers = _line(shape, one.sweep.power_w, one.power_weight)
    penalty = np.where(np.isfinite(caps_mhz), CAP_GAIN_MIN, 0.0)
    return np.asarray(
        (times.misfit[:, None, None] + powers.misfit) / MISFIT**2 + penalty[:, None, None]
    )


def _curve(
    one: _Weighed, cap_mhz: float, knee_mhz: float, slope: float, clock_max_mhz: float
) -> Physics:
    effective_mhz = np.minimum(one.sweep.clocks_mhz, cap_mhz)
    times = _line(MHZ_PER_GHZ / effective_mhz, one.sweep.time_s, one.time_weight)
    powers = _line(_switching(effective_mhz, knee_mhz, slope), one.sweep.power_w, one.power_weight)
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


@dataclass(frozen=True, slots=True)
class _Line:
    """`y = offset + slope * x`, neither negative; arrays over a grid of different x."""

    offset: Floats
    slope: Floats
    misfit: Floats  # weighted sum of squared relative errors


def _line(x: Floats, y: Floats, weight: Floats) -> _Line:
    """Least squares of relative error over the last axis of `x`, in closed form.

    Where the free minimum has a negative number, or too few different x to have one, the
    better of the two edges is taken: a line through the origin, or else a constant.
    """
    scale = float(y.max())  # squares of very short times must not run out of floats
    y = y / scale
    w = weight / y**2
    s, sy = float(w.sum()), float(w @ y)
    sx, sxx, sxy = x @ w, (x * x) @ w, x @ (w * y)
    spread = s * sxx - sx * sx
    free = spread > 1e-9 * s * sxx
    slope = np.where(free, (s * sxy - sx * sy) / np.where(free, spread, 1.0), -1.0)
    offset = (sy - slope * sx) / s
    flat, steep = sy / s, sxy / sxx
    inside = (slope >= 0.0) & (offset >= 0.0)
    flat_wins = sy * flat > sxy * steep * (1.0 + 1e-9)
    slope = np.where(inside, slope, np.where(flat_wins, 0.0, steep))
    offset = np.where(inside, offset, np.where(flat_wins, flat, 0.0))
    errors = y - offset[..., None] - slope[..., None] * x
    return _Line(offset * scale, slope * scale, np.asarray((errors * errors) @ w))
