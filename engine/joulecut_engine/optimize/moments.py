"""Moments with lags between them: what a transfer beside the work leaves of a common moment.

Where nothing is sent, two stages that hand over to each other meet in one moment
(`solve.events`). A send of fixed duration that neither side waits for is no operation to choose
for but a lag: who receives begins so much later than the sender is done. Then a meeting is two
moments. With p and p' the operations before it, q and q' those after it on the same two stages,
u and v the moments in which q and q' begin,

    u = max(end p, end p' + d'),   v = max(end p + d, end p'),

so v - u lies between -d' and d whatever the plan, and p has until v - d, p' until u - d'. In
other words p takes v - begin p less a lag, p' takes u - begin p' less a lag, and each moment may
come before the other by a lag at most. That is a graph of moments again: arcs are operations or
waits, each at least so long, and what flows through it is what flows through the network.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import Network


class Waits(NamedTuple):
    """Arcs that are no operation: at least `lag_s` from tail to head; may be negative."""

    tail: Ints
    head: Ints
    lag_s: Floats
    link: Ints  # what flows there


class Meets(NamedTuple):
    """Two moments that two stages share, and which waits keep them near each other: `after` says
    how late the second may be, `before` how early."""

    first: Ints
    second: Ints
    after: Ints
    before: Ints


@dataclass(frozen=True, slots=True)
class Moments:
    """`begin`, `done` and `lag_s` by row of the network; rows that are lags are in `folded` and
    have none. Moment 0 is the start of the iteration, 1 the end.

    `runs` are rows of a stage, each beginning when the one before is done or meeting another
    stage there. Lengths are told by the first moment of a meeting, that of the earlier run: the
    row of it that ends there ends in the second (`ends` names the meeting, else -1), and so begins
    the row of the later run (`begins`).
    """

    count: int
    begin: Ints
    done: Ints
    lag_s: Floats
    waits: Waits
    meets: Meets
    folded: Ints
    runs: tuple[tuple[int, ...], ...]
    begins: Ints
    ends: Ints


class _Way(NamedTuple):
    head: int
    lag_s: float
    link: int


def moments_of(network: Network, lines: Sequence[Ints]) -> Moments:
    """`lines` are the rows of each stage in order, its sends among them or not."""
    folded = _lags(network)
    onward, before = _ways(network, folded)
    lines_kept = [[row for row in line.tolist() if row not in folded] for line in lines]
    line_of = {row: k for k, line in enumerate(lines_kept) for row in line}
    at = {row: 2 + k for k, row in enumerate(r for r in range(network.size) if r not in folded)}
    at[network.size] = 1
    own = {p: q for line in lines_kept for p, q in pairwise(line)}
    count = 2 + len(at) - 1
    begin, done = np.zeros(network.size, dtype=np.int64), np.ones(network.size, dtype=np.int64)
    lag_s = np.zeros(network.size)
    waits: list[tuple[int, int, float, int]] = []
    across: dict[int, _Way] = {}  # by row that ends in a meeting: where to on the other stage
    for row, moment in list(at.items())[:-1]:  # but the end
        begin[row] = moment
        ways = onward[row]
        met = _across(row, own, onward, before, line_of)
        if met is not None:
            across[row] = met
            done[row], lag_s[row] = at[met.head], met.lag_s
            stays = next(way for way in ways if way is not met)
            waits.append((at[met.head], at[stays.head], -met.lag_s, stays.link))
        elif len(ways) == 1:
            done[row], lag_s[row] = at[ways[0].head], ways[0].lag_s
        else:
            done[row] = count
            waits += [(count, at[way.head], way.lag_s, way.link) for way in ways]
            count += 1
    tails, heads = network.tails.tolist(), network.heads.tolist()
    waits += [(0, at[heads[k]], 0.0, k) for k in range(len(tails)) if tails[k] < 0]
    runs = _runs(lines_kept, across, begin, done)
    run_of = {row: k for k, run in enumerate(runs) for row in run}
    number = {(w[0], w[1]): k for k, w in enumerate(waits)}
    meets = list[tuple[int, int, int, int]]()
    begins, ends = np.full(network.size, -1), np.full(network.size, -1)
    for p, way in across.items():
        q, q2 = own[p], way.head
        p2 = next(tail for tail in before[q] if tail != p)
        if p in run_of and p2 in run_of and run_of[p] < run_of[p2]:
            ends[p] = begins[q2] = len(meets)
            u, v = at[q], at[q2]
            meets.append((u, v, number[v, u], number[u, v]))
    tail, head, lags, links = (list(part) for part in zip(*waits, strict=True))
    return Moments(
        count=count,
        begin=begin,
        done=done,
        lag_s=lag_s,
        waits=Waits(np.array(tail), np.array(head), np.array(lags), np.array(links)),
        meets=Meets(*np.array(meets, dtype=np.int64).reshape(-1, 4).T),
        folded=np.array(sorted(folded), dtype=np.int64),
        runs=tuple(map(tuple, runs)),
        begins=begins,
        ends=ends,
    )


def _lags(network: Network) -> set[int]:
    """Rows of one duration between one row and another, none of them beside another such."""
    curves = network.curves.distinct
    found = set()
    for row in range(network.size):
        into = network.entering[network.enters[row] : network.enters[row + 1]]
        onto = range(int(network.leaves[row]), int(network.leaves[row + 1]))
        if len(into) != 1 or len(onto) != 1 or len(curves[network.curve[row]].time_s) > 1:
            continue
        tail, head = int(network.tails[into[0]]), int(network.heads[onto[0]])
        if tail >= 0 and head < network.size and tail not in found and head not in found:
            found.add(row)
    return found


def _ways(network: Network, folded: set[int]) -> tuple[list[list[_Way]], dict[int, set[int]]]:
    """From each row to those that wait for it, lags between; and what each row waits for."""
    onward: list[list[_Way]] = [[] for _ in range(network.size)]
    before: dict[int, set[int]] = defaultdict(set)
    heads, leaves = network.heads.tolist(), network.leaves.tolist()
    for row in range(network.size):
        if row in folded:
            continue
        for link in range(leaves[row], leaves[row + 1]):
            head, lag_s = heads[link], 0.0
            if head in folded:
                curve = network.curves.distinct[network.curve[head]]
                head, lag_s = heads[leaves[head]], float(curve.time_s[0])
            onward[row].append(_Way(head, lag_s, link))
            before[head].add(row)
    return onward, before


def _across(
    p: int,
    own: dict[int, int],
    onward: list[list[_Way]],
    before: dict[int, set[int]],
    line_of: dict[int, int],
) -> _Way | None:
    """Where a row leads to on another stage if two stages meet when it is done: two rows that
    each lead to the same two, and these wait for nothing else."""
    q = own.get(p)
    if q is None or len(onward[p]) != 2 or len(before[q]) != 2 or p not in before[q]:
        return None
    p2 = next(tail for tail in before[q] if tail != p)
    q2 = own.get(p2)
    if q2 is None or q2 == q or before[q2] != before[q] or line_of[p] == line_of[p2]:
        return None
    heads = {q, q2}
    if {w.head for w in onward[p]} != heads or {w.head for w in onward[p2]} != heads:
        return None
    if any(w.lag_s > 0.0 for w in onward[p] if w.head == q):
        return None
    if any(w.lag_s > 0.0 for w in onward[p2] if w.head == q2) or len(onward[p2]) != 2:
        return None
    return next(way for way in onward[p] if way.head == q2)


def _runs(
    lines: list[list[int]], across: dict[int, _Way], begin: Ints, done: Ints
) -> list[list[int]]:
    found = []
    for line in lines:
        runs = [line[:1]]
        for p, q in pairwise(line):
            if p in across or done[p] == begin[q]:
                runs[-1].append(q)
            else:
                runs.append([q])
        found += [run for run in runs if len(run) > 1]
    return found
