"""The best next step of a search over clocks that many operations share.

A choice takes one clock per group; known paths tell its iteration time from below. Nearly all
of such a search is trying out two groups at once, so it is compiled, and leaves a pair as soon
as it cannot be the best: what is answered is the first of the best in order all the same.
"""

import numpy as np

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Floats, Ints

REACH = 6  # clocks by which two groups move at once; any distance found nothing better


@exact
def one(
    paths: Floats,
    sums_s: Floats,
    cost_j: Floats,
    now_j: float,
    choice: Ints,
    limit_s: float,
    price_w: float,
) -> tuple[float, Ints]:
    """The best move of a single group to any clock, and its value: cost_j + price_w * time.

    `paths` (groups, choices, paths) are seconds; the choice takes `sums_s` (paths,) on each and
    costs `now_j`; `price_w` is not negative. Infinite where every move is late.
    """
    groups, width, known = paths.shape
    best, at, to = np.inf, 0, 0
    for group in range(groups):
        now = choice[group]
        for clock in range(width):
            moved_j = now_j + cost_j[group, clock] - cost_j[group, now]
            if not moved_j < best:
                continue
            time_s = 0.0
            for path in range(known):
                path_s = sums_s[path] + paths[group, clock, path] - paths[group, now, path]
                time_s = max(time_s, path_s)
            value = moved_j + price_w * time_s if time_s <= limit_s else np.inf
            if value < best:
                best, at, to = value, group, clock
    moved = choice.copy()
    moved[at] = to
    return best, moved


@exact
def two(
    paths: Floats,
    sums_s: Floats,
    cost_j: Floats,
    now_j: float,
    choice: Ints,
    limit_s: float,
    price_w: float,
) -> tuple[float, Ints]:
    """The best move of two groups at once: one gives the time that another uses."""
    groups, steps, known = len(paths), 2 * REACH + 1, paths.shape[2]
    near, delta_j, delta_s = _around(paths, cost_j, choice)
    best, at, to, other_at, other_to = np.inf, 0, 0, 0, 0
    begun_s = np.empty(known)
    for group in range(groups - 1):
        for step in range(steps):
            begun_j = now_j + delta_j[group, step]
            for path in range(known):
                begun_s[path] = sums_s[path] + delta_s[group, step, path]
            for other in range(group + 1, groups):
                for other_step in range(steps):
                    moved_j = begun_j + delta_j[other, other_step]
                    if not moved_j < best:
                        continue
                    time_s = _slowest_s(begun_s, delta_s[other, other_step], limit_s)
                    value = moved_j + price_w * time_s if time_s <= limit_s else np.inf
                    if value < best:
                        best, at, to = value, group, step
                        other_at, other_to = other, other_step
    moved = choice.copy()
    if best < np.inf:
        moved[at] = near[at, to]
        moved[other_at] = near[other_at, other_to]
    return best, moved


@exact
def _around(paths: Floats, cost_j: Floats, choice: Ints) -> tuple[Ints, Floats, Floats]:
    """Clocks near each group's (groups, steps), and what they add to its cost and to each path;
    beyond the ends of a menu the group stays.
    """
    groups, width, known = paths.shape
    steps = 2 * REACH + 1
    near = np.empty((groups, steps), dtype=np.int64)
    delta_j, delta_s = np.empty((groups, steps)), np.empty((groups, steps, known))
    for group in range(groups):
        now = choice[group]
        for step in range(steps):
            clock = now + step - REACH
            if clock < 0 or clock >= width:
                clock = now
            near[group, step] = clock
            delta_j[group, step] = cost_j[group, clock] - cost_j[group, now]
            for path in range(known):
                delta_s[group, step, path] = paths[group, clock, path] - paths[group, now, path]
    return near, delta_j, delta_s


@exact
def _slowest_s(begun_s: Floats, delta_s: Floats, limit_s: float) -> float:
    """The time of the slowest path, or of the first that is late."""
    time_s = 0.0
    for path in range(len(begun_s)):
        time_s = max(time_s, begun_s[path] + delta_s[path])
        if time_s > limit_s:
            break
    return time_s
