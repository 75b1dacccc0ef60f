"""The pipeline graph: operations of one iteration and what each must wait for.

Pure. Edges are data dependencies and the order in which a stage works through its
operations; neither carries communication time here.
"""

from dataclasses import dataclass

from joulecut_controller.workload import Operation


@dataclass(frozen=True, slots=True)
class Graph:
    """A directed acyclic graph in topological order.

    `operations[i]` may depend only on operations before it; `edges` holds index pairs
    (before, after), sorted and unique. `order[s]` lists the indices of stage s in the
    order in which it runs them.
    """

    operations: tuple[Operation, ...]
    edges: tuple[tuple[int, int], ...]
    order: tuple[tuple[int, ...], ...]
