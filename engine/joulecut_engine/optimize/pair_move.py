"""The best next step of a search over clocks that many operations share.

A choice takes one clock per group; known paths tell its iteration time from below. Nearly all of
such a search tries one group or two at once, so that is compiled, and leaves a move as soon as it
cannot be the best. The first of the best in order is the answer all the same.
"""

import numpy as np

from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Floats, Ints

REACH = 6  # clocks by which two groups move at once; any distance found nothing better


def single_move(
    paths: Floats,
    sums_s: Floats,
    cost_j: Floats,
    now_j: float,
    choice: Ints,
    limit_s: float,
    price_w: float,
) -> tuple[float, Ints]:
    """The best move of one group to any clock, and its value: cost_j + price_w * time.

    `paths` (groups, choices, paths) are seconds; the choice takes `sums_s` (paths,) on each and
    costs `now_j`; `price_w` is not negative. Infinite where every move is late.
    """
    best = np.array([np.inf, 0, 0])
    _singles(paths, sums_s, cost_j, now_j, choice, limit_s, price_w, best)
    at, to = best[1:].astype(np.int64).tolist()
    moved = choice.copy()
    moved[at] = to
    return float(best[0]), moved


def pair_move(
    paths: Floats,
    sums_s: Floats,
    cost_j: Floats,
    now_j: float,
    choice: Ints,
    limit_s: float,
    price_w: float,
) -> tuple[float, Ints]:
    """The best move of two groups at once: one gives the time that the other uses."""
    groups, width = cost_j.shape
    steps = np.arange(-REACH, REACH + 1)
    near = choice[:, None] + steps
    near = np.where((near < 0) | (near >= width), choice[:, None], near)
    group = np.arange(groups)
    delta_j = cost_j[group[:, None], near] - cost_j[group, choice][:, None]
    delta_s = paths[group[:, None], near] - paths[group, choice][:, None, :]
    best = np.array([np.inf, 0, 0, 0, 0])
    _pairs(delta_j, np.ascontiguousarray(delta_s), sums_s, now_j, limit_s, price_w, best)
    moved = choice.copy()
    if best[0] < np.inf:
        one, step, other, other_step = best[1:].astype(np.int64).tolist()
        moved[one], moved[other] = near[one, step], near[other, other_step]
    return float(best[0]), moved


@compiled
def _singles(
    paths: Floats,
    sums_s: Floats,
    cost_j: Floats,
    now_j: float,
    choice: Ints,
    limit_s: float,
    price_w: float,
    best: Floats,
) -> None:
    """Writes the value of the best move, and which: group, choice."""
    groups, width, known = paths.shape
    for group in range(groups):
        now = choice[group]
        for to in range(width):
            moved_j = now_j + cost_j[group, to] - cost_j[group, now]
            if not moved_j < best[0]:
                continue
            time_s = 0.0
            for path in range(known):
                moved_s = sums_s[path] + paths[group, to, path] - paths[group, now, path]
                time_s = max(time_s, moved_s)
                if time_s > limit_s:
                    break
            value = moved_j + price_w * time_s
            if time_s <= limit_s and value < best[0]:
                best[0], best[1], best[2] = value, group, to


@compiled
def _pairs(
    delta_j: Floats,
    delta_s: Floats,
    sums_s: Floats,
    now_j: float,
    limit_s: float,
    price_w: float,
    best: Floats,
) -> None:
    """Writes the value of the best pair of moves, and which: group, step, group, step."""
    groups, steps, known = delta_s.shape
    begun_s = np.empty(known)
    for group in range(groups - 1):
        for step in range(steps):
            begun_j = now_j + delta_j[group, step]
            for path in range(known):
                begun_s[path] = sums_s[path] + delta_s[group, step, path]
            for other in range(group + 1, groups):
                for other_step in range(steps):
                    moved_j = begun_j + delta_j[other, other_step]
                    if not moved_j < best[0]:
                        continue
                    time_s = 0.0
                    for path in range(known):
                        time_s = max(time_s, begun_s[path] + delta_s[other, other_step, path])
                        if time_s > limit_s:
                            break
                    value = moved_j + price_w * time_s
                    if time_s <= limit_s and value < best[0]:
                        best[0], best[1], best[2] = value, group, step
                        best[3], best[4] = other, other_step
