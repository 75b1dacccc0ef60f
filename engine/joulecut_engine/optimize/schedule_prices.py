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

import math

import numpy as np

from joulecut_engine.optimize.change_schedules import ChangeSchedules
from joulecut_engine.optimize.choice_search import Task
from joulecut_engine.optimize.drawn_choices import DrawnChoices
from joulecut_engine.optimize.levels import Floats, Ints

CLOSE = 1e-7  # of the iteration time: mixtures that miss it by less are on time
LATE_PRICE = 1e3  # for missing the deadline, against everything that can be saved at all
ROUND_OFF = 1e-11  # of the largest term
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

    def improve(self, rounds: int) -> None:
        """Adds schedules, and raises the bound, so many times."""
        (price_w, arrives_w), grows = self._best, False
        if math.isinf(self.bound_j):
            self._prove(price_w, arrives_w)
            for scale in SCALES:
                self._table.add_cheapest(scale * price_w, self._task.cost_weight)
            grows |= self._tabulate()
        for _ in range(rounds):
            price_w, arrives_w, value_j = self._mixed()
            if value_j <= self.bound_j + CLOSE * abs(self.bound_j):
                break
            best_w, best_arrives_w = self._best
            nearer = NEARER if grows else 0.0
            self._prove(
                price_w + nearer * (best_w - price_w),
                arrives_w + nearer * (best_arrives_w - arrives_w),
            )
            grows |= self._tabulate()

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

    def _mixed(self) -> tuple[Floats, float, float]:
        """Prices of the best mixture, a flow by operation, and how much of it arrives; its value.
        Where its longest path is longer than those known, that joins them, and the value is
        infinite."""
        known = [self._table.lengths(weight) for weight in self.weights[len(self._lengths) :]]
        self._lengths += known
        cost_j = self._costs()
        share, time_s, prices_w = mixture(cost_j, self._lengths, self._task)
        price_w = np.zeros(len(self._best[0]))
        for one_w, weight in zip(prices_w.tolist(), self.weights, strict=True):
            price_w += one_w * weight
        longest_s, weight = self._judge.longest(share)
        value_j = float((share * np.where(share > 0.0, cost_j, 0.0)).sum())
        value_j += self._task.time_price_w * time_s
        if longest_s > time_s * (1 + CLOSE):
            self.weights.append(weight)
            value_j = math.inf
        return price_w, float(prices_w.sum()), value_j

    def _costs(self) -> Floats:
        cost_j, offered = self._table.cost_j, np.isfinite(self._table.cost_j)
        return np.where(offered, self._task.cost_weight * np.where(offered, cost_j, 0.0), np.inf)

    def _tabulate(self) -> bool:
        """Whether the table grew."""
        grew = self._table.tabulate()
        if grew:
            self._lengths.clear()
        return grew

    def _prove(self, price_w: Floats, arrives_w: float) -> None:
        least_j = self._table.add_cheapest(price_w, self._task.cost_weight)
        bound_j = self._bounded_j(least_j, arrives_w)
        if bound_j > self.bound_j:
            self.bound_j, self._best = bound_j, (price_w, arrives_w)

    def _bounded_j(self, least_j: float, arrives_w: float) -> float:
        """The bound that prices prove under which all GPUs cost at least `least_j`."""
        left_w = self._task.time_price_w - arrives_w
        time_j = left_w * (self._task.fastest_s if left_w > 0 else self._task.deadline_s)
        return least_j + time_j - ROUND_OFF * (abs(least_j) + abs(time_j))


def mixture(cost_j: Floats, paths: list[Floats], task: Task) -> tuple[Floats, float, Floats]:
    """The best mixture of choices as far as these paths (stages, choices) tell: shares,
    iteration time, and a price for each path."""
    from scipy.optimize import linprog  # noqa: PLC0415 -- a third of a second to load

    group, choice = np.nonzero(np.isfinite(cost_j))
    count, known = len(group), len(paths)
    more_j = cost_j[group, choice] - cost_j.min(axis=1)[group]
    scale_j = float(more_j.sum()) or 1.0
    price = task.time_price_w * task.deadline_s / scale_j
    unit_s = task.deadline_s
    objective = np.concatenate([more_j / scale_j, [price, LATE_PRICE + price]])
    equal = np.zeros((len(cost_j), count + 2))
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
        b_eq=np.ones(len(cost_j)),
        bounds=[(0.0, None)] * count + [(least, 1.0), (0.0, None)],
        options={"presolve": False},  # a fourth of the time of programs as small as these
    )
    share = np.zeros(cost_j.shape)
    if solved.status != 0 or solved.x is None:  # never seen; prices of 0 are valid too
        share[np.arange(len(share)), np.argmin(cost_j, axis=1)] = 1.0
        return share, np.inf, np.zeros(known)
    share[group, choice] = solved.x[:count]
    marginals = solved.ineqlin.marginals if known else np.zeros(0)
    prices_w = np.maximum(-marginals, 0.0) * scale_j / unit_s
    return share, float(solved.x[count] + solved.x[count + 1]) * unit_s, prices_w
