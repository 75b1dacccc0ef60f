"""The cheapest clocks, one per stage, that a costly guess about a job allows.

The ordinary solver wants every clock option of every operation as a fact. Here costs are
guesses with doubts that change after each window, so whole choices are judged by the guess
itself, many at once, by descent over changes of one stage, of two, and of all. Pure.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Rows of clocks (m, stages) in; iteration times and costs out, each of shape (m,).
Judge = Callable[[Floats], tuple[Floats, Floats]]

REACH_ONE, REACH_TWO = 8, 3  # clocks that one stage may move at once, and two together
ROUNDS_MAX = 40  # descents take fewer than 15
BETTER = 1e-9  # relative: less is rounding


@dataclass(frozen=True, slots=True)
class Found:
    """A choice, and what it is guessed to take and cost."""

    clocks_mhz: tuple[int, ...]
    time_s: float
    cost: float


def cheapest(
    grids: tuple[tuple[int, ...], ...],
    start_mhz: tuple[int, ...],
    judge: Judge,
    deadline_s: float,
) -> Found | None:
    """The cheapest choice found within the deadline, from `start_mhz`, or where that is late from
    the same with all clocks raised until it is not. `grids` are ascending and never empty; None
    where not even their tops fit.
    """
    top = np.array([len(grid) - 1 for grid in grids])
    start = np.array(
        [
            min(range(len(g)), key=lambda i: abs(g[i] - mhz))
            for g, mhz in zip(grids, start_mhz, strict=True)
        ]
    )
    wide = np.zeros((len(grids), int(top.max()) + 1))
    for row, grid in zip(wide, grids, strict=True):
        row[: len(grid)] = grid
    moves = _moves(len(grids))

    def judged(choices: Ints) -> tuple[Floats, Floats]:
        time_s, cost = judge(wide[np.arange(len(grids)), choices])
        return time_s, np.where(time_s <= deadline_s, cost, np.inf)

    # From the top itself the way down may begin on a plain, where nothing nearby is cheaper.
    begins = np.minimum(start + np.arange(int(top.max()) + 1)[:, None], top)
    times_s, costs = judged(begins)
    in_time = np.flatnonzero(np.isfinite(costs))
    if not len(in_time):
        return None
    begin = in_time[0]
    at, here_s, here = begins[begin], float(times_s[begin]), float(costs[begin])
    for _ in range(ROUNDS_MAX):
        tried = at + moves
        tried = tried[((tried >= 0) & (tried <= top)).all(axis=1)]
        times_s, costs = judged(tried)
        k = int(np.argmin(costs))
        if not costs[k] < here * (1.0 - BETTER):
            break
        at, here_s, here = tried[k], float(times_s[k]), float(costs[k])
    return Found(tuple(int(wide[s, i]) for s, i in enumerate(at)), here_s, here)


def _moves(stages: int) -> Ints:
    """Every change of one stage, of two, of all together, and of one against the others."""
    rows: set[tuple[int, ...]] = set()
    for stage, step in itertools.product(range(stages), range(-REACH_ONE, REACH_ONE + 1)):
        rows.add(tuple(step if s == stage else 0 for s in range(stages)))
    near = range(-REACH_TWO, REACH_TWO + 1)
    for one, other in itertools.combinations(range(stages), 2):
        for first, second in itertools.product(near, near):
            rows.add(
                tuple(first if s == one else second if s == other else 0 for s in range(stages))
            )
    for one, step, rest in itertools.product(range(stages), near, near):
        rows.add(tuple(step if s == one else rest for s in range(stages)))
    return np.array(sorted(rows), dtype=np.int64)
