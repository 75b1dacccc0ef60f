"""A fit of everything the online model has seen: readings of many GPUs to one curve per work.

GPUs of one stage do the same work and differ by some percent. If they ran at different clocks,
their differences would look like a slope; so each GPU's offset is estimated from clocks it shares
with others and removed before readings are averaged. A profile counts as one more GPU.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from joulecut_engine.estimate.evidence import Evidence, Work
from joulecut_engine.estimate.fitting import MISFIT
from joulecut_engine.estimate.physics import Sweep
from joulecut_engine.estimate.sample_window import Cell, Reading
from joulecut_engine.estimate.work_fit import Fitted, fit_work
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile

SCATTER_PRIOR = 0.01  # relative sd of one reading, before two of a cell show it
SCATTER_WEIGHT = 4.0  # readings that the prior counts for
POWER_GUESSED = 1e-6  # weight of an interpolated power
# A sweep was measured once, elsewhere: beside running work it counts as one sample, no surer than
# neighbouring clocks of a sweep agree (0.2-0.4 %).
PROFILE_WEIGHT = 1.0
PROFILE_NOISE = 0.003
PROFILED = "profile"  # in place of a GPU's UUID
OFFSET_WEIGHT = 1e-3  # of "this GPU is like the others", in samples: for those compared with none
WORKS_MAX = 64  # curves per fit: four jobs of eight stages; of more jobs the next ones at the next


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a fit uses, at one moment. `number` counts readings so far."""

    number: int = 0
    cells: tuple[tuple[Cell, tuple[Reading, ...]], ...] = ()
    profiles: Mapping[str, Profile] = field(default_factory=dict)  # by workload; of all cells


@dataclass(frozen=True, slots=True)
class _Point:
    """One cell, averaged; logarithms."""

    uuid: str
    clock_mhz: int
    time: float
    power: float | None
    weight: float
    noise: float
    held_mhz: float | None


def fit_profile(workload: str, profile: Profile) -> Fitted:
    """Fit one profile alone: what is predicted of it before any reading.

    Stages with equal rows share a curve.
    """
    works = {Work(workload, *key): rows for key, rows in profile.options.items() if rows}
    first = {(work.kind, rows): work for work, rows in reversed(works.items())}
    fitted = fit_work(
        _evidence(work, _of_profile(rows)) for (_, rows), work in reversed(first.items())
    )
    return Fitted({work: fitted.curves[first[work.kind, rows]] for work, rows in works.items()})


def refit(snapshot: Snapshot) -> Fitted:
    """Fit a snapshot. Pure, so a thread can do it while the loop goes on."""
    evidence, scatter = evidence_of(snapshot)
    return replace(fit_work(evidence), scatter=scatter)


def evidence_of(snapshot: Snapshot) -> tuple[tuple[Evidence, ...], float]:
    """Evidence per kind of work in the profiles, ordered; and the scatter of one reading.

    Scatter is the relative standard deviation around the mean of a cell. Of more than WORKS_MAX
    kinds of work those with the newest readings are fitted.
    """
    cells: dict[Work, list[tuple[Cell, tuple[Reading, ...]]]] = {}
    newest: dict[Work, int] = {}
    for cell, readings in snapshot.cells:
        work = Work(cell.workload, cell.stage, cast("Kind", cell.kind))
        cells.setdefault(work, []).append((cell, readings))
        newest[work] = max(newest.get(work, 0), readings[-1].number)
    swept = {
        Work(workload, stage, kind): options
        for workload, profile in snapshot.profiles.items()
        for (stage, kind), options in profile.options.items()
        if options
    }
    latest = sorted(sorted(swept, key=lambda work: (-newest.get(work, 0), work))[:WORKS_MAX])
    scatter = _scatter([rows for work in latest for _, rows in cells.get(work, ())])
    found = (
        _evidence(work, [*_of_profile(swept[work]), *_points(cells.get(work, ()), scatter)])
        for work in latest
    )
    return tuple(found), scatter


def _scatter(all_readings: Sequence[tuple[Reading, ...]]) -> float:
    """Pooled relative standard deviation of one reading around its cell's mean."""
    squares, free = SCATTER_WEIGHT * SCATTER_PRIOR**2, SCATTER_WEIGHT
    for readings in all_readings:
        if len(readings) > 1:
            logs = np.log([reading.time_s for reading in readings])
            squares += float(((logs - logs.mean()) ** 2).sum())
            free += len(readings) - 1
    return float(np.sqrt(squares / free))


def _of_profile(options: Sequence[ClockOption]) -> list[_Point]:
    """A profile as readings of one more GPU."""
    return [
        _Point(
            uuid=PROFILED,
            clock_mhz=option.clock_mhz,
            time=math.log(option.time_s),
            power=math.log(option.power_w),
            weight=PROFILE_WEIGHT,
            noise=PROFILE_NOISE,
            held_mhz=None,
        )
        for option in sorted(options)
    ]


def _points(cells: Sequence[tuple[Cell, tuple[Reading, ...]]], scatter: float) -> list[_Point]:
    found = []
    for cell, readings in sorted(cells, key=lambda pair: pair[0]):
        drawn = [(math.log(r.power_w), r.weight) for r in readings if r.power_w is not None]
        found.append(
            _Point(
                uuid=cell.uuid,
                clock_mhz=cell.clock_mhz,
                time=_mean([(math.log(r.time_s), r.weight) for r in readings]),
                power=_mean(drawn) if drawn else None,
                weight=sum(r.weight for r in readings),
                noise=scatter / math.sqrt(len(readings)),
                held_mhz=_mean([(r.observed_mhz, r.weight) for r in readings])
                if cell.capped
                else None,
            )
        )
    return found


def _mean(rows: Sequence[tuple[float, float]]) -> float:
    """Weighted mean of (value, weight) rows."""
    return sum(value * weight for value, weight in rows) / sum(weight for _, weight in rows)


def _evidence(work: Work, own: Sequence[_Point]) -> Evidence:
    at_clock: dict[int, list[_Point]] = {}
    for point in own:
        at_clock.setdefault(point.clock_mhz, []).append(point)
    times = _times(own, at_clock)
    powers = _aligned(
        [(p.uuid, p.clock_mhz, p.power, p.weight) for p in own if p.power is not None]
    )
    clocks = sorted(times)
    noise = np.array([_noise(at_clock[clock]) for clock in clocks])
    guessed = np.array([clock not in powers for clock in clocks])
    known = sorted(powers)
    power_w = np.exp(np.interp(clocks, known, [powers[clock] for clock in known]))
    weight = MISFIT**2 / (MISFIT**2 + noise**2)
    held = [p.held_mhz for p in own if p.held_mhz is not None]
    return Evidence(
        work=work,
        sweep=Sweep(
            clocks_mhz=np.array(clocks, dtype=np.float64),
            time_s=np.exp([times[clock] for clock in clocks]),
            power_w=power_w,
            weight=weight,
            power_weight=np.where(guessed, POWER_GUESSED, weight),
            held_mhz=float(np.mean(held)) if held else None,
        ),
        noise=noise,
    )


def _times(own: Sequence[_Point], at_clock: Mapping[int, Sequence[_Point]]) -> dict[int, float]:
    """Logarithm of time by clock: readings, and elsewhere the profile corrected by them.

    A profile that is off at one clock is off nearby too, so the correction is interpolated between
    clocks with readings.
    """
    times = _aligned([(p.uuid, p.clock_mhz, p.time, p.weight) for p in own])
    swept = {p.clock_mhz: p.time for p in own if p.uuid == PROFILED}
    ran = []
    for clock in times.keys() & swept.keys():
        seen = [point for point in at_clock[clock] if point.uuid != PROFILED]
        if seen and _noise(seen) <= PROFILE_NOISE:
            ran.append(clock)
    if len(ran) < 2:
        return times  # one clock gives a level, which biases follow, and no shape
    ran.sort()
    off = [times[clock] - swept[clock] for clock in ran]
    for clock, time in swept.items():
        if all(point.uuid == PROFILED for point in at_clock[clock]):
            times[clock] = time + float(np.interp(clock, ran, off))
    return times


def _noise(points: Sequence[_Point]) -> float:
    """Relative standard deviation of the mean of several cells."""
    return float(1.0 / np.sqrt(sum(1.0 / point.noise**2 for point in points)))


def _aligned(rows: Sequence[tuple[str, int, float, float]]) -> dict[int, float]:
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
