"""One choice for each of a few groups, of least energy within a deadline.

Searching is cheap because a critical path found once bounds every other choice from below: its
length is a sum over groups. Moves are tried against the paths known so far; where the judge, the
exact iteration time, disagrees, the path that was missing is added (cutting planes on the
makespan). Nearly all of such a search tries one group or two at once, so that is compiled, and
leaves a move as soon as it cannot be the best. The first of the best in order is the answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Floats, Ints

if TYPE_CHECKING:
    from joulecut_engine.optimize.change_schedules import ChangeSchedules
    from joulecut_engine.optimize.drawn_choices import DrawnChoices

STARTS = 8  # so many of them are improved; 24 find nothing better on the public profiles
PATHS_MAX = 32  # known at once; a few dozen are the rule
ROUNDS_MAX = 200  # per start; every round but the last finds a missing path
# A start is left where so many rounds save less than this share of the value: with sixteen stages,
# or where iterations are drawn, paths are many, and missing ones come without end.
STALLED_MAX, STALLED = 32, 2e-6
REACH = 6  # clocks by which two groups move at once; any distance found nothing better
STEPS_MAX = 400  # a descent makes a few dozen; one that is longer goes on from there
DEADLINE_TOLERANCE = 1e-10  # contract: 1e-9
SMALL = 1e-12  # of the value: less is no improvement


@dataclass(frozen=True, slots=True)
class Task:
    """Least cost_weight * sum c + time_price * T; `fastest_s` bounds every iteration time from
    below."""

    deadline_s: float
    time_price_w: float
    fastest_s: float = 0.0
    cost_weight: float = 1.0


class ChoiceSearch:
    """What may be chosen are index arrays, (groups,) or (groups, K), into `choices.cost_j`, which
    is infinite where there is nothing to choose."""

    def __init__(
        self,
        choices: "ChangeSchedules | DrawnChoices",
        task: Task,
        paths: Sequence[Floats] = (),
    ) -> None:
        self._choices, self._task = choices, task
        offered = np.isfinite(choices.cost_j)
        cost_j = task.cost_weight * np.where(offered, choices.cost_j, 0)
        self._cost_j = np.where(offered, cost_j, np.inf)
        self._limit_s = task.deadline_s * (1 + DEADLINE_TOLERANCE)
        self._price_w = task.time_price_w
        self.weights: list[Floats] = []  # of known paths, by class; the last are remembered
        self._paths = np.empty((*self._cost_j.shape, PATHS_MAX))  # (groups, choices, paths)
        for weight in paths[-PATHS_MAX:]:
            self._learn(weight)

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
        return ChoiceSearch(self._choices, self._task, self.weights)

    def values_j(self, choice: Ints) -> Floats:
        """Exact, (groups, K) to (K,); infinite where late."""
        times_s = self._choices.iteration_times(choice)
        costs_j = np.take_along_axis(self._cost_j, choice, axis=1).sum(axis=0)
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


@compiled
def descent(
    paths: Floats,
    known: int,
    cost_j: Floats,
    choice: Ints,
    limit_s: float,
    price_w: float,
    small: float,
) -> tuple[Ints, float]:
    """The choices passed through, (steps, groups), the given one first; and the value of the last.

    `paths` (groups, choices, paths) are seconds, of the first `known` paths; the value of a choice
    is its `cost_j` (groups, choices) + price_w * time, infinite where late. Each step is the best
    move of one group to any clock, or where none is better by the share `small` of the value, the
    best of two groups at once: one gives the time that the other uses. `price_w` is not negative.
    """
    groups = len(choice)
    trail = np.empty((STEPS_MAX, groups), dtype=np.int64)
    trail[0] = choice
    sums_s = np.empty(known)
    value, steps = np.inf, 1
    for steps in range(1, STEPS_MAX + 1):
        now = trail[steps - 1]
        sums_s[:] = 0.0
        now_j = 0.0
        for group in range(groups):
            now_j += cost_j[group, now[group]]
            for path in range(known):
                sums_s[path] += paths[group, now[group], path]
        if steps == 1:
            value = now_j + price_w * sums_s.max()
        if steps == STEPS_MAX:
            break
        least = value - small * abs(value)
        moved, at, to = single_move(paths, sums_s, cost_j, now_j, now, limit_s, price_w, least)
        other, other_to = at, to
        if moved == least:
            moved, at, to, other, other_to = pair_move(
                paths, sums_s, cost_j, now_j, now, limit_s, price_w, least
            )
        if moved == least:
            break
        trail[steps] = now
        trail[steps, at], trail[steps, other] = to, other_to
        value = moved
    return trail[:steps], value


@compiled
def single_move(
    paths: Floats,
    sums_s: Floats,
    cost_j: Floats,
    now_j: float,
    choice: Ints,
    limit_s: float,
    price_w: float,
    best: float,
) -> tuple[float, int, int]:
    """The value of the best move of one group, the group, and its new choice. The choice takes
    `sums_s` (paths,) on each path and costs `now_j`. Where no move in time is below `best`, its
    value is that."""
    groups, width = cost_j.shape
    best_group, best_to = 0, choice[0]
    for group in range(groups):
        now = choice[group]
        for to in range(width):
            moved_j = now_j + cost_j[group, to] - cost_j[group, now]
            if not moved_j < best:
                continue
            time_s = 0.0
            for path in range(len(sums_s)):
                moved_s = sums_s[path] + paths[group, to, path] - paths[group, now, path]
                time_s = max(time_s, moved_s)
                if time_s > limit_s:
                    break
            value = moved_j + price_w * time_s
            if time_s <= limit_s and value < best:
                best, best_group, best_to = value, group, to
    return best, best_group, best_to


@compiled
def pair_move(
    paths: Floats,
    sums_s: Floats,
    cost_j: Floats,
    now_j: float,
    choice: Ints,
    limit_s: float,
    price_w: float,
    best: float,
) -> tuple[float, int, int, int, int]:
    """The same for the best move of two groups by up to REACH clocks each: value, group, its
    choice, other group, its choice."""
    groups, width = cost_j.shape
    best_group, best_to, best_other, best_other_to = 0, choice[0], 0, choice[0]
    begun_s = np.empty(len(sums_s))
    for group in range(groups - 1):
        now = choice[group]
        for to in range(max(0, now - REACH), min(width, now + REACH + 1)):
            begun_j = now_j + cost_j[group, to] - cost_j[group, now]
            for path in range(len(sums_s)):
                begun_s[path] = sums_s[path] + paths[group, to, path] - paths[group, now, path]
            for other in range(group + 1, groups):
                was = choice[other]
                for other_to in range(max(0, was - REACH), min(width, was + REACH + 1)):
                    moved_j = begun_j + cost_j[other, other_to] - cost_j[other, was]
                    if not moved_j < best:
                        continue
                    time_s = 0.0
                    for path in range(len(sums_s)):
                        more_s = paths[other, other_to, path] - paths[other, was, path]
                        time_s = max(time_s, begun_s[path] + more_s)
                        if time_s > limit_s:
                            break
                    value = moved_j + price_w * time_s
                    if time_s <= limit_s and value < best:
                        best, best_group, best_to = value, group, to
                        best_other, best_other_to = other, other_to
    return best, best_group, best_to, best_other, best_other_to
