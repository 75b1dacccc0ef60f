"""Plans that rules of thumb make: starts of a search, which so is never below such a rule."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.change_schedules import Keys, Lines
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.levels import Floats, Ints, levels_of
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.relaxation import Relaxation
from joulecut_engine.optimize.schedule import makespan

Clocks = tuple[ClockOption, ...]  # by operation

EXACT = 1e-12  # float sums in another order must not undo an option that fits
BUDGETS_MAX = 96  # times tried; with more, neighbours hardly differ
# Operations at each end of an iteration that keep the fastest clock: the slower the middle, the
# more. Searches from one alone lose up to 1.4 points of the baseline's energy (A40, 8 x 24).
EDGES = (1, 2, 3, 4, 6, 8, 12, 16)


def off_path(problem: Problem) -> Clocks:
    """Like EnvPipe (ATC'23): the critical path keeps its clocks, the rest is slowed into bubbles.

    In the order of the schedule each operation takes the option of least effective cost that
    leaves the fastest end reachable with everything after it at full speed. Own reading of the
    rule; the original also moves microbatches, which this does not.
    """
    clocks = [menu[0] for menu in problem.options]
    limit_s, _ = makespan(problem, clocks)
    seconds = np.array([one.time_s for one in clocks])
    after_s = (levels_of(problem.graph).around(seconds)[1] - seconds).tolist()  # from its end on
    before: list[list[int]] = [[] for _ in clocks]
    for first, second in problem.graph.edges:
        before[second].append(first)
    end_s: list[float] = []
    for i, menu in enumerate(problem.options):  # each slower option costs less
        start_s = max((end_s[j] for j in before[i]), default=0.0)
        room_s = limit_s * (1 + EXACT) - after_s[i] - start_s
        clocks[i] = menu[max(0, bisect_right(menu, room_s, key=lambda o: o.time_s) - 1)]
        end_s.append(start_s + clocks[i].time_s)
    return tuple(clocks)


class RulesOfThumb:
    """Of one graph and its options, for all searches: plans that cost little to make, within limits
    of changes or not."""

    def __init__(self, problem: Problem, lines: Lines) -> None:
        self._problem, self.lines = problem, lines
        # Those made last.
        self._plans: dict[tuple[Computation, Goal, str], tuple[Clocks, Clocks]] = {}

    def plans(
        self, computation: Computation, goal: Goal, relaxed: Relaxation, effort: str
    ) -> tuple[Clocks, Clocks]:
        """A clock per operation, which takes this effort, and `off_path`."""
        key = computation, goal, effort
        if key not in self._plans:
            finest = computation.solve(goal, relaxed, effort=effort).clocks
            self._plans = {key: (finest, self._off_path)}
        return self._plans[key]

    @cached_property
    def _off_path(self) -> Clocks:
        return off_path(self._problem)

    @cached_property
    def fill_and_drain(self) -> "FillAndDrain":
        return FillAndDrain(self.lines)


class FillAndDrain:
    """Plans in which each GPU's first and last operations, which fill and drain the pipeline, run
    at its fastest clock, and all between at one, at which GPUs work about equally long.

    So many first and last ones as `EDGES` names; and for each time that some GPU then works at
    some clock every GPU takes the slowest that keeps within it.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines, self._chosen = lines, []
        self._keys: dict[int, list[Ints]] = {}  # of each GPU: columns by operation and clock
        times_s, cost_j = [], []
        shortest = min(len(np.unique(line.asks)) for line in lines.lines)
        for edge in EDGES:
            if edge > EDGES[0] and 2 * edge >= shortest:
                break
            rows = [_edged(line.asks, line.seconds, edge) for line in lines.lines]
            self._keys[edge] = [keys for keys, _ in rows]
            columns = balanced([seconds.sum(axis=0) for _, seconds in rows])
            duration_s = np.empty((lines.levels.size, columns.shape[1]))
            total_j = np.zeros(columns.shape[1])
            for line, (keys, seconds), mine in zip(lines.lines, rows, columns, strict=True):
                duration_s[line.operation] = seconds[:, mine]
                total_j += np.take_along_axis(line.cost_j, keys, 1).sum(axis=0)[mine]
            times_s.append(lines.levels.iteration_times(duration_s))
            cost_j.append(total_j)
            self._chosen += [(edge, choice) for choice in columns.T]
        self._times_s, self._cost_j = np.concatenate(times_s), np.concatenate(cost_j)

    def within(self, deadline_s: float, price_w: float) -> list[tuple[int, Ints]]:
        """For each number of first and last operations the plan of least cost + price x time
        within the deadline: the number, and each GPU's clock between. The cheapest first."""
        fits = np.isfinite(self._times_s) & (self._times_s <= deadline_s * (1 + EXACT))
        times_s = np.where(fits, self._times_s, 0.0)
        value_j = np.where(fits, self._cost_j + price_w * times_s, np.inf)
        found: dict[int, Ints] = {}
        for k in np.argsort(value_j, kind="stable")[: int(fits.sum())].tolist():
            edge, choice = self._chosen[k]
            found.setdefault(edge, choice)
        return list(found.items())

    def schedules(self, edge: int, choice: Ints) -> list[Keys]:
        """By GPU."""
        chosen = zip(self._keys[edge], choice.tolist(), strict=True)
        return [keys[:, column].astype(np.int16) for keys, column in chosen]


def _edged(asks: Ints, seconds: Floats, edge: int) -> tuple[Ints, Floats]:
    """By operation and clock: columns with so many first and last ones at the fastest; seconds."""
    asked, width = np.unique(asks), seconds.shape[1]
    keys = np.tile(np.arange(width), (len(asks), 1))
    ends = np.concatenate([asked[:edge], asked[-edge:]])
    keys[ends] = int(np.argmin(seconds.sum(axis=0)))
    keys = keys[asks]
    return keys, np.take_along_axis(seconds, keys, 1)


def balanced(busy_s: Sequence[Floats]) -> Ints:
    """(GPUs, K), as a rule that balances stages sets clocks: for each busy time of some GPU every
    GPU's slowest choice within it, or its quickest; infinite ones are none."""
    budgets_s = np.unique(np.concatenate(busy_s))
    budgets_s = budgets_s[np.isfinite(budgets_s)]
    budgets_s = budgets_s[:: max(1, len(budgets_s) // BUDGETS_MAX)]
    found = []
    for mine_s in busy_s:
        within = np.where(mine_s <= budgets_s[:, None], mine_s, -1.0)
        fits = within.max(axis=1) > 0.0
        found.append(np.where(fits, within.argmax(axis=1), mine_s.argmin()))
    return np.stack(found)
