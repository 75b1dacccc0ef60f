"""What a choice will really save: never judged by the numbers it was chosen for.

The clock that looks best among forty noisy ones is partly best by luck, and its predicted
saving is too high by just that luck (simulated: 1 point at 2 % noise, 2 at 4 %). So
samples are dealt into folds: each fold is judged on the clock that the others chose.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecut_engine.estimate.grid import Floats
from joulecut_engine.estimate.pooled import Snapshot

FOLDS = 4  # each choice is made from three quarters of the samples: nearly the final one


@dataclass(frozen=True, slots=True)
class Options:
    """What each clock costs by one fold of the samples: arrays of shape (clocks,)."""

    time_s: Floats
    energy_j: Floats


@dataclass(frozen=True, slots=True)
class Saving:
    """A choice over all samples, and what it is expected to save (ratios of the baseline).

    `naive_ratio` is what the choosing samples say themselves, for comparison only.
    """

    chosen: int  # index of the clock
    saved_ratio: float
    naive_ratio: float


def expected_saving(
    folds: Sequence[Options], *, base: int, budget: float, allowed: Sequence[int]
) -> Saving:
    """The best of `allowed` within `budget` (a ratio) of clock `base`, honestly judged.

    Folds hold the same clocks in the same order and independent samples. Raises ValueError
    with fewer than two, since nothing is left then to judge by.
    """
    if len(folds) < 2:
        raise ValueError("one fold cannot judge its own choice")
    judged = []
    for k, own in enumerate(folds):
        others = _mean([fold for i, fold in enumerate(folds) if i != k])
        pick = _best(others, base, budget, allowed)
        judged.append(1.0 - float(own.energy_j[pick] / own.energy_j[base]))
    everything = _mean(folds)
    chosen = _best(everything, base, budget, allowed)
    naive = 1.0 - float(everything.energy_j[chosen] / everything.energy_j[base])
    return Saving(chosen, float(np.mean(judged)), naive)


def dealt(snapshot: Snapshot, folds: int = FOLDS) -> tuple[Snapshot, ...]:
    """A snapshot's readings dealt into folds by their number; each can be fitted alone.

    Cells without a reading in a fold are missing from it.
    """
    return tuple(
        replace(
            snapshot,
            cells=tuple(
                (cell, kept)
                for cell, readings in snapshot.cells
                if (kept := tuple(r for i, r in enumerate(readings) if i % folds == k))
            ),
        )
        for k in range(folds)
    )


def _mean(folds: Sequence[Options]) -> Options:
    return Options(
        np.mean([fold.time_s for fold in folds], axis=0),
        np.mean([fold.energy_j for fold in folds], axis=0),
    )


def _best(options: Options, base: int, budget: float, allowed: Sequence[int]) -> int:
    limit_s = options.time_s[base] * (1.0 + budget)
    fits = [i for i in allowed if options.time_s[i] <= limit_s]
    return min([base, *fits], key=lambda i: (options.energy_j[i], i))
