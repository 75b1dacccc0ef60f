"""How soon after one clock change of a GPU the next may come, and how late it has to.

A clock has to be kept for a minimum dwell. The starts of operations depend on all GPUs together, so
a schedule of one GPU can only be judged from two sides. The longest path at the fastest clocks is
the least time between two starts: changes that far apart keep the dwell in every plan. A deadline
gives each operation an earliest and a latest start: changes closer than these allow break the dwell
in every plan, and a bound rests on that. Iterations repeat, so both sides count over the end.

A stretch at a slow clock can be late by itself: where the longest path that goes through it is
longer than the deadline even if all else is at its fastest. No plan in time holds it, so bounds
need not either.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Floats, Ints, Levels

TOLERANCE = 1e-10  # relative; the check's is 1e-9
LATE = 1e-9  # of a deadline: what floats differ by


@dataclass(frozen=True, slots=True)
class Spacing:
    """Places are those of a GPU's operations in their order, then of the next iteration's.

    `next_safe` (operations,) is the first place after each at which every plan has kept the dwell;
    `head_s` and `tail_s` are the longest paths before each operation and from its start to the
    end. `work_s` (operations, columns) is what an operation takes of its GPU.
    """

    next_safe: Ints
    head_s: Floats
    tail_s: Floats
    work_s: Floats
    dwell_s: float

    def kept(self, keys: NDArray[np.int16], changes: Ints) -> bool:
        """Whether a schedule (operations,) of columns keeps the dwell after each of its `changes`
        (places) in every plan."""
        size = len(self.next_safe)
        done_s = np.concatenate([[0.0], np.cumsum(self.work_s[np.arange(size), keys])])
        again = np.append(changes[1:], changes[0] + size)
        own_s = done_s[again % size] + done_s[-1] * (again // size) - done_s[changes]
        return bool(((again >= self.next_safe[changes]) | (own_s >= self.dwell_s)).all())

    def until(self, first: int) -> Ints:
        """Walked from operation `first` on, by operation and column: the place where a clock set
        there may change again, as `k_change_dp.cheapest` takes it."""
        size, columns = self.work_s.shape
        order = np.roll(np.arange(size), -first)
        next_safe = self.next_safe[order] - first + size * (order < first)
        work_s = np.where(np.isfinite(self.work_s), self.work_s, 0.0)
        until = np.empty((size, columns), dtype=np.int64)
        for column in range(columns):
            done_s = np.concatenate([[0.0], np.cumsum(work_s[order, column])])
            enough = np.searchsorted(done_s, done_s[:-1] + self.dwell_s)
            until[:, column] = np.minimum(next_safe, enough)
        until = np.maximum(until, np.arange(1, size + 1)[:, None])
        return np.maximum.accumulate(until, axis=0)  # sends start in any order

    def latest(self, deadline_s: float, first: int = 0) -> Ints:
        """Walked from operation `first` on, by operation and column: the last place where a clock
        set there has to change, or the iteration is late in every plan."""
        size = len(self.next_safe)
        work_s = np.where(np.isfinite(self.work_s), self.work_s, 0.0)
        after_s = self.tail_s - self.work_s.min(axis=1)
        latest = _latest(self.head_s, after_s, work_s, deadline_s * (1 + LATE))
        beyond = np.where(latest < size, latest, size + latest[0])  # the next iteration's
        walked = [beyond[first:] - first, latest[:first] + size - first]
        places: Ints = np.minimum(np.concatenate(walked), size)
        return places

    def next_possible(self, deadline_s: float) -> Ints:
        """By operation and column: where some plan within the deadline may change again; the end
        where that is in the next iteration."""
        size, columns = self.work_s.shape
        late_s = np.maximum.accumulate(deadline_s - self.tail_s)
        until = np.searchsorted(late_s, self.head_s + self.dwell_s)
        until = np.minimum.accumulate(np.clip(until, np.arange(size) + 1, size)[::-1])[::-1]
        return np.repeat(until[:, None], columns, axis=1)


def spacing(
    levels: Levels, order: Ints, fastest_s: Floats, work_s: Floats, dwell_s: float
) -> Spacing:
    """Of the GPU whose operations are `order`; `fastest_s` is by operation of the graph."""
    dwell_s *= 1 - TOLERANCE
    starts_s, tails_s = levels.around(fastest_s)
    head_s, tail_s = starts_s[order], tails_s[order]
    place = np.full(len(fastest_s), -1, dtype=np.int64)
    place[order] = np.where(work_s.max(axis=1) > 0.0, np.arange(len(order)), -1)
    next_safe = _next_safe(fastest_s, levels.begins, levels.before, order, place, dwell_s)
    beyond = np.searchsorted(np.maximum.accumulate(head_s), dwell_s - tail_s)
    next_safe = np.where(next_safe < 0, len(order) + beyond, next_safe)
    return Spacing(next_safe, head_s, tail_s, work_s, dwell_s)


@compiled
def _next_safe(
    seconds: Floats, begins: Ints, before: Ints, rows: Ints, place: Ints, dwell_s: float
) -> Ints:
    """By operation of a GPU (`rows`): the first `place` that a path of `dwell_s` leads to; -1 where
    the iteration ends before."""
    found = np.full(len(rows), -1, dtype=np.int64)
    after_s = np.empty(len(seconds))
    for k in range(len(rows)):
        after_s[:] = -1.0
        after_s[rows[k]] = 0.0
        for row in range(rows[k] + 1, len(seconds)):
            for at in range(begins[row], begins[row + 1]):
                if after_s[before[at]] >= 0.0:
                    after_s[row] = max(after_s[row], after_s[before[at]] + seconds[before[at]])
            if place[row] > k and after_s[row] >= dwell_s:
                found[k] = place[row]
                break
    return found


@compiled
def _latest(head_s: Floats, after_s: Floats, work_s: Floats, deadline_s: float) -> Ints:
    """By operation and column: the first place before which a stretch that begins there has to end;
    the number of operations where none has to. A path leads to an operation of the stretch, through
    the next ones up to another, and from there to the end. Those that may begin a late path stand
    in a queue, the latest first. Sends take no work and hold up nothing."""
    size, columns = work_s.shape
    latest = np.full((size, columns), size)
    queue, begins_s = np.empty(size, dtype=np.int64), np.empty(size)
    for f in range(columns):
        front, back, free, done_s = 0, 0, 0, 0.0
        for at in range(size):
            if work_s[at, f] <= 0.0:
                continue
            begin_s = head_s[at] - done_s
            while back > front and begins_s[back - 1] <= begin_s:
                back -= 1
            queue[back], begins_s[back] = at, begin_s
            back += 1
            done_s += work_s[at, f]
            while front < back and begins_s[front] + done_s + after_s[at] > deadline_s:
                latest[free : queue[front] + 1, f] = at
                free, front = queue[front] + 1, front + 1
    return latest
