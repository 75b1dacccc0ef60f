"""Splits of a study's rows into training and test, and scores of predictions.

A random split asks for a clock between two measured ones of the same layer; the others leave few
clocks of a layer to learn from. Errors of time and power can cancel in energy, so the scores
include the clocks a prediction would choose: regret (energy above the best choice within a slowdown
budget) and overshoot of that budget.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecut_lab.study.row import Row

Floats = NDArray[np.float64]
BUDGETS = (0.02, 0.05, 0.10)  # slowdowns that people agree to
TARGETS = ("power", "time", "energy")


@dataclass(frozen=True, slots=True)
class Score:
    """`mae` in the target's unit, `mape` a fraction, `r2` of the numbers themselves."""

    mae: float
    mape: float
    r2: float


@dataclass(frozen=True, slots=True)
class Choices:
    """Means over curves and budgets, as fractions."""

    regret: float
    overshoot: float


def score(truth: Floats, said: Floats) -> Score:
    """Arrays of one shape, truth above 0. R2 is 0 where the truth does not vary."""
    error = said - truth
    spread = float(((truth - truth.mean()) ** 2).sum())
    return Score(
        mae=float(np.abs(error).mean()),
        mape=float(np.abs(error / truth).mean()),
        r2=1.0 - float((error**2).sum()) / spread if spread > 0.0 else 0.0,
    )


def targets(rows: Sequence[Row]) -> Mapping[str, Floats]:
    return {
        "power": np.array([row.power_w for row in rows]),
        "time": np.array([row.time_s for row in rows]),
        "energy": np.array([row.energy_j for row in rows]),
    }


def choices(rows: Sequence[Row], time_s: Floats, power_w: Floats) -> Choices | None:
    """What choosing by these predictions costs; None without a curve of two clocks.

    For each curve and budget: the clock of least predicted energy among those predicted
    to keep the budget. Its true energy is held against the best true choice.
    """
    regrets, overs = [], []
    for places in by_curve(rows):
        if len(places) < 2:
            continue
        true_s = np.array([rows[i].time_s for i in places])
        true_j = np.array([rows[i].energy_j for i in places])
        said_s, said_j = time_s[places], time_s[places] * power_w[places]
        for budget in BUDGETS:
            allowed = said_s <= said_s.min() * (1.0 + budget)
            chosen = int(np.argmin(np.where(allowed, said_j, np.inf)))
            kept = true_s <= true_s.min() * (1.0 + budget)
            best_j = float(true_j[kept].min())
            # A choice that breaks the budget may use less than the best that keeps it.
            regrets.append(max(0.0, float(true_j[chosen]) / best_j - 1.0))
            overs.append(max(0.0, float(true_s[chosen] / true_s.min()) - 1.0 - budget))
    if not regrets:
        return None
    return Choices(float(np.mean(regrets)), float(np.mean(overs)))


FOLDS = 5  # random rows: four fifths teach, as in the usual protocol
PROBES = 5  # clocks of each curve that teach where clocks are held out


@dataclass(frozen=True, slots=True)
class Fold:
    """Indices into the rows: `teach` and `judge` do not meet."""

    teach: tuple[int, ...]
    judge: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """`says` describes to people which rows teach and which are judged."""

    name: str
    says: str
    folds: tuple[Fold, ...]


def splits(rows: Sequence[Row], seed: int) -> tuple[Split, ...]:
    """All that these rows allow; those with nothing to leave out are absent."""
    found = (
        Split("random rows", "a fifth of all rows at a time", _random(rows, seed)),
        Split("held-out clocks", f"{PROBES} clocks of each curve teach", (_kept(rows, PROBES),)),
    )
    return tuple(split for split in found if any(fold.judge for fold in split.folds))


def _random(rows: Sequence[Row], seed: int) -> tuple[Fold, ...]:
    """By a digest of each row's key, so that the order of the file does not matter."""

    def key(row: Row) -> int:
        return zlib.crc32(f"{seed} {row.setting} {row.clock_asked_mhz}".encode())

    ordered = sorted(range(len(rows)), key=lambda i: (key(rows[i]), i))
    judged = [set(ordered[fold::FOLDS]) for fold in range(FOLDS)]
    every = range(len(rows))
    return tuple(
        Fold(tuple(i for i in every if i not in some), tuple(i for i in every if i in some))
        for some in judged
        if some
    )


def by_curve(rows: Sequence[Row]) -> Iterator[list[int]]:
    curves: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(rows):
        curves.setdefault(row.setting, []).append(i)
    for places in curves.values():
        yield sorted(places, key=lambda i: rows[i].clock_asked_mhz)


def _kept(rows: Sequence[Row], count: int) -> Fold:
    """So many clocks of every curve teach, its ends among them; the others judge."""
    teach: set[int] = set()
    for places in by_curve(rows):
        last = len(places) - 1
        teach |= {places[round(k * last / (count - 1))] for k in range(count)}
    judge = tuple(i for i in range(len(rows)) if i not in teach)
    return Fold(tuple(sorted(teach)), judge)
