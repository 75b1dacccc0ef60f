"""Fits the form of `physics`: a refined grid over knee, slope and caps, least squares for the rest.

Descent would need starting points and stops in local minima (an A40 has a poor one). A grid over
the numbers that enter nonlinearly, halved in step around the best, with closed-form lines for the
others, gives the same answer on every run. Squared errors are relative, outliers weigh less
(Huber), and priors count as measurements.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from joulecut_engine.estimate.physics import (
    MHZ_PER_GHZ,
    NO_PRIOR,
    Floats,
    Physics,
    Prior,
    Sweep,
    switching,
)
from joulecut_engine.estimate.power_cap import (
    KNEE_RATIO_MIN,
    NEARBY,
    CapPrior,
    Caps,
    caps,
    disbelief,
    steps,
)


@dataclass(frozen=True, slots=True)
class Axis:
    """Grid values of one number, `step` apart."""

    low: float
    high: float
    step: float
    values: Floats

    def around(self, best: float) -> "Axis":
        """The same axis near its best value, with steps half as long; see `NEARBY`."""
        near = best + self.step * NEARBY
        inside = near[(near >= self.low) & (near <= self.high)]
        return Axis(self.low, self.high, self.step / 2.0, inside)


def axis(low: float, high: float, steps: int) -> Axis:
    return Axis(low, high, (high - low) / steps, np.linspace(low, high, steps + 1))


@dataclass(frozen=True, slots=True)
class Line:
    """`y = offset + slope * x`, neither negative; arrays over curves and a grid of x."""

    offset: Floats
    slope: Floats
    misfit: Floats  # weighted sum of squared relative errors, with the anchor's


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements y of many curves, scaled to at most 1, and their weighted sums.

    The anchor, the prior of y at x = 0, counts as one more measurement. `columns` (curves, 2, n)
    holds weight and weight * y; the other arrays are (curves, 1, 1).
    """

    columns: Floats
    scale: Floats
    s: Floats
    sy: Floats
    syy: Floats

    @staticmethod
    def of(
        y: Floats, weight: Floats, anchor: Floats, anchor_sd: Floats, misfit: float
    ) -> "Measured":
        """`y`, `weight` (curves, n), weight 0 for padding; `anchor` and its sd (curves,).

        `misfit` is the relative error of a measurement of weight 1.
        """
        # Squares of very short times would underflow.
        scale = np.where(weight > 0.0, y, 0.0).max(axis=1)
        y = y / scale[:, None]
        w = weight / y**2
        y0, w0 = anchor / scale, (misfit * scale / anchor_sd) ** 2
        return Measured(
            columns=np.stack([w, w * y], axis=1),
            scale=scale[:, None, None],
            s=(w.sum(axis=1) + w0)[:, None, None],
            sy=((w * y).sum(axis=1) + w0 * y0)[:, None, None],
            syy=((w * y * y).sum(axis=1) + w0 * y0**2)[:, None, None],
        )

    def lines(self, x: Floats, alike: Sequence[Sequence[int]]) -> Line:
        """Least squares of relative error, in closed form.

        `x` is (distinct x, rows, n, columns), `alike` the curves of each. If the free minimum
        has a negative number, the better edge counts: a line through the origin, or a constant.
        Returns arrays (curves, rows, columns).
        """
        sx, sxy = _sums(x, self.columns, alike)
        (sxx,) = _sums(x * x, self.columns[:, :1], alike)
        s, sy = self.s, self.sy
        spread = s * sxx - sx * sx
        free = spread > 1e-12 * s * sxx
        slope = np.where(free, (s * sxy - sx * sy) / np.where(free, spread, 1.0), -1.0)
        offset = (sy - slope * sx) / s
        flat, steep = sy / s, sxy / sxx
        outside = (slope < 0.0) | (offset < 0.0)
        flat_wins = outside & (sy * flat > sxy * steep * (1.0 + 1e-9))
        steep_wins = outside & ~flat_wins
        slope = np.where(flat_wins, 0.0, np.where(steep_wins, steep, slope))
        offset = np.where(steep_wins, 0.0, np.where(flat_wins, flat, offset))
        # Squared errors from the sums, without another pass over measurements.
        inner = offset * s + 2.0 * (slope * sx - sy)
        squares = self.syy + offset * inner + slope * (slope * sxx - 2.0 * sxy)
        return Line(offset * self.scale, slope * self.scale, np.maximum(squares, 0.0))


def _sums(x: Floats, columns: Floats, alike: Sequence[Sequence[int]]) -> tuple[Floats, ...]:
    """Sum of each column times x over measurements: (curves, rows, columns of x) each."""
    curves, sums, n = columns.shape
    if len(alike) == curves:
        found = columns[:, None] @ x
        return tuple(found[:, :, i] for i in range(sums))
    # Curves of the same x take one pass over it.
    out = np.empty((sums, curves, x.shape[1], x.shape[3]))
    for one, members in zip(x, alike, strict=True):
        found = columns[members].swapaxes(0, 1).reshape(1, sums * len(members), n) @ one
        out[:, members] = found.swapaxes(0, 1).reshape(sums, len(members), *one.shape[::2])
    return tuple(out)


SLOPE_PRIOR_PER_GHZ = 0.6  # between the A100 (0.76) and A40 (0.45) sweeps; Hopper 0.4-0.5
SLOPE_PRIOR_SD = 0.3  # 0.41-1.12 were seen in seven fits
KNEE_PRIOR_RATIO = 0.77  # of f_max: where A100s have it, by three independent sweeps
KNEE_PRIOR_SD = 0.1  # of f_max: A40 0.65, Hopper 0.51-0.57
SLOPE_MAX_PER_GHZ = 2.5
# Static share of the power at the highest clock: 0.07-0.32 over the same seven fits.
STATIC_PRIOR_SHARE = 0.15
STATIC_PRIOR_SD = 0.1
# Share of the time that follows the clock: 0 for memory, 1 for arithmetic. One clock alone
# assumes 1, the slowest case at lower clocks.
CLOCKED_PRIOR = 1.0
CLOCKED_PRIOR_SD = 2.0  # so weak that a second clock decides
KNEE_STEPS, SLOPE_STEPS = 14, 13  # of the first grid
REFINEMENTS = 7  # each has steps half as long: at last f_max / 3000, less than 1 MHz
# Relative error of the form itself; time and power are weighed on this scale.
MISFIT = 0.005
ROBUST_ROUNDS = 2
HUBER = 1.345  # 95 % efficient on clean data (Huber)
MAD_TO_SD = 1.4826  # of a normal distribution


def fit(
    sweeps: Sequence[Sweep], prior: Prior = NO_PRIOR, clock_max_mhz: float | None = None
) -> tuple[Physics, ...]:
    """One curve per sweep; all sweeps are of one kind of GPU and share its voltage curve.

    `clock_max_mhz` is the card's highest clock if the sweeps do not reach it.
    """
    if not sweeps:
        return ()
    top_mhz = max(float(sweep.clocks_mhz.max()) for sweep in sweeps)
    top_mhz = max(top_mhz, clock_max_mhz or 0.0)
    groups: dict[int, list[int]] = {}
    for i, sweep in enumerate(sweeps):
        groups.setdefault(steps(sweep, top_mhz, prior), []).append(i)
    batches = [
        _Batch.of([sweeps[i] for i in members], count, top_mhz, prior)
        for count, members in groups.items()
    ]
    fitted = _search(batches, top_mhz, prior)
    for _ in range(ROBUST_ROUNDS):
        batches = [
            batch.reweighed(curves, prior) for batch, curves in zip(batches, fitted, strict=True)
        ]
        fitted = _search(batches, top_mhz, prior)
    place = [i for members in groups.values() for i in members]
    by_place = dict(zip(place, (curve for curves in fitted for curve in curves), strict=True))
    return tuple(by_place[i] for i in range(len(sweeps)))


@dataclass(frozen=True, slots=True)
class _Batch:
    """Sweeps fitted in one pass: arrays over curves, padded to equal length with weight 0.

    Curve by curve, numpy calls on some hundred numbers would take most of the time.
    """

    sweeps: Sequence[Sweep]
    clocks_mhz: Floats  # (curves, n)
    known: CapPrior
    first: Caps
    alike: Sequence[list[int]]  # curves of the same clocks, first caps included
    times: Measured
    powers: Measured

    @staticmethod
    def of(sweeps: Sequence[Sweep], count: int, top_mhz: float, prior: Prior) -> "_Batch":
        """`count` is the number of caps in the first grid of each sweep."""
        clocks_mhz = _filled([sweep.clocks_mhz for sweep in sweeps], 1.0)
        first = caps(sweeps, top_mhz, prior, count)
        alike: dict[bytes, list[int]] = {}
        for i in range(len(sweeps)):
            key = clocks_mhz[i].tobytes() + first.low_mhz[i].tobytes()
            alike.setdefault(key, []).append(i)
        even = [np.ones_like(sweep.clocks_mhz) for sweep in sweeps]
        times, powers = _measured(sweeps, even, even, prior)
        known = CapPrior.of(sweeps, prior)
        return _Batch(sweeps, clocks_mhz, known, first, list(alike.values()), times, powers)

    def reweighed(self, curves: Sequence[Physics], prior: Prior) -> "_Batch":
        """The same with outliers from `curves` weighed down."""
        times, powers = _measured(
            self.sweeps,
            [
                _huber(np.log(sweep.time_s / curve.time_s(sweep.clocks_mhz)))
                for sweep, curve in zip(self.sweeps, curves, strict=True)
            ],
            [
                _huber(np.log(sweep.power_w / curve.power_w(sweep.clocks_mhz)))
                for sweep, curve in zip(self.sweeps, curves, strict=True)
            ],
            prior,
        )
        return replace(self, times=times, powers=powers)


def _filled(rows: Sequence[Floats], rest: float) -> Floats:
    """Rows of different lengths as one array, padded with `rest`."""
    found = np.full((len(rows), max(row.size for row in rows)), rest)
    for into, row in zip(found, rows, strict=True):
        into[: row.size] = row
    return found


def _measured(
    sweeps: Sequence[Sweep],
    time_weights: Sequence[Floats],
    power_weights: Sequence[Floats],
    prior: Prior,
) -> tuple[Measured, Measured]:
    """Times and powers with their anchors: the parts that do not follow the clock."""
    top = [int(sweep.clocks_mhz.argmax()) for sweep in sweeps]
    time_s = np.array([sweep.time_s[i] for sweep, i in zip(sweeps, top, strict=True)])
    power_w = np.array([sweep.power_w[i] for sweep, i in zip(sweeps, top, strict=True)])
    clocked = CLOCKED_PRIOR if prior.clocked is None else prior.clocked
    clocked_sd = CLOCKED_PRIOR_SD if prior.clocked is None else prior.clocked_sd
    static_w, static_sd_w = STATIC_PRIOR_SHARE * power_w, STATIC_PRIOR_SD * power_w
    if prior.static_w is not None:
        static_w = np.full_like(power_w, prior.static_w)
        static_sd_w = np.full_like(power_w, prior.static_sd_w)
    return (
        Measured.of(
            _filled([sweep.time_s for sweep in sweeps], 1.0),
            _filled(time_weights, 0.0),
            (1.0 - clocked) * time_s,
            clocked_sd * time_s,
            MISFIT,
        ),
        Measured.of(
            _filled([sweep.power_w for sweep in sweeps], 1.0),
            _filled(power_weights, 0.0),
            static_w,
            static_sd_w,
            MISFIT,
        ),
    )


def _huber(errors: Floats) -> Floats:
    scale = max(MISFIT, MAD_TO_SD * float(np.median(np.abs(errors))))
    return np.minimum(1.0, HUBER * scale / np.maximum(np.abs(errors), 1e-300))


def _search(
    batches: Sequence[_Batch], top_mhz: float, prior: Prior
) -> tuple[tuple[Physics, ...], ...]:
    """Best knee and slope of all curves together, and best caps of each."""
    knees = axis(KNEE_RATIO_MIN * top_mhz, top_mhz, KNEE_STEPS)
    slopes = axis(0.0, SLOPE_MAX_PER_GHZ, SLOPE_STEPS)
    tried = [batch.first for batch in batches]
    for left in range(REFINEMENTS, -1, -1):
        grid = _Voltages.of(knees, slopes)
        judged = [
            _judged(batch, these, grid, top_mhz, prior)
            for batch, these in zip(batches, tried, strict=True)
        ]
        together = _disbelief(grid, top_mhz, prior)
        for one in judged:
            together = together + one.total.min(axis=1).sum(axis=0)
        at = int(together.argmin())
        knee_mhz, slope_per_ghz = float(grid.knee_mhz[at]), float(grid.slope_per_ghz[at])
        if left:
            knees, slopes = knees.around(knee_mhz), slopes.around(slope_per_ghz)
            # Refined even if no cap is best yet: coarse caps fit badly.
            tried = [
                these.around(*one.best(one.total[:, :-1, at]))
                for one, these in zip(judged, tried, strict=True)
            ]
    return tuple(
        _curves(batch, one.best(one.total[:, :, at]), knee_mhz, slope_per_ghz, top_mhz)
        for batch, one in zip(batches, judged, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Voltages:
    """All pairs of knee and slope in the grid; both (pairs,)."""

    knee_mhz: Floats
    slope_per_ghz: Floats

    @staticmethod
    def of(knees: Axis, slopes: Axis) -> "_Voltages":
        pairs = np.meshgrid(knees.values, slopes.values, indexing="ij")
        return _Voltages(pairs[0].ravel(), pairs[1].ravel())

    def switching(self, clocks_mhz: Floats) -> Floats:
        """`physics.switching` for every pair: (..., n) to (..., n, pairs)."""
        return switching(clocks_mhz[..., None], self.knee_mhz, self.slope_per_ghz)


def voltage_prior(prior: Prior, top_mhz: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Knee (MHz) and slope (per GHz) before any measurement, and their standard deviations."""
    knee, knee_sd = KNEE_PRIOR_RATIO * top_mhz, KNEE_PRIOR_SD * top_mhz
    if prior.knee_mhz is not None:
        knee, knee_sd = prior.knee_mhz, prior.knee_sd_mhz
    slope, slope_sd = SLOPE_PRIOR_PER_GHZ, SLOPE_PRIOR_SD
    if prior.slope_per_ghz is not None:
        slope, slope_sd = prior.slope_per_ghz, prior.slope_sd
    return (knee, slope), (knee_sd, slope_sd)


def _disbelief(grid: _Voltages, top_mhz: float, prior: Prior) -> Floats:
    """Chi-squared of knee and slope against their priors."""
    (knee, slope), (knee_sd, slope_sd) = voltage_prior(prior, top_mhz)
    off = ((grid.knee_mhz - knee) / knee_sd) ** 2
    return np.asarray(off + ((grid.slope_per_ghz - slope) / slope_sd) ** 2)


@dataclass(frozen=True, slots=True)
class _Judged:
    """Chi-squared (curves, power caps, pairs); time and power caps (curves, power caps)."""

    total: Floats
    time_mhz: Floats
    power_mhz: Floats

    def best(self, total: Floats) -> tuple[Floats, Floats]:
        """Caps of time and power of each curve, by `total` (curves, first power caps)."""
        if not total.shape[1]:
            return self.time_mhz[:, 0], self.power_mhz[:, 0]
        at = total.argmin(axis=1)
        rows = np.arange(at.size)
        return self.time_mhz[rows, at], self.power_mhz[rows, at]


def _judged(batch: _Batch, tried: Caps, grid: _Voltages, top_mhz: float, prior: Prior) -> _Judged:
    """Chi-squared of every cap of every curve with every voltage curve."""
    alike = batch.alike if tried is batch.first else [[i] for i in range(len(batch.sweeps))]
    own = [members[0] for members in alike]
    clocks_mhz = batch.clocks_mhz[own, None, :]  # (x, 1, n)
    x = MHZ_PER_GHZ / np.minimum(clocks_mhz, tried.time_mhz[own, :, None])
    times = batch.times.lines(x[..., None], alike).misfit[..., 0]
    cost, time_mhz = disbelief(batch.known, tried, times / MISFIT**2, prior)
    shape = grid.switching(np.minimum(clocks_mhz, tried.power_mhz[own, :, None]))
    powers = batch.powers.lines(shape, alike)
    total = cost[..., None] + powers.misfit / MISFIT**2
    if np.isfinite(prior.cap_w):
        power_mhz = tried.power_mhz
        capped = np.isfinite(power_mhz)
        held_shape = grid.switching(np.where(capped, power_mhz, top_mhz))  # its highest power
        off = np.log((powers.offset + powers.slope * held_shape) / prior.cap_w) / prior.cap_sd
        total = total + np.where(capped[..., None], off, np.maximum(0.0, off)) ** 2
    return _Judged(total, time_mhz, tried.power_mhz)


def _curves(
    batch: _Batch,
    caps_mhz: tuple[Floats, Floats],
    knee_mhz: float,
    slope_per_ghz: float,
    clock_max_mhz: float,
) -> tuple[Physics, ...]:
    """Curves with these caps of time and power (curves,) and this voltage curve."""
    own = [[i] for i in range(len(batch.sweeps))]
    time_mhz, power_mhz = (np.minimum(batch.clocks_mhz, cap[:, None]) for cap in caps_mhz)
    times = batch.times.lines((MHZ_PER_GHZ / time_mhz)[:, None, :, None], own)
    shape = switching(power_mhz, knee_mhz, slope_per_ghz)
    powers = batch.powers.lines(shape[:, None, :, None], own)
    found = []
    for i, (time_cap_mhz, power_cap_mhz) in enumerate(zip(*caps_mhz, strict=True)):
        clocked_s = float(times.slope[i, 0, 0]) * MHZ_PER_GHZ / clock_max_mhz
        time_fmax_s = float(times.offset[i, 0, 0]) + clocked_s
        free = np.isinf(time_cap_mhz)
        found.append(
            Physics(
                clock_max_mhz=clock_max_mhz,
                time_fmax_s=time_fmax_s,
                clock_share=clocked_s / time_fmax_s,
                power_static_w=float(powers.offset[i, 0, 0]),
                power_w_per_ghz=float(powers.slope[i, 0, 0]),
                voltage_slope_per_ghz=slope_per_ghz,
                clock_knee_mhz=knee_mhz,
                clock_cap_mhz=float(time_cap_mhz),
                power_lead=0.0 if free else log(power_cap_mhz / time_cap_mhz),
            )
        )
    return tuple(found)
