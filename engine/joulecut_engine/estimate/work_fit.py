"""DOC work_fit"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from joulecut_engine.estimate.bands import (
    FLOOR_CAPPED,
    POWER_LEFT,
    POWER_NOISE,
    TIME_LEFT,
    TIME_NOISE,
    Smooth,
    between,
    few_clocks,
    smooth,
    time_scales,
)
from joulecut_engine.estimate.card import Card
from joulecut_engine.estimate.card_fit import fit_all
from joulecut_engine.estimate.evidence import Evidence, Work
from joulecut_engine.estimate.forest import Residuals, enough, features, leftovers
from joulecut_engine.estimate.physics import Floats, Physics

TABLE_LOW, TABLE_POINTS = 0.3, 71  # of the highest clock; every hundredth of it
FOLDS_MAX = 6  # forests per fit: with more workloads, several are left out together


@dataclass(frozen=True, slots=True)
class ForestCurve:
    """One work's time and power over the clock, fitted."""

    physics: Physics
    table_mhz: Floats  # (TABLE_POINTS,)
    table: Floats  # what the forest says there, logarithms of time and power: (TABLE_POINTS, 2)
    time_left: Smooth
    power_left: Smooth
    scale: float  # standard deviations that hold nine tenths of what is left out
    floor: float  # no narrower than this, whatever the measurements say (a logarithm)

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

    def band_s(self, clocks_mhz: Floats, scatter: float) -> tuple[Floats, Floats]:
        """Low and high time at each clock; see `Grid.band_s`."""
        return self.grid(clocks_mhz).band_s(scatter)

    def grid(self, clocks_mhz: Floats) -> "Grid":
        """All there is to say at each clock (n,), which is above 0."""
        edges = np.clip(clocks_mhz, self.clock_min_mhz, self.clock_max_mhz)
        capped = clocks_mhz > self.physics.clock_cap_mhz
        floor = np.where(capped, max(self.floor, FLOOR_CAPPED), self.floor)
        floor = np.maximum(floor, self._between(clocks_mhz))
        return Grid(
            time_s=self.time_s(clocks_mhz),
            power_w=self.power_w(clocks_mhz),
            half=np.maximum(floor, self.scale * self.time_left.sd(edges)),
            edge_s=self.time_s(edges),
            stretch=edges / clocks_mhz,
        )

    def _between(self, at_mhz: Floats) -> Floats:
        return between(self.clocks_mhz, self.time_s(self.clocks_mhz), at_mhz)


@dataclass(frozen=True, slots=True)
class Grid:
    """A curve over a grid of clocks, or many over one: the clock is the last axis."""

    time_s: Floats
    power_w: Floats
    half: Floats  # half width of the band, a logarithm
    edge_s: Floats  # time at the nearest clock within the measured ones
    stretch: Floats  # that clock over the asked one: 1 within

    def band_s(self, scatter: Floats | float) -> tuple[Floats, Floats]:
        """Low and high time at each clock.

        `scatter` (a logarithm, half width) is what a GPU itself showed around its bias; it
        adds in quadrature. Beyond the measured clocks nobody knows how much of the work
        follows the clock, so the band opens to all or nothing of it.
        """
        wide = np.exp(np.hypot(self.half, scatter))
        low_s, high_s = self.time_s / wide, self.time_s * wide
        low_out = np.minimum(low_s, self.edge_s / wide * np.minimum(1.0, self.stretch))
        high_out = np.maximum(high_s, self.edge_s * wide * np.maximum(1.0, self.stretch))
        outside = self.stretch != 1.0
        return np.where(outside, low_out, low_s), np.where(outside, high_out, high_s)


def stacked(grids: Sequence[Grid]) -> Grid:
    """Many curves over the same clocks as one, of shape (curves, clocks)."""
    return Grid(
        time_s=np.stack([grid.time_s for grid in grids]),
        power_w=np.stack([grid.power_w for grid in grids]),
        half=np.stack([grid.half for grid in grids]),
        edge_s=np.stack([grid.edge_s for grid in grids]),
        stretch=np.stack([grid.stretch for grid in grids]),
    )


@dataclass(frozen=True, slots=True)
class Fitted:
    """All curves of one fit, by work."""

    curves: Mapping[Work, ForestCurve] = field(default_factory=dict)
    rows: int = 0  # measurements that went in
    scatter: float = 0.0  # of one reading around its mean (relative sd), where it is known

    def curve(self, work: Work) -> ForestCurve | None:
        return self.curves.get(work)


def fit_work(evidence: Iterable[Evidence]) -> Fitted:
    """Fits everything that was measured, together. No two may be of the same work.

    Raises ValueError where two are, or where clocks are not distinct and ascending.
    """
    pieces = tuple(evidence)
    if len({one.work for one in pieces}) != len(pieces):
        raise ValueError("two pieces of evidence are of the same work")
    for one in pieces:
        if (np.diff(one.sweep.clocks_mhz) <= 0.0).any():
            raise ValueError(f"{one.work}: clocks must be distinct and ascending")
    if not pieces:
        return Fitted()
    physics = fit_all(pieces)
    tables = _tables(pieces, physics)
    left = [
        _left(one, curve, table) for one, curve, table in zip(pieces, physics, tables, strict=True)
    ]
    scales = time_scales([one.work.workload for one in pieces], [time for time, _ in left])
    learnt_from = _others(pieces)
    curves = {
        one.work: ForestCurve(
            physics=curve,
            table_mhz=_table_mhz(curve),
            table=table,
            time_left=time,
            power_left=power,
            scale=scale,
            floor=few_clocks(one.sweep.clocks_mhz.size, taught=taught),
        )
        for one, curve, table, (time, power), scale, taught in zip(
            pieces, physics, tables, left, scales, learnt_from, strict=True
        )
    }
    return Fitted(curves, sum(one.sweep.clocks_mhz.size for one in pieces))


def _others(pieces: Sequence[Evidence]) -> list[bool]:
    """Of each, whether other work was swept on the same card, at more clocks."""
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
    """What a forest of all other workloads says of each curve; zeros where there are none."""
    names = sorted({one.work.workload for one in pieces})
    fold_of = {name: i % FOLDS_MAX for i, name in enumerate(names)}
    tables = [np.zeros((TABLE_POINTS, 2)) for _ in pieces]
    for fold in sorted(set(fold_of.values())):
        inside = [i for i, one in enumerate(pieces) if fold_of[one.work.workload] == fold]
        outside = [i for i in range(len(pieces)) if i not in set(inside)]
        taught = [pieces[i] for i in outside]
        if not enough(taught):
            continue
        forest = Residuals(taught, [physics[i] for i in outside])
        asked = [_table_mhz(physics[i]) for i in inside]
        rows = features([pieces[i] for i in inside], [physics[i] for i in inside], asked)
        for i, table in zip(inside, np.split(forest.predict(rows), len(inside)), strict=True):
            tables[i] = table
    return tables


def _left(one: Evidence, curve: Physics, table: Floats) -> tuple[Smooth, Smooth]:
    """Time and power that neither physics nor forest explain."""
    clocks_mhz = one.sweep.clocks_mhz
    left = leftovers(one, curve)
    said = [np.interp(clocks_mhz, _table_mhz(curve), table[:, i]) for i in (0, 1)]
    time = smooth(
        clocks_mhz,
        left[:, 0] - said[0],
        top_mhz=curve.clock_max_mhz,
        left=TIME_LEFT,
        noise=TIME_NOISE,
        noises=one.noise,
    )
    power = smooth(
        clocks_mhz,
        left[:, 1] - said[1],
        top_mhz=curve.clock_max_mhz,
        left=POWER_LEFT,
        noise=POWER_NOISE,
        noises=one.noise,
    )
    return time, power
