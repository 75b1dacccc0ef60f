"""One choice for each of a few groups, of least energy within a deadline.

Searching is cheap because a critical path found once bounds every other choice from below: its
length is a sum over groups. Moves are tried against the paths known so far; where the judge, the
exact iteration time, disagrees, the path that was missing is added (cutting planes on the
makespan).
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.pair_move import descent

STARTS = 8  # so many of them are improved; 24 find nothing better on the public profiles
PATHS_MAX = 32  # known at once; a few dozen are the rule
ROUNDS_MAX = 200  # per start; every round but the last finds a missing path
# A start is left where so many rounds save less than this share of the value: with sixteen stages,
# or where iterations are drawn, paths are many, and missing ones come without end.
STALLED_MAX, STALLED = 32, 2e-6
DEADLINE_TOLERANCE = 1e-10  # contract: 1e-9
SMALL = 1e-12  # of the value: less is no improvement


class Choices(Protocol):
    """What may be chosen: index arrays, (groups,) or (groups, K), into `cost_j`, which is padded
    with infinity and sorted by time."""

    @property
    def cost_j(self) -> Floats: ...

    def iteration_times(self, choice: Ints) -> Floats:
        """Of (groups, K) choices: (K,) seconds."""
        ...

    def critical(self, choice: Ints) -> Floats:
        """What a second more of each class adds to the iteration of a choice (groups,)."""
        ...

    def lengths(self, weight: Floats) -> Floats:
        """(groups, choices): sum over a group's classes of weight x seconds."""
        ...


class ChoiceSearch:
    """Least cost_weight * cost + time price * T within the deadline."""

    def __init__(
        self,
        choices: Choices,
        deadline_s: float,
        time_price_w: float,
        cost_weight: float = 1.0,
        paths: Sequence[Floats] = (),
    ) -> None:
        self._choices, self._cost_weight = choices, cost_weight
        offered = np.isfinite(choices.cost_j)
        self.sizes: list[int] = offered.sum(axis=1).tolist()
        self._cost_j = np.where(offered, cost_weight * np.where(offered, choices.cost_j, 0), np.inf)
        self._limit_s = deadline_s * (1 + DEADLINE_TOLERANCE)
        self._price_w = time_price_w
        self.weights: list[Floats] = []  # of known paths, by class; the last are remembered
        self._paths = np.empty((*self._cost_j.shape, PATHS_MAX))  # (groups, choices, paths)
        for weight in paths[-PATHS_MAX:]:
            self._learn(weight)

    def better(self, best: Ints, others: Ints) -> Ints:
        """`best`, or what a descent from the best of others (groups, K) reaches, if cheaper."""
        values = self.values_j(others)
        if not self._better((float(values.min()), best), self.value_j(best)):
            return best
        return self.improved(others[:, int(np.argmin(values))])

    def value_j(self, choice: Ints) -> float:
        """Of one choice (groups,); infinite where late."""
        return float(self.values_j(choice[:, None])[0])

    def best(self, starts: Ints, few: int = STARTS) -> Ints:
        """The best (groups,) that descents from the few most promising starts (groups, K) reach;
        one of them has to be in time."""
        starts = np.unique(starts, axis=1)
        values = self.values_j(starts)
        order = np.argsort(values, kind="stable")[:few]
        ends = [self.improved(starts[:, k]) for k in order if math.isfinite(values[k])]
        ends_all = np.stack(ends, axis=1)
        return ends_all[:, int(np.argmin(self.values_j(ends_all)))]

    def again(self) -> "ChoiceSearch":
        """The same question about the table, which has grown; known paths stay."""
        limit_s = self._limit_s / (1 + DEADLINE_TOLERANCE)
        weight = self._cost_weight
        return ChoiceSearch(self._choices, limit_s, self._price_w, weight, self.weights)

    def values_j(self, choice: Ints) -> Floats:
        """Exact, (groups, K) to (K,); infinite where late."""
        times_s = self._choices.iteration_times(choice)
        costs_j = np.take_along_axis(self._cost_j, choice, axis=1).sum(axis=0)
        return self._priced(costs_j, times_s)

    def _priced(self, costs_j: Floats, times_s: Floats) -> Floats:
        on_time = times_s <= self._limit_s
        return np.where(on_time, costs_j + self._price_w * np.where(on_time, times_s, 0), np.inf)

    def improved(self, choice: Ints) -> Ints:
        """Descends until neither one group nor two can move to something better."""
        self._learn(self._choices.critical(choice))
        known_j: list[float] = []
        for number in range(ROUNDS_MAX):
            tried, promised = self._descend(choice)
            last = tried.shape[1] - 1
            if last == 0:
                return choice
            values = self.values_j(tried)
            choice = tried[:, int(np.argmin(values))]
            # Is the last step as good as promised? Then it is a true local optimum.
            if np.argmin(values) == last and values[-1] <= promised + SMALL * abs(promised):
                return choice
            known_j.append(float(values.min()))
            before_j = known_j[max(0, number - STALLED_MAX)]
            if number >= STALLED_MAX and before_j - known_j[-1] <= STALLED * abs(before_j):
                return choice
            late = np.flatnonzero(~np.isfinite(values))
            for k in {last, *late[:1].tolist()}:
                self._learn(self._choices.critical(tried[:, k]))
        return choice

    def _learn(self, weight: Floats) -> None:
        """Adds a path, where there is no room in the place of the oldest."""
        self._paths[:, :, len(self.weights) % PATHS_MAX] = self._choices.lengths(weight)
        self.weights.append(weight)

    def _descend(self, choice: Ints) -> tuple[Ints, float]:
        """Steepest descent on the known paths: choices passed through (groups, steps), start
        included, and what they promise of the last."""
        known, limit_s = min(len(self.weights), PATHS_MAX), self._limit_s
        start = np.ascontiguousarray(choice)  # compiled once, for one layout
        trail, promised = descent(
            self._paths, known, self._cost_j, start, limit_s, self._price_w, SMALL
        )
        return trail.T, promised

    def _better(self, moved: tuple[float, Ints], value: float) -> bool:
        return moved[0] < value - SMALL * abs(value)
