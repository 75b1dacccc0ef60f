"""The published solver's answer, so that ours can be held against it on any job.

Own implementation from the description of Perseus (SOSP'24, sections 4.2-4.3, appendix) and
of its public solver: options undominated on *raw* energy, times floored to whole units, an
exponential a * exp(b * t) + c fitted to the effective costs of each kind of operation, the
cheapest integer durations within a number of units, and for each operation the slowest clock
whose floored time fits its duration.

Published, the durations come from a walk of one unit per minimum cut (Phillips and Dessouky 1977).
Every step of it is the optimum of the fitted problem, computed here as a linear program whose
corners are integers: an answer of the same cost in a second, where the walk needs minutes.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from joulecut_engine.graph.clock_option import ClockOption, undominated
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import Problem

UNIT_S = 1e-3  # the published solver rounds times down to this by default
SEGMENTS = 40  # breakpoints per curve, on whole units: the exponential is smooth
RATES = np.geomspace(1e-2, 30.0, 400)  # decay over the span of an option set: flat to a cliff


@dataclass(frozen=True, slots=True)
class Fitted:
    """One kind of operation as the published solver sees it.

    `units` are floored times of `options` (several may share one: the fastest stays);
    `cost_j` the fitted effective cost at every whole unit from the first to the last.
    """

    units: Ints
    options: tuple[ClockOption, ...]
    cost_j: Floats
    knots: Ints  # indices into cost_j

    def slowest_within(self, units: int) -> ClockOption:
        return self.options[max(0, int(np.searchsorted(self.units, units, side="right")) - 1)]

    def fitted_j(self, units: int) -> float:
        return float(self.cost_j[units - int(self.units[0])])


@dataclass(frozen=True, slots=True)
class Claim:
    """A plan, and what its maker believes of it: floored seconds, fitted effective joules.

    `clocks` by operation. What it really takes and costs follows from them.
    """

    clocks: tuple[ClockOption, ...]
    iteration_time_s: float
    effective_j: float


class Perseus:
    """One problem, prepared once."""

    def __init__(self, problem: Problem, unit_s: float = UNIT_S) -> None:
        if not unit_s > 0.0:
            raise ValueError(f"a time unit of {unit_s} s")
        self._problem, self._unit_s = problem, unit_s
        menus = problem.measured or problem.options
        kinds: dict[tuple[int, float], Fitted] = {}
        self.fitted: list[Fitted] = []
        for operation, menu in zip(problem.graph.operations, menus, strict=True):
            power_w = problem.blocking_power_w[operation.stage]
            key = (id(menu), power_w)
            if key not in kinds:
                kinds[key] = _fit(menu, power_w, unit_s)
            self.fitted.append(kinds[key])
        self._fastest = self._makespan([int(fitted.units[0]) for fitted in self.fitted])
        self._slowest = self._makespan([int(fitted.units[-1]) for fitted in self.fitted])
        self._program()

    @property
    def fastest_s(self) -> float:
        """Least iteration time in its own, floored reckoning."""
        return self._fastest * self._unit_s

    @property
    def slowest_s(self) -> float:
        """Where its walk begins: every operation at its least raw energy."""
        return self._slowest * self._unit_s

    def within(self, deadline_s: float) -> Claim:
        """Least effective cost within a deadline (floored reckoning; never below its fastest)."""
        units = int(deadline_s / self._unit_s * (1 + 1e-12))
        return self._claim(self._solve(min(max(units, self._fastest), self._slowest), 0.0))

    def cheapest(self) -> Claim:
        """T*: the point of its frontier of least total energy for a lone pipeline."""
        return self._claim(self._solve(self._slowest, self._problem.time_price_w * self._unit_s))

    def _claim(self, units: list[int]) -> Claim:
        pairs = list(zip(self.fitted, units, strict=True))
        return Claim(
            clocks=tuple(fitted.slowest_within(unit) for fitted, unit in pairs),
            iteration_time_s=self._makespan(units) * self._unit_s,
            effective_j=sum(fitted.fitted_j(unit) for fitted, unit in pairs),
        )

    def _makespan(self, units: list[int]) -> int:
        end = [0] * len(units)
        for first, second in self._problem.graph.edges:  # sorted, hence in topological order
            end[second] = max(end[second], end[first] + units[first])
        return max(a + b for a, b in zip(end, units, strict=True))

    def _program(self) -> None:
        """Columns: starts, then how much of each segment is used, then the end."""
        count = len(self.fitted)
        spans = [np.diff(fitted.knots) for fitted in self.fitted]
        first = count + np.concatenate([[0], np.cumsum([len(span) for span in spans])])
        self._columns = [np.arange(first[i], first[i + 1]) for i in range(count)]
        self._end = int(first[-1])
        slopes = [np.diff(f.cost_j[f.knots]) / np.diff(f.knots) for f in self.fitted]
        self._slope_j = np.concatenate([np.zeros(count), *slopes, [0.0]])
        self._most = np.concatenate([np.full(count, np.inf), *spans, [np.inf]])
        leaves = set(range(count)) - {before for before, _ in self._problem.graph.edges}
        arcs = [*self._problem.graph.edges, *((i, self._end) for i in sorted(leaves))]
        rows, columns, values = [], [], []
        for row, (before, after) in enumerate(arcs):
            used = [before, *self._columns[before].tolist(), after]
            rows += [row] * len(used)
            columns += used
            values += [1.0] * (len(used) - 1) + [-1.0]
        self._matrix = csr_matrix((values, (rows, columns)), shape=(len(arcs), self._end + 1))
        self._least = np.array([-float(self.fitted[before].units[0]) for before, _ in arcs])

    def _solve(self, units: int, time_price_j: float) -> list[int]:
        """Durations in whole units. The matrix is a network's, so corners are integers."""
        cost_j = self._slope_j.copy()
        cost_j[self._end] = time_price_j
        most = self._most.copy()
        most[self._end] = units
        found = milp(
            cost_j,
            constraints=LinearConstraint(self._matrix, ub=self._least),
            bounds=Bounds(np.zeros(len(most)), most),
        )
        assert found.status == 0, found.message
        return [
            int(fitted.units[0]) + round(float(found.x[columns].sum()))
            for fitted, columns in zip(self.fitted, self._columns, strict=True)
        ]


def _fit(menu: tuple[ClockOption, ...], blocking_power_w: float, unit_s: float) -> Fitted:
    """Raw-energy frontier, floored, then an exponential on effective cost."""
    first: dict[int, ClockOption] = {}
    for option in undominated(menu):
        first.setdefault(int(option.time_s / unit_s), option)
    units = np.array(sorted(first), dtype=np.int64)
    options = tuple(first[int(unit)] for unit in units)
    cost_j = np.array([option.effective_cost_j(blocking_power_w) for option in options])
    whole = np.arange(units[0], units[-1] + 1)
    knots = np.unique(np.linspace(0, len(whole) - 1, min(len(whole), SEGMENTS + 1)).round())
    return Fitted(units, options, _exponential(units, cost_j, whole), knots.astype(np.int64))


def _exponential(units: Ints, cost_j: Floats, whole: Ints) -> Floats:
    """a * exp(b * t) + c at every whole unit, by least squares: a line search over b.

    Options undominated on raw energy fall in effective cost, so a is never negative.
    """
    if len(units) == 1:
        return cost_j.copy()
    span = float(units[-1] - units[0])
    best = (np.inf, RATES[0], 0.0, 0.0)
    for rate in RATES:
        shape = np.exp(-rate * (units - units[0]) / span)
        centred = shape - shape.mean()
        a = float(centred @ cost_j / (centred @ centred))
        c = float(cost_j.mean() - a * shape.mean())
        error = float(((a * shape + c - cost_j) ** 2).sum())
        if error < best[0]:
            best = (error, float(rate), a, c)
    _, rate, a, c = best
    return np.asarray(a * np.exp(-rate * (whole - units[0]) / span) + c, dtype=np.float64)
