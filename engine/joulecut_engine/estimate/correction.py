"""A profile's curve, corrected by readings of running work.

GPUs of one stage do the same work and differ by some percent. If they ran at different clocks,
their differences would look like a slope; so each GPU's offset is estimated from clocks it shares
with others and removed before readings are averaged. The profile counts as one more GPU. What is
left against the clock is a `clock_curve`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from joulecut_engine.estimate.clock_curve import ClockCurve, CurvePrior
from joulecut_engine.estimate.estimator import Prediction
from joulecut_engine.estimate.evidence import Work, of_profile
from joulecut_engine.estimate.sample_window import Cell, Reading
from joulecut_engine.estimate.work_fit import WorkCurve, fit_work
from joulecut_engine.graph.pipeline import Profile

SCATTER_PRIOR = 0.01  # relative sd of one reading, before two of a cell show it
SCATTER_WEIGHT = 4.0  # readings that the prior counts for
# A sweep was measured once, elsewhere: beside running work it counts as one sample, no surer than
# neighbouring clocks of a sweep agree (0.2-0.4 %).
PROFILE_WEIGHT = 1.0
PROFILE_NOISE = 0.003
READINGS_MIN = 8  # of all GPUs at one clock: fewer are an accident of a change of clocks
PROFILED = "profile"  # in place of a GPU's UUID
OFFSET_WEIGHT = 1e-3  # of "this GPU is like the others", in samples: for those compared with none
# Readings over the profile, logarithms: the clock-bound share of one work differs by up to 0.3
# between cards (docs/predictors.md), the power's exponent likewise; the form leaves 0.5 and 1 %.
TIME = CurvePrior(slope_sd=0.15, residual_sd=0.01, reach=0.15)
POWER = replace(TIME, residual_sd=0.02)
# Answers that are kept, of all curves: the same few clocks are asked of all GPUs of a job in every
# pass, and an answer takes a tenth of a millisecond. Of whole clock tables they are 15 MiB.
KEPT_MAX = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Corrected:
    """Time and power of one kind of work over the clock."""

    swept: WorkCurve
    time: ClockCurve | None = None
    power: ClockCurve | None = None

    @lru_cache(maxsize=KEPT_MAX)  # noqa: B019 -- bounded, a curve that was replaced falls out
    def at(self, clocks_mhz: tuple[int, ...]) -> Prediction:
        """Raises ValueError if a clock is not above 0."""
        if any(clock <= 0 for clock in clocks_mhz):
            raise ValueError("clocks must be above 0 MHz")
        asked, top_mhz = np.array(clocks_mhz, dtype=np.float64), self.swept.clock_max_mhz
        fall = np.log(top_mhz / np.clip(asked, self.swept.clock_min_mhz, top_mhz))
        time, power = (
            1.0 if one is None else np.exp(one.at(fall)) for one in (self.time, self.power)
        )
        return Prediction(
            clocks_mhz, self.swept.time_s(asked) * time, self.swept.power_w(asked) * power
        )


def fit_profile(workload: str, profile: Profile) -> dict[Work, Corrected]:
    """Fit one profile alone: what is predicted of it before any reading.

    Stages with equal rows share a curve.
    """
    pieces = {one.work: one for one in of_profile(workload, profile)}
    rows = {work: (work.kind, profile.options[work.stage, work.kind]) for work in pieces}
    first = {rows[work]: work for work in reversed(pieces)}
    fitted = fit_work(
        replace(pieces[work], noise=np.full(len(alike[1]), PROFILE_NOISE))
        for alike, work in reversed(first.items())
    )
    return {work: Corrected(fitted[first[alike]]) for work, alike in rows.items()}


def scatter_of(readings: Iterable[Sequence[Reading]]) -> float:
    """Pooled relative standard deviation of one reading around its cell's mean."""
    squares, free = SCATTER_WEIGHT * SCATTER_PRIOR**2, SCATTER_WEIGHT
    for each in readings:
        if len(each) > 1:
            logs = np.log([reading.time_s for reading in each])
            squares += float(((logs - logs.mean()) ** 2).sum())
            free += len(each) - 1
    return math.sqrt(squares / free)


def corrected(
    swept: WorkCurve, cells: Mapping[Cell, Sequence[Reading]], scatter: float
) -> Corrected:
    """`cells` are of one kind of work, `scatter` is that of one reading."""
    times, powers = [], []
    for cell, readings in sorted(cells.items()):
        at = np.array([float(cell.clock_mhz)])
        time_s, power_w = float(swept.time_s(at)[0]), float(swept.power_w(at)[0])
        drawn = [(math.log(r.power_w / power_w), r.weight) for r in readings if r.power_w]
        times.append((cell, [(math.log(r.time_s / time_s), r.weight) for r in readings]))
        powers.append((cell, drawn))
    return Corrected(
        swept,
        _curve(swept, times, TIME, scatter),
        _curve(swept, powers, POWER, scatter),
    )


def _curve(
    swept: WorkCurve,
    cells: Sequence[tuple[Cell, Sequence[tuple[float, float]]]],
    prior: CurvePrior,
    scatter: float,
) -> ClockCurve | None:
    """None without enough readings. Rows are (value, weight)."""
    count: Counter[int] = Counter()
    for cell, rows in cells:
        count[cell.clock_mhz] += len(rows)
    clocks = sorted(clock for clock, n in count.items() if n >= READINGS_MIN)
    if not clocks:
        return None
    means = [(PROFILED, clock, 0.0, PROFILE_WEIGHT) for clock in clocks]
    for cell, rows in cells:
        if not rows or cell.clock_mhz not in clocks:
            continue
        weight = sum(w for _, w in rows)
        mean = sum(value * w for value, w in rows) / weight
        means.append((cell.uuid, cell.clock_mhz, mean, weight))
    levels = aligned(means)
    return ClockCurve(
        np.log(swept.clock_max_mhz / np.array(clocks)),
        np.array([levels[clock] for clock in clocks]),
        np.array([scatter / math.sqrt(count[clock]) for clock in clocks]),
        prior,
    )


def aligned(rows: Sequence[tuple[str, int, float, float]]) -> dict[int, float]:
    """Level by clock of (source, clock, value, weight), each source's offset removed.

    Least squares of value = level[clock] + offset[source], with offsets as small as possible: two
    sources are compared over the clocks that they share, directly or by way of others. Where the
    slower GPUs of a stage run at higher clocks, any other mean would flatten the curve.
    """
    clock_at = {clock: i for i, clock in enumerate(sorted({row[1] for row in rows}))}
    source_at = {source: i for i, source in enumerate(dict.fromkeys(row[0] for row in rows))}
    weights = np.zeros((len(source_at), len(clock_at)))
    values = np.zeros_like(weights)
    for source, clock, value, weight in rows:
        at = source_at[source], clock_at[clock]
        weights[at] += weight
        values[at] += weight * value
    shares = weights / (weights.sum(axis=1, keepdims=True) + OFFSET_WEIGHT)
    normal = np.diag(weights.sum(axis=0)) - shares.T @ weights
    level = np.linalg.solve(normal, values.sum(axis=0) - shares.T @ values.sum(axis=1))
    return {clock: float(level[i]) for clock, i in clock_at.items()}
