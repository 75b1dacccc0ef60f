"""How little energy one clock for many operations can use: a bound of its own kind.

A bound for a clock per operation holds for coarser granularities too, and is far below them:
what keeps `gpu` from saving is that fill and drain must run at the same clock as the rest.
Here a group may mix its clocks, but all its operations mix alike. The length of any path is
then a sum over groups, so the best mixture is a small linear program whose paths are added as
they are found to be too long (Kelley 1960); paths found for one deadline serve the next.

HiGHS only suggests prices for paths. The bound is evaluated from them in floats, and holds for
any prices that are not negative (Lagrange), so nothing rests on a solver's tolerances.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.change_schedules import ChangeSchedules
from joulecut_engine.optimize.levels import Floats, Ints

Mask = NDArray[np.bool_]

PATHS_MAX = 400  # kept between deadlines; a few dozen are the rule
ROUNDS_ROOT, ROUNDS_CASE = 80, 25  # of finding the path that is missing; less only costs tightness
CLOSE = 1e-7  # of the iteration time: mixtures that miss it by less are on time
LATE_PRICE = 1e3  # for missing the deadline, against everything that can be saved at all
ROUND_OFF = 1e-11  # of the largest term
WHOLE = -1  # instead of a group to split
GAP_SMALL = 1e-4  # of the bound: what is left to prove then is below any measurement


@dataclass(frozen=True, slots=True)
class Task:
    """Least sum c + time_price * T; `fastest_s` bounds every iteration time from below."""

    deadline_s: float
    time_price_w: float
    fastest_s: float


@dataclass(frozen=True, slots=True)
class Bound:
    """`bound_j` bounds sum c + time_price * T for T <= deadline; `choices` (groups, K) are
    worth judging. `cases` are (bound, number, allowed, where to split) still open."""

    bound_j: float
    choices: Ints
    cases: tuple[tuple[float, int, Mask, tuple[int, int]], ...]

    def closed(self, value_j: float) -> bool:
        """Whether no open case can be much better than a choice of this value."""
        return not any(case[0] < _enough_j(value_j) and case[3][0] != WHOLE for case in self.cases)


class Bounds:
    """One table of all choices; answers one deadline after another."""

    def __init__(self, table: ChangeSchedules) -> None:
        self._table = table
        self._cost_j = table.cost_j
        self._paths: list[Floats] = []  # each (groups, choices), 0 where nothing is offered

    def at(self, task: Task) -> Bound:
        """With mixtures allowed."""
        offered = np.isfinite(self._cost_j)
        bound_j, choices, split = self._solved(task, offered, ROUNDS_ROOT)
        return Bound(bound_j, choices, ((bound_j, 0, offered, split),))

    def refined(self, bound: Bound, task: Task, value_j: float, cases: int) -> Bound:
        """Distinguishes up to so many cases (a group's faster clocks or its slower ones), until
        none can be much better than the choice of `value_j` that is known."""
        heap, number, found = list(bound.cases), 0, [bound.choices]
        serial = 1 + max(case[1] for case in heap)  # distinct, or a tie would compare masks
        whole = []  # cases of one choice a group: nothing is left to distinguish
        while heap and number < cases and heap[0][0] < _enough_j(value_j):
            case = heapq.heappop(heap)
            least_j, _, allowed, (group, at) = case
            if group == WHOLE:
                whole.append(case)
                continue
            for low in (True, False):
                part = allowed.copy()
                part[group] &= (np.arange(part.shape[1]) <= at) == low
                number += 1
                case_j, choices, split = self._solved(task, part, ROUNDS_CASE)
                found.append(choices)
                heapq.heappush(heap, (max(case_j, least_j), serial + number, part, split))
        for case in whole:
            heapq.heappush(heap, case)
        bound_j = min([case[0] for case in heap], default=value_j)
        return Bound(min(bound_j, value_j), np.concatenate(found, axis=1), tuple(heap))

    def _solved(
        self, task: Task, allowed: Mask, rounds: int
    ) -> tuple[float, Ints, tuple[int, int]]:
        """Bound, choices near the best mixture, and where to split the most mixed group."""
        best_j, share = -np.inf, np.zeros(allowed.shape)
        for _ in range(rounds):
            share, time_s, prices_w = mixture(self._cost_j, self._paths, task, allowed)
            best_j = max(best_j, self._lagrange_j(task, allowed, prices_w))
            longest_s, weight = self._table.longest(share)
            if longest_s <= time_s * (1 + CLOSE):
                break
            lengths = self._table.lengths(weight)
            self._paths.append(np.where(np.isfinite(lengths), lengths, 0.0))
        if len(self._paths) > PATHS_MAX:
            del self._paths[: len(self._paths) - PATHS_MAX // 2]
        return best_j, _near(share, allowed), _split(share, allowed)

    def _lagrange_j(self, task: Task, allowed: Mask, prices_w: Floats) -> float:
        """The bound that these prices prove."""
        charged_j = np.zeros(allowed.shape)
        for price_w, path in zip(prices_w, self._paths, strict=True):
            if price_w > 0.0:
                charged_j += price_w * path
        total_w = float(prices_w.sum())
        least_j = np.where(allowed, self._cost_j + charged_j, np.inf).min(axis=1)
        left_w = task.time_price_w - total_w
        time_j = left_w * (task.fastest_s if left_w > 0 else task.deadline_s)
        largest_j = float(np.abs(least_j).sum()) + abs(time_j)
        return float(least_j.sum()) + time_j - ROUND_OFF * largest_j


def mixture(
    cost_j: Floats, paths: Sequence[Floats], task: Task, allowed: Mask
) -> tuple[Floats, float, Floats]:
    """The best mixture of choices as far as these paths (groups, choices) tell: shares,
    iteration time, and a price for each path."""
    from scipy.optimize import linprog  # noqa: PLC0415 -- a third of a second to load

    group, choice = np.nonzero(allowed)
    count, known = len(group), len(paths)
    least_j = np.where(allowed, cost_j, np.inf).min(axis=1)
    more_j = cost_j[group, choice] - least_j[group]
    scale_j = float(more_j.sum()) or 1.0
    price = task.time_price_w * task.deadline_s / scale_j
    unit_s = task.deadline_s
    objective = np.concatenate([more_j / scale_j, [price, LATE_PRICE + price]])
    equal = np.zeros((allowed.shape[0], count + 2))
    equal[group, np.arange(count)] = 1.0
    below = np.zeros((known, count + 2))
    for k, path in enumerate(paths):
        below[k, :count] = path[group, choice] / unit_s
    below[:, count:] = -1.0
    least = min(task.fastest_s / unit_s, 1.0)
    solved = linprog(
        objective,
        A_ub=below if known else None,
        b_ub=np.zeros(known) if known else None,
        A_eq=equal,
        b_eq=np.ones(allowed.shape[0]),
        bounds=[(0.0, None)] * count + [(least, 1.0), (0.0, None)],
        options={"presolve": False},  # a fourth of the time of programs as small as these
    )
    share = np.zeros(allowed.shape)
    if solved.status != 0 or solved.x is None:  # never seen; prices of 0 are valid too
        share[np.arange(len(share)), np.argmax(allowed, axis=1)] = 1.0
        return share, np.inf, np.zeros(known)
    share[group, choice] = solved.x[:count]
    marginals = solved.ineqlin.marginals if known else np.zeros(0)
    prices_w = np.maximum(-marginals, 0.0) * scale_j / unit_s
    return share, float(solved.x[count] + solved.x[count + 1]) * unit_s, prices_w


def _enough_j(value_j: float) -> float:
    return value_j - GAP_SMALL * abs(value_j)


def _near(share: Floats, allowed: Mask) -> Ints:
    """Real choices near a mixture: of each group the largest share, the fastest and slowest."""
    used = share > CLOSE
    columns = np.arange(share.shape[1])
    fastest = np.argmax(used, axis=1)
    slowest = np.argmax(np.where(used, columns, -1), axis=1)
    middle = np.rint((share * columns).sum(axis=1)).astype(np.int64)
    middle = np.where(allowed[np.arange(len(share)), middle], middle, fastest)
    return np.stack([np.argmax(share, axis=1), fastest, slowest, middle], axis=1)


def _split(share: Floats, allowed: Mask) -> tuple[int, int]:
    """The group whose mixture spreads most, and the choice below which to cut it; WHOLE where
    every group has one choice left.
    """
    columns = np.arange(share.shape[1])
    mean = (share * columns).sum(axis=1)
    spread = (share * (columns - mean[:, None]) ** 2).sum(axis=1)
    spread[allowed.sum(axis=1) < 2] = -1.0
    group = int(np.argmax(spread))
    if spread[group] < 0.0:
        return WHOLE, 0
    offered = np.flatnonzero(allowed[group])
    at = int(np.searchsorted(offered, mean[group], side="right")) - 1
    return group, int(offered[min(max(at, 0), max(len(offered) - 2, 0))])
