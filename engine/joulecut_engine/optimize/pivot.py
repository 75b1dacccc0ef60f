"""A spanning tree that walks from one optimal corner to the next: the frontier's engine.

Primal network simplex with piecewise-linear arcs (an arc's length falls from piece to piece
as its flow grows), after Ahuja, Magnanti and Orlin, Network Flows (1993), chapter 11. Trees
stay strongly feasible (Cunningham 1976), so ties between identical stages cannot make it
circle. Everything is an integer: no tolerance decides anything.

A new deadline changes one length, so a neighbouring point of the frontier costs a few pivots;
a cold one costs thousands, and the interior-point method is faster there.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Ints

Bools = NDArray[np.bool_]
Small = NDArray[np.int32]


class Arcs(NamedTuple):
    """Piece j of arc a is at first[a] + j: its length, and from which flow to which it counts."""

    tail: Small
    head: Small
    first: Ints
    length: Ints
    low: Ints
    high: Ints


class Tree(NamedTuple):
    """`piece` of a tree arc is the one its flow is in; of another arc, the next one upwards.

    Node arrays: time (potential), parent, the arc to it, whether that arc points upwards,
    depth, and children as linked lists.
    """

    piece: Small
    flow: Ints
    member: Bools
    time: Ints
    parent: Small
    arc: Small
    upwards: Bools
    depth: Small
    child: Small
    following: Small
    previous: Small
    stack: Small
    cursor: Ints  # one entry: where pricing goes on


@exact
def plant(arcs: Arcs, tree: Tree, leaves: Ints) -> None:
    """Each node hangs on what keeps it from being later; the root is the sink."""
    rows = len(leaves) - 1
    source, sink = 2 * rows, 2 * rows + 1
    for k in range(rows - 1, -1, -1):
        chosen = rows + leaves[k]
        for at in range(rows + leaves[k], rows + leaves[k + 1]):
            if tree.time[arcs.head[at]] < tree.time[arcs.head[chosen]]:
                chosen = at
        _hang(arcs, tree, rows + k, chosen)
        _hang(arcs, tree, k, k)
    first = rows + leaves[rows]
    for at in range(rows + leaves[rows], len(arcs.tail) - 1):
        if tree.time[arcs.head[at]] < tree.time[arcs.head[first]]:
            first = at
    _hang(arcs, tree, source, first)
    _move(tree, sink, 0)


@exact
def _hang(arcs: Arcs, tree: Tree, node: int, arc: int) -> None:
    parent = arcs.head[arc]
    tree.time[node] = tree.time[parent] - arcs.length[arcs.first[arc]]
    tree.parent[node], tree.arc[node], tree.member[arc] = parent, arc, True
    _link(tree, parent, node)


@exact
def optimise(arcs: Arcs, tree: Tree, pivots_max: int) -> int:
    """Pivots until no arc can gain. Returns how many were needed."""
    for pivots in range(pivots_max):
        arc, forwards = _price(arcs, tree)
        if arc < 0:
            return pivots
        _pivot(arcs, tree, arc, forwards)
    return pivots_max


@exact
def shift(arcs: Arcs, tree: Tree, arc: int, piece: int, length: int) -> None:
    """Gives one piece of an arc another length; a tree that hangs on it moves along."""
    change = length - arcs.length[arcs.first[arc] + piece]
    arcs.length[arcs.first[arc] + piece] = length
    if not tree.member[arc] or tree.piece[arc] != piece:
        return
    if tree.arc[arcs.head[arc]] == arc:
        _move(tree, arcs.head[arc], change)
    else:
        _move(tree, arcs.tail[arc], -change)


@exact
def _price(arcs: Arcs, tree: Tree) -> tuple[int, bool]:
    """The best arc of the first block that has one (block search); -1 where none gains."""
    count = len(arcs.tail)
    block = max(16, int(np.sqrt(count)))
    best, found, forwards = 0, -1, True
    arc = tree.cursor[0]
    for scanned in range(1, count + 1):
        if not tree.member[arc]:
            at = arcs.first[arc] + tree.piece[arc]
            apart = tree.time[arcs.head[arc]] - tree.time[arcs.tail[arc]]
            if arcs.length[at] - apart > best:
                best, found, forwards = arcs.length[at] - apart, arc, True
            if tree.piece[arc] > 0 and apart - arcs.length[at - 1] > best:
                best, found, forwards = apart - arcs.length[at - 1], arc, False
        arc = arc + 1 if arc + 1 < count else 0
        if scanned % block == 0 and found >= 0:
            break
    tree.cursor[0] = arc
    return found, forwards


@exact
def _pivot(arcs: Arcs, tree: Tree, arc: int, forwards: bool) -> None:
    """Pushes flow around the cycle that `arc` closes until an arc reaches the end of its piece."""
    u, v = arcs.tail[arc], arcs.head[arc]
    if not forwards:
        u, v = v, u
    join = _join(tree, u, v)
    at = arcs.first[arc] + tree.piece[arc]
    room = arcs.high[at] - tree.flow[arc] if forwards else tree.flow[arc] - arcs.low[at - 1]
    room, leaver, from_u = _narrowest(arcs, tree, u, v, join, room)
    _push(tree, u, join, -room)
    _push(tree, v, join, room)
    tree.flow[arc] += room if forwards else -room
    if leaver < 0:
        tree.piece[arc] += 1 if forwards else -1
        return
    gone = tree.arc[leaver]
    if tree.upwards[leaver] != from_u:
        tree.piece[gone] += 1
    tree.member[gone] = False
    if not forwards:
        tree.piece[arc] -= 1
    tree.member[arc] = True
    cut, keeps = (u, v) if from_u else (v, u)
    length = arcs.length[arcs.first[arc] + tree.piece[arc]]
    upwards = cut == arcs.tail[arc]
    goal = tree.time[keeps] - length if upwards else tree.time[keeps] + length
    change = goal - tree.time[cut]
    _rehang(tree, cut, leaver, keeps, arc, upwards)
    _move(tree, cut, change)


@exact
def _join(tree: Tree, u: int, v: int) -> int:
    while u != v:
        if tree.depth[u] > tree.depth[v]:
            u = tree.parent[u]
        elif tree.depth[v] > tree.depth[u]:
            v = tree.parent[v]
        else:
            u, v = tree.parent[u], tree.parent[v]
    return u


@exact
def _narrowest(
    arcs: Arcs, tree: Tree, u: int, v: int, join: int, room: int
) -> tuple[int, int, bool]:
    """How much fits, the node below the arc that limits it (-1: the entering one), and on which
    side. Of equals the last one along the cycle from the join: that keeps trees strong."""
    leaver, from_u = -1, False
    x = u
    while x != join:
        b = tree.arc[x]
        at = arcs.first[b] + tree.piece[b]
        left = tree.flow[b] - arcs.low[at] if tree.upwards[x] else arcs.high[at] - tree.flow[b]
        if left < room:
            room, leaver, from_u = left, x, True
        x = tree.parent[x]
    x = v
    while x != join:
        b = tree.arc[x]
        at = arcs.first[b] + tree.piece[b]
        left = arcs.high[at] - tree.flow[b] if tree.upwards[x] else tree.flow[b] - arcs.low[at]
        if left <= room:
            room, leaver, from_u = left, x, False
        x = tree.parent[x]
    return room, leaver, from_u


@exact
def _push(tree: Tree, x: int, join: int, amount: int) -> None:
    while x != join:
        tree.flow[tree.arc[x]] += amount if tree.upwards[x] else -amount
        x = tree.parent[x]


@exact
def _rehang(tree: Tree, cut: int, last: int, keeps: int, arc: int, upwards: bool) -> None:
    """Turns the path from `cut` up to `last` around and hangs it below `keeps`."""
    x, parent = cut, keeps
    while True:
        old_parent, old_arc, old_upwards = tree.parent[x], tree.arc[x], tree.upwards[x]
        _unlink(tree, old_parent, x)
        tree.parent[x], tree.arc[x], tree.upwards[x] = parent, arc, upwards
        _link(tree, parent, x)
        if x == last:
            return
        parent, arc, upwards = x, old_arc, not old_upwards
        x = old_parent


@exact
def _link(tree: Tree, parent: int, x: int) -> None:
    first = tree.child[parent]
    tree.following[x], tree.previous[x] = first, -1
    if first >= 0:
        tree.previous[first] = x
    tree.child[parent] = x


@exact
def _unlink(tree: Tree, parent: int, x: int) -> None:
    before, after = tree.previous[x], tree.following[x]
    if before >= 0:
        tree.following[before] = after
    else:
        tree.child[parent] = after
    if after >= 0:
        tree.previous[after] = before


@exact
def _move(tree: Tree, top: int, change: int) -> None:
    """Shifts the times of a subtree and renews its depths."""
    tree.stack[0] = top
    waiting = 1
    while waiting > 0:
        waiting -= 1
        x = tree.stack[waiting]
        tree.time[x] += change
        if tree.parent[x] >= 0:
            tree.depth[x] = tree.depth[tree.parent[x]] + 1
        below = tree.child[x]
        while below >= 0:
            tree.stack[waiting] = below
            waiting += 1
            below = tree.following[below]
