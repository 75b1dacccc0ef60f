"""What two neighbouring stages lose together: strips with two spines, for a tighter bound.

A strip (`solve.strips`) sees one stage and, to either side, half of what it shares with its
neighbours. Here two stages that meet at the same events again and again walk together: from
one meeting each does an operation of its own (x and y seconds), then another (p and q) that
ends at the next meeting, so x + p = y + q; sides as for strips. All that a meeting hands on is
how much longer p may be than q, so one row of cells is the state, and a step costs the cube of
the cells of one operation. For four stages nothing is left out but the ramps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Floats, Ints


class Step(NamedTuple):
    """One meeting: rows that arrive from the spines, rows that leave, and sides, each beside
    the two of its spine; empty where there are none."""

    from_first: tuple[int, ...]
    from_second: tuple[int, ...]
    to_first: tuple[int, ...]
    to_second: tuple[int, ...]
    beside_first: tuple[int, ...]
    beside_second: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ladder:
    """What leaves one meeting and what arrives next runs between the same two events."""

    steps: tuple[Step, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        every = {row for step in self.steps for rows in step for row in rows}
        return tuple(sorted(every))


def meetings(first: Sequence[int], second: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Runs of positions in two lists of events where both are at the same one, two apart."""
    at = {event: k for k, event in enumerate(second)}
    runs = list[list[tuple[int, int]]]()
    for i, event in enumerate(first):
        if event not in at:
            continue
        if runs and runs[-1][-1] == (i - 2, at[event] - 2):
            runs[-1].append((i, at[event]))
        else:
            runs.append([(i, at[event])])
    return [run for run in runs if len(run) > 1]


@exact
def _doubled(side: Floats, count: int, base: int, out: Floats, shift: int) -> None:
    """out[k]: least of the side in the two cells that begin at `shift + k`; free beyond."""
    for k in range(len(out)):
        cell = shift + k - base
        if cell >= count:
            out[k] = 0.0
        elif cell >= 0:
            out[k] = side[cell]
            if cell + 1 < count:
                out[k] = min(out[k], side[cell + 1])
            else:
                out[k] = 0.0
        elif cell == -1:
            out[k] = side[0]
        else:
            out[k] = np.inf


@exact
def walked(
    base: Ints, value: Floats, count: Ints, beyond: Floats, steps: int, n: int
) -> tuple[float, float]:
    """The least sum over a run of meetings, and how many cells met for it. Tables are, step by
    step, the four of `Step` that belong to spines, of `n` cells at most, and after all of these
    two sides for each step."""
    # tie[n + d]: the least before, if the row that arrives takes `offset + d` cells more in the
    # first spine than in the second; free: whatever it takes; loose: where nothing ties.
    tie = np.zeros(2 * n + 2)
    free = loose = work = 0.0
    offset = 0
    left, right = np.empty(2 * n), np.empty(2 * n)
    half, both = np.empty((n + 1, n + 1)), np.empty((n + 1, n + 1))
    for k in range(steps):
        a, b, x, y = 4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3
        side = 4 * steps + 2 * k
        _doubled(value[side], count[side], base[side], left, base[a] + base[x])
        _doubled(value[side + 1], count[side + 1], base[side + 1], right, base[b] + base[y])
        work += _arrive(
            value[a, : count[a]],
            value[b, : count[b]],
            (beyond[a], beyond[b], free, loose),
            tie,
            base[a] - base[b] - offset + n,
            left,
            half[: count[b] + 1, : count[x] + 1],
        )
        work += _cross(
            half[: count[b] + 1, : count[x] + 1], right, both[: count[x] + 1, : count[y] + 1]
        )
        free, loose = _leave(
            both[: count[x] + 1, : count[y] + 1],
            value[x, : count[x]],
            value[y, : count[y]],
            (beyond[x], beyond[y]),
            tie,
            n,
        )
        offset = base[y] - base[x]
    return free, work


@exact
def _arrive(
    first: Floats,
    second: Floats,
    ends: tuple[float, float, float, float],
    tie: Floats,
    shift: int,
    side: Floats,
    half: Floats,
) -> float:
    """half[q, x]: the least over p; the last of each stands for all that is beyond."""
    first_beyond, second_beyond, free, loose = ends
    most = free + first_beyond + second_beyond  # p and q beyond: leads on to anything
    nx, work = half.shape[1] - 1, 0.0
    for q in range(len(second) + 1):
        inside = q < len(second)
        own = second[q] if inside else second_beyond
        row, limit = half[q], min(most, free + own + first_beyond)
        row[:] = free + own + first_beyond
        for p in range(len(first)):
            v = own + first[p]
            d = p - q + shift
            if not inside:
                v += free
            elif 0 <= d < len(tie):
                v += tie[d]
            else:
                v += loose
            if v >= limit:
                continue
            row[nx] = min(row[nx], v)
            work += nx
            for x in range(nx):
                now = v + side[p + x]
                if now < row[x]:  # noqa: PLR1730 - min() is not made lanes of
                    row[x] = now
    return work


@exact
def _cross(half: Floats, side: Floats, both: Floats) -> float:
    """both[x, y]: the least over q."""
    last, ny, work = half.shape[0] - 1, both.shape[1] - 1, 0.0
    for x in range(both.shape[0]):
        row, limit = both[x], half[last, x]
        row[:] = limit
        for q in range(last):
            v = half[q, x]
            if v >= limit:
                continue
            row[ny] = min(row[ny], v)
            work += ny
            for y in range(ny):
                now = v + side[q + y]
                if now < row[y]:  # noqa: PLR1730
                    row[y] = now
    return work


@exact
def _leave(
    both: Floats, first: Floats, second: Floats, ends: tuple[float, float], tie: Floats, middle: int
) -> tuple[float, float]:
    """Losses of what leaves added; then what the next may differ by. Cells x and y leave a
    difference within one cell of theirs, so does what arrives: neighbours count."""
    nx, ny = len(first), len(second)
    loose = np.inf
    for x in range(nx + 1):
        own = first[x] if x < nx else ends[0]
        for y in range(ny + 1):
            both[x, y] += own + (second[y] if y < ny else ends[1])
        loose = min(loose, both[x, ny])
    for y in range(ny + 1):
        loose = min(loose, both[nx, y])
    free = loose
    tie[:] = loose
    for x in range(nx):
        for y in range(ny):
            v = both[x, y]
            if v < loose:
                free = min(free, v)
                d = y - x + middle
                for near in range(d - 1, d + 2):
                    tie[near] = min(tie[near], v)
    return free, loose
