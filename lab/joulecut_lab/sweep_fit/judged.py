"""Curves of a sweep beside other work: physics, a forest of the others, bands.

    log t = log t_physics + forest(features) + smooth(residual at its own clocks)

and the same for power. The forest is trained on other workloads only, so it cannot repeat this
one's noise; the work's own measurements count most near their clocks. Pure: the same evidence
gives the same bytes.

    fitted = fit_judged(evidence)
    curve = fitted.curves[Work("gpt3", 0, "forward")]
    curve.time_s(clocks), curve.power_w(clocks), curve.grid(clocks).band_s(scatter=0.0)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from joulecut_engine.estimate.card import Card
from joulecut_engine.estimate.card_fit import fit_beside, fit_cards
from joulecut_engine.estimate.evidence import Evidence, Work
from joulecut_engine.estimate.forest import rounded
from joulecut_engine.estimate.physics import Floats, Physics, Sweep
from joulecut_engine.estimate.smooth import DENSE_MIN
from joulecut_engine.estimate.work_fit import WorkCurve, distinct, log_residuals
from joulecut_lab.sweep_fit.bands import (
    CLOCKS_FEW,
    CLOCKS_MIN,
    DENSER,
    FLOOR_CAPPED,
    Errors,
    Residuals,
    between,
    earned,
    few_places,
    floor_by_others,
    floor_of,
    left_out,
    missed,
    scale,
)
from joulecut_lab.sweep_fit.residual_forest import enough, features, residual_forest

TABLE_LOW, TABLE_POINTS = 0.3, 71  # of the highest clock; every hundredth of it
JUDGES_MAX = 24  # sweeps that judge curves of few clocks; a fit of each takes 15 ms
FOLDS_MAX = 6  # forests per fit; with more workloads, several are left out together


@dataclass(frozen=True, slots=True)
class Grid:
    """A curve at some clocks: arrays over them."""

    time_s: Floats
    power_w: Floats
    half: Floats  # half width of the band, a logarithm
    edge_s: Floats  # time at the nearest measured clock, for clocks outside
    stretch: Floats  # that clock over the asked one; 1 inside

    def band_s(self, scatter: float) -> tuple[Floats, Floats]:
        """Low and high time at each clock.

        `scatter` (half width, a logarithm) adds in quadrature. Outside the measured clocks the
        share of the work that follows the clock is unknown, so the band spans all and none of it.
        """
        wide = np.exp(np.hypot(self.half, scatter))
        low_s, high_s = self.time_s / wide, self.time_s * wide
        outside = self.stretch != 1.0
        if not outside.any():
            return low_s, high_s
        low_out = np.minimum(low_s, self.edge_s / wide * np.minimum(1.0, self.stretch))
        high_out = np.maximum(high_s, self.edge_s * wide * np.maximum(1.0, self.stretch))
        return np.where(outside, low_out, low_s), np.where(outside, high_out, high_s)


@dataclass(frozen=True, slots=True)
class JudgedCurve(WorkCurve):
    """With the forest of other work, and a band."""

    table_mhz: Floats  # (TABLE_POINTS,)
    table: Floats  # the forest there, logarithms of time and power: (TABLE_POINTS, 2)
    scale: float  # standard deviations that hold NOMINAL of left-out measurements
    judged: bool  # by left-out measurements; else fixed widths of few clocks
    floor: float  # smallest half width of the band (a logarithm)

    def time_s(self, clocks_mhz: Floats) -> Floats:
        other = np.interp(clocks_mhz, self.table_mhz, self.table[:, 0])
        left = self.time_left.mean(clocks_mhz)
        return np.asarray(self.physics.time_s(clocks_mhz) * np.exp(other + left))

    def power_w(self, clocks_mhz: Floats) -> Floats:
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

    curves: Mapping[Work, JudgedCurve] = field(default_factory=dict)


def fit_judged(evidence: Iterable[Evidence]) -> Fitted:
    """Fit all evidence together. Raises ValueError as `distinct`."""
    pieces = distinct(evidence)
    return Fitted(_Judged(pieces).curves()) if pieces else Fitted()


class _Judged:
    """Physics and forest of all evidence, and the errors of both at clocks left out."""

    def __init__(self, pieces: Sequence[Evidence]) -> None:
        self._pieces = pieces
        self._physics = fit_cards(pieces)
        self._tables = _tables(pieces, self._physics)
        self._residuals = [
            _residuals(one, curve, table)
            for one, curve, table in zip(pieces, self._physics, self._tables, strict=True)
        ]
        self._errors = [left_out(one) for one in self._residuals]
        self._earned = earned(self._errors)
        self._made: dict[tuple[object, ...], list[tuple[str, Errors]]] = {}

    def curves(self) -> dict[Work, JudgedCurve]:
        swept = _swept_elsewhere(self._pieces)
        return {one.work: self._curve(i, swept=swept[i]) for i, one in enumerate(self._pieces)}

    def _curve(self, at: int, *, swept: bool) -> JudgedCurve:
        own, count = self._pieces[at].work.workload, self._pieces[at].sweep.clocks_mhz.size
        alike = [pair for pair in self._thinned(at) if pair[0] != own]
        weight = earned(errors for _, errors in alike) if alike else self._earned
        few = count < CLOCKS_MIN
        floor = floor_of(count, swept=swept)
        if few and alike:
            floor = floor_by_others(_by_workload(alike, weight))
        scores = [errors.scores(weight) for errors in self._errors]
        ours = [one.work.workload == own for one in self._pieces]
        time, power = self._residuals[at].smooths(weight)
        return JudgedCurve(
            physics=self._physics[at],
            table_mhz=_table_mhz(self._physics[at]),
            table=self._tables[at] * weight,
            time_left=time,
            power_left=power,
            scale=scale(
                [score for score, mine in zip(scores, ours, strict=True) if mine],
                [score for score, mine in zip(scores, ours, strict=True) if not mine],
                [] if few else [errors.scores(weight) for _, errors in alike],
            ),
            judged=not few or bool(alike),
            floor=floor,
        )

    def _thinned(self, at: int) -> list[tuple[str, Errors]]:
        """Errors of dense sweeps between clocks placed like the few of this curve, by workload.

        Of the same kind of work on the same card, each distinct sweep once, fitted to those clocks
        alone. Empty for a curve of many clocks or of one.
        """
        one, clocks = self._pieces[at], self._pieces[at].sweep.clocks_mhz
        if not 1 < clocks.size < CLOCKS_FEW:
            return []
        key = (one.card, one.top_mhz, one.work.kind, tuple(clocks / clocks[-1]))
        if key not in self._made:
            dense = {
                (other.work.workload, other.sweep.time_s.tobytes()): i
                for i, other in enumerate(self._pieces)
                if (other.card, other.top_mhz, other.work.kind) == key[:3]
                and other.sweep.clocks_mhz.size >= max(DENSE_MIN, DENSER * clocks.size)
            }
            self._made[key] = [
                (self._pieces[i].work.workload, self._refitted(i, clocks))
                for i in list(dense.values())[:JUDGES_MAX]
            ]
        return self._made[key]

    def _refitted(self, at: int, few_mhz: Floats) -> Errors:
        """Errors of a sweep between a few of its clocks, fitted to those alone."""
        one, sweep = self._pieces[at], self._pieces[at].sweep
        taken = few_places(sweep.clocks_mhz, few_mhz)
        thin = replace(
            one,
            sweep=Sweep(sweep.clocks_mhz[taken], sweep.time_s[taken], sweep.power_w[taken]),
            clock_max_mhz=one.top_mhz,
            noise=None,
        )
        curve = fit_beside(thin, self._pieces, self._physics)
        few, dense = (_residuals(each, curve, self._tables[at]) for each in (thin, one))
        return missed(few, dense)


def _by_workload(pairs: Sequence[tuple[str, Errors]], weight: Floats) -> list[Floats]:
    """Absolute errors of time, one array per workload."""
    found: dict[str, list[Floats]] = {}
    for workload, errors in pairs:
        found.setdefault(workload, []).append(errors.time(weight))
    return [np.concatenate(errors) for errors in found.values()]


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
        forest = residual_forest(training, [physics[i] for i in outside])
        asked = [_table_mhz(physics[i]) for i in inside]
        rows = features([pieces[i] for i in inside], [physics[i] for i in inside], asked)
        for i, table in zip(
            inside, np.split(forest.predict(rounded(rows)), len(inside)), strict=True
        ):
            tables[i] = table
    return tables


def _residuals(one: Evidence, curve: Physics, table: Floats) -> Residuals:
    clocks_mhz, table_mhz = one.sweep.clocks_mhz, _table_mhz(curve)
    forest = [np.interp(clocks_mhz, table_mhz, table[:, i]) for i in (0, 1)]
    return Residuals(
        clocks_mhz=clocks_mhz,
        top_mhz=curve.clock_max_mhz,
        left=log_residuals(one, curve),
        forest=np.column_stack(forest),
        noise=one.noise,
    )
