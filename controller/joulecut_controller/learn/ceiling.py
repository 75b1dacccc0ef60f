"""How long an iteration takes at other clocks at most and at least, whatever the job is made of.

A fit that takes one stage's time for another's is sure of it, and wrong. So what may be
dared rests on nothing but measured iteration times and on what every schedule and card have
in common. Pure and deterministic.

A longest path is monotone, homogeneous and convex in its operations' times, and so is its
mean under jitter; an operation's time at clock f is at most linear in 1/f, not falling, with
nothing below zero at 1/f = 0 (flat where a power cap holds). Hence, of windows i that took
T_i at 1/f = x_i by stage, for all weights mu_i >= 0 with sum mu_i >= 1 and, stage by stage,
sum mu_i x_i >= x:  T(x) <= sum mu_i T_i.  The least such sum is a linear program with a row
per stage and one more. One window alone gives the stretch of the stage lowered most; several
around x, what lies between them. And at the least T_i over the stretch from x to window i.
"""

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.compiled import exact

Floats = NDArray[np.float64]

PIVOTS_MAX = 200  # some three per row are needed; where rounding goes round, one window bounds
ROUNDING = 1e-12
FLOORS_AT_ONCE = 1024  # rows; with 96 windows of 8 stages 6 MB


def ceiling_s(times_s: Floats, clocks_mhz: Floats, asked_mhz: Floats) -> Floats:
    """The longest an iteration can take at every row of `asked_mhz` (m, stages), shape (m,),
    after windows of `times_s` (n,) at `clocks_mhz` (n, stages); n is at least 1.
    """
    windows, stages = clocks_mhz.shape
    table = np.zeros((stages + 2, windows + stages + 2))  # rows, then what they cost
    ceilings = np.empty(len(asked_mhz))
    for at, asked in enumerate(asked_mhz):
        table[:stages, :windows] = -(asked / clocks_mhz).T
        table[stages, :windows] = -1.0
        table[:-1, windows:-1] = np.eye(stages + 1)
        table[:-1, -1] = -1.0
        table[-1, :windows], table[-1, windows:] = times_s, 0.0
        single_s = np.min(times_s * np.maximum(1.0, (clocks_mhz / asked).max(axis=1)))
        ceilings[at] = min(single_s, _least(table))
    return ceilings


def floor_s(times_s: Floats, clocks_mhz: Floats, asked_mhz: Floats) -> Floats:
    """The shortest, of the same: no less than at clocks that are nowhere lower, and what is lower
    in a window explains no more of its time than its own stretch.
    """
    floors = np.empty(len(asked_mhz))
    for begin in range(0, len(asked_mhz), FLOORS_AT_ONCE):
        asked = asked_mhz[begin : begin + FLOORS_AT_ONCE, None, :]
        stretch = np.maximum(1.0, (asked / clocks_mhz).max(axis=2))
        floors[begin : begin + FLOORS_AT_ONCE] = (times_s / stretch).max(axis=1)
    return floors


@exact
def _least(table: Floats) -> float:
    """The dual simplex method from the empty basis, which costs nothing and keeps no row: every
    pivot costs more, and the first that keeps all rows is the least. Infinity if none is found.
    """
    for _ in range(PIVOTS_MAX):
        leaves = int(np.argmin(table[:-1, -1]))
        if table[leaves, -1] >= -ROUNDING:
            return float(-table[-1, -1])
        enters, least = -1, np.inf
        for i in range(table.shape[1] - 1):
            if table[leaves, i] < -ROUNDING:
                price = -table[-1, i] / table[leaves, i]
                if price < least:
                    enters, least = i, price
        if enters < 0:
            break
        table[leaves] /= table[leaves, enters]
        for row in range(len(table)):
            if row != leaves:
                table[row] -= table[row, enters] * table[leaves]
    return np.inf
