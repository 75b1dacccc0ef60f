"""When many lucky and unlucky runs of one iteration end, and which operations made them late.

A draw is one iteration of all data-parallel siblings, which ends with the slowest of them. The
longest path of that sibling is what a shorter operation would have shortened: summed over many
draws this is the gradient of the mean iteration time.
"""

import numpy as np

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Floats, Ints, Waves


class Paths:
    """A graph's dependencies by row, ready to be run; rows are those of `waves`."""

    def __init__(self, waves: Waves) -> None:
        before: list[list[tuple[int, int]]] = [[] for _ in range(waves.size)]
        for link, (first, second) in enumerate(waves.edges.tolist()):
            before[second].append((first, link))
        self._first: Ints = np.cumsum([0, *map(len, before)])
        self._before: Ints = np.array([a for row in before for a, _ in row], dtype=np.int64)
        self._link: Ints = np.array([k for row in before for _, k in row], dtype=np.int64)

    def run(self, mean_s: Floats, factor: Floats, delay_s: Floats, times_s: Floats) -> Floats:
        """Raises `times_s` (draws,) to the end of the slowest sibling of each draw.

        `factor` is (siblings, draws, rows), `delay_s` (siblings, draws, edges), without edges
        where nothing is delayed. Answers, by row, the sum over draws of d end / d mean: the
        row's factor in every draw in which it lies on the longest path.
        """
        weight = np.zeros(len(mean_s))
        _run(self._first, self._before, self._link, mean_s, factor, delay_s, times_s, weight)
        return weight


@exact
def _pass(
    first: Ints,
    before: Ints,
    link: Ints,
    mean_s: Floats,
    factor: Floats,
    delay_s: Floats,
    end_s: Floats,
) -> int:
    """Writes the end of each row; answers the row that ends last."""
    latest, latest_s = 0, 0.0
    for row in range(len(mean_s)):
        ready_s = 0.0
        for k in range(first[row], first[row + 1]):
            at_s = end_s[before[k]]
            if len(delay_s):
                at_s += delay_s[link[k]]
            ready_s = max(ready_s, at_s)
        at_s = ready_s + mean_s[row] * factor[row]
        end_s[row] = at_s
        if at_s > latest_s:
            latest, latest_s = row, at_s
    return latest


@exact
def _trace(
    first: Ints,
    before: Ints,
    link: Ints,
    factor: Floats,
    delay_s: Floats,
    end_s: Floats,
    row: int,
    weight: Floats,
) -> None:
    """Adds the factors of the rows on the longest path that ends with `row`."""
    while row >= 0:
        weight[row] += factor[row]
        ready_s, last = -1.0, -1
        for k in range(first[row], first[row + 1]):
            at_s = end_s[before[k]]
            if len(delay_s):
                at_s += delay_s[link[k]]
            if at_s > ready_s:
                ready_s, last = at_s, before[k]
        row = last


@exact
def _run(
    first: Ints,
    before: Ints,
    link: Ints,
    mean_s: Floats,
    factor: Floats,
    delay_s: Floats,
    times_s: Floats,
    weight: Floats,
) -> None:
    siblings, draws, rows = factor.shape
    ends_s = np.zeros((2, rows))  # of the slowest sibling so far, and of the one that runs
    for draw in range(draws):
        slowest, row, mine = -1, -1, 0
        for k in range(siblings):
            end_s = ends_s[1 - mine]
            luck, late_s = factor[k, draw], delay_s[k, draw]
            latest = _pass(first, before, link, mean_s, luck, late_s, end_s)
            if end_s[latest] > times_s[draw]:
                times_s[draw] = end_s[latest]
                slowest, row, mine = k, latest, 1 - mine
        if row >= 0:
            luck, late_s = factor[slowest, draw], delay_s[slowest, draw]
            _trace(first, before, link, luck, late_s, ends_s[mine], row, weight)
