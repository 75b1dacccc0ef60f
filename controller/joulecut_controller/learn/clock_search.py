"""Cheapest clocks, one per stage, by a model whose costs change after each window.

The solver in `optimize` needs every clock option of every operation as a fact. Here whole choices
are judged by the model, many at once, in a descent over changes of one stage, of two, and of all.
`Probe` is one step below the measured clocks.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.learn.regression import Floats

Ints = NDArray[np.int64]
# Rows of clocks (m, stages) to iteration times and costs, each (m,).
Judge = Callable[[Floats], tuple[Floats, Floats]]

REACH_ONE, REACH_TWO = 8, 3  # clocks that one stage may move at once, and two together
ROUNDS_MAX = 40  # descents take fewer than 15
BETTER = 1e-9  # relative: less is rounding


@dataclass(frozen=True, slots=True)
class Candidate:
    """Clocks with predicted iteration time and cost."""

    clocks_mhz: tuple[int, ...]
    time_s: float
    cost: float


def cheapest(
    grids: tuple[tuple[int, ...], ...],
    start_mhz: tuple[int, ...],
    judge: Judge,
    deadline_s: float,
) -> Candidate | None:
    """The cheapest clocks found within the deadline, None if even the highest are late.

    The descent starts at `start_mhz`, with all clocks raised until in time. `grids` are ascending
    and not empty.
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

    # A start at the top may lie on a plateau, where nothing nearby is cheaper.
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
    return Candidate(tuple(int(wide[s, i]) for s, i in enumerate(at)), here_s, here)


@lru_cache(maxsize=8)  # numbers of stages; a decision asks some ten times
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


Clocks = tuple[int, ...]  # MHz by stage

# Raising other stages for a probe must pay back within so many windows of its aim ...
PAYBACK_WINDOWS = 10
# ... and within about ten minutes (windows last up to 12 s) of the step itself.
ROOM_WINDOWS = 50
# Change of iteration time that one window cannot distinguish from none.
LATER_MIN = 0.002


@dataclass(frozen=True, slots=True)
class Probe:
    """Stages to lower below their measured clocks, or to test for slack.

    `gain_ratio` is a share of the present energy: of this step or, if hypothetical, of its aim.
    """

    gain_ratio: float
    stages: tuple[int, ...]
    clocks_mhz: Clocks


def progress(judge: Judge, lowest_mhz: Clocks, now_j: float, rows: Floats) -> Floats:
    """Energy saved per added iteration time for each row of clocks (m, stages): (m,).

    Less the cost of making room. Stages that wait come first: they hardly slow the job.
    """
    times_s, costs_j = judge(rows)
    before_s, before_j = judge(np.maximum(rows, np.array(lowest_mhz, dtype=np.float64)))
    room_j = np.maximum(0.0, before_j - now_j) / ROOM_WINDOWS
    worth = (before_j - costs_j - room_j) / now_j
    later = LATER_MIN + np.maximum(0.0, times_s / before_s - 1.0)
    return np.asarray(np.where(worth > 0.0, worth / later, worth))
