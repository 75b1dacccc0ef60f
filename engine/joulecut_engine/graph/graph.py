"""Directed acyclic graph of operations, in topological levels; circles are found here.

Every description of an iteration, a schedule or a file, becomes a `Graph` by `graph_of`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from joulecut_engine.graph.pipeline import SENDS, Operation

NAMED_MAX = 4  # members of a circle repeated in a complaint; the rest is counted


@dataclass(frozen=True, slots=True)
class Graph:
    """A directed acyclic graph in topological order.

    `operations[i]` may depend only on operations before it; `edges` holds index pairs
    (before, after), sorted and unique. `order[s]` lists the indices of stage s in the
    order in which it runs them; concurrent sends stand where they may start.
    """

    operations: tuple[Operation, ...]
    edges: tuple[tuple[int, int], ...]
    order: tuple[tuple[int, ...], ...]


class Circular(ValueError):
    """Operations that wait for each other; `circle` names them in order."""

    def __init__(self, circle: Sequence[Operation]) -> None:
        self.circle = tuple(circle)
        names = [str(operation) for operation in circle[:NAMED_MAX]]
        if len(circle) > NAMED_MAX:
            names.append(f"{len(circle) - NAMED_MAX} more")
        super().__init__(f"circle: {' -> '.join([*names, str(circle[0])])}")


def graph_of(
    operations: Sequence[Operation], edges: Iterable[tuple[int, int]], stages: int
) -> Graph:
    """Sort operations by topological level, then by stage.

    `edges` index `operations` and include the order of every GPU's work. Raises Circular.
    """
    unique = set(edges)
    after: list[list[int]] = [[] for _ in operations]
    missing = [0] * len(operations)
    for first, second in unique:
        after[first].append(second)
        missing[second] += 1

    ranks = sorted(
        range(len(operations)),
        key=[(o.stage, o.kind in SENDS, i) for i, o in enumerate(operations)].__getitem__,
    )
    rank = [0] * len(operations)
    for at, i in enumerate(ranks):
        rank[i] = at
    place = rank.__getitem__

    order: list[int] = []
    level = sorted((i for i, count in enumerate(missing) if not count), key=place)
    while level:
        order += level
        free = []
        for i in level:
            for j in after[i]:
                missing[j] -= 1
                if not missing[j]:
                    free.append(j)
        level = sorted(free, key=place)
    if len(order) < len(operations):
        raise Circular([operations[i] for i in _circle(after, missing)])
    index = [0] * len(operations)
    for new, old in enumerate(order):
        index[old] = new
    programs: list[list[int]] = [[] for _ in range(stages)]
    for new, old in enumerate(order):
        programs[operations[old].stage].append(new)
    return Graph(
        operations=tuple(operations[i] for i in order),
        edges=tuple(sorted((index[a], index[b]) for a, b in unique)),
        order=tuple(map(tuple, programs)),
    )


def longest_path(graph: Graph, duration_s: Sequence[float]) -> tuple[int, ...]:
    """Indices of one critical path, first to last."""
    end_s: list[float] = []
    before: list[list[int]] = [[] for _ in graph.operations]
    for first, second in graph.edges:
        before[second].append(first)
    for i, seconds in enumerate(duration_s):
        end_s.append(max((end_s[j] for j in before[i]), default=0.0) + seconds)
    path = [max(range(len(end_s)), key=end_s.__getitem__)]
    while before[path[-1]]:
        path.append(max(before[path[-1]], key=end_s.__getitem__))
    return tuple(reversed(path))


def _circle(after: list[list[int]], missing: list[int]) -> list[int]:
    """One circle among operations that never became free."""
    before: dict[int, int] = {}
    for i, successors in enumerate(after):
        if missing[i]:
            before.update((j, i) for j in successors if missing[j])
    at = next(iter(before))
    seen: dict[int, int] = {}
    walk: list[int] = []
    while at not in seen:
        seen[at] = len(walk)
        walk.append(at)
        at = before[at]
    return list(reversed(walk[seen[at] :]))
