"""Time and power of every kind of work at every clock: physics, forest, own measurements.

    log t = log t_physics + forest(features) + smooth(residual at its own clocks)

and the same for power. The forest is trained on other workloads only, so it cannot repeat this
one's noise; the work's own measurements count most near their clocks.

`fit_work` is pure: evidence in, `Fitted` out, the same bytes on every run.

    evidence = of_profile("gpt3", profile, card)             # or Evidence(Work(...), Sweep(...))
    fitted = fit_work(evidence)
    curve = fitted.curves[Work("gpt3", 0, "forward")]
    curve.time_s(clocks), curve.power_w(clocks), curve.grid(clocks).band_s(scatter=0.0)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from joulecut_engine.estimate.bands import (
    CLOCKS_MIN,
    DENSE_MIN,
    FLOOR_CAPPED,
    POWER_LEFT,
    POWER_NOISE,
    TIME_LEFT,
    TIME_NOISE,
    Smooth,
    between,
    few_places,
    floor_by_others,
    floor_of,
    smooth,
    time_scales,
)
from joulecut_engine.estimate.card import Card
from joulecut_engine.estimate.card_fit import fit_beside, fit_cards
from joulecut_engine.estimate.evidence import Evidence, Work
from joulecut_engine.estimate.forest import ResidualForest, enough, features, log_residuals
from joulecut_engine.estimate.grid import Grid
from joulecut_engine.estimate.physics import Floats, Physics, Sweep

TABLE_LOW, TABLE_POINTS = 0.3, 71  # of the highest clock; every hundredth of it
JUDGES_MAX = 24  # sweeps that judge curves of few clocks; a fit of each takes 15 ms
FOLDS_MAX = 6  # forests per fit; with more workloads, several are left out together


@dataclass(frozen=True, slots=True)
class WorkCurve:
    """Fitted time and power of one kind of work over the clock."""

    physics: Physics
    table_mhz: Floats  # (TABLE_POINTS,)
    table: Floats  # the forest there, logarithms of time and power: (TABLE_POINTS, 2)
    time_left: Smooth
    power_left: Smooth
    scale: float  # standard deviations that hold NOMINAL of left-out measurements
    judged: bool  # by left-out measurements; else fixed widths of few clocks
    floor: float  # smallest half width of the band (a logarithm)

    @property
    def clocks_mhz(self) -> Floats:
        return self.time_left.clocks_mhz

    @property
    def clock_min_mhz(self) -> float:
        return float(self.clocks_mhz[0])

    @property
    def clock_max_mhz(self) -> float:
        return float(self.clocks_mhz[-1])

    def time_s(self, clocks_mhz: Floats) -> Floats:
        """Mean seconds at each clock (n,), which is above 0."""
        other = np.interp(clocks_mhz, self.table_mhz, self.table[:, 0])
        left = self.time_left.mean(clocks_mhz)
        return np.asarray(self.physics.time_s(clocks_mhz) * np.exp(other + left))

    def power_w(self, clocks_mhz: Floats) -> Floats:
        """Mean watts at each clock (n,), which is above 0."""
        other = np.interp(clocks_mhz, self.table_mhz, self.table[:, 1])
        left = self.power_left.mean(clocks_mhz)
        return np.asarray(self.physics.power_w(clocks_mhz) * np.exp(other + left))

    def grid(self, clocks_mhz: Floats) -> Grid:
        """Time, power and band at each clock (n,), which is above 0."""
        edges = np.clip(clocks_mhz, self.clock_min_mhz, self.clock_max_mhz)
        capped = clocks_mhz > self.physics.clock_cap_mhz
        floor = np.where(capped, max(self.floor, FLOOR_CAPPED), self.floor)
        if not self.judged:
            known_s = self.time_s(self.clocks_mhz)
            floor = np.maximum(floor, between(self.clocks_mhz, known_s, clocks_mhz))
        return Grid(
            time_s=self.time_s(clocks_mhz),
            power_w=self.power_w(clocks_mhz),
            half=np.maximum(floor, self.scale * self.time_left.sd(edges)),
            edge_s=self.time_s(edges),
            stretch=edges / clocks_mhz,
        )


@dataclass(frozen=True, slots=True)
class Fitted:
    """All curves of one fit, by work."""

    curves: Mapping[Work, WorkCurve] = field(default_factory=dict)
    scatter: float = 0.0  # relative sd of one reading around its mean, if known


def fit_work(evidence: Iterable[Evidence]) -> Fitted:
    """Fit all evidence together.

    Raises ValueError if two pieces are of the same work, or clocks are not ascending.
    """
    pieces = tuple(evidence)
    if len({one.work for one in pieces}) != len(pieces):
        raise ValueError("two pieces of evidence are of the same work")
    for one in pieces:
        if (np.diff(one.sweep.clocks_mhz) <= 0.0).any():
            raise ValueError(f"{one.work}: clocks must be distinct and ascending")
    if not pieces:
        return Fitted()
    physics = fit_cards(pieces)
    tables = _tables(pieces, physics)
    left = [
        _left(one, curve, table) for one, curve, table in zip(pieces, physics, tables, strict=True)
    ]
    scales = time_scales([one.work.workload for one in pieces], [time for time, _ in left])
    few = _floors_by_others(pieces, physics, tables)
    others = _swept_elsewhere(pieces)
    curves = {
        one.work: WorkCurve(
            physics=curve,
            table_mhz=_table_mhz(curve),
            table=table,
            time_left=time,
            power_left=power,
            scale=scale,
            judged=by_few is not None or one.sweep.clocks_mhz.size >= CLOCKS_MIN,
            floor=(floor_of(one.sweep.clocks_mhz.size, swept=swept) if by_few is None else by_few),
        )
        for one, curve, table, (time, power), scale, by_few, swept in zip(
            pieces, physics, tables, left, scales, few, others, strict=True
        )
    }
    return Fitted(curves)


def _floors_by_others(
    pieces: Sequence[Evidence],
    physics: Sequence[Physics],
    tables: Sequence[Floats],
) -> list[float | None]:
    """For each curve of two or three clocks, the half width that other work's sweeps call for.

    Sweeps of such work in other workloads on its card are fitted again to clocks in the same
    places. None for other curves, and without such sweeps.
    """
    floors: list[float | None] = []
    made: dict[tuple[object, ...], list[tuple[str, Floats]]] = {}
    for one in pieces:
        clocks = one.sweep.clocks_mhz
        if not 1 < clocks.size < CLOCKS_MIN:
            floors.append(None)
            continue
        key = (one.card, one.top_mhz, one.work.kind, tuple(clocks / clocks[-1]))
        if key not in made:
            dense = [
                i
                for i, other in enumerate(pieces)
                if (other.card, other.top_mhz) == (one.card, one.top_mhz)
                and other.work.kind == one.work.kind
                and other.sweep.clocks_mhz.size >= DENSE_MIN
            ][:JUDGES_MAX]
            made[key] = [
                (pieces[i].work.workload, _missed(pieces, physics, tables[i], i, clocks))
                for i in dense
            ]
        by_workload: dict[str, list[Floats]] = {}
        for workload, errors in made[key]:
            if workload != one.work.workload and errors.size:
                by_workload.setdefault(workload, []).append(errors)
        missed = [np.concatenate(errors) for errors in by_workload.values()]
        floors.append(floor_by_others(missed) if missed else None)
    return floors


def _missed(
    pieces: Sequence[Evidence],
    physics: Sequence[Physics],
    table: Floats,
    at: int,
    few_mhz: Floats,
) -> Floats:
    """Errors (logarithms) of a sweep's times between a few of its clocks, fitted to those alone."""
    one = pieces[at]
    sweep = one.sweep
    taken = few_places(sweep.clocks_mhz, few_mhz)
    rest = np.setdiff1d(np.arange(taken[0] + 1, taken[-1]), taken)
    if taken.size < few_mhz.size or not rest.size:
        return np.zeros(0)
    thin = replace(
        one,
        sweep=Sweep(sweep.clocks_mhz[taken], sweep.time_s[taken], sweep.power_w[taken]),
        clock_max_mhz=one.top_mhz,
        noise=None,
    )
    curve = fit_beside(thin, pieces, physics)
    time, _ = _left(thin, curve, table)
    clocks = sweep.clocks_mhz[rest]
    forest = np.interp(clocks, _table_mhz(curve), table[:, 0])
    missed = np.log(sweep.time_s[rest] / curve.time_s(clocks)) - forest - time.mean(clocks)
    return np.asarray(np.abs(missed))


def _swept_elsewhere(pieces: Sequence[Evidence]) -> list[bool]:
    """For each piece, whether other work was swept on the same card at more clocks."""
    most: dict[tuple[Card | None, float], dict[str, int]] = {}
    for one in pieces:
        counts = most.setdefault((one.card, one.top_mhz), {})
        counts[one.work.workload] = max(counts.get(one.work.workload, 0), one.sweep.clocks_mhz.size)
    return [
        any(
            workload != one.work.workload and count > one.sweep.clocks_mhz.size
            for workload, count in most[one.card, one.top_mhz].items()
        )
        for one in pieces
    ]


def _table_mhz(curve: Physics) -> Floats:
    return np.linspace(TABLE_LOW, 1.0, TABLE_POINTS) * curve.clock_max_mhz


def _tables(pieces: Sequence[Evidence], physics: Sequence[Physics]) -> list[Floats]:
    """Forest of all other workloads on each curve's table; zeros with too few of them."""
    names = sorted({one.work.workload for one in pieces})
    fold_of = {name: i % FOLDS_MAX for i, name in enumerate(names)}
    tables = [np.zeros((TABLE_POINTS, 2)) for _ in pieces]
    for fold in sorted(set(fold_of.values())):
        inside = [i for i, one in enumerate(pieces) if fold_of[one.work.workload] == fold]
        outside = [i for i in range(len(pieces)) if i not in set(inside)]
        training = [pieces[i] for i in outside]
        if not enough(training):
            continue
        forest = ResidualForest(training, [physics[i] for i in outside])
        asked = [_table_mhz(physics[i]) for i in inside]
        rows = features([pieces[i] for i in inside], [physics[i] for i in inside], asked)
        for i, table in zip(inside, np.split(forest.predict(rows), len(inside)), strict=True):
            tables[i] = table
    return tables


def _left(one: Evidence, curve: Physics, table: Floats) -> tuple[Smooth, Smooth]:
    """Smoothed residuals of time and power that physics and forest leave."""
    clocks_mhz = one.sweep.clocks_mhz
    left = log_residuals(one, curve)
    forest = [np.interp(clocks_mhz, _table_mhz(curve), table[:, i]) for i in (0, 1)]
    time = smooth(
        clocks_mhz,
        left[:, 0] - forest[0],
        top_mhz=curve.clock_max_mhz,
        left=TIME_LEFT,
        noise=TIME_NOISE,
        noises=one.noise,
    )
    power = smooth(
        clocks_mhz,
        left[:, 1] - forest[1],
        top_mhz=curve.clock_max_mhz,
        left=POWER_LEFT,
        noise=POWER_NOISE,
        noises=one.noise,
    )
    return time, power
