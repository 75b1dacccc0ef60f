"""Steepest descent over clocks that many operations share, as far as known paths tell.

A choice takes one clock per group; known paths tell its iteration time from below. Nearly all of
such a search tries one group or two at once, so that is compiled, and leaves a move as soon as it
cannot be the best. The first of the best in order is the answer all the same.
"""

import numpy as np

from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Floats, Ints

REACH = 6  # clocks by which two groups move at once; any distance found nothing better
STEPS_MAX = 400  # a descent makes a few dozen; one that is longer goes on from there


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
