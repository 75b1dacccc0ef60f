"""One clock for many operations: per GPU (`gpu`), or two of them an iteration (`edge`).

With `gpu` no hook in the training script is needed and no clock changes within an iteration;
with `edge` the first forward and the last backward, which only fill and drain the pipeline,
have a clock of their own. Only a few numbers are chosen, so this is a search, with exact
longest paths as judge. Searching is cheap because a critical path found once bounds every
other choice from below: its length is a sum over groups. Moves are tried against the paths
known so far; where the judge disagrees, the path that was missing is added (cutting planes
on the makespan).
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.clock_groups import Groups
from joulecut_engine.optimize.computation import Computation, better, must_meet
from joulecut_engine.optimize.levels import Floats, Ints, combinations
from joulecut_engine.optimize.pair_move import pair_move, single_move
from joulecut_engine.optimize.problem import Goal, Solution
from joulecut_engine.optimize.relaxation import Relaxation
from joulecut_engine.optimize.schedule import solution
from joulecut_engine.optimize.shared_clock_bound import Bounds, Task

COMBINATIONS_ALL = 60_000  # up to here every combination is judged: 3 stages of 38 clocks
JUDGED_ALL = 30_000_000  # ... if that is no more operations than this: half a second
CASES = 16  # cases that the bound distinguishes at once: about 10 ms each at 8 x 96
ROUNDS_PROVE = 1_000
BUDGETS = 96  # starting points from a busy time common to all stages
PRICES = np.geomspace(0.2, 5.0, 48)  # ... and from multiples of the relaxation's prices
STARTS = 24  # so many of them are improved; more found nothing better on the public profiles
KICKS = 10  # then a few groups jump anywhere and the descent begins again, so many times
KICKED = 3  # groups
SEED = 7
PATHS_MAX = 256  # known at once; a few dozen are the rule
ROUNDS_MAX = 200  # per start; every round but the last finds a missing path
DEADLINE_TOLERANCE = 1e-10  # contract: 1e-9
SMALL = 1e-12  # of the value: less is no improvement

Move = Callable[[Floats, Floats, Floats, float, Ints, float, float], tuple[float, Ints]]


class SharedClock:
    """One problem at one of the coarse granularities, prepared once. Where there are no more
    than `combinations_all` choices, all are judged. Raises NoCommonClock."""

    def __init__(
        self,
        computation: Computation,
        granularity: Granularity,
        combinations_all: int = COMBINATIONS_ALL,
    ) -> None:
        self.computation = computation
        self._granularity = granularity
        self._combinations_all = combinations_all
        self._groups = Groups(computation.problem, granularity)
        self._bounds = Bounds(self._groups)
        self.fastest_s = self._fastest_s()
        slowest = np.argmin(self._groups.cost_j, axis=1)[:, None]
        self.cheapest_s = float(self._groups.iteration_times(slowest)[0])

    def solve(
        self,
        goal: Goal,
        relaxed: Relaxation,
        hints: Sequence[Solution] = (),
        cases: int = CASES,
    ) -> Solution:
        """The plan of least energy found; hints compete. Raises Infeasible.

        The bound is the better of its own and that of `relaxed`, which is free to choose finer;
        `cases` is how many cases its own may distinguish.
        """
        must_meet(goal.deadline_s, self.fastest_s)
        groups, search = self._groups, self._search(goal)
        count = math.prod(map(len, groups.menus))
        operations = len(self.computation.problem.graph.operations)
        if count <= self._combinations_all and count * operations <= JUDGED_ALL:
            best = search.all()
            return self._solution(goal, best, search.value_j(best) * (1 - SMALL), relaxed)
        task = self._task(goal)
        bound = self._bounds.at(task)
        seeds = [groups.seed(hint.clocks) for hint in hints]
        starts = [self._quickest, self._budgeted(), self._charged(relaxed), bound.choices]
        starts += [seed[:, None] for seed in seeds if seed is not None]
        best = search.best(np.concatenate(starts, axis=1))
        if cases:
            bound = self._bounds.refined(bound, task, search.value_j(best), cases)
            best = search.better(best, bound.choices)
        best = search.kicked(best, SEED)
        return self._solution(goal, best, bound.bound_j, relaxed)

    def improvements(self, goal: Goal, found: Solution) -> Iterator[Solution]:
        """Better plans and higher bounds; ends where no case is open."""
        best = self._groups.seed(found.clocks)
        if best is None:
            return
        search, task = self._search(goal), self._task(goal)
        relaxed, bound = self.computation.relax(goal), self._bounds.at(task)
        for number in range(1, ROUNDS_PROVE):
            bound = self._bounds.refined(bound, task, search.value_j(best), CASES)
            best = search.kicked(search.better(best, bound.choices), SEED + number)
            found = better(found, self._solution(goal, best, bound.bound_j, relaxed))
            yield found
            if bound.closed(search.value_j(best)):
                return

    def _search(self, goal: Goal) -> "_Search":
        return _Search(self._groups, self._useful_s(goal), self.computation.time_price_w(goal))

    def _task(self, goal: Goal) -> Task:
        price_w = self.computation.time_price_w(goal)
        return Task(self._useful_s(goal), price_w, self.computation.fastest_s)

    def _useful_s(self, goal: Goal) -> float:
        return max(self.fastest_s, min(goal.deadline_s, self.cheapest_s))

    def _solution(
        self, goal: Goal, best: Ints, value_bound_j: float, relaxed: Relaxation
    ) -> Solution:
        problem = self.computation.problem
        own_j = value_bound_j + (problem.time_price_w * goal.deadline_s if goal.waits else 0.0)
        finer_j = self.computation.bound_j(goal, relaxed)
        bound_of = self._granularity if own_j > finer_j else "computation"
        clocks = self._groups.clocks(best)
        return solution(problem, goal, self._granularity, clocks, max(own_j, finer_j), bound_of)

    def _fastest_s(self) -> float:
        """The least iteration time: where a group has no clock that is fastest for all its
        operations, the best that the search finds."""
        least_busy = np.argmin(self._groups.busy_s, axis=1)[:, None]
        search = _Search(self._groups, math.inf, 1.0, cost_weight=0.0)
        self._quickest = search.best(least_busy)[:, None]
        return float(self._groups.iteration_times(self._quickest)[0])

    def _budgeted(self) -> Ints:
        """The cheapest clock of each group within a busy time common to all groups."""
        busy_s, cost_j = self._groups.busy_s, self._groups.cost_j
        finite = busy_s[np.isfinite(busy_s)]
        allowed = busy_s[:, :, None] <= np.linspace(finite.min(), finite.max(), BUDGETS)
        allowed |= (np.arange(busy_s.shape[1]) == self._quickest)[:, :, None]
        cheapest: Ints = np.argmin(np.where(allowed, cost_j[:, :, None], np.inf), axis=1)
        return cheapest

    def _charged(self, relaxed: Relaxation) -> Ints:
        """What each group would choose if time cost what the relaxation says, or a multiple."""
        charge_j = self._groups.lengths(self._groups.prices_w(self.computation.prices_w(relaxed)))
        offered = np.isfinite(charge_j)[:, :, None]
        charged_j = np.where(offered, charge_j[:, :, None], 0.0) * PRICES
        cheapest: Ints = np.argmin(self._groups.cost_j[:, :, None] + charged_j, axis=1)
        return cheapest


class _Search:
    """Least cost_weight * cost + time price * T within the deadline."""

    def __init__(
        self, groups: Groups, deadline_s: float, time_price_w: float, cost_weight: float = 1.0
    ) -> None:
        self._groups = groups
        offered = np.isfinite(groups.cost_j)
        self._cost_j = np.where(offered, cost_weight * np.where(offered, groups.cost_j, 0), np.inf)
        self._limit_s = deadline_s * (1 + DEADLINE_TOLERANCE)
        self._price_w = time_price_w
        self._paths: list[Floats] = []  # each (groups, choices)

    def all(self) -> Ints:
        """The best of all combinations."""
        sizes = [len(menu) for menu in self._groups.menus]
        every = combinations(sizes)
        return every[:, int(np.argmin(self._values(every)))]

    def better(self, best: Ints, others: Ints) -> Ints:
        """`best`, or what a descent from the best of others (groups, K) reaches, if cheaper."""
        values = self._values(others)
        if not self._better((float(values.min()), best), self.value_j(best)):
            return best
        return self._improved(others[:, int(np.argmin(values))])

    def value_j(self, choice: Ints) -> float:
        """Of one choice (groups,); infinite where late."""
        return float(self._values(choice[:, None])[0])

    def best(self, starts: Ints) -> Ints:
        """The best (groups,) that descents from the most promising starts (groups, K) reach."""
        starts = np.unique(starts, axis=1)
        values = self._values(starts)
        order = np.argsort(values, kind="stable")[:STARTS]
        ends = [self._improved(starts[:, k]) for k in order if math.isfinite(values[k])]
        ends_all = np.stack(ends, axis=1)
        return ends_all[:, int(np.argmin(self._values(ends_all)))]

    def kicked(self, best: Ints, seed: int) -> Ints:
        """`best`, or a cheaper choice that descents from random neighbours of it reach."""
        dice, value = np.random.default_rng(seed), self.value_j(best)
        sizes = [len(menu) for menu in self._groups.menus]
        for _ in range(KICKS):
            other = best.copy()
            for group in dice.choice(len(best), min(KICKED, len(best)), replace=False):
                other[group] = dice.integers(0, sizes[group])
            while not math.isfinite(self.value_j(other)) and other.any():
                other = np.maximum(other - 1, 0)  # faster everywhere until it is in time
            if math.isfinite(self.value_j(other)):
                other = self._improved(other)
                if self._better((self.value_j(other), other), value):
                    best, value = other, self.value_j(other)
        return best

    def _values(self, choice: Ints) -> Floats:
        """Exact, (groups, K) to (K,); infinite where late."""
        times_s = self._groups.iteration_times(choice)
        costs_j = np.take_along_axis(self._cost_j, choice, axis=1).sum(axis=0)
        return self._priced(costs_j, times_s)

    def _priced(self, costs_j: Floats, times_s: Floats) -> Floats:
        on_time = times_s <= self._limit_s
        return np.where(on_time, costs_j + self._price_w * np.where(on_time, times_s, 0), np.inf)

    def _improved(self, choice: Ints) -> Ints:
        """Descends until neither one group nor two can move to something better."""
        self._learn(choice)
        for _ in range(ROUNDS_MAX):
            trail = self._descend(choice)
            if len(trail) == 1:
                return choice
            tried = np.stack(trail, axis=1)
            values = self._values(tried)
            choice = tried[:, int(np.argmin(values))]
            if math.isfinite(values[-1]) and np.argmin(values) == len(trail) - 1:
                # Is the last step as good as promised? Then it is a true local optimum.
                promised = self._promise(trail[-1])
                if values[-1] <= promised + SMALL * abs(promised):
                    return choice
            late = np.flatnonzero(~np.isfinite(values))
            for k in {len(trail) - 1, *late[:1].tolist()}:
                self._learn(tried[:, k])
        return choice

    def _learn(self, choice: Ints) -> None:
        self._paths.append(self._groups.lengths(self._groups.critical(choice)))
        del self._paths[:-PATHS_MAX]

    def _promise(self, choice: Ints) -> float:
        """The value as far as the known paths tell."""
        group = np.arange(len(choice))
        time_s = max(float(path[group, choice].sum()) for path in self._paths)
        return float(self._cost_j[group, choice].sum()) + self._price_w * time_s

    def _descend(self, choice: Ints) -> list[Ints]:
        """Steepest descent on the known paths; the trail, start included."""
        trail = [choice]
        paths = np.stack(self._paths, axis=-1)
        value = self._promise(choice)
        while True:
            moved = self._moved(single_move, paths, choice)
            if not self._better(moved, value):
                moved = self._moved(pair_move, paths, choice)
            if not self._better(moved, value):
                return trail
            value, choice = moved
            trail.append(choice)

    def _better(self, moved: tuple[float, Ints], value: float) -> bool:
        return moved[0] < value - SMALL * abs(value)

    def _moved(self, move: Move, paths: Floats, choice: Ints) -> tuple[float, Ints]:
        group = np.arange(len(choice))
        sums_s = np.ascontiguousarray(paths[group, choice].T).sum(axis=1)
        now_j = float(self._cost_j[group, choice].sum())
        return move(paths, sums_s, self._cost_j, now_j, choice, self._limit_s, self._price_w)
