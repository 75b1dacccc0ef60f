"""What a second of each operation is worth, and how little energy schedules of few clocks can use.

A bound for a clock per operation holds for coarser granularities too, and is far below them: fill
and drain must run at nearly the same clocks as the rest. Here each GPU mixes its schedules, all its
operations alike. The length of any path is then a sum over GPUs, so the best mixture is a small
linear program, whose paths are added as they are found to be too long (Kelley 1960), and whose
schedules as they are found to be cheap (column generation, Gilmore and Gomory 1961): under prices
of time the best schedule of each GPU is known exactly (`k_change_dp`). Prices are taken halfway to
the best so far, or they swing (Wentges 1997).

HiGHS only suggests prices. The bound is evaluated from them in floats, and holds for any prices
that are not negative (Lagrange), so nothing rests on a solver's tolerances.
"""

import heapq
import math

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.change_schedules import ChangeSchedules
from joulecut_engine.optimize.choice_search import Task
from joulecut_engine.optimize.drawn_choices import DrawnChoices
from joulecut_engine.optimize.levels import Floats, Ints

Mask = NDArray[np.bool_]

ROUNDS_ROOT, ROUNDS_CASE = 80, 25  # of finding the path that is missing; less only costs tightness
CLOSE = 1e-7  # of the iteration time: mixtures that miss it by less are on time
LATE_PRICE = 1e3  # for missing the deadline, against everything that can be saved at all
ROUND_OFF = 1e-11  # of the largest term
WHOLE = -1  # instead of a group to split
GAP_SMALL = 1e-4  # of the bound: what is left to prove then is below any measurement
NEARER = 0.5  # to the best prices so far
# Of the relaxation's prices, for the first schedules: without them tight deadlines under costs of
# changes lose up to 14 points, others nothing.
SCALES = np.geomspace(0.25, 4.0, 6)
CHARGES = np.geomspace(0.2, 5.0, 48)  # of the best prices: what each GPU would choose at these
SHAKE = 0.5  # prices are shaken by up to so much from operation to operation


class Prices:
    """Of one task, for the schedules of a table.

    Prices are a flow from the start of the iteration to its end: `weights` are flows of one watt,
    longest paths but for the first, `price_w` by operation, of which `arrives_w` arrives. `bound_j`
    bounds what the task minimises where the table is its own judge.
    """

    def __init__(
        self,
        table: ChangeSchedules,
        judge: ChangeSchedules | DrawnChoices,
        task: Task,
        price_w: Floats,
        arrives_w: float,
    ) -> None:
        self._table, self._judge, self._task = table, judge, task
        self.weights = [price_w / arrives_w] if arrives_w > 0.0 else []
        self.bound_j, self._best = -math.inf, (price_w, arrives_w)
        self._lengths: list[Floats] = []  # of `weights`, in the table as it is now
        self._cases: list[tuple[float, int, Mask, tuple[int, int]]] = []  # open: see `refine`

    def improve(self, rounds: int) -> None:
        """Adds schedules, and raises the bound, so many times."""
        price_w, arrives_w = self._best
        if math.isinf(self.bound_j):
            self._prove(price_w, arrives_w)
            for scale in SCALES:
                self._table.add_cheapest(scale * price_w, self._task.cost_weight)
            self._tabulate()
        for _ in range(rounds):
            _, price_w, arrives_w, value_j = self._mixed(np.isfinite(self._table.cost_j))
            if value_j <= self.bound_j + CLOSE * abs(self.bound_j):
                break
            best_w, best_arrives_w = self._best
            self._prove(
                price_w + NEARER * (best_w - price_w),
                arrives_w + NEARER * (best_arrives_w - arrives_w),
            )
            self._tabulate()

    def charged(self, shaken: np.random.Generator | None = None) -> Ints:
        """What each GPU would choose at these prices, or a multiple: (stages, K). Where they are
        shaken, schedules for these prices join the table."""
        price_w = self._best[0]
        if shaken is not None:
            price_w = price_w * (1.0 + SHAKE * shaken.random(len(price_w)))
            self._table.add_cheapest(price_w, self._task.cost_weight)
            self._tabulate()
        cost_j, charge_j = self._costs(), self._table.lengths(price_w)
        charge_j = np.where(np.isfinite(charge_j), charge_j, 0.0)
        cheapest: Ints = np.argmin(cost_j[:, :, None] + charge_j[:, :, None] * CHARGES, axis=1)
        return cheapest

    def complete(self) -> Ints:
        """Raises the bound as far as mixtures go, where the table holds all schedules there are;
        answers choices (stages, K) that are worth judging."""
        offered = np.isfinite(self._table.cost_j)
        self.bound_j, choices, split = self._solved(offered, ROUNDS_ROOT)
        self._cases = [(self.bound_j, 0, offered, split)]
        return choices

    def refine(self, value_j: float, cases: int) -> bool:
        """After `complete`: distinguishes up to so many cases (a GPU's faster clocks or its slower
        ones), until none can be much better than the choice of `value_j` that is known; whether
        more can be."""
        heap, number = list(self._cases), 0
        serial = 1 + max(case[1] for case in heap)  # distinct, or a tie would compare masks
        whole = []  # cases of one choice a GPU: nothing is left to distinguish
        while heap and number < cases and heap[0][0] < _enough_j(value_j):
            case = heapq.heappop(heap)
            least_j, _, allowed, (stage, at) = case
            if stage == WHOLE:
                whole.append(case)
                continue
            for low in (True, False):
                part = allowed.copy()
                part[stage] &= (np.arange(part.shape[1]) <= at) == low
                number += 1
                case_j, _, split = self._solved(part, ROUNDS_CASE)
                heapq.heappush(heap, (max(case_j, least_j), serial + number, part, split))
        for case in whole:
            heapq.heappush(heap, case)
        self._cases = heap
        self.bound_j = min(value_j, *(case[0] for case in heap), math.inf)
        return any(case[0] < _enough_j(value_j) and case[3][0] != WHOLE for case in heap)

    def _solved(self, allowed: Mask, rounds: int) -> tuple[float, Ints, tuple[int, int]]:
        """Bound, choices near the best mixture, and where to split the most mixed GPU."""
        best_j, share = -math.inf, np.zeros(allowed.shape)
        for _ in range(rounds):
            share, price_w, arrives_w, value_j = self._mixed(allowed)
            charged_j = np.where(allowed, self._costs() + self._table.lengths(price_w), math.inf)
            best_j = max(best_j, self._bounded_j(charged_j.min(axis=1), arrives_w))
            if math.isfinite(value_j):
                break
        return best_j, _near(share, allowed), _split(share, allowed)

    def _mixed(self, allowed: Mask) -> tuple[Floats, Floats, float, float]:
        """Shares of the best mixture of what is allowed; its prices, a flow by operation, and how
        much of it arrives; its value. Where its longest path is longer than those known, that joins
        them, and the value is infinite."""
        known = [self._table.lengths(weight) for weight in self.weights[len(self._lengths) :]]
        self._lengths += known
        cost_j = self._costs()
        share, time_s, prices_w = mixture(cost_j, self._lengths, self._task, allowed)
        price_w = np.zeros(len(self._best[0]))
        for one_w, weight in zip(prices_w.tolist(), self.weights, strict=True):
            price_w += one_w * weight
        longest_s, weight = self._judge.longest(share)
        value_j = float((share * np.where(share > 0.0, cost_j, 0.0)).sum())
        value_j += self._task.time_price_w * time_s
        if longest_s > time_s * (1 + CLOSE):
            self.weights.append(weight)
            value_j = math.inf
        return share, price_w, float(prices_w.sum()), value_j

    def _costs(self) -> Floats:
        cost_j, offered = self._table.cost_j, np.isfinite(self._table.cost_j)
        return np.where(offered, self._task.cost_weight * np.where(offered, cost_j, 0.0), np.inf)

    def _tabulate(self) -> None:
        self._table.tabulate()
        self._lengths.clear()

    def _prove(self, price_w: Floats, arrives_w: float) -> None:
        least_j = self._table.add_cheapest(price_w, self._task.cost_weight)
        bound_j = self._bounded_j(np.array([least_j]), arrives_w)
        if bound_j > self.bound_j:
            self.bound_j, self._best = bound_j, (price_w, arrives_w)

    def _bounded_j(self, least_j: Floats, arrives_w: float) -> float:
        """The bound that prices prove under which GPUs cost at least `least_j`."""
        left_w = self._task.time_price_w - arrives_w
        time_j = left_w * (self._task.fastest_s if left_w > 0 else self._task.deadline_s)
        largest_j = float(np.abs(least_j).sum()) + abs(time_j)
        return float(least_j.sum()) + time_j - ROUND_OFF * largest_j


def mixture(
    cost_j: Floats, paths: list[Floats], task: Task, allowed: Mask
) -> tuple[Floats, float, Floats]:
    """The best mixture of choices as far as these paths (stages, choices) tell: shares,
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
